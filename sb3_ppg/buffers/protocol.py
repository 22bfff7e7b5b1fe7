"""Ways for a class of rollout buffers to say where it differs from SB3's."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

SB3_CLASSES = (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)


@runtime_checkable
class SeparatesBootstrap(Protocol):
    """A rollout buffer that gets γ V of what followed a time limit in ``bootstrapped``, not added to the rewards."""

    bootstrapped: np.ndarray  # (n_steps, n_envs)


@runtime_checkable
class GivesSequences(Protocol):
    """A rollout buffer whose minibatches are more than a selection of samples."""

    def samples(self, batch_size: int, order: Callable[[int], np.ndarray]) -> Iterator[tuple[np.ndarray, Any]]:
        """
        :param batch_size: the most samples at a time
        :param order: from a number of sequences n to the order of 0, ..., n - 1 in which they come
        :return: the places of samples, environment by environment, and the samples
        """


def is_recomputable(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether a buffer's advantages are GAE of its ``rewards``, and ``get`` goes through all samples, so that rollouts can
    be used again with other values. A class that overrides ``compute_returns_and_advantage`` or ``get`` says so by the class
    attribute ``recomputable = True``.
    """
    return _is_promised(type(rollout_buffer), "recomputable", ("compute_returns_and_advantage", "get"))


def has_usual_samples(rollout_buffer: RolloutBuffer) -> bool:
    """Return whether minibatches are SB3's, or the class says by ``recomputable = True`` that they can be used as these."""
    return _is_promised(type(rollout_buffer), "recomputable", ("get", "_get_samples"))


def has_new_arrays(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether the arrays of a rollout stay as they are when the next one is collected, so that they need not be copied. A
    class that overrides ``reset`` says so by the class attribute ``new_arrays = True``.
    """
    return _is_promised(type(rollout_buffer), "new_arrays", ("reset",))


def _is_promised(cls: type, attribute: str, methods: tuple[str, ...]) -> bool:
    """Return whether each class that overrides one of SB3's methods, or a class derived from it, says so."""
    promising = [one for one in cls.__mro__ if attribute in vars(one)]
    if promising and not vars(promising[0])[attribute]:
        return False
    others = [one for one in cls.__mro__ if not any(issubclass(sb3s, one) for sb3s in SB3_CLASSES)]
    overriding = [one for one in others if any(method in vars(one) for method in methods)]
    return all(any(issubclass(promise, one) for promise in promising) for one in overriding)
