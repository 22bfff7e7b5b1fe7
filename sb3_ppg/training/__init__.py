"""Collect rollouts, check arguments, exchange state between processes, and guard a run against errors and signals."""
