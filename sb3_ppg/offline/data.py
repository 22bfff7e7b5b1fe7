"""Recorded data: one class for all sources, whose errors name the array, the transition and the source; recording."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import NESTED, SquashedGaussianActions, bounds
from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import Observations
from sb3_ppg.environments.vec_envs import replace_observations
from sb3_ppg.environments.watched import normalizers, only_normalizer
from sb3_ppg.errors import ArgumentError, missing_extras_named

COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
TOLERANCE = 1e-5  # as a fraction of the width of a space: rounding to float32 and back


@dataclass(repr=False, eq=False)
class Dataset:
    """
    Transitions of recorded episodes, in the order in which they were recorded.

    If the next observation of a transition is not the observation of the following transition, and no end is marked, the
    recording was interrupted there, and the transition counts as truncated. So transitions may be in any order, but returns
    and n-step targets need the order of the episodes.

    :param observations: (N, ...), or a dictionary of such arrays, as the environment gives them, before ``VecNormalize``
    :param actions: (N, ...), as the environment takes them
    :param rewards: (N,), before ``VecNormalize``
    :param next_observations: (N, ...)
    :param terminations: whether the episode ends with the next observation, whose value is then zero, (N,)
    :param truncations: whether recording stopped there for another reason, such as a time limit, (N,)
    :param source: name of the data's source, for error messages
    :raises ArgumentError: if there are no transitions, or the arrays differ in length
    """

    observations: Observations
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: Observations
    terminations: np.ndarray
    truncations: np.ndarray
    source: str = "the data"

    def __post_init__(self) -> None:
        for name in COLUMNS:
            setattr(self, name, map_arrays(np.atleast_1d, getattr(self, name)))
            dtypes = map_arrays(lambda array: str(array.dtype), getattr(self, name))
            self._require("object" not in str(dtypes), name, "are no numbers; of a Dict space, use a dictionary of arrays")
        shape, following = (map_arrays(np.shape, tree) for tree in (self.observations, self.next_observations))
        self._require(shape == following, "next_observations", f"have the shapes {following}, `observations` {shape}")
        sizes: set[int] = set()
        lengths = {name: map_arrays(len, getattr(self, name)) for name in COLUMNS}
        map_arrays(sizes.add, lengths)
        if len(sizes) > 1 or 0 in sizes:
            raise ArgumentError(f"{self.source} is empty or has arrays of different lengths: {lengths}")
        for name in ("rewards", "terminations", "truncations"):
            self._require(getattr(self, name).ndim == 1, name, f"have shape {getattr(self, name).shape}; use (N,)")
        for name in ("terminations", "truncations"):
            array = getattr(self, name)
            self._require_each(np.isin(array, (0, 1)), name, array, "are neither 0 nor 1")
            setattr(self, name, array.astype(bool))
        continues = np.arange(len(self)) < len(self) - 1  # whether the following transition begins where one ends

        def compare(after: np.ndarray, before: np.ndarray) -> None:
            if after.dtype.kind == before.dtype.kind == "f":  # one may have been rounded
                coarser = min(after.dtype, before.dtype, key=lambda dtype: dtype.itemsize)
                after, before = after.astype(coarser, copy=False), before.astype(coarser, copy=False)
            continues[:-1] &= (after[:-1] == before[1:]).all(axis=tuple(range(1, after.ndim)))

        map_arrays(compare, self.next_observations, self.observations)
        self.truncations |= ~(continues | self.terminations)

    def __len__(self) -> int:
        return len(self.rewards)

    def _require(self, condition: bool | np.bool_, name: str, problem: str) -> None:
        if not condition:
            raise ArgumentError(f"{self.source}: `{name}` {problem}")

    def _require_each(self, is_good: Any, name: str, array: np.ndarray, problem: str) -> None:
        bad = ~is_good.reshape(len(array), -1).all(axis=1)
        place = bad.argmax()
        counted = f"at {place} ({bad.sum()} of {len(bad)} transitions): {array[place]}"
        self._require(not bad.any(), name, f"{problem} {counted}")

    @property
    def ends(self) -> np.ndarray:
        """Indices of the last transitions of episodes."""
        return np.flatnonzero(self.terminations | self.truncations)

    def episode_returns(self) -> np.ndarray:
        """Return the sum of the rewards of each episode, (number of episodes,)."""
        return np.add.reduceat(self.rewards.astype(np.float64), [0, *self.ends[:-1] + 1])

    def returns(self, gamma: float, last_values: np.ndarray) -> np.ndarray:
        """
        Return the discounted return that follows each transition's observation.

        :param gamma: discount factor
        :param last_values: V of the next observations at ``ends``; not used where the episode terminated, (len(ends),)
        :return: (N,), in the units of the rewards
        """
        returns = self.rewards.astype(np.float64)
        last = dict(zip(self.ends, np.where(self.terminations[self.ends], 0.0, last_values).astype(np.float64), strict=True))
        for step in reversed(range(len(self))):
            returns[step] += gamma * (last[step] if step in last else returns[step + 1])
        return returns

    def fitted_to(self, observation_space: spaces.Space, action_space: spaces.Space) -> "Dataset":
        """
        Check that the data can come from an environment with these spaces, and convert it to their types.

        :param observation_space: observation space of the model, where images are channel first, as SB3 has them
        :param action_space: action space of the environment
        :return: the data in the types of the spaces; images channel first; actions within their bounds
        :raises ArgumentError: for the first array that does not fit
        """
        if isinstance(action_space, NESTED) or isinstance(self.actions, (dict, tuple)):
            raise ArgumentError(f"{self.source} cannot be for {action_space}: recorded actions are arrays of numbers")
        names = ("observations", "next_observations")
        fitted = {name: self._fitted_observations(name, getattr(self, name), observation_space) for name in names}
        actions = self._fitted("actions", self.actions, action_space, is_bounded=True)
        if isinstance(action_space, spaces.Box):
            actions = np.clip(actions, action_space.low, action_space.high)
        self._require_each(np.isfinite(self.rewards), "rewards", self.rewards, "are NaN or infinite")
        return replace(self, **fitted, actions=actions, rewards=self.rewards.astype(np.float32))

    def _fitted_observations(self, name: str, value: Any, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            keys = set(value) if isinstance(value, dict) else set()
            self._require(keys == set(space), name, f"have the keys {sorted(keys)}, the environment's {sorted(space)}")
            return {key: self._fitted_observations(f"{name}[{key!r}]", value[key], part) for key, part in space.items()}
        self._require(not isinstance(value, (dict, tuple)), name, f"have several parts, the environment's are {space}")
        if is_image_space(space) and value.shape[1:] == (*space.shape[1:], space.shape[0]) != space.shape:
            value = np.moveaxis(value, -1, 1)
        return self._fitted(name, value, space, is_bounded=np.issubdtype(space.dtype, np.integer))

    def _fitted(self, name: str, array: np.ndarray, space: Any, is_bounded: bool) -> np.ndarray:
        """Return an array in the type of its space, after checks of its shape, its numbers and, if asked, its bounds."""
        array = array[:, 0] if space.shape == () and array.shape[1:] == (1,) else array  # of Discrete spaces in SB3's buffers
        self._require(array.shape[1:] == space.shape, name, f"have shape {array.shape[1:]}, the environment's {space.shape}")
        is_good = np.isfinite(array)
        is_rounded = np.issubdtype(space.dtype, np.integer) and array.dtype.kind == "f"
        if is_bounded:
            low, high = bounds(space)
            width = high - low
            margin = TOLERANCE * np.where(np.isfinite(width), width, 0)
            is_good &= (array >= low - margin) & (array <= high + margin)
            if is_rounded:
                is_good &= abs(array - np.rint(array)) <= np.minimum(margin, 0.1)
        self._require_each(is_good, name, array, f"lie outside {space}")
        return (np.rint(array) if is_rounded else array).astype(space.dtype, copy=False)


def check_normalizer(model: Any) -> None:
    """Refuse environments with several ``VecNormalize``, or with one inside a wrapper that changes observations."""
    normalizer = only_normalizer(model.env)
    if normalizer is not None and normalizer.norm_obs and normalizer.observation_space != model.observation_space:
        raise ArgumentError("`env` cannot work: a wrapper around VecNormalize changes the observations: put it inside")


def fit_normalizers(env: VecEnv | None, data: Dataset, is_trained: bool) -> None:
    """
    Replace the statistics of ``VecNormalize`` among the wrappers by those of the data, unless networks have been trained with
    them or ``training=False`` freezes them.
    """

    def fit(statistics: RunningMeanStd, samples: Any) -> None:
        if not is_trained or statistics.count < 1:  # less than one sample: they are new
            statistics.mean, statistics.var = samples.mean(axis=0, dtype=np.float64), samples.var(axis=0, dtype=np.float64)
            statistics.count = len(samples)

    for normalizer in normalizers(env):
        if normalizer.norm_obs and normalizer.training:
            map_arrays(fit, normalizer.obs_rms, data.observations)
        if normalizer.training and normalizer.norm_reward:
            running, returns = 0.0, np.zeros(len(data))  # as VecNormalize sums rewards up
            for step, (reward, ends) in enumerate(zip(data.rewards, data.terminations | data.truncations, strict=True)):
                returns[step] = running = normalizer.gamma * running + reward
                running = 0.0 if ends else running
            fit(normalizer.ret_rms, returns)


# ---- sources ----


def load_dataset(source: Any) -> Dataset:
    """
    Load recorded data.

    A pickle runs code when it is read: load only your own.

    :param source: a ``Dataset``; a dictionary of its arrays; a ``ReplayBuffer`` of SB3, or the file that
        ``save_replay_buffer`` has written (".pkl"); a Minari data set: its name in the local store, such as
        "mujoco/hopper/medium-v0", its folder, or the hdf5 file there
    :return: the data
    :raises ArgumentError: if it is empty or of another kind; a file that is missing or damaged raises its reader's error
    """
    match source:
        case Dataset():
            return source
        case Mapping():
            if not {*COLUMNS} <= {*source} <= {*COLUMNS, "source"}:
                names = f"{', '.join(COLUMNS)} (D4RL's terminals and timeouts are our terminations and truncations)"
                raise ArgumentError(f"`dataset` has the arrays {', '.join(map(str, source))}, which cannot work: use {names}")
            return Dataset(**source)
        case ReplayBuffer():
            return _from_replay_buffer(source)
        case str() | Path():
            return load_dataset(load_from_pkl(source)) if Path(source).suffix == ".pkl" else _from_minari(str(source))
    remedy = "use a Dataset, a dictionary of arrays, a ReplayBuffer, or the name or path of a data set"
    raise ArgumentError(f"`dataset`={type(source).__name__} cannot work: {remedy}")


def joined(parts: Sequence[Dataset]) -> Dataset:
    """Join recordings that do not continue one another: the last transition of each ends an episode."""
    columns = {name: [getattr(part, name) for part in parts] for name in COLUMNS}
    arrays: Any = {name: map_arrays(lambda *arrays: np.concatenate(arrays), *column) for name, column in columns.items()}
    return Dataset(**arrays, source=parts[0].source)


def _from_replay_buffer(buffer: ReplayBuffer) -> Dataset:
    """Return the transitions of a buffer that SB3's algorithms have filled, environment by environment."""
    rows = np.roll(np.arange(buffer.buffer_size), -buffer.pos) if buffer.full else np.arange(buffer.pos)  # the oldest first
    if buffer.optimize_memory_usage:  # the next row has the next observation; the newest one overwrites the oldest row
        rows = rows[1:] if buffer.full else rows
        next_observations = np.roll(buffer.observations, -1, axis=0)
    else:
        next_observations = buffer.next_observations
    space: Any = buffer.action_space
    actions = buffer.actions.reshape(*buffer.actions.shape[:2], *space.shape)
    if isinstance(space, spaces.Box):  # scaled to [-1, 1]
        if (abs(actions[rows]) > 1 + TOLERANCE).any():
            remedy = "use `policy.scale_action` to fill it, or pass arrays"
            raise ArgumentError(f"the replay buffer has actions outside [-1, 1], where SB3's algorithms scale them: {remedy}")
        actions = SquashedGaussianActions(space).for_environments(th.as_tensor(actions)).numpy()
    dones, timeouts = buffer.dones.astype(bool), buffer.timeouts.astype(bool)
    columns = (buffer.observations, actions, buffer.rewards, next_observations, dones & ~timeouts, timeouts)
    named = dict(zip(COLUMNS, columns, strict=True))
    parts = (map_arrays(itemgetter((rows, index)), named) for index in range(buffer.n_envs))
    return joined([Dataset(**part, source="the replay buffer") for part in parts])


