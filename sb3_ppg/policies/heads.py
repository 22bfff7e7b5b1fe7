"""Value heads: their values, their loss, and the unit in which they work."""

from typing import Any

import numpy as np
import torch as th
from torch import nn
from typing_extensions import override

from sb3_ppg import losses


def lacks_for_units(head: nn.Module) -> list[str]:
    """Return the names of the members that a value head lacks for value units."""
    return [name for name in ("mean", "std", "change_units") if not hasattr(head, name)]


class ValueHead(nn.Linear):
    """
    A linear layer that predicts values, mean + std x output, (B, in) -> (B, 1). Its unit can be changed without changing the
    predictions: ``std`` is the unit, initially one, and ``mean`` the value that is zero in it, both in the units of the
    (normalized) return. Another value head has value units if it has ``mean``, ``std`` and ``change_units``.

    Source: Pop-Art, van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714.

    :param in_features: size of its input, or of the output of ``layers``
    :param layers: layers before it
    :param n_values: number of values
    """

    mean: th.Tensor
    std: th.Tensor

    def __init__(self, in_features: int, layers: nn.Module | None = None, n_values: int = 1):
        super().__init__(in_features, n_values)
        self.layers = layers
        self.register_buffer("mean", th.zeros(()))
        self.register_buffer("std", th.ones(()))

    @property
    def is_new(self) -> bool:
        """True if its bias is still zero, as at the beginning."""
        return not self.bias.any()

    @override
    def forward(self, latent: th.Tensor) -> th.Tensor:
        if self.layers is not None:
            latent = self.layers(latent)
        return th.addcmul(self.mean, self.std, super().forward(latent))

    @override
    def _load_from_state_dict(self, state_dict: dict[str, th.Tensor], prefix: str, *args: Any) -> None:
        """Load weights; those of a head without a unit, such as PPO's, predict in the unit of the return."""
        initial = {f"{prefix}mean": th.zeros_like(self.mean), f"{prefix}std": th.ones_like(self.std)}
        if f"{prefix}weight" in state_dict and not initial.keys() & state_dict.keys():
            state_dict = initial | state_dict
        super()._load_from_state_dict(state_dict, prefix, *args)

    @th.no_grad()
    def change_units(self, mean: float | np.ndarray, std: float | np.ndarray) -> th.Tensor:
        """
        Rescale the head's own parameters so that they predict (value - mean) / std, and its values stay the same. A head that
        ``is_new`` keeps its parameters, so its values begin at the mean.

        :param mean: in the units of the returns; one number, or one for each of several values
        :param std: in the units of the returns, above zero; one number, or one for each
        :return: factor by which the weights change; the gradient of an error in the head's unit changes by the same factor;
            (number of values,)
        """
        new_mean, new_std = (th.as_tensor(unit).to(self.mean).expand(self.mean.shape) for unit in (mean, std))
        factor = th.where(self.bias.any(), self.std / new_std, 1.0)
        self.weight.mul_(factor.reshape(-1, 1))
        self.bias.copy_(th.where(self.bias.any(), (self.std * self.bias + self.mean - new_mean) / new_std, 0.0))
        self.mean.copy_(new_mean)
        self.std.copy_(new_std)
        return factor.reshape(-1)


class VectorValueHead(ValueHead):
    """
    A value head for vector rewards, (B, in) -> (B, K): one value for each component, each in its own unit.

    :param in_features: size of its input
    :param n_components: K
    """

    def __init__(self, in_features: int, n_components: int):
        super().__init__(in_features, n_values=n_components)
        self.mean, self.std = th.zeros(n_components), th.ones(n_components)

    def loss(
        self, latent: th.Tensor, targets: th.Tensor, unit: float | None = None, weights: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Return the mean squared error over samples and components, each component in its own unit; see ``head_loss``.

        :param targets: V_targ of each component, in the units of its return, (B, K)
        :param unit: has no effect
        """
        weights = None if weights is None else weights[:, None].expand_as(targets)
        return losses.value_loss(self(latent) / self.std, targets / self.std, weights=weights)


def head_loss(
    head: nn.Module, latent: th.Tensor, targets: th.Tensor, unit: float, weights: th.Tensor | None = None
) -> th.Tensor:
    """
    Return the loss of a value head: that of its method ``loss``, which takes the arguments after the first, or else the mean
    squared error.

    :param head: maps (B, latent dimension) to values, (B, 1), or for vector rewards (B, K)
    :param latent: features that the head reads, (B, latent dimension)
    :param targets: V_targ in the units of the (normalized) return, (B,) or (B, K)
    :param unit: unit in which errors are measured, in the units of the (normalized) return
    :param weights: see ``losses.weighted_mean``, (B,), or None
    :return: scalar
    """
    if hasattr(head, "loss"):
        return head.loss(latent, targets, unit, weights)  # type: ignore[operator]
    return losses.value_loss(head(latent).flatten() / unit, targets / unit, weights=weights)
