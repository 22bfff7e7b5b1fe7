"""Micro-batches that make convolutional networks fast on a CPU, and memory that is kept for the next forward pass."""

import ctypes
import sys
from collections.abc import Iterator
from typing import TypeVar

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn

from sb3_ppg.buffers.nested import has_samples, map_arrays, n_samples, split_arrays
from sb3_ppg.policies import PhasicActorCriticPolicy

Minibatch = TypeVar("Minibatch", bound=tuple)
# The largest array that glibc takes from its heap rather than fresh from the system, which has to zero it page by page: the
# highest M_MMAP_THRESHOLD that all its versions allow on 64-bit machines
HEAP_LIMIT = 32 * 2**20


def fitting_micro_batch_size(policy: PhasicActorCriticPolicy, observation: PyTorchObs) -> int | None:
    """
    The micro-batch size at which a network with convolutions is fast on a CPU: the largest power of two for which each array
    that goes into the features extractors or is kept for the backward pass is smaller than ``HEAP_LIMIT``.

    It depends on the network alone, not on the machine or on measured times: the same seed gives the same training anywhere.

    :param policy: the network
    :param observation: of one environment, (1, ...)
    :return: in samples; None (whole minibatches) on other devices, without convolutions, and with batch normalisation, for
        which micro-batches are not the same as their minibatch
    """
    if policy.device.type != "cpu" or not has_convolutions(policy) or looks_at_the_batch(policy):
        return None
    two = map_arrays(lambda array: th.cat([array, array]), observation)
    sizes = zip(_array_sizes(policy, observation), _array_sizes(policy, two), strict=False)
    bytes_per_sample = max(1, *(larger - smaller for smaller, larger in sizes))
    return max(1, 2 ** (((HEAP_LIMIT - 1) // bytes_per_sample).bit_length() - 1))


def _array_sizes(policy: PhasicActorCriticPolicy, observations: PyTorchObs) -> list[int]:
    """Sizes in bytes of the arrays that a forward pass gives to the features extractors or keeps for the backward pass."""
    sizes: list[int] = []

    def note(array: th.Tensor) -> th.Tensor:
        sizes.append(array.nbytes)
        # There is no backward pass. What is kept here must not lead back to the graph, which holds this function
        return array.new_empty(0)

    def enter(_: nn.Module, inputs: tuple[PyTorchObs]) -> None:
        map_arrays(note, inputs[0])

    extractors = {policy.pi_features_extractor, policy.vf_features_extractor}
    hooks = [extractor.register_forward_pre_hook(enter) for extractor in extractors]
    training = policy.training
    policy.set_training_mode(False)  # dropout would draw from the generator
    try:
        with th.enable_grad(), th.autograd.graph.saved_tensors_hooks(note, lambda array: array):
            policy.evaluate_auxiliary(observations)
    finally:
        policy.set_training_mode(training)
        for hook in hooks:
            hook.remove()
    return sizes


def split(minibatch: Minibatch, size: int | None) -> Iterator[Minibatch]:
    """
    :param minibatch: tuple of tensors, or of nested dictionaries and tuples of tensors, of shape (B, ...), or (number of
        sequences, ...), where all sequences are as long. What is no tensor, or has no dimension, belongs to every part
    :param size: in samples; None: all
    :return: consecutive parts of at most that size, of whole sequences and at least one, which share its memory
    """
    whole = n_samples(minibatch[0])
    if size is None or size >= whole:
        yield minibatch
        return
    n_rows: list[int] = []
    map_arrays(lambda leaf: n_rows.append(len(leaf)) if has_samples(leaf) else None, minibatch)
    length = whole // min(n_rows)
    size = max(length, size // length * length)
    sizes = [min(size, whole - start) for start in range(0, whole, size)]
    yield from split_arrays(minibatch, sizes)


def has_convolutions(module: nn.Module) -> bool:
    """Return whether a network has convolutions."""
    return any(isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in module.modules())


def looks_at_the_batch(module: nn.Module) -> bool:
    """Return whether a network has layers whose output for a sample depends on the others of its batch."""
    return any(
        isinstance(part, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)) for part in module.modules()
    )


def keep_freed_memory() -> None:
    """
    Let glibc, where it is the allocator, keep the memory that this process frees, for its next arrays of up to ``HEAP_LIMIT``
    bytes. By default it returns large arrays to the system and takes them again, zeroed, in each forward pass, which is a
    third of the time of ``ImpalaCNN`` in float32 on a CPU. The process stays as large as its peak, and the setting cannot be
    undone: the training commands call this for their own process; in Python it is for you to call.

    Source: ``man mallopt``, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # other C libraries have none
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, HEAP_LIMIT)
        mallopt(m_trim_threshold, 2**31 - 1)
