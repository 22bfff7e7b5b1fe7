"""How networks are trained: one epoch of steps, several processes, memory, environments that are watched."""
