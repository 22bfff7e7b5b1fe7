"""Files of models and trainings: written beside the old ones, read as a stranger's."""
