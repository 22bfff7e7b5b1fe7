"""Recorded data: one class for all sources, and checks that name the array, the transition and the source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import NESTED, SquashedGaussianActions
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import Observations
from sb3_ppg.environments.watched import normalizers
from sb3_ppg.errors import ArgumentError, missing_extras_named

ARRAYS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
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
    :param terminations: whether the next observation ends the episode, so that nothing can follow, (N,)
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
        for name in ARRAYS:
            setattr(self, name, map_arrays(np.atleast_1d, getattr(self, name)))
        shape, following = (map_arrays(np.shape, one) for one in (self.observations, self.next_observations))
        self._require(shape == following, "next_observations", f"have the shapes {following}, `observations` {shape}")
        sizes: set[int] = set()
        lengths = {name: map_arrays(len, getattr(self, name)) for name in ARRAYS}
        map_arrays(sizes.add, lengths)
        if 0 in sizes:
            raise ArgumentError(f"{self.source} is empty: there are no transitions to learn from")
        if len(sizes) > 1:
            raise ArgumentError(f"{self.source} has arrays of different lengths: {lengths}")
        for name in ("rewards", "terminations", "truncations"):
            self._require(getattr(self, name).ndim == 1, name, f"have shape {getattr(self, name).shape}; use (N,)")
        for name in ("terminations", "truncations"):
            array = getattr(self, name)
            self._require_each(np.isin(array, (0, 1)), name, array, "are neither 0 nor 1")
            setattr(self, name, array.astype(bool))
        continues = np.arange(len(self)) < len(self) - 1  # whether the following transition begins where one ends

        def compare(after: np.ndarray, before: np.ndarray) -> None:
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
        Return the discounted return after each transition's observation.

        :param gamma: discount factor
        :param last_values: V of the next observations at ``ends``, which counts where they do not terminate, (len(ends),)
        :return: (N,), in the units of the rewards
        """
        returns = self.rewards.astype(np.float64)
        last = dict(zip(self.ends, np.where(self.terminations[self.ends], 0.0, last_values).astype(np.float64), strict=True))
        for step in reversed(range(len(self))):
            returns[step] += gamma * (last[step] if step in last else returns[step + 1])
        return returns

    def fitted_to(self, observation_space: spaces.Space, action_space: spaces.Space) -> "Dataset":
        """
        Check that an environment with these spaces can have given the data, and convert it to their types.

        :param observation_space: observation space of the model, where images are channel first, as SB3 has them
        :param action_space: action space of the environment
        :return: the data in the types of the spaces; images channel first; actions within their bounds
        :raises ArgumentError: for the first array that does not fit
        """
        if isinstance(action_space, NESTED) or isinstance(self.actions, dict):
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
            return {key: self._fitted_observations(f"{name}[{key!r}]", value[key], one) for key, one in space.items()}
        self._require(not isinstance(value, dict), name, f"are a dictionary, the environment's are {space}")
        if is_image_space(space) and value.shape[1:] == (*space.shape[1:], space.shape[0]):
            value = np.moveaxis(value, -1, 1)
        return self._fitted(name, value, space, is_bounded=np.issubdtype(space.dtype, np.integer))

    def _fitted(self, name: str, array: np.ndarray, space: Any, is_bounded: bool) -> np.ndarray:
        """Return an array in the type of its space, after checks of its shape, its numbers and, if asked, its bounds."""
        array = array[:, 0] if space.shape == () and array.shape[1:] == (1,) else array  # of Discrete spaces in SB3's buffers
        self._require(array.shape[1:] == space.shape, name, f"have shape {array.shape[1:]}, the environment's {space.shape}")
        self._require(array.dtype.kind in "biuf", name, f"are {array.dtype}, no numbers")
        is_good = np.isfinite(array)
        is_rounded = np.issubdtype(space.dtype, np.integer) and array.dtype.kind == "f"
        if is_bounded:
            low, high = bounds(space)
            width = high - low
            margin = TOLERANCE * np.where(np.isfinite(width), width, 0)
            if is_rounded:
                margin = np.minimum(margin, 0.1)
                is_good &= abs(array - np.rint(array)) <= margin
            is_good &= (array >= low - margin) & (array <= high + margin)
        self._require_each(is_good, name, array, f"lie outside {space}")
        return (np.rint(array) if is_rounded else array).astype(space.dtype, copy=False)


