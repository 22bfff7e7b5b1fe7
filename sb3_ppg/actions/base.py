"""Interface of a kind of actions, and the table of the kinds that are known."""

import math
from abc import abstractmethod
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution

from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import check_same_shape


class Actions:
    """
    Everything that depends on how actions are distributed; a policy has an object of it as ``actions``. Derive from it for a
    distribution of your own, and ``register`` it.

    The methods below are right for Box and MultiBinary actions, which buffers and networks take as they are.

    :param space: action space
    """

    bounded: bool = False  # whether the distribution's actions lie in [-1, 1], from which environments' bounds are reached
    shape: tuple[int, ...]  # shape of one of the distribution's actions
    n_features: int  # size of ``features``

    def __init__(self, space: Any):
        self.space = space
        self.shape = space.shape
        self.n_features = math.prod(self.shape)

    # ---- distributions ----

    @abstractmethod
    def parameters(self, distribution: Any) -> th.Tensor:
        """
        Return what defines π(.|s) for each sample, as a new tensor: the distribution object is overwritten.

        :param distribution: π(.|s)
        :return: (B, P)
        """

    @abstractmethod
    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        """
        Return the exact KL divergence of two distributions, the first one's expectation, summed over action dimensions.

        :param distribution: one of this kind, for its structure
        :param first: parameters, (B, P)
        :param second: parameters, (B, P)
        :return: (B,), in nats
        """

    def kl_divergence(self, distribution: Any, old_parameters: th.Tensor, reverse: bool = False) -> th.Tensor:
        """
        KL(π_old(.|s), π(.|s)), exact, old policy first, summed over action dimensions: the cloning term.

        Squashing actions through tanh leaves it unchanged: a KL divergence is invariant under a bijection.

        :param distribution: π, differentiable
        :param old_parameters: ``parameters`` of π_old, (B, P)
        :param reverse: KL(π(.|s), π_old(.|s)) instead
        :return: (B,), in nats
        :raises ValueError: for parameters of another shape
        """
        parameters = self.parameters(distribution)
        check_same_shape(old_parameters=old_parameters, parameters=parameters)
        first, second = (parameters, old_parameters) if reverse else (old_parameters, parameters)
        return self.kl(distribution, first, second)

    def entropy(self, distribution: Any, actions: th.Tensor) -> th.Tensor | None:
        """
        Return the entropy that the entropy bonus rewards.

        :param distribution: π(.|s)
        :param actions: as ``from_buffer`` gives them
        :return: (B,), in nats, or None where it has no closed form
        """
        return distribution.entropy()

    def weigh_entropy(self, ent_coef: Any, device: th.device) -> float:
        """
        Make ``entropy`` weigh the parts of the actions by ``ent_coef``, if it has a coefficient for each.

        :param ent_coef: argument of the algorithm
        :param device: device of the losses
        :return: factor of ``entropy`` in the losses
        """
        return ent_coef

    def tempered(self, distribution: Any, temperature: float) -> Any:
        """
        Return the distribution with the probabilities π(a|s)^(1/T), normalized. Override it for play at a temperature.

        :param distribution: π(.|s), which stays as it is
        :param temperature: T > 0
        :return: a new distribution of the same kind
        """
        raise ArgumentError(f"`temperature`={temperature} cannot work: {type(distribution).__name__} has none; leave it 1")

    # ---- forms of an action ----

    def for_environments(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: samples of the distribution, (n_envs, ...)
        :return: the same within the bounds of the action space; for a Box of integers the nearest integers
        """
        if not isinstance(self.space, spaces.Box):
            return actions
        low, high, is_integer = self.space.low, self.space.high, np.issubdtype(self.space.dtype, np.integer)
        if is_integer:  # the difference of the bounds may not fit into their type
            low, high = low.astype(np.float64), high.astype(np.float64)
        taken = low + 0.5 * (actions + 1.0) * (high - low) if self.bounded else np.clip(actions, low, high)
        return np.rint(taken).astype(self.space.dtype) if is_integer else taken

    def from_environments(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: as environments take them, within the bounds of the action space, (B, ...)
        :return: as the distribution's samples
        """
        if not self.bounded:
            return actions
        low, high = self.space.low.astype(np.float64), self.space.high.astype(np.float64)
        return 2 * (actions - low) / (high - low) - 1

    def for_buffer(self, actions: np.ndarray) -> np.ndarray:
        """
        :param actions: samples of the distribution, (n_envs, ...)
        :return: as rollout buffers store them, (n_envs, action dimensions)
        """
        return actions

    def from_buffer(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: as rollout buffers give them, floats, (B, action dimensions)
        :return: as the distribution's ``log_prob`` takes them
        """
        return actions

    def features(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: as ``from_buffer`` gives them
        :return: as networks take them, (B, n_features)
        """
        return actions


class ActionDistribution(Distribution):
    """SB3's ``Distribution`` with two methods that follow from the others, to derive from."""

    def actions_from_params(self, *args: Any, deterministic: bool = False) -> th.Tensor:
        """Return samples, or the most likely actions, with SB3's arguments."""
        return self.proba_distribution(*args).get_actions(deterministic=deterministic)

    def log_prob_from_params(self, *args: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return samples and their log-probabilities, with SB3's arguments."""
        actions = self.actions_from_params(*args)
        return actions, self.log_prob(actions)


def with_python_integers(distribution: Distribution) -> Distribution:
    """
    Replace NumPy's integers in the sizes of a distribution, as torch's compiler takes them for tensors.

    :param distribution: SB3's, sb3-contrib's, or a user's; changed in place
    :return: the same object
    """
    if isinstance(sizes := getattr(distribution, "action_dims", None), list):
        distribution.action_dims = [*map(int, sizes)]  # type: ignore[attr-defined]
    return distribution


_KINDS: dict[type[Distribution], type[Actions]] = {}


def register(distribution_class: type[Distribution], actions_class: type[Actions]) -> None:
    """
    Make an action distribution known to policies that are made later, for ``policy_kwargs=dict(distribution_class=...)``.

    :param distribution_class: made with the action space; its subclasses are known, too
    :param actions_class: its kind of actions
    """
    _KINDS[distribution_class] = actions_class


def actions_class_of(distribution_class: type[Distribution]) -> type[Actions]:
    """
    :param distribution_class: SB3's, sb3-contrib's, or one that was registered
    :return: its kind of actions
    :raises ArgumentError: if there is none
    """
    for known in distribution_class.__mro__:
        if known in _KINDS:
            return _KINDS[known]
    raise ArgumentError(
        f"No exact KL divergence is known for {distribution_class.__name__}: derive a class from sb3_ppg.actions.Actions, "
        f"and call sb3_ppg.actions.register({distribution_class.__name__}, ...)"
    )
