"""Batches of rollouts of different lengths, and of what a sequence has once."""

import numpy as np
import pytest
import torch as th

from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.rollouts import Rollout, batches


def rollout(number: int, n_envs: int, n_steps: int) -> Rollout:
    """Targets are 1000 * rollout + 100 * env + step; ``env`` and, for sequences, ``first`` are there once."""
    targets = 1000.0 * number + 100 * np.arange(n_envs)[:, None] + np.arange(n_steps)
    env = 10 * number + np.arange(n_envs)[:, None]
    return Rollout({"targets": targets, "observations": targets[..., None], "env": env, "state": targets}, ("state",))


@pytest.mark.parametrize("sizes", [[(2, 4), (2, 4)], [(2, 4), (3, 7), (1, 5)]], ids=["equal", "of any size"])
def test_single_samples_may_be_of_rollouts_of_any_size(sizes):
    rollouts = [rollout(number, *size) for number, size in enumerate(sizes)]
    n_samples = sum(one.n_samples for one in rollouts)
    parts = np.array_split(np.random.default_rng(0).permutation(n_samples), 4)
    found = list(batches(rollouts, parts, 1, "cpu"))
    everything = np.concatenate([one.arrays["targets"].ravel() for one in rollouts])
    for part, batch in zip(parts, found, strict=True):
        np.testing.assert_array_equal(batch.targets, everything[part])
        assert th.equal(batch.observations[:, 0], batch.targets) and th.equal(batch.state, batch.targets)
        np.testing.assert_array_equal(batch.env, batch.targets // 1000 * 10 + batch.targets % 1000 // 100)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_sequence_has_its_first_state_and_what_its_environment_has_once(length):
    rollouts = [rollout(number, 3, 4) for number in range(2)]
    parts = np.array_split(np.random.default_rng(0).permutation(24 // length), 3)
    for batch in batches(rollouts, parts, length, "cpu"):
        sequences = batch.targets.reshape(-1, length)
        assert th.equal(sequences, sequences[:, :1] + th.arange(length)) and th.equal(batch.state, sequences[:, 0])
        np.testing.assert_array_equal(batch.env, sequences[:, 0] // 1000 * 10 + sequences[:, 0] % 1000 // 100)


def test_an_auxiliary_phase_of_rollouts_of_different_lengths():
    buffer = AuxBuffer()
    buffer.single_samples = True
    for number, n_steps in enumerate((4, 6, 5)):
        buffer.add(rollout(number, 2, n_steps))
    buffer.record(lambda batch: th.stack([batch.targets, -batch.targets], dim=1), 7)
    found = list(buffer.minibatches(8))
    assert sorted(th.cat([batch.targets for batch in found]).tolist()) == sorted(
        np.concatenate([one.arrays["targets"].ravel() for one in buffer.rollouts])
    )
    assert all(th.equal(batch.recorded, th.stack([batch.targets, -batch.targets], dim=1)) for batch in found)
