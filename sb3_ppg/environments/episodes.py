"""Episodes of vector environments: returns, lengths, and the infos at their ends."""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from sb3_ppg.arrays import map_arrays
from sb3_ppg.errors import warn


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


N_ENDS = 10  # number of episodes whose ends tell whether an environment reports its time limit as a termination


class TimeLimits:
    """Marks ends of episodes as time limits for ``ignore_terminations``, and warns of environments that seem to need it."""

    def __init__(self) -> None:
        self.ignored: bool | int = False  # argument ``ignore_terminations``
        self.steps = np.zeros(0, dtype=int)  # of the current episodes, (n_envs,)
        self.n_ended = 0
        self.ends: set[tuple[int, bool]] = set()  # lengths of the first episodes, and whether a time limit ended them

    def begin(self, episode_starts: np.ndarray, ignored: bool | int) -> None:
        """Start a rollout; ``episode_starts`` says whether the latest observations begin an episode, (n_envs,)."""
        if len(self.steps) != len(episode_starts):
            self.steps = np.zeros(len(episode_starts), dtype=int)
        self.steps[episode_starts.astype(bool)] = 0
        self.ignored = ignored

    def marked(self, dones: np.ndarray, infos: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the infos of a step, in which "TimeLimit.truncated" is set for ends that ``ignore_terminations`` ignores."""
        self.steps += 1
        infos, was_early = list(infos), self.n_ended < N_ENDS
        for index in dones.nonzero()[0].tolist():
            length, self.steps[index] = int(self.steps[index]), 0
            if self.ignored is True or self.ignored == length:
                infos[index] = {**infos[index], "TimeLimit.truncated": True}
            self.n_ended += 1
            if was_early:
                self.ends.add((length, bool(infos[index].get("TimeLimit.truncated", False))))
        if was_early and self.n_ended >= N_ENDS and len(self.ends) == 1:
            ((length, is_time_limit),) = self.ends
            if length > 1 and not is_time_limit:
                warn(
                    f"All of the first {self.n_ended} episodes ended at step {length}, as terminations, so the value function "
                    "learns that no reward follows. If this is a time limit (which some environments report as a termination, "
                    f"or as both), use `ignore_terminations`={length}; if the task itself ends there, ignore this warning, "
                    "see docs/good_to_know.md"
                )
        return infos


def observation_at(observations: Any, index: int) -> Any:
    """Return a copy of one environment's observation from the observations of all, (num_envs, ...)."""
    return map_arrays(lambda array: array[index].copy(), observations)


def replace(observations: Any, others: Any, places: Any) -> None:
    """Overwrite the observations, (num_envs, ...), of environments at places: indices, one index, or a mask (num_envs,)."""

    def put(array: np.ndarray, other: np.ndarray) -> None:
        array[places] = other

    map_arrays(put, observations, others)
