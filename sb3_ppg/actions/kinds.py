"""Actions of the distributions of SB3 and sb3-contrib."""

import copy
import math
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from torch.nn import functional as F

from sb3_ppg.actions.base import Actions, register


class LogitActions(Actions):
    """Choices in one or several dimensions. Parameters are the log-probabilities of all dimensions, (B, sum of n)."""

    def parameters(self, distribution: Any) -> th.Tensor:
        parts = getattr(distribution, "distributions", None) or distribution.distribution
        return th.cat([part.logits for part in parts], dim=1) if isinstance(parts, list) else parts.logits

    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        # Σ p (log p - log q), where p = 0 for what a mask excludes. The KL divergences of the dimensions add up
        return F.kl_div(second, first, reduction="none", log_target=True).sum(dim=1)

    def tempered(self, distribution: Any, temperature: float) -> Any:
        return copy.copy(distribution).proba_distribution(self.parameters(distribution) / temperature)

    def for_environments(self, actions: np.ndarray) -> np.ndarray:
        return actions + getattr(self.space, "start", 0)

    def from_environments(self, actions: np.ndarray) -> np.ndarray:
        return actions - getattr(self.space, "start", 0)


class CategoricalActions(LogitActions):
    """Discrete actions."""

    def __init__(self, space: spaces.Discrete):
        super().__init__(space)
        self.n_features = int(space.n)

    def for_buffer(self, actions: np.ndarray) -> np.ndarray:
        return actions.reshape(-1, 1)

    def from_buffer(self, actions: th.Tensor) -> th.Tensor:
        return actions.long().flatten()

    def features(self, actions: th.Tensor) -> th.Tensor:
        return F.one_hot(actions, self.n_features)


class MultiCategoricalActions(LogitActions):
    """MultiDiscrete actions."""

    def __init__(self, space: spaces.MultiDiscrete):
        super().__init__(space)
        self.sizes: list[int] = space.nvec.tolist()
        self.n_features = sum(self.sizes)

    def features(self, actions: th.Tensor) -> th.Tensor:
        columns = actions.long().unbind(dim=1)
        return th.cat([F.one_hot(column, n) for column, n in zip(columns, self.sizes, strict=True)], dim=1)


class BernoulliActions(LogitActions):
    """MultiBinary actions. Parameters are the logits, (B, n). (Under masks they are ``LogitActions``, as two choices each.)"""

    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        # log p = logit - softplus(logit), log(1 - p) = -softplus(logit)
        kl = th.sigmoid(first) * (first - second) + F.softplus(second) - F.softplus(first)
        return kl.sum(dim=1)


class GaussianActions(Actions):
    """
    Box actions. Parameters are mean and standard deviation, (B, 2 x dimensions), before squashing, under which a KL divergence
    is invariant.
    """

    def parameters(self, distribution: DiagGaussianDistribution | StateDependentNoiseDistribution) -> th.Tensor:
        return th.cat([distribution.distribution.mean, distribution.distribution.stddev], dim=1)

    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        first_mean, first_std = first.chunk(2, dim=1)
        mean, std = second.chunk(2, dim=1)
        # log σ/σ_1 + (σ_1² + (μ_1 - μ)²) / 2σ² - 1/2
        kl = th.log(std / first_std) + ((first_std / std).square() + ((first_mean - mean) / std).square() - 1) / 2
        return kl.sum(dim=1)

    def tempered(self, distribution: Any, temperature: float) -> Any:
        tempered, gaussian, scale = copy.copy(distribution), distribution.distribution, math.sqrt(temperature)
        tempered.distribution = th.distributions.Normal(gaussian.mean, scale * gaussian.stddev)
        if isinstance(distribution, StateDependentNoiseDistribution):  # samples are the mean and noise that was drawn before
            tempered.exploration_mat = scale * distribution.exploration_mat
            tempered.exploration_matrices = scale * distribution.exploration_matrices
        return tempered


class SquashedGaussianActions(GaussianActions):
    """Box actions that tanh has squashed."""

    bounded = True


# Gauss-Hermite quadrature for expectations under a standard normal distribution
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class SquashedGaussianDistribution(SquashedDiagGaussianDistribution):
    """SB3's squashed Gaussian, with its entropy."""

    def entropy(self) -> th.Tensor:
        """
        Return H(tanh(u)) = H(u) + E[log(1 - tanh²(u))] by quadrature. Unlike an estimate from actions that were taken, it has
        a gradient.

        :return: (B,), in nats
        """
        normal = self.distribution
        nodes, weights = (th.as_tensor(one).to(normal.mean) for one in (NODES, WEIGHTS / WEIGHTS.sum()))
        u = normal.mean[..., None] + normal.stddev[..., None] * nodes
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u)) @ weights
        return (normal.entropy() + log_slope).sum(dim=1)


register(CategoricalDistribution, CategoricalActions)
register(MaskableCategoricalDistribution, CategoricalActions)
register(MultiCategoricalDistribution, MultiCategoricalActions)
register(MaskableMultiCategoricalDistribution, MultiCategoricalActions)
register(BernoulliDistribution, BernoulliActions)
register(MaskableBernoulliDistribution, LogitActions)
register(DiagGaussianDistribution, GaussianActions)
register(SquashedDiagGaussianDistribution, SquashedGaussianActions)
register(StateDependentNoiseDistribution, GaussianActions)
