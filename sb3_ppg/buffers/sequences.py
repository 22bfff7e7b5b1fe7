"""Rollouts in whole sequences, for LSTMs."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppg.buffers.rollouts import FLATTENED, order_by_environment
from sb3_ppg.policies.lstm import pack_states


class SequenceSamples(NamedTuple):
    """SB3's samples of a rollout buffer, in sequences of equal length, B = n_sequences x length, with what LSTMs need."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: th.Tensor  # before each sequence, (n_sequences, 4, n_layers, hidden size)
    episode_starts: th.Tensor  # (B,)


def longest_equal_part(whole: int, at_most: int) -> int:
    """
    The length of sequences, equal parts of a rollout of ``n_steps``, for instance: the longest that a minibatch has room for.

    :param whole: how much there is
    :param at_most: the limit
    :return: the largest divisor of the whole within the limit
    """
    pairs = ((part, whole // part) for part in range(1, math.isqrt(whole) + 1) if whole % part == 0)
    return max(part for pair in pairs for part in pair if part <= at_most)


class SequenceRolloutBuffer(RolloutBuffer):
    """
    A rollout buffer that keeps the LSTMs' states of each step, and gives whole sequences, see ``longest_equal_part``.
    """

    states_shape: tuple[int, ...] = (4, 0, 0)  # (4, n_layers, hidden size), once the network is there

    def reset(self) -> None:
        super().reset()
        self.lstm_states = np.zeros((self.buffer_size, self.n_envs, *self.states_shape), dtype=np.float32)

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:  # type: ignore[override]
        """
        :param lstm_states: before this step
        """
        self.lstm_states[self.pos] = pack_states(lstm_states).cpu().numpy()
        super().add(*args, **kwargs)

    def get(self, batch_size: int | None = None) -> Iterator[SequenceSamples]:  # type: ignore[override]
        """
        :param batch_size: the most samples in a minibatch. None: everything
        :return: minibatches, of shuffled sequences
        """
        return (samples for _, samples in self._sequences(batch_size, np.random.permutation))

    def with_indices(self, batch_size: int | None = None) -> Iterator[tuple[np.ndarray, SequenceSamples]]:
        """
        :param batch_size: the most samples in a minibatch. None: everything
        :return: as ``get``, with the places of the samples, environment by environment
        """
        return self._sequences(batch_size, np.random.permutation)

    def in_order(self, batch_size: int | None = None) -> Iterator[SequenceSamples]:
        """
        :param batch_size: the most samples at a time. None: everything
        :return: all sequences, environment by environment
        """
        return (samples for _, samples in self._sequences(batch_size, np.arange))

    def _sequences(
        self, batch_size: int | None, order: Callable[[int], np.ndarray]
    ) -> Iterator[tuple[np.ndarray, SequenceSamples]]:
        assert self.full, "Rollout buffer must be full before sampling from it"
        order_by_environment(self, (*FLATTENED, "lstm_states", "episode_starts"))
        n_samples = self.buffer_size * self.n_envs
        batch_size = batch_size or n_samples
        length = longest_equal_part(self.buffer_size, batch_size)
        firsts = length * order(n_samples // length)
        n_sequences = batch_size // length
        for start in range(0, len(firsts), n_sequences):
            some = firsts[start : start + n_sequences]
            indices = (some[:, None] + np.arange(length)).ravel()
            memory = self.to_torch(self.lstm_states[some]), self.to_torch(self.episode_starts[indices].ravel())
            yield indices, SequenceSamples(*self._get_samples(indices), *memory)


class SequenceDictRolloutBuffer(SequenceRolloutBuffer, DictRolloutBuffer):  # type: ignore[misc]
    """``SequenceRolloutBuffer`` for dictionaries of observations."""
