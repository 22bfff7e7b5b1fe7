"""Surroundings of Algorithm 1: collecting a rollout, and guarding a training from the first check to the last signal."""
