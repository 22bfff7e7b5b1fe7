"""Gymnasium's vector environments (``gymnasium.make_vec``) as a ``VecEnv`` of Stable-Baselines3."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import DictInfoToList
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_ppg.arrays import map_arrays
from sb3_ppg.environments.episodes import EpisodicVecEnv, observation_at, replace
from sb3_ppg.errors import ArgumentError, warn

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"  # the values of Gymnasium's AutoresetMode


class GymnasiumVecEnv(EpisodicVecEnv):
    """
    A vector environment of Gymnasium as a ``VecEnv``. PPG wraps the result of ``gymnasium.make_vec`` in it; for evaluation,
    do so yourself::

        eval_env = GymnasiumVecEnv(gymnasium.make_vec("Pendulum-v1", num_envs=4))

    With each ``autoreset_mode``, an environment whose episode has ended is reset in the same step, as SB3 expects. Its last
    observation is in ``infos[i]["terminal_observation"]``, ``infos[i]["TimeLimit.truncated"]`` says whether the episode was
    truncated, ``infos[i]["episode"]`` has its return "r", length "l" and the seconds since the start "t".

    A custom class that resets in the next step (such as ``CartPoleVectorEnv``) cannot do this. Its step that resets becomes an
    episode of one step, which starts and is truncated at the last observation, with a reward of 0.

    Vector rewards, (num_envs, K), as those of MO-Gymnasium's vector environments, are combined as in ``VectorRewards``.

    :param env: vector environment
    :raises ArgumentError: if its metadata does not say in which step it resets
    """

    def __init__(self, env: VectorEnv) -> None:
        self.env = DictInfoToList(env)
        mode = env.metadata.get("autoreset_mode")
        self.mode = getattr(mode, "value", mode)
        if self.mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise ArgumentError(
                f"`env`={env} has metadata['autoreset_mode']={mode!r}: set it to one of gymnasium.vector.AutoresetMode, which "
                "tells where episodes end"
            )
        self._is_of_single_ones = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._resets_later = self.mode == NEXT_STEP and not self._is_of_single_ones
        if self._resets_later:
            warn(
                f"{type(env.unwrapped).__name__} resets in the step after an episode's end, which is lost for training: "
                f"{_same_without_loss(type(env.unwrapped))} loses none"
            )
        self._last: dict[int, Any] = {}  # last observations, by environment, of episodes that ended in the previous step
        self.reward_weights: np.ndarray | None = None  # a number for each component of vector rewards
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def _first_observations(self) -> tuple[VecEnvObs, Iterable[dict[str, Any]]]:
        options = self._options[0] or None  # SB3 has options for each environment, Gymnasium has one for all
        observations, infos = self.env.reset(seed=self._seeds[0], options=options)
        self._last = {}
        return map_arrays(np.array, observations), infos  # Gymnasium may reuse its arrays

    def step_async(self, actions: Any) -> None:
        if isinstance(self.action_space, (spaces.Dict, spaces.Tuple)):  # Gymnasium takes the batch of each leaf
            batch: Any = create_empty_array(self.action_space, self.num_envs)
            actions = concatenate(self.action_space, actions, batch)
        self.waiting_actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        observations, given, terminated, truncated, infos = self.env.step(self.waiting_actions)
        rewards = self._combined(given)
        observations, infos, dones = map_arrays(np.array, observations), list(infos), np.asarray(terminated | truncated)
        self._add_step(rewards)
        finished = dones.nonzero()[0].tolist()
        for index in finished:
            last = observation_at(observations, index)
            if self.mode == SAME_STEP:
                if "final_obs" not in infos[index]:
                    raise ArgumentError(f"{self.env} resets in the same step, but its infos have no 'final_obs'")
                self.reset_infos[index] = infos[index]
                last, infos[index] = infos[index].pop("final_obs"), infos[index].pop("final_info", {})
            infos[index] |= self._end_episode(index, last, bool(truncated[index] and not terminated[index]))
        for index, last in self._last.items():  # environments that were reset in this step
            self.reset_infos[index] = infos[index]
            infos[index] = self._end_episode(index, last, True)
            del infos[index]["episode"]  # of the one step that resets
            dones[index] = True
        if self._resets_later:
            self._last = {index: observation_at(observations, index) for index in finished}
        elif finished and self.mode != SAME_STEP:
            first, first_infos = self.env.reset(options={"reset_mask": dones.copy()})
            for index in finished:
                self.reset_infos[index] = first_infos[index]
            replace(observations, map_arrays(lambda array: array[dones], first), dones)
        if np.ndim(given) > 1:
            infos = [{**info, "vector_reward": vector} for info, vector in zip(infos, given, strict=True)]
        return observations, np.array(rewards, dtype=np.float32), dones, infos

    def set_reward_weights(self, weights: Sequence[float]) -> None:
        """Set the weights that combine vector rewards, a number for each component."""
        self.reward_weights = np.asarray(weights)

    def _combined(self, rewards: np.ndarray) -> np.ndarray:
        """Return scalar rewards, (num_envs,), of such or of vectors, (num_envs, K)."""
        if np.ndim(rewards) == 1:
            return rewards
        if self.reward_weights is None or len(self.reward_weights) != rewards.shape[1]:
            raise ArgumentError(
                f"{self.env} gives vectors of {rewards.shape[1]} numbers as rewards: use PPG(..., reward_weights=[...]) with "
                "one weight for each"
            )
        return rewards @ self.reward_weights

    # ---- the rest of a VecEnv ----

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        pictures: Any = self.env.render()
        return [None] * self.num_envs if pictures is None else list(pictures)

    def has_attr(self, attr_name: str) -> bool:
        env: Any = self.env.unwrapped  # whose `get_attr` would call a method
        return all(env.call("has_wrapper_attr", attr_name)) if self._is_of_single_ones else hasattr(env, attr_name)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        env: Any = self.env.unwrapped
        values = env.get_attr(attr_name) if self._is_of_single_ones else [getattr(env, attr_name)] * self.num_envs
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        chosen = {*self._get_indices(indices)}
        values = [None] * self.num_envs if len(chosen) == self.num_envs else self.get_attr(attr_name)
        env: Any = self.env.unwrapped
        env.set_attr(attr_name, [value if index in chosen else one for index, one in enumerate(values)])

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        if indices is not None:
            raise NotImplementedError("Gymnasium's vector environments call a method of all environments: no `indices`")
        env: Any = self.env.unwrapped
        if self._is_of_single_ones:
            return list(env.call(method_name, *args, **kwargs))
        results = getattr(env, method_name)(*args, **kwargs)
        return [None] * self.num_envs if results is None else list(results)

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        # So that `evaluate_policy` uses the returns and lengths that are recorded here
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]


def _same_without_loss(cls: type[VectorEnv]) -> str:
    """Return code that makes the environments of a class, which may not be those of ``vectorization_mode="sync"``."""
    if cls.__name__.endswith("EnvPool"):
        return "sb3_ppg.environments.EnvPoolVecEnv(...)"
    if "autoreset_mode" in inspect.signature(cls).parameters:  # ALE's: each single environment has raw frames and rewards
        return "gymnasium.make_vec(..., autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)"
    return 'gymnasium.make_vec(..., vectorization_mode="sync")'