def bounds(space: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a space of numbers, in a type that can hold their difference."""
    if isinstance(space, spaces.Box):
        return space.low.astype(np.float64), space.high.astype(np.float64)
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return space.start, space.start + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1


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
        if normalizer.training and normalizer.norm_obs:
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

    Example::

        from sb3_ppg.offline import load_dataset

        dataset = load_dataset("mujoco/hopper/medium-v0")
        print(len(dataset), dataset.episode_returns().mean())

    :param source: a ``Dataset``; a dictionary of its arrays; a ``ReplayBuffer`` of SB3, or the file that
        ``save_replay_buffer`` has written (".pkl"); a Minari data set: its name in the local store, its folder, or the hdf5
        file there
    :return: the data
    :raises ArgumentError: if it is empty, damaged, missing, or of another kind
    """
    match source:
        case Dataset():
            return source
        case Mapping():
            if source.keys() != {*ARRAYS}:
                raise ArgumentError(f"The dictionary of recorded data has the keys {[*source]}; use {[*ARRAYS]}")
            return Dataset(**source)
        case ReplayBuffer():
            return _from_replay_buffer(source)
        case str() | Path():
            return _from_pickle(Path(source)) if Path(source).suffix == ".pkl" else _from_minari(str(source))
    raise ArgumentError(
        f"`dataset`={type(source).__name__} cannot work: use a Dataset, a dictionary of arrays, a ReplayBuffer, or the "
        "name or path of a data set"
    )


def joined(parts: Sequence[Dataset]) -> Dataset:
    """Join recordings that do not continue one another: the last transition of each ends an episode."""
    columns = {name: [getattr(part, name) for part in parts] for name in ARRAYS}
    arrays: Any = {name: map_arrays(lambda *some: np.concatenate(some), *column) for name, column in columns.items()}
    return Dataset(**arrays, source=parts[0].source)


def _from_replay_buffer(buffer: ReplayBuffer, source: str = "the replay buffer") -> Dataset:
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
        if abs(actions[rows]).max(initial=0) > 1 + TOLERANCE:
            raise ArgumentError(
                f"{source}: `actions` reach {abs(actions[rows]).max():.4g}, but SB3's algorithms store Box actions scaled to "
                "[-1, 1]; if these are in the environment's units, give arrays instead of the buffer: a dictionary with "
                f"{', '.join(ARRAYS)}"
            )
        actions = SquashedGaussianActions(space).for_environments(actions)
    dones, timeouts = buffer.dones.astype(bool), buffer.timeouts.astype(bool)
    columns = (buffer.observations, actions, buffer.rewards, next_observations, dones & ~timeouts, timeouts)
    named = dict(zip(ARRAYS, columns, strict=True))
    parts = (map_arrays(itemgetter((rows, index)), named) for index in range(buffer.n_envs))
    return joined([Dataset(**part, source=source) for part in parts])


def _from_pickle(path: Path) -> Dataset:
    try:
        buffer = load_from_pkl(path)
    except Exception as error:  # unpickling raises errors of many kinds for a wrong byte
        raise ArgumentError(f"`dataset`={str(path)!r} cannot be read ({type(error).__name__}: {error})") from error
    if not isinstance(buffer, ReplayBuffer):
        raise ArgumentError(f"{path} holds a {type(buffer).__name__}, no ReplayBuffer of SB3")
    return _from_replay_buffer(buffer, str(path))


def _from_minari(name: str) -> Dataset:
    with missing_extras_named():
        import h5py  # noqa: F401  Minari names its own extra
        import minari
    path = Path(name).parent if name.endswith(".hdf5") else Path(name)
    path = path / "data" if (path / "data").is_dir() else path
    try:
        episodes = list((minari.MinariDataset(path) if path.is_dir() else minari.load_dataset(name)).iterate_episodes())
    except Exception as error:  # h5py and Minari raise errors of many kinds
        reason = f"Minari cannot read it ({type(error).__name__}: {error})"
        raise ArgumentError(f"`dataset`={name!r} cannot work: {reason}") from error
    if not episodes:
        raise ArgumentError(f"{name} is empty: there are no episodes to learn from")
    parts = []
    for one in episodes:
        now, following = (map_arrays(itemgetter(part), one.observations) for part in (slice(-1), slice(1, None)))
        parts.append(Dataset(now, one.actions, one.rewards, following, one.terminations, one.truncations, name))
    return joined(parts)
