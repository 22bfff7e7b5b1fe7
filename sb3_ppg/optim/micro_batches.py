"""Micro-batches that make convolutional networks fast on a CPU, and a setting that keeps freed memory."""

import ctypes
import sys

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppg.arrays import map_arrays, n_samples
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.policies.extractors import has_convolutions, looks_at_the_batch

# The largest M_MMAP_THRESHOLD that all versions of glibc allow on 64-bit machines. For larger arrays, glibc maps new memory,
# which the kernel zeroes page by page
HEAP_LIMIT = 32 * 2**20


def fitting_micro_batch_size(policy: PhasicActorCriticPolicy, observation: PyTorchObs) -> int | None:
    """
    Return the micro-batch size at which a network with convolutions is fast on a CPU: the largest power of two for which each
    array that enters a features extractor or is kept for the backward pass is smaller than ``HEAP_LIMIT``.

    It depends only on the network, not on the machine or on measured times, so that a seed gives the same training anywhere.
    None (whole minibatches) on other devices, without convolutions, and with batch normalization.

    :param observation: one observation, (1, ...)
    """
    if policy.device.type != "cpu" or not has_convolutions(policy) or looks_at_the_batch(policy):
        return None
    pair = map_arrays(lambda array: th.cat([array, array]), observation)
    sizes = zip(_array_sizes(policy, observation), _array_sizes(policy, pair), strict=False)
    bytes_per_sample = max(1, *(larger - smaller for smaller, larger in sizes))
    return max(1, 2 ** (((HEAP_LIMIT - 1) // bytes_per_sample).bit_length() - 1))


def _array_sizes(policy: PhasicActorCriticPolicy, observations: PyTorchObs) -> list[int]:
    """Return the sizes in bytes of the arrays that enter the features extractors or are kept for the backward pass."""
    sizes: list[int] = []

    def note(array: th.Tensor) -> th.Tensor:
        sizes.append(array.nbytes)
        # No backward pass follows. Returning the array would make a reference cycle with the graph, which holds this function
        return array.new_empty(0)

    def enter(_: nn.Module, inputs: tuple[PyTorchObs]) -> None:
        map_arrays(note, inputs[0])

    extractors = {policy.pi_features_extractor, policy.vf_features_extractor}
    hooks = [extractor.register_forward_pre_hook(enter) for extractor in extractors]
    training = policy.training
    policy.set_training_mode(False)  # so that dropout draws no random numbers
    n = n_samples(observations)
    inputs = policy.network_inputs(policy.step_batch(observations, np.ones(n, dtype=bool), policy.initial_memory(n)))
    try:
        with th.enable_grad(), th.autograd.graph.saved_tensors_hooks(note, lambda array: array):
            _, latent_pi, latent_vf, _ = policy.evaluate(*inputs, auxiliary=True)
            policy.aux_value_net(latent_pi)
            policy.value_net(latent_vf)
    finally:
        policy.set_training_mode(training)
        for hook in hooks:
            hook.remove()
    return sizes


def keep_freed_memory() -> None:
    """
    Make glibc keep the memory that this process frees, for later arrays of up to ``HEAP_LIMIT`` bytes. By default, glibc
    returns large arrays to the system and gets them back zeroed in each forward pass, which takes a third of the time of
    ``ImpalaCNN`` in float32 on a CPU. The process then stays as large as its peak, and the setting cannot be undone. The
    training commands call this for their own process; in Python, call it yourself. It has no effect without glibc.

    Source: ``man mallopt``, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have none
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, HEAP_LIMIT)
        mallopt(m_trim_threshold, 2**31 - 1)
