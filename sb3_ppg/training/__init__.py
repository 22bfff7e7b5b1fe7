"""What surrounds Algorithm 1: one rollout, and a training from the first check to the last signal."""
