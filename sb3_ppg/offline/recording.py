"""Data recorded from an agent, and Minari data sets made of it."""

import inspect
import warnings
from operator import itemgetter
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import NESTED
from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import map_arrays
from sb3_ppg.environments.vec_envs import replace
from sb3_ppg.environments.watched import only_normalizer
from sb3_ppg.errors import ArgumentError, missing_extras_named
from sb3_ppg.offline.data import ARRAYS, Dataset, bounds, joined


def record(
    agent: Any,
    env: VecEnv,
    n_steps: int,
    deterministic: bool = False,
    noise: float = 0.0,
    random_episodes: float = 0.0,
    seed: int | None = None,
) -> Dataset:
    """
    Let an agent act, and record what happens.

    :param agent: a model of SB3
    :param env: environments, which are reset. The data is from before a ``VecNormalize``, whose statistics do not change. It
        must be the outermost wrapper, or change nothing
    :param n_steps: number of steps of all environments together
    :param deterministic: whether the agent takes its most likely actions
    :param noise: exploration noise. Box: the standard deviation of Gaussian noise, with the action space scaled to [-1, 1];
        other actions: the probability of a random one
    :param random_episodes: fraction of the episodes in which all actions are random
    :param seed: seed of the noise and the environments
    :return: the data
    :raises ArgumentError: for numbers that cannot work, Dict and Tuple actions, and agents that need action masks
    """
    check_values(n_steps=n_steps, noise=noise, random_episodes=random_episodes)
    if "action_masks" in inspect.signature(agent.predict).parameters:
        raise ArgumentError(f"`agent` cannot be recorded: {type(agent).__name__} needs action masks, which data does not hold")
    normalizer = only_normalizer(env)
    if normalizer is env:
        env = normalizer.venv
    elif normalizer is not None and (normalizer.norm_obs or normalizer.norm_reward or normalizer.training):
        remedy = "make it the outermost wrapper, or set its `norm_obs`, `norm_reward` and `training` to False"
        raise ArgumentError(f"`env` cannot be recorded, because its VecNormalize is inside another wrapper: {remedy}")
    space, rng, n_envs = env.action_space, np.random.default_rng(seed), env.num_envs
    if isinstance(space, NESTED):
        raise ArgumentError(f"`env` cannot be recorded: recorded actions are arrays of numbers, these are {space}")
    space.seed(seed)
    if seed is not None:
        env.seed(seed)
    steps: list[tuple] = []
    observations, state, starts = map_arrays(np.array, env.reset()), None, np.ones(n_envs, dtype=bool)
    is_random = rng.random(n_envs) < random_episodes
    for _ in range(-(-n_steps // n_envs)):
        seen: Any = observations if normalizer is None else normalizer.normalize_obs(observations)
        actions, state = agent.predict(seen, state, starts, deterministic=deterministic)
        drawn, takes_drawn = np.array([space.sample() for _ in range(n_envs)]), is_random
        if isinstance(space, spaces.Box):
            low, high = bounds(space)
            actions = np.clip(actions + noise * (high - low) / 2 * rng.normal(size=actions.shape), low, high)
            actions = np.rint(actions) if np.issubdtype(space.dtype, np.integer) else actions
        else:
            takes_drawn = is_random | (rng.random(n_envs) < noise)
        actions = np.where(takes_drawn.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, actions).astype(space.dtype)
        following, rewards, starts, infos = env.step(actions)
        limits = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        following, last = map_arrays(np.array, following), map_arrays(np.array, following)  # environments may reuse it
        for i in np.flatnonzero(starts):
            replace(last, infos[i]["terminal_observation"], i)
        steps.append((observations, actions, rewards.copy(), last, starts & ~limits, limits))
        observations = following
        is_random = np.where(starts, rng.random(n_envs) < random_episodes, is_random)
    columns = map_arrays(lambda *arrays: np.stack(arrays, axis=1), *steps)
    return joined([Dataset(*map_arrays(itemgetter(index), columns)) for index in range(n_envs)])


def check_new(name: str) -> None:
    """Raise ``ArgumentError`` if Minari does not accept a name for a data set, or has such a data set."""
    with missing_extras_named():
        import h5py  # noqa: F401  Minari names its own extra
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    try:
        parse_dataset_id(name)  # otherwise Minari would leave a folder that its `list local` cannot read
        is_new = not get_dataset_path(name).exists()
    except (ValueError, TypeError):
        is_new = False
    if not is_new:
        raise ArgumentError(f"the data cannot be saved as {name!r}: use a new name such as pendulum/ppg-v0")


def save_as_minari(
    data: Dataset,
    name: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    env_id: str | None = None,
    algorithm: str | None = None,
) -> None:
    """
    Write data into Minari's local store.

    :param data: transitions in the order of their episodes
    :param name: new name, such as "pendulum/half-trained-v0"
    :param observation_space: observation space of the environment
    :param action_space: action space of the environment
    :param env_id: ID of the environment, whose description is stored unless a function makes it
    :param algorithm: name of the algorithm that acted
    :raises ArgumentError: if Minari does not accept the name, or has such a data set
    """
    check_new(name)
    import minari
    from minari.data_collector import EpisodeBuffer

    spec = None if env_id is None else gym.spec(env_id)
    if spec is not None and callable(spec.entry_point):  # which files cannot describe
        spec = None
    episodes = []
    for rows in np.split(np.arange(len(data)), data.ends[:-1] + 1):
        columns = {name: map_arrays(itemgetter(rows), getattr(data, name)) for name in ARRAYS}
        last = map_arrays(itemgetter(slice(-1, None)), columns.pop("next_observations"))
        columns["observations"] = map_arrays(lambda *parts: np.concatenate(parts), columns["observations"], last)
        episodes.append(EpisodeBuffer(**columns))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Minari's, of authors and descriptions
        minari.create_dataset_from_buffers(
            name,
            episodes,
            env=spec,
            algorithm_name=algorithm,
            observation_space=observation_space,
            action_space=action_space,
            jpeg_encoding=False,  # which would change images
        )
