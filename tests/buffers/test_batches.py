"""Batches of several rollouts, and of what a sequence has once."""

import numpy as np
import pytest
import torch as th

from sb3_ppg.buffers.rollouts import Rollout, batches


def rollout(number: int, n_envs: int, n_steps: int) -> Rollout:
    """Targets are 1000 * rollout + 100 * env + step; ``env`` and, for sequences, ``first`` are there once."""
    targets = 1000.0 * number + 100 * np.arange(n_envs)[:, None] + np.arange(n_steps)
    env = 10 * number + np.arange(n_envs)[:, None]
    return Rollout({"targets": targets, "observations": targets[..., None], "env": env, "state": targets}, ("state",))


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_sequence_has_its_first_state_and_what_its_environment_has_once(length):
    rollouts = [rollout(number, 3, 4) for number in range(2)]
    parts = np.array_split(np.random.default_rng(0).permutation(24 // length), 3)
    starts = np.concatenate([rollout.arrays["targets"] for rollout in rollouts]).reshape(-1, length)[:, 0]
    for part, batch in zip(parts, batches(rollouts, parts, length, "cpu"), strict=True):
        sequences = batch.targets.reshape(-1, length)
        assert th.equal(sequences, sequences[:, :1] + th.arange(length)) and th.equal(batch.state, sequences[:, 0])
        np.testing.assert_array_equal(sequences[:, 0], starts[part])
        np.testing.assert_array_equal(batch.env, sequences[:, 0] // 1000 * 10 + sequences[:, 0] % 1000 // 100)
