"""Runs of ``sb3-ppg train`` in processes of their own, and what several of them say about algorithms."""
