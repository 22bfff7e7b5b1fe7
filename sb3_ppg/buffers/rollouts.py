"""What is asked of rollout buffers, SB3's and others, beside what SB3 asks."""

from collections.abc import Iterator

import numpy as np
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs, RolloutBufferSamples
from torch.utils._pytree import tree_leaves

from sb3_ppg.training.optimization import split

# Small minibatches of a rollout are gathered together, up to so much: one indexed copy instead of many
GATHERED_BYTES = 2**22
Observations = np.ndarray | dict[str, np.ndarray]


def minibatches(rollout_buffer: RolloutBuffer, batch_size: int) -> Iterator[RolloutBufferSamples]:
    """
    One epoch: all samples, shuffled by the buffer.

    :param rollout_buffer: full
    :param batch_size: in samples
    :return: minibatches; many small ones are gathered at once
    """
    at_once = 1
    if gathers_as_sb3(rollout_buffer):
        n_samples = rollout_buffer.buffer_size * rollout_buffer.n_envs
        minibatch_bytes = n_bytes(rollout_buffer.observations) * batch_size / n_samples
        at_once = max(1, int(GATHERED_BYTES / minibatch_bytes))
    for samples in rollout_buffer.get(at_once * batch_size):
        yield from split(samples, batch_size)


def gathers_as_sb3(rollout_buffer: RolloutBuffer) -> bool:
    """
    :param rollout_buffer: of any class
    :return: whether its minibatches are plain selections of samples, so that parts of one are smaller ones
    """
    return any(
        type(rollout_buffer).get is cls.get and type(rollout_buffer)._get_samples is cls._get_samples
        for cls in (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    )


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
