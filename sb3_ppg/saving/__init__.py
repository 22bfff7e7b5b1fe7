"""Files of models and of trainings in progress."""