def _from_minari(name: str) -> Dataset:
    with missing_extras_named():
        import h5py  # noqa: F401  Minari names its own extra
        import minari
    path = Path(name).parent if name.endswith(".hdf5") else Path(name)
    if name.endswith(".hdf5") and not (Path(name).name == "main_data.hdf5" and (path / "metadata.json").exists()):
        raise ArgumentError(f"{name} is no file of a Minari data set: of another HDF5 file, such as D4RL's, pass the arrays")
    path = path / "data" if (path / "data").is_dir() else path
    parts = []
    for episode in (minari.MinariDataset(path) if path.is_dir() else minari.load_dataset(name)).iterate_episodes():
        now, following = (map_arrays(itemgetter(part), episode.observations) for part in (slice(-1), slice(1, None)))
        ends = episode.terminations, episode.truncations
        parts.append(Dataset(now, episode.actions, episode.rewards, following, *ends, name))
    if not parts:
        raise ArgumentError(f"{name} is empty")
    return joined(parts)


# ---- recording ----


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
    :param env: environments, which are reset. Observations and rewards are recorded as they are before ``VecNormalize``, whose
        statistics do not change. It must be the outermost wrapper, or have ``norm_obs``, ``norm_reward`` and
        ``training`` turned off
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
    if "action_masks" in inspect.signature(getattr(agent, "policy", agent).predict).parameters:  # also of a `Player`
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
            actions = np.clip(actions + noise * (high / 2 - low / 2) * rng.normal(size=actions.shape), low, high)
            actions = np.rint(actions) if np.issubdtype(space.dtype, np.integer) else actions
        else:
            takes_drawn = is_random | (rng.random(n_envs) < noise)
        actions = np.where(takes_drawn.reshape(-1, *[1] * (drawn.ndim - 1)), drawn, actions).astype(space.dtype)
        following, rewards, starts, infos = env.step(actions)
        limits = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        following, last = map_arrays(np.array, following), map_arrays(np.array, following)  # environments may reuse it
        for i in np.flatnonzero(starts):
            if "terminal_observation" in infos[i] or limits[i]:  # after a termination, nothing looks at it
                replace_observations(last, infos[i]["terminal_observation"], i)
        steps.append((observations, actions, rewards.copy(), last, starts & ~limits, limits))
        observations = following
        is_random = np.where(starts, rng.random(n_envs) < random_episodes, is_random)
    columns = map_arrays(lambda *arrays: np.stack(arrays, axis=1), *steps)
    return joined([Dataset(*map_arrays(itemgetter(index), columns)) for index in range(n_envs)])


