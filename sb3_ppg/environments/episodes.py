"""Episodes of vectorized environments: returns, lengths, and the infos at their ends."""

import time
from typing import Any

import numpy as np

from sb3_ppg.arrays import map_arrays


class Episodes:
    """Returns and lengths of the current episodes of several environments."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=int)
        self._start = time.time()

    def start(self, index: Any = slice(None)) -> None:
        """Start an episode in one environment, or in all."""
        self._returns[index] = self._lengths[index] = 0

    def add(self, rewards: np.ndarray) -> None:
        """Add a step with these rewards, (num_envs,)."""
        self._returns += rewards
        self._lengths += 1

    def end(self, index: int, last_observation: Any, was_cut_off: bool) -> dict[str, Any]:
        """
        End an environment's episode, and start the next.

        :param index: index of the environment
        :param last_observation: last observation of the episode
        :param was_cut_off: whether the episode was truncated
        :return: entries that SB3 expects in the environment's info
        """
        episode_return, length = float(self._returns[index]), int(self._lengths[index])
        self.start(index)
        return {
            "terminal_observation": last_observation,
            "TimeLimit.truncated": was_cut_off,
            "episode": {"r": episode_return, "l": length, "t": round(time.time() - self._start, 6)},
        }


def observation_at(observations: Any, index: int) -> Any:
    """Return a copy of one environment's observation from the observations of all, (num_envs, ...)."""
    return map_arrays(lambda array: array[index].copy(), observations)


def replace(observations: Any, others: Any, places: Any) -> None:
    """
    Overwrite the observations of some environments.

    :param observations: observations of all environments, (num_envs, ...), changed in place
    :param others: new observations of some environments
    :param places: these environments: indices, one index, or a mask of shape (num_envs,)
    """

    def put(array: np.ndarray, other: np.ndarray) -> None:
        array[places] = other

    map_arrays(put, observations, others)
