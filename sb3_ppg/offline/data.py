"""Recorded data: one class for all sources, and checks that say what is wrong and where."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.buffers.nested import map_arrays
from sb3_ppg.buffers.rollouts import Observations
from sb3_ppg.environments.watched import normalizers
from sb3_ppg.errors import ArgumentError, missing_extras_named, nearest

ACTION_TOLERANCE = 1e-5  # of the action space's width: rounding to float32 and back


@dataclass(frozen=True, repr=False, eq=False)
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
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "source":
                object.__setattr__(self, field.name, map_arrays(np.asarray, value))  # frozen
        keys = [set(one) if isinstance(one, dict) else None for one in (self.observations, self.next_observations)]
        self._require(keys[0] == keys[1], "next_observations", f"have the keys {keys[1]}, `observations` {keys[0]}")
        lengths = {name: _length(array) for name, array in self._arrays()}
        if 0 in lengths.values():
            raise ArgumentError(f"{self.source} is empty: there are no transitions to learn from")
        if len(set(lengths.values())) > 1:
            raise ArgumentError(f"{self.source} has arrays of different lengths: {lengths}")
        for name in ("rewards", "terminations", "truncations"):
            self._require(getattr(self, name).ndim == 1, name, f"have shape {getattr(self, name).shape}; use (N,)")
        for name in ("terminations", "truncations"):
            self._require(np.isin(getattr(self, name), (0, 1)).all(), name, "have other values than true and false")
            object.__setattr__(self, name, getattr(self, name).astype(bool))
        object.__setattr__(self, "truncations", self.truncations | self._is_cut_off())

    def __len__(self) -> int:
        return len(self.rewards)

    def _arrays(self) -> Iterable[tuple[str, np.ndarray]]:
        """Iterate over all arrays, with the names by which errors call them."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, dict):
                yield from ((f"{field.name}[{key!r}]", array) for key, array in value.items())
            elif field.name != "source":
                yield field.name, value

    def _require(self, condition: bool | np.bool, name: str, problem: str) -> None:
        if not condition:
            raise ArgumentError(f"{self.source}: `{name}` {problem}")

    def _is_cut_off(self) -> np.ndarray:
        """Return where nothing has ended, and the next transition does not begin with the next observation."""
        now, following = self.observations, self.next_observations
        pairs: Any = [(now[key], following[key]) for key in now] if isinstance(now, dict) else [(now, following)]
        continues = np.zeros(len(self), dtype=bool)
        continues[:-1] = np.all([_equal_rows(after[:-1], before[1:]) for before, after in pairs], axis=0)
        return ~(continues | self.terminations)

    @property
    def ends(self) -> np.ndarray:
        """Places of the last transitions of episodes."""
        return np.flatnonzero(self.terminations | self.truncations)

    def episode_returns(self) -> np.ndarray:
        """Return the sum of the rewards of each episode, (number of episodes,)."""
        starts = np.concatenate([[0], self.ends[:-1] + 1])
        return np.add.reduceat(self.rewards.astype(np.float64), starts)

    def returns(self, gamma: float, last_values: np.ndarray) -> np.ndarray:
        """
        Return the discounted return after each transition's observation.

        :param gamma: discount factor
        :param last_values: V of the next observations at ``ends``, which counts where they do not terminate, (len(ends),)
        :return: (N,), in the units of the rewards
        """
        returns = self.rewards.astype(np.float64)
        rest = np.zeros(len(self))
        rest[self.ends] = np.where(self.terminations[self.ends], 0.0, last_values)
        is_end = self.terminations | self.truncations
        for step in range(len(self) - 1, -1, -1):
            returns[step] += gamma * (rest[step] if is_end[step] else returns[step + 1])
        return returns

    def fitted_to(self, observation_space: spaces.Space, action_space: spaces.Space) -> "Dataset":
        """
        Check that an environment with these spaces can have given the data, and bring it into their types.

        :param observation_space: of the model, where images are channel first, as SB3 has them
        :param action_space: of the environment
        :return: the data in the types of the spaces; images channel first; actions (N, ...), within their bounds
        :raises ArgumentError: for the first array that does not fit
        """
        fitted = {
            name: self._fitted_observations(name, getattr(self, name), observation_space)
            for name in ("observations", "next_observations")
        }
        self._require_finite("rewards", self.rewards)
        if isinstance(action_space, spaces.Dict | spaces.Tuple):
            raise ArgumentError(f"{self.source} cannot be for {action_space}: recorded actions are arrays of numbers")
        actions = self._fitted_actions(action_space)
        return replace(self, **fitted, actions=actions, rewards=self.rewards.astype(np.float32))

    def _fitted_observations(self, name: str, value: Any, space: spaces.Space) -> Any:
        if isinstance(space, spaces.Dict):
            keys = set(value) if isinstance(value, dict) else set()
            self._require(keys == set(space), name, f"have the keys {sorted(keys)}, the environment's {sorted(space)}")
            return {key: self._fitted_observations(f"{name}[{key!r}]", value[key], one) for key, one in space.items()}
        self._require(not isinstance(value, dict), name, f"are a dictionary, the environment's are {space}")
        shape = space.shape or ()
        if is_image_space(space) and value.shape[1:] == (*shape[1:], shape[0]):
            value = np.moveaxis(value, -1, 1)
        self._require(value.shape[1:] == shape, name, f"have shape {value.shape[1:]}, the environment's {shape}")
        is_image = space.dtype == np.uint8 and not np.issubdtype(value.dtype, np.integer)
        self._require(not is_image, name, f"are {value.dtype}, the environment's images uint8: store them as uint8, 0 to 255")
        self._require_finite(name, value)
        if np.issubdtype(space.dtype, np.integer):
            self._require_within(name, value, space, whole=True)
        return value.astype(space.dtype, copy=False)

    def _fitted_actions(self, space: spaces.Space) -> np.ndarray:
        actions = self.actions
        shape = space.shape or ()
        if actions.shape[1:] == (1,) and shape == ():
            actions = actions[:, 0]
        self._require(actions.shape[1:] == shape, "actions", f"have shape {actions.shape[1:]}, the environment's {shape}")
        self._require_finite("actions", actions)
        self._require_within("actions", actions, space)
        if isinstance(space, spaces.Box):
            actions = np.clip(actions, space.low, space.high)
        return actions.astype(space.dtype, copy=False)

    def _require_finite(self, name: str, array: np.ndarray) -> None:
        self._require(np.issubdtype(array.dtype, np.number) or array.dtype == bool, name, f"are {array.dtype}, no numbers")
        bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
        self._require(not bad.any(), name, f"are NaN or infinite at {bad.argmax()} ({bad.sum()} of {len(bad)} transitions)")

    def _require_within(self, name: str, array: np.ndarray, space: spaces.Space, whole: bool = False) -> None:
        low, high = bounds(space)
        is_box = isinstance(space, spaces.Box)
        margin = ACTION_TOLERANCE * (high - low) if is_box and not whole else 0
        is_whole = (is_box and not whole) | (array == np.round(array))
        bad = ~(is_whole & (array >= low - margin) & (array <= high + margin)).reshape(len(array), -1).all(axis=1)
        place = bad.argmax()
        counted = f"at {place} ({bad.sum()} of {len(bad)} transitions)"
        self._require(not bad.any(), name, f"lie outside {space} {counted}: {array[place]}")


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


