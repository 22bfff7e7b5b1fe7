"""Functions on SB3's and custom rollout buffers: the order of their arrays, minibatches, types."""

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.arrays import map_arrays, split
from sb3_ppg.buffers.advantages import gae
from sb3_ppg.buffers.protocol import SB3_CLASSES, GivesSequences
from sb3_ppg.environments.watched import normalizers

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
    Draw the minibatches of one epoch: all samples of a buffer that is ordered by environment, shuffled. ``extras`` are further
    arrays by name, (n_envs * n_steps, ...), in this order, which minibatches have in a field of this name.
    """
    cls, at_once = type(rollout_buffer), batch_size
    if any(cls.get is theirs.get and cls._get_samples is theirs._get_samples for theirs in SB3_CLASSES):
        # Minibatches are plain selections of samples, so several of them can be split from a larger one
        n_samples = rollout_buffer.buffer_size * rollout_buffer.n_envs
        minibatch_bytes = n_bytes(rollout_buffer.observations) * batch_size / n_samples
        at_once *= max(1, int(GATHERED_BYTES / max(1, minibatch_bytes)))
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
    """Read all samples of a buffer that is ordered by environment; see ``GivesSequences.samples``."""
    if isinstance(rollout_buffer, GivesSequences):
        yield from rollout_buffer.samples(batch_size, order)
        return
    places = order(rollout_buffer.buffer_size * rollout_buffer.n_envs)
    for start in range(0, len(places), batch_size):
        some = places[start : start + batch_size]
        yield some, rollout_buffer._get_samples(some)


# ---- arrays ----


def arrays_by_step(rollout_buffer: RolloutBuffer) -> dict[str, Any]:
    """Return a buffer's arrays as collected, (n_steps, n_envs, ...), by name; observations may be a dictionary of arrays."""
    sizes = (rollout_buffer.buffer_size, rollout_buffer.n_envs)
    arrays = {name: value for name, value in vars(rollout_buffer).items() if isinstance(value, np.ndarray)}
    return {"observations": rollout_buffer.observations} | {
        name: array for name, array in arrays.items() if array.shape[:2] == sizes
    }


def order_by_environment(rollout_buffer: RolloutBuffer) -> None:
    """
    Reorder all arrays of a full buffer from (n_steps, n_envs, ...) to (n_envs * n_steps, ...), environment by environment, as
    SB3's ``get`` does with those that it needs. An update begins with this: all that follows knows no other order. SB3 would
    add a dimension to observations of shape (), which they do not have when the policy acts.
    """
    if not rollout_buffer.generator_ready:
        arrays = arrays_by_step(rollout_buffer)
        for name, array in arrays.items():
            setattr(rollout_buffer, name, map_arrays(rollout_buffer.swap_and_flatten, array))
        rollout_buffer.observations = map_arrays(
            lambda ordered, array: ordered.reshape(len(ordered), *array.shape[2:]),
            rollout_buffer.observations,
            arrays["observations"],
        )
        rollout_buffer.generator_ready = True


def by_environment(rollout_buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """Reshape a buffer's array from (n_envs * n_steps, ...), environment by environment, to (n_envs, n_steps, numbers)."""
    return array.reshape(rollout_buffer.n_envs, rollout_buffer.buffer_size, -1)


def ordered_gae(
    rollout_buffer: RolloutBuffer,
    values: np.ndarray,
    last_values: np.ndarray,
    last_dones: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """
    Compute ``advantages.gae``, (n_envs * n_steps, 1), of a buffer that is ordered by environment, with other values: V(s),
    (n_envs * n_steps,), and V after the last step, (n_envs,).
    """
    arrays = (rollout_buffer.rewards, values, rollout_buffer.episode_starts)
    rewards, values, starts = (by_environment(rollout_buffer, array)[:, :, 0].T for array in arrays)
    return gae(rewards, values, starts, last_values, last_dones, gamma, gae_lambda).T.reshape(-1, 1)


def zero_observations(rollout_buffer: RolloutBuffer, n: int) -> Observations:
    """Return n observations of zeros with the shapes and types of a buffer's, ``(n, *observation shape)``."""
    shapes: Any = rollout_buffer.obs_shape
    return map_arrays(lambda array, shape: np.zeros((n, *shape), array.dtype), rollout_buffer.observations, shapes)


def n_bytes(observations: Observations | PyTorchObs) -> int:
    """Return the size of an array or a tensor, or of nested dictionaries of such, in bytes."""
    return sum(map(n_bytes, observations.values())) if isinstance(observations, dict) else observations.nbytes


# ---- types ----


def store_floats(rollout_buffer: RolloutBuffer, env: VecEnv | None) -> None:
    """
    Make an empty rollout buffer keep floats where SB3's would truncate them to integers: sampled actions in a Box of integers,
    and integer observations that ``VecNormalize`` normalizes.
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
