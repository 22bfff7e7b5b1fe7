"""Functions on SB3's and custom rollout buffers: samples in a given order, arrays by environment or by step."""

import copy
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.buffers.nested import map_arrays
from sb3_ppg.buffers.protocol import SB3_CLASSES, GivesSequences
from sb3_ppg.environments.watched import normalizers
from sb3_ppg.optim.micro_batches import split

# Small minibatches are gathered together, by one indexed copy of up to this size
GATHERED_BYTES = 2**22
Observations = np.ndarray | dict[str, np.ndarray]


class RolloutEnd(NamedTuple):
    """
    The state after the last step of a rollout.

    :param observations: (n_envs, ...), or a dictionary of such arrays
    :param values: V of them when the rollout was collected, (n_envs,); for vector rewards (n_envs, K)
    :param dones: whether they begin an episode, (n_envs,)
    :param memory: memory of the policy, see ``PPG.memory``
    """

    observations: Observations
    values: np.ndarray
    dones: np.ndarray
    memory: np.ndarray | None = None


# ---- samples ----


def minibatches(rollout_buffer: RolloutBuffer, batch_size: int, extras: dict[str, np.ndarray] | None = None) -> Iterator[Any]:
    """
    Draw the minibatches of one epoch: all samples, shuffled.

    :param rollout_buffer: full buffer
    :param batch_size: in samples
    :param extras: further arrays by name, (n_envs * n_steps, ...), environment by environment
    :return: the buffer's minibatches; with extras, these have the additional field ``extras``
    """
    cls, at_once = type(rollout_buffer), batch_size
    if any(cls.get is theirs.get and cls._get_samples is theirs._get_samples for theirs in SB3_CLASSES):
        # Minibatches are plain selections of samples, so several of them can be split from a larger one
        n_samples = rollout_buffer.buffer_size * rollout_buffer.n_envs
        minibatch_bytes = n_bytes(rollout_buffer.observations) * batch_size / n_samples
        at_once *= max(1, int(GATHERED_BYTES / minibatch_bytes))
    if not extras:
        for some in rollout_buffer.get(at_once):
            yield from split(some, batch_size)
        return
    for places, some in samples(rollout_buffer, at_once, np.random.permutation):
        parts = {name: rollout_buffer.to_torch(array[places]) for name, array in extras.items()}
        yield from split(_extended(type(some).__name__, some._fields)(*some, extras=parts), batch_size)


@cache
def _extended(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, (*fields, "extras"))


def samples(
    rollout_buffer: RolloutBuffer, batch_size: int, order: Callable[[int], np.ndarray]
) -> Iterator[tuple[np.ndarray, Any]]:
    """
    Read all samples.

    :param rollout_buffer: full buffer
    :param batch_size: largest number of samples in a minibatch
    :param order: ``np.arange`` or ``np.random.permutation``
    :return: for each minibatch, the indices of its samples (environment by environment), and the samples
    """
    if isinstance(rollout_buffer, GivesSequences):
        yield from rollout_buffer.samples(batch_size, order)
        return
    order_by_environment(rollout_buffer)
    places = order(rollout_buffer.buffer_size * rollout_buffer.n_envs)
    for start in range(0, len(places), batch_size):
        some = places[start : start + batch_size]
        yield some, rollout_buffer._get_samples(some)


# ---- arrays ----


def has_steps(rollout_buffer: RolloutBuffer, name: str, value: Any) -> bool:
    """Return whether an attribute of a rollout buffer has a row for each step, (n_steps, n_envs, ...)."""
    sizes = (rollout_buffer.buffer_size, rollout_buffer.n_envs)
    return name == "observations" or (isinstance(value, np.ndarray) and value.shape[:2] == sizes)


def last_step(rollout_buffer: RolloutBuffer) -> RolloutBuffer:
    """Return a buffer with only the last step of this one, which is full and not yet ordered by environment."""
    last = copy.copy(rollout_buffer)
    for name, value in vars(rollout_buffer).items():
        if has_steps(rollout_buffer, name, value):
            setattr(last, name, map_arrays(lambda array: array[-1:], value))
    last.buffer_size = 1
    return last


