"""Protocols and class attributes by which a rollout buffer declares how it differs from SB3's."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

SB3_CLASSES = (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)


@runtime_checkable
class SeparatesBootstrap(Protocol):
    """A rollout buffer that gets γ V at time limits in ``bootstrapped``, instead of added to the rewards."""

    bootstrapped: np.ndarray  # (n_steps, n_envs)


@runtime_checkable
class GivesSequences(Protocol):
    """A rollout buffer whose minibatches are not just a selection of samples, such as sequences."""

    def samples(self, batch_size: int, order: Callable[[int], np.ndarray]) -> Iterator[tuple[np.ndarray, Any]]:
        """
        :param batch_size: largest number of samples in a minibatch
        :param order: maps the number of sequences, n, to an order of 0, ..., n - 1
        :return: for each minibatch, the indices of its samples (environment by environment), and the samples
        """


def is_recomputable(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether a buffer's advantages are GAE of its ``rewards`` and ``get`` yields all samples, so that its rollouts can be
    used again with newer values. A class that overrides ``compute_returns_and_advantage`` or ``get`` declares this by the
    class attribute ``recomputable = True``.
    """
    return _declared(rollout_buffer, "recomputable", ("compute_returns_and_advantage", "get"))


def has_usual_samples(rollout_buffer: RolloutBuffer) -> bool:
    """Return whether minibatches are SB3's, or the class declares by ``recomputable = True`` that they are equivalent."""
    return _declared(rollout_buffer, "recomputable", ("get", "_get_samples"))


def has_new_arrays(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether collecting a rollout leaves the arrays of the previous one unchanged, so that they need not be copied. A
    class that overrides ``reset`` declares this by the class attribute ``new_arrays = True``.
    """
    return _declared(rollout_buffer, "new_arrays", ("reset",))


def _declared(rollout_buffer: RolloutBuffer, attribute: str, methods: tuple[str, ...]) -> bool:
    """Return the value of a class attribute, or, without it, whether these methods are those of a buffer of SB3."""
    cls = type(rollout_buffer)
    are_sb3s = all(any(getattr(cls, method) is getattr(one, method) for one in SB3_CLASSES) for method in methods)
    return getattr(cls, attribute, are_sb3s)
