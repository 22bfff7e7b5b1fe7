"""Optimizer steps, the same for both phases."""