def check_new(name: str) -> None:
    """Raise ``ArgumentError`` if Minari does not accept a name for a data set, or has such a data set."""
    with missing_extras_named():
        import h5py  # noqa: F401  Minari names its own extra
        from minari.dataset.minari_dataset import DATASET_ID_RE
        from minari.storage import get_dataset_path
    found = DATASET_ID_RE.fullmatch(name)  # Minari would leave a folder that its `list local` cannot read
    if found is None or found["version"] is None:
        raise ArgumentError(f"the data cannot be saved as {name!r}: use a name with a version, such as pendulum/ppg-v0")
    if get_dataset_path(name).exists():
        raise ArgumentError(f"the data cannot be saved as {name!r}: {get_dataset_path(name)} exists. Use another name")


def _spec_of(env_id: str | EnvSpec, spaces_: tuple[spaces.Space, spaces.Space]) -> EnvSpec | None:
    """
    Return the specification of an environment with these spaces, without wrappers that only report episodes; None if a file
    cannot hold it.
    """
    spec = gym.spec(env_id) if isinstance(env_id, str) else env_id
    wrappers = tuple(wrapper for wrapper in spec.additional_wrappers if wrapper.name not in ("Monitor", "CutEpisodes"))
    if callable(spec.entry_point) or any(wrapper.kwargs is None for wrapper in wrappers):
        return None
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    spec = replace(spec, kwargs=kwargs, additional_wrappers=wrappers)
    with closing(gym.make(spec)) as made:
        return spec if (made.observation_space, made.action_space) == spaces_ else None


def save_as_minari(
    data: Dataset,
    name: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    env_id: str | EnvSpec | None = None,
    algorithm: str | None = None,
) -> None:
    """
    Write data into Minari's local store.

    :param data: transitions in the order of their episodes
    :param name: new name, such as "pendulum/half-trained-v0"
    :param env_id: ID or specification of the environment. The specification is stored if it can be written and makes an
        environment with these spaces (not if ``VecFrameStack`` has stacked its frames)
    :param algorithm: name of the algorithm that acted
    :raises ArgumentError: if Minari does not accept the name, or has such a data set
    """
    check_new(name)
    import minari
    from minari.data_collector import EpisodeBuffer

    spec = None if env_id is None else _spec_of(env_id, (observation_space, action_space))
    episodes = []
    for rows in np.split(np.arange(len(data)), data.ends[:-1] + 1):
        columns = {name: map_arrays(itemgetter(rows), getattr(data, name)) for name in COLUMNS}
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