def order_by_environment(rollout_buffer: RolloutBuffer) -> None:
    """
    Reorder all arrays of a full buffer from (n_steps, n_envs, ...) to (n_envs * n_steps, ...), as SB3's ``get`` does, unless
    they are in this order already.
    """
    if rollout_buffer.generator_ready:
        return
    for name, value in list(vars(rollout_buffer).items()):
        if has_steps(rollout_buffer, name, value):
            setattr(rollout_buffer, name, map_arrays(rollout_buffer.swap_and_flatten, value))
    rollout_buffer.generator_ready = True


def by_environment(rollout_buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """
    :param rollout_buffer: buffer with the array
    :param array: (n_steps, n_envs, ...), as collected, or (n_envs * n_steps, ...), as ``get`` orders it
    :return: (n_envs, n_steps, numbers of a sample)
    """
    n_steps, n_envs = rollout_buffer.buffer_size, rollout_buffer.n_envs
    if array.shape[:2] == (n_steps, n_envs):
        array = array.swapaxes(0, 1)
    return array.reshape(n_envs, n_steps, -1)


def by_step(rollout_buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """
    :param rollout_buffer: buffer with the array
    :param array: one number for each sample, (n_steps, n_envs), or environment by environment, (n_envs * n_steps, 1)
    :return: (n_steps, n_envs)
    """
    return by_environment(rollout_buffer, array)[:, :, 0].T


def n_bytes(observations: Observations | PyTorchObs) -> int:
    """Return the size of an array or a tensor, or of nested dictionaries of such, in bytes."""
    return sum(map(n_bytes, observations.values())) if isinstance(observations, dict) else observations.nbytes


def as_stored(rollout_buffer: RolloutBuffer, observations: Any) -> Observations:
    """
    :param rollout_buffer: buffer for these environments
    :param observations: (n_envs, ...), or any mapping of such arrays
    :return: copies with the shapes and types of the buffer's observations
    """

    def stored(array: Any, like: np.ndarray) -> np.ndarray:
        return np.array(array, dtype=like.dtype).reshape(rollout_buffer.n_envs, *like.shape[2:])

    there: Any = rollout_buffer.observations
    observations = {key: observations[key] for key in there} if isinstance(there, dict) else observations
    return map_arrays(stored, observations, there)


def one_observation(rollout_buffer: RolloutBuffer) -> Observations:
    """Return the first observation in a buffer, full or empty, ordered or not, ``(1, *observation shape)``."""
    shapes: Any = rollout_buffer.obs_shape
    return map_arrays(lambda array, shape: array.reshape(-1, *shape)[:1], rollout_buffer.observations, shapes)


# ---- types ----


def store_floats(rollout_buffer: RolloutBuffer, env: VecEnv | None) -> None:
    """
    Make a rollout buffer keep floats where SB3's would truncate them to integers: sampled actions in a Box of integers, and
    integer observations that ``VecNormalize`` normalizes.

    :param rollout_buffer: empty buffer
    :param env: environments, with any wrappers
    """
    spaces_before = rollout_buffer.observation_space, rollout_buffer.action_space
    rollout_buffer.action_space = in_floats(rollout_buffer.action_space)
    for normalizer in normalizers(env):
        if normalizer.norm_obs:
            rollout_buffer.observation_space = in_floats(rollout_buffer.observation_space, normalizer.norm_obs_keys)
    if spaces_before != (rollout_buffer.observation_space, rollout_buffer.action_space):
        rollout_buffer.reset()


def in_floats(space: Any, keys: Sequence[str] | None = None) -> Any:
    """Return a space with float Boxes in place of integer ones; of a Dict space, under these keys, or under all."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: in_floats(part) if key in (keys or space) else part for key, part in space.items()})
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space
