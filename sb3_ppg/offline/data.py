"""Recorded data: one class for all sources, and checks that say what is wrong and where."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import NESTED
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import Observations
from sb3_ppg.environments.watched import normalizers
from sb3_ppg.errors import ArgumentError, missing_extras_named, nearest

ARRAYS = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
TOLERANCE = 1e-5  # of the width of a space: rounding to float32 and back


@dataclass(repr=False, eq=False)
class Dataset:
    """
    Transitions of recorded episodes, in the order in which they were recorded.

    Where a transition is not followed by its next observation, though nothing ended, the episode was cut off: that counts as
    a truncation. So transitions in any order are good data, but only those in the order of their episodes give returns and
    n-step targets.

    :param observations: (N, ...), or a dictionary of such arrays, as the environment gives them, before ``VecNormalize``
    :param actions: (N, ...), as the environment takes them
    :param rewards: (N,), before ``VecNormalize``
    :param next_observations: (N, ...)
    :param terminations: whether the next observation ends the episode, so that nothing can follow, (N,)
    :param truncations: whether recording stopped there for another reason, such as a time limit, (N,)
    :param source: where they are from, for error messages
    :raises ArgumentError: if there are none, or their numbers differ
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
            try:
                setattr(self, name, map_arrays(np.atleast_1d, getattr(self, name)))
            except ValueError as error:  # of a list of episodes
                raise ArgumentError(f"{self.source}: `{name}` cannot be an array: {error}") from error
        shape, following = (map_arrays(np.shape, one) for one in (self.observations, self.next_observations))
        self._require(shape == following, "next_observations", f"have the shapes {following}, `observations` {shape}")
        lengths = {name: len(array) for name, array in self._arrays()}
        if 0 in lengths.values():
            raise ArgumentError(f"{self.source} is empty: there are no transitions to learn from")
        if len(set(lengths.values())) > 1:
            raise ArgumentError(f"{self.source} has arrays of different lengths: {lengths}")
        for name in ("rewards", "terminations", "truncations"):
            self._require(getattr(self, name).ndim == 1, name, f"have shape {getattr(self, name).shape}; use (N,)")
        for name in ("terminations", "truncations"):
            self._require(np.isin(getattr(self, name), (0, 1)).all(), name, "have other values than true and false")
            setattr(self, name, getattr(self, name).astype(bool))
        self.truncations = self.truncations | ~(self._continues() | self.terminations)

    def __len__(self) -> int:
        return len(self.rewards)

    def _arrays(self) -> Iterable[tuple[str, np.ndarray]]:
        """Iterate over all arrays, with the names by which errors call them."""
        for name in ARRAYS:
            value = getattr(self, name)
            if isinstance(value, dict):
                yield from ((f"{name}[{key!r}]", array) for key, array in value.items())
            else:
                yield name, value

    def _require(self, condition: bool | np.bool, name: str, problem: str) -> None:
        if not condition:
            raise ArgumentError(f"{self.source}: `{name}` {problem}")

    def _continues(self) -> np.ndarray:
        """Return which transitions end where the next one begins, (N,)."""

        def equal(after: np.ndarray, before: np.ndarray) -> np.ndarray:
            return (after[:-1] == before[1:]).all(axis=tuple(range(1, after.ndim)))

        equal_rows: Any = map_arrays(equal, self.next_observations, self.observations)
        continues = np.zeros(len(self), dtype=bool)
        continues[:-1] = np.all([*equal_rows.values()], axis=0) if isinstance(equal_rows, dict) else equal_rows
        return continues

    @property
    def ends(self) -> np.ndarray:
        """Places of the last transitions of episodes."""
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
        Check that an environment with these spaces can have given the data, and bring it into their types.

        :param observation_space: of the model, where images are channel first, as SB3 has them
        :param action_space: of the environment
        :return: the data in the types of the spaces; images channel first; actions (N, ...), within their bounds
        :raises ArgumentError: for the first array that does not fit
        """
        if isinstance(action_space, NESTED) or isinstance(self.actions, dict):
            raise ArgumentError(f"{self.source} cannot be for {action_space}: recorded actions are arrays of numbers")
        names = ("observations", "next_observations")
        fitted = {name: self._fitted_observations(name, getattr(self, name), observation_space) for name in names}
        actions = self.actions[:, 0] if action_space.shape == () and self.actions.shape[1:] == (1,) else self.actions
        actions = self._fitted("actions", actions, action_space, is_bounded=True)
        if isinstance(action_space, spaces.Box):
            actions = np.clip(actions, action_space.low, action_space.high)
        self._require_finite("rewards", self.rewards)
        return replace(self, **fitted, actions=actions, rewards=self.rewards.astype(np.float32))

    def _fitted_observations(self, name: str, value: Any, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            keys = set(value) if isinstance(value, dict) else set()
            self._require(keys == set(space), name, f"have the keys {sorted(keys)}, the environment's {sorted(space)}")
            return {key: self._fitted_observations(f"{name}[{key!r}]", value[key], one) for key, one in space.items()}
        self._require(not isinstance(value, dict), name, f"are a dictionary, the environment's are {space}")
        if is_image_space(space) and value.shape[1:] == (*space.shape[1:], space.shape[0]):
            value = np.moveaxis(value, -1, 1)
        is_image = space.dtype == np.uint8 and not np.issubdtype(value.dtype, np.integer)
        self._require(not is_image, name, f"are {value.dtype}, the environment's images uint8: store them as uint8, 0 to 255")
        return self._fitted(name, value, space, is_bounded=np.issubdtype(space.dtype, np.integer))

    def _fitted(self, name: str, array: np.ndarray, space: Any, is_bounded: bool) -> np.ndarray:
        """Return an array in the type of its space, after checks of its shape, its numbers and, if asked, its bounds."""
        self._require(array.shape[1:] == space.shape, name, f"have shape {array.shape[1:]}, the environment's {space.shape}")
        self._require_finite(name, array)
        is_rounded = np.issubdtype(space.dtype, np.integer) and not np.issubdtype(array.dtype, np.integer)
        if is_bounded:
            low, high = bounds(space)
            width = high - low
            margin = TOLERANCE * np.where(np.isfinite(width), width, 0) if isinstance(space, spaces.Box) else 0
            is_good = (array >= low - margin) & (array <= high + margin)
            if is_rounded:
                is_good &= abs(array - np.rint(array)) <= np.minimum(margin, 0.1)
            self._require_each(is_good, name, array, f"lie outside {space}")
        return (np.rint(array) if is_rounded else array).astype(space.dtype, copy=False)

    def _require_finite(self, name: str, array: np.ndarray) -> None:
        self._require(np.issubdtype(array.dtype, np.number) or array.dtype == bool, name, f"are {array.dtype}, no numbers")
        self._require_each(np.isfinite(array), name, array, "are NaN or infinite")

    def _require_each(self, is_good: Any, name: str, array: np.ndarray, problem: str) -> None:
        bad = ~is_good.reshape(len(array), -1).all(axis=1)
        place = bad.argmax()
        counted = f"at {place} ({bad.sum()} of {len(bad)} transitions): {array[place]}"
        self._require(not bad.any(), name, f"{problem} {counted}")


def bounds(space: Any) -> tuple[Any, Any]:
    """Return the least and the greatest value of a space of numbers."""
    match space:
        case spaces.Box():  # in a type in which their difference has room
            return space.low.astype(np.float64), space.high.astype(np.float64)
        case spaces.Discrete():
            return space.start, space.start + space.n - 1
        case spaces.MultiDiscrete():
            return space.start, space.start + space.nvec - 1
    return 0, 1


def fit_normalizers(env: VecEnv | None, data: Dataset, is_trained: bool) -> None:
    """
    Give ``VecNormalize`` the statistics of the data in place of its own. It keeps those that networks have been trained with,
    and those that are not to change (``training=False``).

    :param env: environments with any wrappers, or None
    :param data: in the types of the spaces
    :param is_trained: whether the networks have been trained
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

    A pickle runs code when it is read: load your own only.

    Example::

        from sb3_ppg.offline import load_dataset

        dataset = load_dataset("mujoco/hopper/medium-v0")
        print(len(dataset), dataset.episode_returns().mean())

    :param source: a ``Dataset``; a dictionary of its arrays; a ``ReplayBuffer`` of SB3, or the file that
        ``save_replay_buffer`` has written (".pkl"); a Minari data set: its name in the local store, its folder, or the hdf5
        file there
    :return: the data
    :raises ArgumentError: if it is empty, damaged, not there, or of another kind
    """
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Mapping):
        for name in source.keys() ^ {*ARRAYS}:
            problem = "is missing" if name in ARRAYS else f"is none of a data set's arrays{nearest(name, ARRAYS)}"
            raise ArgumentError(f"The dictionary of recorded data: `{name}` {problem}")
        return Dataset(**source)
    if isinstance(source, ReplayBuffer):
        return _from_replay_buffer(source)
    if not isinstance(source, str | Path):
        raise ArgumentError(
            f"`dataset`={type(source).__name__} cannot work: use a Dataset, a dictionary of arrays, a ReplayBuffer, or the "
            "name or path of a data set"
        )
    path = Path(source)
    return _from_pickle(path) if path.suffix == ".pkl" else _from_minari(str(source))


def _from_replay_buffer(buffer: ReplayBuffer, source: str = "the replay buffer") -> Dataset:
    """Return the transitions of a buffer that SB3's algorithms have filled, environment by environment."""
    rows = np.arange(buffer.buffer_size) if buffer.full else np.arange(buffer.pos)
    if buffer.full:
        rows = np.roll(rows, -buffer.pos)  # the oldest first
    following, next_observations = rows, buffer.observations
    if buffer.optimize_memory_usage:  # the next observation is the next row's; that of the newest is in place of the oldest's
        rows = rows[1:] if buffer.full else rows
        following = (rows + 1) % buffer.buffer_size
    else:
        next_observations = buffer.next_observations

    def column(array: np.ndarray, shape: tuple[int, ...] = (), rows: np.ndarray = rows) -> np.ndarray:
        return BaseBuffer.swap_and_flatten(array[rows]).reshape(-1, *shape)

    space: Any = buffer.observation_space
    # A buffer has Discrete observations and actions as (1,)
    shapes = {key: one.shape for key, one in space.items()} if isinstance(space, spaces.Dict) else space.shape
    actions_space: Any = buffer.action_space
    actions = column(buffer.actions, actions_space.shape)
    if isinstance(actions_space, spaces.Box):  # scaled to [-1, 1]
        low, high = bounds(actions_space)
        actions = low + 0.5 * (actions + 1) * (high - low)
    dones, timeouts = column(buffer.dones).astype(bool), column(buffer.timeouts).astype(bool)
    last = slice(len(rows) - 1, None, len(rows) or 1)  # of each environment, which another one follows
    timeouts[last] |= ~dones[last]
    return Dataset(
        map_arrays(column, buffer.observations, shapes),
        actions,
        column(buffer.rewards),
        map_arrays(partial(column, rows=following), next_observations, shapes),
        terminations=dones & ~timeouts,
        truncations=timeouts,
        source=source,
    )


