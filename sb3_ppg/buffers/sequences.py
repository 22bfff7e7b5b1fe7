"""Rollout buffers that return whole sequences, for LSTMs."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppg.buffers.rollouts import order_by_environment
from sb3_ppg.policies.lstm import pack_states


class SequenceSamples(NamedTuple):
    """Samples as in SB3, in sequences of equal length, B = n_sequences * length, with the inputs of LSTMs."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: th.Tensor  # before each sequence, (n_sequences, 4, n_layers, hidden size)
    episode_starts: th.Tensor  # (B,)


def longest_equal_part(whole: int, limit: int) -> int:
    """
    Return the largest divisor of ``whole`` that is at most ``limit``: the length of the longest equal parts of a rollout that
    fit into a minibatch.
    """
    pairs = ((part, whole // part) for part in range(1, math.isqrt(whole) + 1) if whole % part == 0)
    return max(part for pair in pairs for part in pair if part <= limit)


class SequenceRolloutBuffer(RolloutBuffer):
    """A rollout buffer that stores the LSTMs' states of each step and returns sequences, see ``longest_equal_part``."""

    recomputable: ClassVar[bool] = True
    new_arrays: ClassVar[bool] = True
    states_shape: tuple[int, ...] = (4, 0, 0)  # (4, n_layers, hidden size), once the network is there

    def reset(self) -> None:
        super().reset()
        self.lstm_states = np.zeros((self.buffer_size, self.n_envs, *self.states_shape), dtype=np.float32)

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:  # type: ignore[override]
        """Add a step, with the LSTMs' states before it."""
        self.lstm_states[self.pos] = pack_states(lstm_states).cpu().numpy()
        super().add(*args, **kwargs)

    def get(self, batch_size: int | None = None) -> Iterator[SequenceSamples]:  # type: ignore[override]
        """Return minibatches of shuffled sequences, of at most ``batch_size`` samples each; None: one with all samples."""
        return (some for _, some in self.samples(batch_size or self.buffer_size * self.n_envs, np.random.permutation))

    def samples(self, batch_size: int, order: Callable[[int], np.ndarray]) -> Iterator[tuple[np.ndarray, SequenceSamples]]:
        """See ``GivesSequences``."""
        assert self.full, "Rollout buffer must be full before sampling from it"
        order_by_environment(self)
        length = longest_equal_part(self.buffer_size, batch_size)
        firsts = length * order(self.buffer_size * self.n_envs // length)
        n_sequences = batch_size // length
        for start in range(0, len(firsts), n_sequences):
            some = firsts[start : start + n_sequences]
            places = (some[:, None] + np.arange(length)).ravel()
            memory = self.to_torch(self.lstm_states[some]), self.to_torch(self.episode_starts[places].ravel())
            yield places, SequenceSamples(*self._get_samples(places), *memory)


class SequenceDictRolloutBuffer(SequenceRolloutBuffer, DictRolloutBuffer):  # type: ignore[misc]
    """``SequenceRolloutBuffer`` for dictionaries of observations."""
