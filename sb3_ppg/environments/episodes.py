"""Episodes of vector environments: returns, lengths, and the infos at their ends."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ppg.arrays import map_arrays


class EpisodicVecEnv(VecEnv):
    """Base of vector environments that add up the rewards of each episode, as ``Monitor`` does for one environment."""

    def __init__(self, num_envs: int, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=int)
        self._start = time.time()
        super().__init__(num_envs, observation_space, action_space)

    def reset(self) -> VecEnvObs:
        """
        Start a new episode in each environment.

        :return: observations, (num_envs, ...)
        """
        observations, infos = self._first_observations()
        self.reset_infos = list(infos)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = self._lengths[:] = 0
        return observations

    def _first_observations(self) -> tuple[VecEnvObs, Iterable[dict[str, Any]]]:
        raise NotImplementedError

    def step_async(self, actions: np.ndarray) -> None:
        self.waiting_actions = actions

    def _add_step(self, rewards: np.ndarray) -> None:
        self._returns += rewards
        self._lengths += 1

    def _end_episode(self, index: int, last_observation: Any, was_cut_off: bool) -> dict[str, Any]:
        """End an environment's episode, and return the entries that SB3 expects in its info."""
        episode = {"r": float(self._returns[index]), "l": int(self._lengths[index]), "t": round(time.time() - self._start, 6)}
        self._returns[index] = self._lengths[index] = 0
        return {"terminal_observation": last_observation, "TimeLimit.truncated": was_cut_off, "episode": episode}


def observation_at(observations: Any, index: int) -> Any:
    """Return a copy of one environment's observation from the observations of all, (num_envs, ...)."""
    return map_arrays(lambda array: array[index].copy(), observations)


def replace(observations: Any, others: Any, places: Any) -> None:
    """Overwrite the observations, (num_envs, ...), of environments at places: indices, one index, or a mask (num_envs,)."""

    def put(array: np.ndarray, other: np.ndarray) -> None:
        array[places] = other

    map_arrays(put, observations, others)