def _from_pickle(path: Path) -> Dataset:
    if not path.exists():
        raise ArgumentError(f"`dataset`={str(path)!r} cannot work: there is no such file")
    try:
        buffer = load_from_pkl(path)
    except Exception as error:  # unpickling raises errors of many kinds for a wrong byte
        raise ArgumentError(f"{path} is damaged, or no pickle ({type(error).__name__}: {error})") from error
    if not isinstance(buffer, ReplayBuffer):
        raise ArgumentError(f"{path} holds a {type(buffer).__name__}, no ReplayBuffer of SB3")
    return _from_replay_buffer(buffer, str(path))


def _from_minari(name: str) -> Dataset:
    with missing_extras_named():
        import h5py  # noqa: F401  Minari names its own extra
        import minari
    path = Path(name)
    if path.suffix in (".hdf5", ".h5") and path.exists():
        folder = path.parent
    elif path.is_dir():
        folder = path / "data" if (path / "data").is_dir() else path
    else:
        store = minari.storage.get_dataset_path()
        folder = store / name / "data"
        if not folder.is_dir():
            there = nearest(name, (one.parent.relative_to(store).as_posix() for one in store.glob("**/data")))
            raise ArgumentError(f"`dataset`={name!r} cannot work: no such file or folder, and no such Minari data set{there}")
    try:
        episodes = list(minari.MinariDataset(folder).iterate_episodes())
    except Exception as error:  # h5py and Minari raise errors of many kinds
        remedy = "a Minari data set has metadata.json beside main_data.hdf5"
        raise ArgumentError(
            f"{folder} is damaged, or no Minari data set ({type(error).__name__}: {error}): {remedy}"
        ) from error
    if not episodes:
        raise ArgumentError(f"{name} is empty: there are no episodes to learn from")

    def joined(column: str, rows: slice = slice(None)) -> Any:
        parts = [map_arrays(lambda array: np.asarray(array)[rows], getattr(one, column)) for one in episodes]
        return map_arrays(lambda *arrays: np.concatenate(arrays), *parts)

    terminations, truncations = joined("terminations"), joined("truncations")
    last = np.cumsum([len(one.rewards) for one in episodes]) - 1  # of each episode, which another one follows
    truncations[last] |= ~terminations[last]
    return Dataset(
        joined("observations", slice(-1)),
        joined("actions"),
        joined("rewards"),
        joined("observations", slice(1, None)),
        terminations,
        truncations,
        source=name,
    )
