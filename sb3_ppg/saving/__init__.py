"""Files of models and of runs in progress."""
