"""What is asked of rollout buffers, SB3's and others, beside what SB3 asks."""

from collections import namedtuple
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from torch.utils._pytree import tree_leaves, tree_map

from sb3_ppg.optim.epoch import split

# Small minibatches of a rollout are gathered together, up to so much: one indexed copy instead of many
GATHERED_BYTES = 2**22
# Whose rollout buffers have new arrays for each rollout, and compute advantages by GAE
KNOWN_PACKAGES = ("stable_baselines3", "sb3_contrib", "sb3_ppg")
Observations = np.ndarray | dict[str, np.ndarray]


class RolloutEnd(NamedTuple):
    """
    What follows the last step of a rollout.

    :param observations: (n_envs, ...), or a dictionary of such
    :param values: V of them when the rollout was collected, (n_envs,)
    :param dones: whether they begin an episode, (n_envs,)
    :param memory: what the policy remembers, see ``PhasicModel.memory``
    """

    observations: Observations
    values: np.ndarray
    dones: np.ndarray
    memory: np.ndarray | None = None


def minibatches(rollout_buffer: RolloutBuffer, batch_size: int, extras: dict[str, np.ndarray] | None = None) -> Iterator[Any]:
    """
    One epoch: all samples, shuffled.

    :param rollout_buffer: full
    :param batch_size: in samples
    :param extras: what belongs to each sample beside what the buffer has, (n_envs * n_steps, ...), by name
    :return: the buffer's minibatches, with ``extras`` as a further field if there are any. Many small ones are gathered
        together
    """
    n_samples = rollout_buffer.buffer_size * rollout_buffer.n_envs
    at_once = 1
    if gathers_as_sb3(rollout_buffer):
        minibatch_bytes = n_bytes(rollout_buffer.observations) * batch_size / n_samples
        at_once = max(1, int(GATHERED_BYTES / minibatch_bytes))
    samples: Iterator[Any] = rollout_buffer.get(at_once * batch_size)
    if extras:
        samples = _with_extras(rollout_buffer, at_once * batch_size, extras)
    for some in samples:
        yield from split(some, batch_size)


def _with_extras(rollout_buffer: RolloutBuffer, batch_size: int, extras: dict[str, np.ndarray]) -> Iterator[Any]:
    with_indices = getattr(rollout_buffer, "with_indices", partial(_with_indices, rollout_buffer))  # that of sequences
    for indices, samples in with_indices(batch_size):
        parts = {name: rollout_buffer.to_torch(array[indices]) for name, array in extras.items()}
        yield _extended(type(samples).__name__, samples._fields)(*samples, extras=parts)


def _with_indices(rollout_buffer: RolloutBuffer, batch_size: int) -> Iterator[tuple[np.ndarray, Any]]:
    order_by_environment(rollout_buffer)
    order = np.random.permutation(rollout_buffer.buffer_size * rollout_buffer.n_envs)
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]
        yield indices, rollout_buffer._get_samples(indices)


def in_order(rollout_buffer: RolloutBuffer, batch_size: int) -> Iterator[Any]:
    """
    :param rollout_buffer: full
    :param batch_size: the most samples at a time
    :return: all samples, environment by environment
    """
    if hasattr(rollout_buffer, "in_order"):  # that of sequences
        yield from rollout_buffer.in_order(batch_size)
        return
    order_by_environment(rollout_buffer)
    n_samples = rollout_buffer.buffer_size * rollout_buffer.n_envs
    for start in range(0, n_samples, batch_size):
        yield rollout_buffer._get_samples(np.arange(start, min(start + batch_size, n_samples)))


def by_step(rollout_buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """
    :param rollout_buffer: that an array is of
    :param array: one number for each sample, (n_steps, n_envs), or environment by environment, (n_envs * n_steps, 1)
    :return: (n_steps, n_envs)
    """
    return by_environment(rollout_buffer, array)[:, :, 0].T


def by_environment(rollout_buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """
    :param rollout_buffer: that an array is of
    :param array: (n_steps, n_envs, ...), as collected, or (n_envs * n_steps, ...), as ``get`` has ordered it
    :return: (n_envs, n_steps, numbers of a sample)
    """
    n_steps, n_envs = rollout_buffer.buffer_size, rollout_buffer.n_envs
    if array.shape[:2] == (n_steps, n_envs):
        array = array.swapaxes(0, 1)
    return array.reshape(n_envs, n_steps, -1)


def as_stored(rollout_buffer: RolloutBuffer, observations: Any) -> Observations:
    """
    :param rollout_buffer: whose environments gave them
    :param observations: (n_envs, ...), or a dictionary of such
    :return: copies, in the shapes and types in which the buffer has observations
    """

    def copied(stored: np.ndarray, array: Any) -> np.ndarray:
        return np.array(array, dtype=stored.dtype).reshape(rollout_buffer.n_envs, *stored.shape[2:])

    there = rollout_buffer.observations
    if isinstance(there, dict):  # those of an environment may be in another kind of dictionary
        return {key: copied(stored, observations[key]) for key, stored in there.items()}
    return copied(there, observations)


@cache
def _extended(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, (*fields, "extras"))


FLATTENED = ("actions", "values", "log_probs", "advantages", "returns", "action_masks")


def order_by_environment(rollout_buffer: RolloutBuffer, names: Sequence[str] = FLATTENED) -> None:
    """
    From (n_steps, n_envs, ...) to (n_envs * n_steps, ...), as SB3's buffers do it in ``get``, if it is not done yet.

    :param rollout_buffer: full
    :param names: of its arrays, beside the observations; those that it has not are left out
    """
    if rollout_buffer.generator_ready:
        return
    rollout_buffer.observations = tree_map(rollout_buffer.swap_and_flatten, rollout_buffer.observations)
    for name in names:
        if hasattr(rollout_buffer, name):
            setattr(rollout_buffer, name, rollout_buffer.swap_and_flatten(getattr(rollout_buffer, name)))
    rollout_buffer.generator_ready = True


def gathers_as_sb3(rollout_buffer: RolloutBuffer) -> bool:
    """
    :param rollout_buffer: of any class
    :return: whether its minibatches are plain selections of samples, so that parts of one are smaller ones
    """
    return any(
        type(rollout_buffer).get is cls.get and type(rollout_buffer)._get_samples is cls._get_samples
        for cls in (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    )


def reuses_memory(rollout_buffer: RolloutBuffer) -> bool:
    """
    :param rollout_buffer: of any class
    :return: whether the next rollout may be written over this one: buffers of SB3, sb3-contrib and ours take new arrays
    """
    resets = [cls for cls in type(rollout_buffer).__mro__ if "reset" in vars(cls)]
    return any(cls.__module__.split(".")[0] not in KNOWN_PACKAGES for cls in resets)


def n_bytes(observations: Observations | PyTorchObs) -> int:
    """
    :param observations: arrays or tensors, in dictionaries or not
    :return: how much memory they take
    """
    return sum(array.nbytes for array in tree_leaves(observations))


def one_observation(rollout_buffer: RolloutBuffer) -> Observations:
    """
    :param rollout_buffer: full or empty, its samples ordered by step or by environment
    :return: the first observation in it, (1, *observation shape)
    """
    arrays, shape = rollout_buffer.observations, rollout_buffer.obs_shape
    if isinstance(shape, dict):
        return {key: arrays[key].reshape(-1, *shape[key])[:1] for key in shape}
    return arrays.reshape(-1, *shape)[:1]
