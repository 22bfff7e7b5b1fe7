"""Collect and prepare rollouts, check arguments, and guard a run against errors and signals."""
