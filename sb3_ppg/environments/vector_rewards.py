"""Environments with vector rewards, such as MO-Gymnasium's, for Stable-Baselines3, whose rewards are numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from typing_extensions import override

from sb3_ppg.environments.watched import HOW_TO_WRAP, innermost
from sb3_ppg.errors import ArgumentError


class VectorRewards(gym.Wrapper):
    """
    A wrapper that replaces a reward with K components by their weighted sum. The vector is in ``info["vector_reward"]``, as
    with ``mo_gymnasium.wrappers.LinearReward``. At the end of an episode, its sums are in ``info["return_0"]`` to
    ``info["return_<K - 1>"]``, for ``Monitor(env, file, info_keywords=(...))``.

    ``PPG`` wraps a single environment itself, and sets its ``reward_weights`` in all environments. For several, use::

        env_id = "mo_gymnasium:deep-sea-treasure-v0"
        env = make_vec_env(lambda: VectorRewards(gymnasium.make(env_id)), n_envs=8)

    :param env: environment whose rewards are arrays, lists or tuples of K numbers. Its ``reward_space``, if it has one, is a
        Box of shape (K,)
    :param weights: a number for each component. None: ``PPG`` will set them
    """

    weights: Any = None

    def __init__(self, env: gym.Env, weights: Sequence[float] | None = None):
        super().__init__(env)
        space = env.get_wrapper_attr("reward_space") if env.has_wrapper_attr("reward_space") else None
        self.n_components: int | None = space.shape[0] if space is not None and space.shape else None
        self.set_reward_weights(weights)

    def set_reward_weights(self, weights: Sequence[float] | None) -> None:
        """Set the weights, a number for each component, or None."""
        self.weights = None if weights is None else np.asarray(weights, dtype=np.float64)

    @override
    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.returns: Any = 0.0  # (K,) after the first step
        return self.env.reset(**kwargs)

    @override
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward: Any
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self.weights is None:
            if np.ndim(reward) > 0:
                remedy = "use PPG(..., reward_weights=[...]), or in evaluations VectorRewards(env, weights=[...])"
                raise ArgumentError(f"{self.env} gives vectors as rewards: {remedy}")
            return observation, float(reward), terminated, truncated, info  # MO-Gymnasium's LinearReward is inside
        vector: Any = info.get("vector_reward") if np.ndim(reward) == 0 else reward
        if np.shape(vector) != self.weights.shape:
            raise ArgumentError(
                f"{self.env} gives the reward {reward!r} and 'vector_reward'={info.get('vector_reward')!r}, `reward_weights` "
                f"needs an array of {len(self.weights)} numbers: use a weight for each component, or None for scalar rewards"
            )
        vector = np.array(vector, dtype=np.float64)
        self.returns = self.returns + vector
        info["vector_reward"] = vector
        if terminated or truncated:
            info |= {f"return_{k}": component for k, component in enumerate(self.returns.tolist())}
        return observation, float(self.weights @ vector), terminated, truncated, info


class DrawnWeights(VectorRewards):
    """
    ``VectorRewards`` that draws weights for each episode, uniformly from the non-negative weights that add up to one, and adds
    them to the observations: these are a dictionary with "weights" and the environment's "observation" (or the entries of its
    own dictionary). One policy then learns for all weights: ``PPG("MultiInputPolicy", ..., reward_weights="observation")``.

    :param env: environment with ``reward_space``, a Box of shape (K,)
    :param weights: weights of all episodes, for evaluation. None: draw them
    """

    def __init__(self, env: gym.Env, weights: Sequence[float] | None = None):
        super().__init__(env, weights)
        if self.n_components is None:
            raise ArgumentError(f"{env} has no `reward_space` to say how many weights to draw: set it to a Box of shape (K,)")
        own = env.observation_space
        parts = own.spaces if isinstance(own, spaces.Dict) else {"observation": own}
        self.observation_space = spaces.Dict({**parts, "weights": spaces.Box(0.0, 1.0, (self.n_components,), np.float32)})
        self.generator = np.random.default_rng()

    @override
    def set_reward_weights(self, weights: Sequence[float] | None) -> None:
        """Set the weights of all episodes from the next one on; None: draw them for each episode."""
        self.chosen_weights = None if weights is None else np.asarray(weights, dtype=np.float64)

    @override
    def reset(self, *, seed: int | None = None, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        observation, info = super().reset(seed=seed, **kwargs)
        drawn = self.generator.dirichlet(np.ones(self.n_components)) if self.chosen_weights is None else self.chosen_weights
        self.weights = drawn.astype(np.float32)
        return self._with_weights(observation), info

    @override
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return self._with_weights(observation), reward, terminated, truncated, info

    def _with_weights(self, observation: Any) -> dict[str, Any]:
        is_dict = isinstance(self.env.observation_space, spaces.Dict)
        return {**(observation if is_dict else {"observation": observation}), "weights": self.weights}


def tell_weights(env: VecEnv, weights: Sequence[float]) -> None:
    """Set the weights of vector rewards in environments; wrap a single one in ``VectorRewards``, inside its ``Monitor``."""
    base_env = innermost(env)
    if isinstance(base_env, DummyVecEnv) and base_env.num_envs == 1 and not env.has_attr("set_reward_weights"):
        monitor = unwrap_wrapper(base_env.envs[0], Monitor)
        if monitor is not None:
            monitor.env = VectorRewards(monitor.env)
    if hasattr(base_env, "set_reward_weights"):  # a `GymnasiumVecEnv`, whose environments may be `VectorRewards`
        base_env.set_reward_weights(weights)
    if env.has_attr("set_reward_weights"):
        env.env_method("set_reward_weights", weights)


class RewardReader:
    """Reads vector rewards with K components from the infos of steps, and adds their sums to the info of ``Monitor``."""

    def __init__(self, n_components: int):
        self.n_components = n_components
        self.returns = np.zeros((1, n_components))  # of the current episodes, (n_envs, K) once a rollout has begun

    def begin(self, episode_starts: np.ndarray) -> None:
        """Start a rollout; ``episode_starts`` says whether the latest observations begin an episode, (n_envs,)."""
        self.returns = np.where(episode_starts[:, None], 0.0, self.returns)

    def read(self, dones: np.ndarray, infos: list[dict[str, Any]]) -> np.ndarray:
        """Return the vector rewards of a step, (n_envs, K); raise ``ArgumentError`` if an info has none."""
        for index, info in enumerate(infos):
            vector: Any = info.get("vector_reward")
            if np.shape(vector) != (self.n_components,):
                raise ArgumentError(
                    f"The info of environment {index} has 'vector_reward'={vector!r}, `reward_weights` "
                    f"needs an array of {self.n_components} numbers: {HOW_TO_WRAP}"
                )
        vectors = np.array([info["vector_reward"] for info in infos], dtype=np.float32)
        self.returns += vectors
        for index in dones.nonzero()[0].tolist():
            if "episode" in infos[index]:
                infos[index]["episode"]["vector_return"] = self.returns[index].tolist()
            self.returns[index] = 0
        return vectors


def mean_vector_return(episodes: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the mean return of each component by name, over the episodes for which ``RewardReader`` has added it."""
    returns = [episode["vector_return"] for episode in episodes if "vector_return" in episode]
    return {f"ep_rew_mean/{k}": float(mean) for k, mean in enumerate(np.mean(returns, axis=0))} if returns else {}