def _length(array: np.ndarray) -> int:
    return len(array) if array.ndim > 0 else 0


def _equal_rows(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return which rows are equal, (N,)."""
    if one.shape != other.shape:
        return np.zeros(len(one), dtype=bool)
    return (one == other).all(axis=tuple(range(1, one.ndim)))


def fit_normalizers(env: VecEnv | None, data: Dataset) -> None:
    """
    Let ``VecNormalize`` have the statistics of the data, unless its own are not to change (``training=False``).

    :param env: environments with any wrappers, or None
    :param data: in the types of the spaces
    """
    for normalizer in normalizers(env):
        if normalizer.training and normalizer.norm_obs:
            statistics, observations = normalizer.obs_rms, data.observations
            by_key: Any = statistics if isinstance(statistics, dict) else {None: statistics}
            for key, of_key in by_key.items():
                of_key.update(observations[key] if isinstance(observations, dict) else observations)
        if normalizer.training and normalizer.norm_reward:
            running, returns = 0.0, np.zeros(len(data))  # as VecNormalize sums rewards up
            for step, (reward, ends) in enumerate(zip(data.rewards, data.terminations | data.truncations, strict=True)):
                returns[step] = running = normalizer.gamma * running + reward
                running = 0.0 if ends else running
            normalizer.ret_rms.update(returns)


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
        names = {field.name for field in fields(Dataset)} - {"source"}
        for name in source.keys() ^ names:
            problem = "is missing" if name in names else f"is none of a data set's arrays{nearest(name, names)}"
            raise ArgumentError(f"The dictionary of recorded data: `{name}` {problem}")
        return Dataset(**source)
    if isinstance(source, ReplayBuffer):
        return from_replay_buffer(source)
    if not isinstance(source, str | Path):
        raise ArgumentError(
            f"`dataset`={type(source).__name__} cannot work: use a Dataset, a dictionary of arrays, a ReplayBuffer, or the "
            "name or path of a data set"
        )
    path = Path(source)
    if path.suffix == ".pkl":
        return _from_pickle(path)
    return _from_minari(str(source), path)


def from_replay_buffer(buffer: ReplayBuffer, source: str = "the replay buffer") -> Dataset:
    """
    Take the transitions of an off-policy algorithm's replay buffer, environment by environment.

    :param buffer: as SB3's algorithms fill it: with Box actions scaled to [-1, 1]
    :param source: for error messages
    :return: its transitions, with actions as the environment takes them
    """
    order = np.arange(buffer.buffer_size) if buffer.full else np.arange(buffer.pos)
    if buffer.full:
        order = np.roll(order, -buffer.pos)  # the oldest first
    following = order
    if buffer.optimize_memory_usage:  # the next observation is the next row's; that of the newest is in place of the oldest's
        order = order[1:] if buffer.full else order
        following = (order + 1) % buffer.buffer_size
    next_observations = buffer.observations if buffer.optimize_memory_usage else buffer.next_observations

    def flat(array: np.ndarray, places: np.ndarray = order) -> np.ndarray:
        return BaseBuffer.swap_and_flatten(array[places]) if array.ndim > 2 else array[places].T.reshape(-1)

    shapes: Any = buffer.obs_shape

    def observed(places: np.ndarray, arrays: Any) -> Any:
        return map_arrays(lambda array, shape: flat(array, places).reshape(-1, *shape), arrays, shapes)

    space, actions = buffer.action_space, flat(buffer.actions)
    if isinstance(space, spaces.Box):
        low, high = bounds(space)
        actions = low + 0.5 * (actions.reshape(-1, *space.shape) + 1) * (high - low)
    dones, timeouts = flat(buffer.dones).astype(bool), flat(buffer.timeouts).astype(bool)
    timeouts[len(order) - 1 :: len(order)] |= ~dones[len(order) - 1 :: len(order)]  # another environment follows
    return Dataset(
        _as_in(buffer.observation_space, observed(order, buffer.observations)),
        actions,
        flat(buffer.rewards),
        _as_in(buffer.observation_space, observed(following, next_observations)),
        terminations=dones & ~timeouts,
        truncations=timeouts,
        source=source,
    )


def _as_in(space: Any, observations: Any) -> Any:
    """Give observations the shapes of the space, where buffers have (1,) for Discrete ones."""
    if isinstance(space, spaces.Dict):
        return {key: _as_in(one, observations[key]) for key, one in space.items()}
    return observations.reshape(-1, *(space.shape or ()))


def _from_pickle(path: Path) -> Dataset:
    if not path.exists():
        raise ArgumentError(f"`dataset`={str(path)!r} cannot work: there is no such file")
    try:
        buffer = load_from_pkl(path)
    except Exception as error:  # unpickling raises errors of many kinds for a wrong byte
        raise ArgumentError(f"{path} is damaged, or no pickle ({type(error).__name__}: {error})") from error
    if not isinstance(buffer, ReplayBuffer):
        raise ArgumentError(f"{path} holds a {type(buffer).__name__}, no ReplayBuffer of SB3")
    return from_replay_buffer(buffer, str(path))


def _from_minari(name: str, path: Path) -> Dataset:
    with missing_extras_named():
        import h5py  # noqa: F401  Minari names its own extra
        import minari
    if path.suffix in (".hdf5", ".h5") and path.exists():
        folder = path.parent
    elif path.is_dir():
        folder = path / "data" if (path / "data").is_dir() else path
    else:
        folder = minari.storage.get_dataset_path(name) / "data"
        if not folder.is_dir():
            there = nearest(name, minari.list_local_datasets())
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

    def joined(*parts: Any) -> np.ndarray:
        return np.concatenate([np.asarray(part) for part in parts])

    return Dataset(
        map_arrays(joined, *[map_arrays(lambda array: array[:-1], one.observations) for one in episodes]),
        map_arrays(joined, *[one.actions for one in episodes]),
        joined(*[one.rewards for one in episodes]),
        map_arrays(joined, *[map_arrays(lambda array: array[1:], one.observations) for one in episodes]),
        joined(*[one.terminations for one in episodes]),
        joined(*[_ended(one) for one in episodes]),
        source=name,
    )


def _ended(episode: Any) -> np.ndarray:
    """Return the truncations of an episode of Minari's, which another one follows."""
    truncations = np.array(episode.truncations, dtype=bool)
    truncations[-1] |= not episode.terminations[-1]
    return truncations
