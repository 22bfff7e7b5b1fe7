"""Surroundings of Algorithm 1: checks, collecting and preparing rollouts, guarding a run from first step to last signal."""
