"""Ends of episodes in environments that are stepped together."""

import time
from typing import Any

import numpy as np

from sb3_ppg.buffers.nested import map_arrays


class Episodes:
    """Returns and lengths of the current episodes of several environments."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=int)
        self._start = time.time()

    def start(self, index: Any = slice(None)) -> None:
        """Begin the episode of one environment, or of all."""
        self._returns[index] = self._lengths[index] = 0

    def add(self, rewards: np.ndarray) -> None:
        """Add a step by its rewards, (num_envs,)."""
        self._returns += rewards
        self._lengths += 1

    def end(self, index: int, last_observation: Any, was_cut_off: bool) -> dict[str, Any]:
        """
        End an environment's episode, and begin the next.

        :param index: of the environment
        :param last_observation: of the episode
        :param was_cut_off: whether the episode was cut off
        :return: what SB3 expects in the environment's info
        """
        episode_return, length = float(self._returns[index]), int(self._lengths[index])
        self.start(index)
        return {
            "terminal_observation": last_observation,
            "TimeLimit.truncated": was_cut_off,
            "episode": {"r": episode_return, "l": length, "t": round(time.time() - self._start, 6)},
        }


def observation_at(observations: Any, index: int) -> Any:
    """Return a copy of one environment's observation, from those of all, (num_envs, ...)."""
    return map_arrays(lambda array: array[index].copy(), observations)


def replace(observations: Any, others: Any, places: Any) -> None:
    """
    :param observations: of all environments, (num_envs, ...), to write into
    :param others: observations of some environments
    :param places: where those belong: their environments' indices, one index, or a mask of shape (num_envs,)
    """

    def put(array: np.ndarray, other: np.ndarray) -> None:
        array[places] = other

    map_arrays(put, observations, others)
