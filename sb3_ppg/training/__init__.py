"""Surroundings of Algorithm 1: checks, collecting and preparing rollouts, guarding a run from its first step to the last signal."""
