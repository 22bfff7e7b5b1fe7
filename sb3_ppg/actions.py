"""
Kinds of action distributions, one class each: those of SB3 and sb3-contrib, and the composed ones of Dict and Tuple spaces.

``register`` adds another kind.
"""

import copy
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

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
    Distribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, preprocess_obs
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from sb3_ppg.errors import ArgumentError, raised_as
from sb3_ppg.losses import check_same_shape

NESTED = (spaces.Dict, spaces.Tuple)


class Actions:
    """
    Everything that depends on the distribution of actions. Each policy has an instance, ``actions``. For your own
    distribution, derive a subclass and ``register`` it.

    The methods below are right for Box and MultiBinary actions, which buffers and networks take as they are. Environments,
    buffers, exported policies and cloning all call these methods.

    :param space: action space
    """

    bounded: bool = False  # whether the distribution's actions lie in [-1, 1] and are scaled to the action space's bounds
    shape: tuple[int, ...]  # shape of one of the distribution's actions
    n_features: int  # size of ``features``
    low: th.Tensor  # lower bounds of a Box; in float64 for integers, whose type may be too small for high - low
    high: th.Tensor  # upper bounds

    def __init__(self, space: Any):
        self.space = space
        self.shape = space.shape
        self.n_features = math.prod(self.shape)
        if isinstance(space, spaces.Box):
            exact = np.float64 if np.issubdtype(space.dtype, np.integer) else space.dtype
            pair = (np.atleast_1d(bound).astype(exact) for bound in (space.low, space.high))
            self.low, self.high = (th.as_tensor(bound, device="cpu") for bound in pair)

    # ---- distributions ----

    @abstractmethod
    def parameters(self, distribution: Any) -> th.Tensor:
        """Return the parameters of π(.|s) for each sample, (B, P), as a new tensor: the distribution object is reused."""

    @abstractmethod
    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        """Return KL(first, second) of two policies' ``parameters``, exact, summed over action dimensions, (B,), in nats."""

    def kl_divergence(self, distribution: Any, old_parameters: th.Tensor, reverse: bool = False) -> th.Tensor:
        """
        Return the cloning term KL(π_old(.|s), π(.|s)), (B,), in nats, from ``parameters`` of π_old.

        :param reverse: KL(π(.|s), π_old(.|s)) instead
        :raises ValueError: for parameters of another shape
        """
        parameters = self.parameters(distribution)
        check_same_shape(old_parameters=old_parameters, parameters=parameters)
        return self.kl(distribution, *((parameters, old_parameters) if reverse else (old_parameters, parameters)))

    def entropy(self, distribution: Any, actions: th.Tensor) -> th.Tensor | None:
        """Return the entropy that the entropy bonus rewards, (B,), in nats, or None where it has no closed form."""
        return distribution.entropy()

    def prior_kl(self, distribution: Any, prior_parameters: th.Tensor) -> th.Tensor:
        """Return KL(π_prior(.|s), π(.|s)), (B,), in nats, from ``parameters`` of π_prior: it keeps the policy near a prior."""
        return self.kl_divergence(distribution, prior_parameters)

    def weigh(self, argument: Literal["ent_coef", "prior_coef"], coef: Any, device: th.device) -> float:
        """
        Return the factor of ``entropy`` (or ``prior_kl``) in the losses. If the coefficient has a number for each part of the
        actions, make ``entropy`` (or ``prior_kl``) weight the parts by these numbers.
        """
        return coef

    def tempered(self, distribution: Any, temperature: float) -> Any:
        """Return a new distribution with the probabilities π(a|s)^(1/T), normalized. Override it for play at a temperature."""
        raise ArgumentError(f"`temperature`={temperature} cannot work: {type(distribution).__name__} has none; leave it 1")

    # ---- forms of an action ----

    def for_environments(self, actions: th.Tensor) -> Any:
        """
        Convert samples to actions as environments take them. Override it together with ``from_environments``, its inverse.

        :param actions: samples of the distribution, (B, ...), on the CPU
        :return: the same within the bounds of the action space, (B, ...); for a Box of integers the nearest integers; for a
            nested space a list of tensors, one for each leaf
        """
        if not isinstance(self.space, spaces.Box):
            return actions
        taken = self.low + 0.5 * (actions + 1.0) * (self.high - self.low) if self.bounded else actions
        taken = taken.clamp(self.low, self.high)  # rounding may leave scaled actions outside, too
        return taken.round().to(dtype_of(self.space)) if np.issubdtype(self.space.dtype, np.integer) else taken

    def from_environments(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: as environments take them, within the bounds of the action space, (B, ...), on the CPU
        :return: as the distribution's samples, (B, ...)
        """
        if not self.bounded:
            return actions
        low, high = self.low.double(), self.high.double()
        return 2 * (actions.double() - low) / th.where(high > low, high - low, 1.0) - 1

    def for_step(self, actions: th.Tensor) -> Any:
        """Return samples, (n_envs, ...), as ``VecEnv.step`` takes them: an array; for a nested space a list."""
        return self.for_environments(actions.cpu()).numpy()

    def check_conversion(self, distribution: Distribution) -> None:
        """Raise an ``ArgumentError`` if ``for_environments`` does not undo ``from_environments``, or one of them fails."""
        low, high = (bound + np.zeros(self.space.shape) for bound in bounds(self.space))
        shares = np.array([0.0, 0.3, 0.5, 1.0]).reshape(-1, *[1] * low.ndim)
        examples = (1 - shares) * low + shares * high  # their difference may be too large
        actions = th.as_tensor(examples, device="cpu").to(dtype_of(self.space))
        examples = actions.numpy().astype(np.float64)  # in the precision of the space
        problem = f"`distribution_class`={type(distribution).__name__} cannot work: {type(self).__name__}.for_environments"
        with raised_as(ArgumentError, f"{problem} and from_environments, which take and return tensors on the CPU, fail"):
            converted = self.for_environments(self.from_environments(actions))
            check_same_shape(actions=actions, converted=converted)
            again = converted.numpy().astype(np.float64)
        error = np.abs(again - examples) / (1 + np.abs(examples).max(axis=0))
        if not (error <= 1e-5).all():
            worst = error.argmax()
            raise ArgumentError(
                f"{problem}(from_environments(a)) is {again.flat[worst]:.4g} for a={examples.flat[worst]:.4g}; override both "
                "methods so that one is the inverse of the other"
            )

    def from_buffer(self, actions: th.Tensor) -> th.Tensor:
        """
        :param actions: samples of the distribution as rollout buffers give them, floats, (B, action dimensions)
        :return: as the distribution's ``log_prob`` takes them
        """
        return actions

    def features(self, actions: th.Tensor) -> th.Tensor:
        """Return actions that ``from_buffer`` gave as networks take them, (B, n_features)."""
        return actions


def dtype_of(space: spaces.Space) -> th.dtype:
    """Return the type of the tensors that hold values of a space."""
    return th.as_tensor(np.zeros((), space.dtype)).dtype


def moderate(space: spaces.Space) -> spaces.Space:
    """Return an observation space with floats limited to [-10, 10], so that networks can compute with its samples."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: moderate(part) for name, part in space.items()})
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (np.clip(bound, -10, 10) for bound in (space.low, space.high))
        return spaces.Box(low, high, space.shape, space.low.dtype.type)
    return space


def bounds(space: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest value of a space of numbers, in a type that can hold their difference."""
    if isinstance(space, spaces.Box):
        return space.low.astype(np.float64), space.high.astype(np.float64)
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return space.start, space.start + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1


class ActionDistribution(Distribution):
    """Base class for your own distributions: SB3's ``Distribution``, with two methods that follow from the others."""

    @override
    def actions_from_params(self, *args: Any, deterministic: bool = False) -> th.Tensor:
        """Return samples, or the most likely actions, with SB3's arguments."""
        return self.proba_distribution(*args).get_actions(deterministic=deterministic)

    @override
    def log_prob_from_params(self, *args: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return samples and their log-probabilities, with SB3's arguments."""
        actions = self.actions_from_params(*args)
        return actions, self.log_prob(actions)


def with_integers(space: Any) -> Any:
    """Return a space with Python's integers, because torch's compiler treats NumPy's as tensors."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: with_integers(part) for key, part in space.spaces.items()})
    copied: Any = copy.copy(space)
    if isinstance(space, spaces.Discrete):
        copied.n, copied.start = int(space.n), int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        copied.nvec, copied.start = space.nvec.tolist(), space.start.tolist() if space.start.any() else 0
    return copied


def with_python_integers(distribution: Distribution) -> Distribution:
    """Replace NumPy's integers in the sizes of a distribution, in place: torch's compiler takes them for tensors."""
    if isinstance(sizes := getattr(distribution, "action_dims", None), list):
        distribution.action_dims = [*map(int, sizes)]  # type: ignore[attr-defined]
    return distribution


# ---- kinds ----


class LogitActions(Actions):
    """Choices in one or several dimensions. Parameters are the log-probabilities of all dimensions, (B, sum of n)."""

    def __init__(self, space: Any):
        super().__init__(space)
        self.start = th.as_tensor(getattr(space, "start", 0), device="cpu")
        self.starts_at_zero = not self.start.any()
        self.encoded = with_integers(space)
        self.n_features = get_flattened_obs_dim(self.encoded)

    @override
    def parameters(self, distribution: Any) -> th.Tensor:
        parts = getattr(distribution, "distributions", None) or distribution.distribution
        return th.cat([part.logits for part in parts], dim=1) if isinstance(parts, list) else parts.logits

    @override
    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        # Σ p (log p - log q), where p = 0 for what a mask excludes. The KL divergences of the dimensions add up
        return F.kl_div(second, first, reduction="none", log_target=True).sum(dim=1)

    @override
    def tempered(self, distribution: Any, temperature: float) -> Any:
        return copy.copy(distribution).proba_distribution(self.parameters(distribution) / temperature)

    @override
    def for_environments(self, actions: th.Tensor) -> th.Tensor:
        return actions if self.starts_at_zero else actions + self.start

    @override
    def from_environments(self, actions: th.Tensor) -> th.Tensor:
        return actions - self.start

    @override
    def features(self, actions: th.Tensor) -> th.Tensor:
        return cast(th.Tensor, preprocess_obs(actions, self.encoded))


class CategoricalActions(LogitActions):
    """Discrete actions."""

    @override
    def from_buffer(self, actions: th.Tensor) -> th.Tensor:
        return actions.long().flatten()


class BernoulliActions(LogitActions):
    """MultiBinary actions. Parameters are the logits, (B, n). (Under masks they are ``LogitActions``, as two choices each.)"""

    @override
    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        # log p = logit - softplus(logit), log(1 - p) = -softplus(logit)
        kl = th.sigmoid(first) * (first - second) + F.softplus(second) - F.softplus(first)
        return kl.sum(dim=1)


class GaussianActions(Actions):
    """
    Box actions. Parameters are mean and standard deviation, (B, 2 x dimensions), before squashing, under which a KL divergence
    is invariant.
    """

    @override
    def parameters(self, distribution: DiagGaussianDistribution | StateDependentNoiseDistribution) -> th.Tensor:
        return th.cat([distribution.distribution.mean, distribution.distribution.stddev], dim=1)

    @override
    def kl(self, distribution: Any, first: th.Tensor, second: th.Tensor) -> th.Tensor:
        first_mean, first_std = first.chunk(2, dim=1)
        mean, std = second.chunk(2, dim=1)
        # log σ/σ_1 + (σ_1² + (μ_1 - μ)²) / 2σ² - 1/2
        kl = th.log(std / first_std) + ((first_std / std).square() + ((first_mean - mean) / std).square() - 1) / 2
        return kl.sum(dim=1)

    @override
    def tempered(self, distribution: Any, temperature: float) -> Any:
        tempered, gaussian = copy.copy(distribution), distribution.distribution
        tempered.distribution = th.distributions.Normal(gaussian.mean, math.sqrt(temperature) * gaussian.stddev)
        return tempered


class SquashedGaussianActions(GaussianActions):
    """Box actions that tanh has squashed."""

    bounded = True


# Gauss-Hermite quadrature for expectations under a standard normal distribution
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class SquashedGaussianDistribution(SquashedDiagGaussianDistribution):
    """SB3's squashed Gaussian, with its entropy."""

    @override
    def entropy(self) -> th.Tensor:
        """Return H(tanh(u)) = H(u) + E[log(1 - tanh²(u))], (B,), in nats, by quadrature, which has a gradient."""
        normal = self.distribution
        nodes, weights = th.as_tensor(NODES).to(normal.mean), th.as_tensor(WEIGHTS / WEIGHTS.sum()).to(normal.mean)
        u = normal.mean[..., None] + normal.stddev[..., None] * nodes
        log_slope = 2 * (math.log(2) - u - F.softplus(-2 * u)) @ weights
        return (normal.entropy() + log_slope).sum(dim=1)


_KINDS: dict[type[Distribution], type[Actions]] = {
    CategoricalDistribution: CategoricalActions,
    MaskableCategoricalDistribution: CategoricalActions,
    MultiCategoricalDistribution: LogitActions,
    MaskableMultiCategoricalDistribution: LogitActions,
    BernoulliDistribution: BernoulliActions,
    MaskableBernoulliDistribution: LogitActions,
    DiagGaussianDistribution: GaussianActions,
    SquashedDiagGaussianDistribution: SquashedGaussianActions,
    StateDependentNoiseDistribution: GaussianActions,
}


def register(distribution_class: type[Distribution], actions_class: type[Actions]) -> None:
    """
    Make an action distribution known to policies that are made later, for ``policy_kwargs=dict(distribution_class=...)``.

    :param distribution_class: made with the action space; its subclasses are known, too
    :param actions_class: subclass of ``Actions`` for it
    """
    _KINDS[distribution_class] = actions_class


def actions_class_of(distribution_class: type[Distribution]) -> type[Actions]:
    """Return the subclass of ``Actions`` for a distribution, or raise an ``ArgumentError``."""
    for known in distribution_class.__mro__:
        if known in _KINDS:
            return _KINDS[known]
    raise ArgumentError(
        f"No exact KL divergence is known for {distribution_class.__name__}: derive a class from sb3_ppg.actions.Actions, "
        f"and call sb3_ppg.actions.register({distribution_class.__name__}, ...)"
    )


# ---- nested spaces ----


def parts_of(space: spaces.Space) -> dict[Any, spaces.Space]:
    """Return the parts of a nested space by key or index; nothing for another space."""
    parts = space.spaces if isinstance(space, NESTED) else {}
    return dict(parts) if isinstance(parts, Mapping) else dict(enumerate(parts))


def leaves(space: spaces.Space, path: str = "") -> list[tuple[str, spaces.Space]]:
    """
    List the path and the space of each leaf of a space, in the order of the leaves' numbers in a row of actions. A leaf is a
    space that is not nested itself; its path is ``path`` and the keys and indices that lead to it, separated by dots.

    :raises ArgumentError: for a leaf that is not a Box with bounds, Discrete, MultiDiscrete or MultiBinary
    """
    if isinstance(space, NESTED):
        prefix = f"{path}." if path else ""
        return [leaf for key, part in parts_of(space).items() for leaf in leaves(part, f"{prefix}{key}")]
    is_leaf = isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    if not is_leaf or math.prod(space.shape or ()) == 0 or (isinstance(space, spaces.Box) and not space.is_bounded()):
        remedy = "use Box spaces with finite bounds, Discrete, MultiDiscrete and MultiBinary spaces, which have numbers"
        raise ArgumentError(f"The action space has {space} at {path!r}, which cannot work: {remedy}")
    return [(path, space)]


def n_choices(space: Any) -> list[int]:
    """Return the number of choices in each dimension, leaf after leaf, in C order; one in each dimension of a Box."""
    if isinstance(space, NESTED):
        return [n for _, leaf in leaves(space) for n in n_choices(leaf)]
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.ravel().tolist()
    return [2 if isinstance(space, spaces.MultiBinary) else 1] * math.prod(space.shape or ())


def flat_space(space: spaces.Space) -> spaces.Space:
    """
    :param space: action space
    :return: the space of actions in buffers: the space itself, or, for a nested space, a row of floats, described as a
        MultiDiscrete space so that SB3 accepts it: ``nvec`` has the number of choices of each dimension of each leaf
    :raises ArgumentError: if it has no leaves; see also ``leaves``
    """
    if not isinstance(space, NESTED):
        return space
    if not leaves(space):
        raise ArgumentError(f"The action space {space} has no actions")
    flat = spaces.MultiDiscrete(n_choices(space))
    flat.dtype = np.dtype(np.float32)  # type: ignore[assignment]
    return flat


def structure(space: spaces.Space, values: Iterator[Any]) -> Any:
    """Arrange values, one for each leaf in their order, as a nested space arranges its leaves."""
    if isinstance(space, spaces.Dict):
        return {key: structure(part, values) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(structure(part, values) for part in space.spaces)
    return next(values)


def by_leaf(space: spaces.Space, argument: str, given: Any) -> list[Any]:
    """
    List the value of an argument for each leaf. ``given`` is one value for all leaves, or dictionaries and sequences with the
    keys of the space. A value in place of a dictionary or sequence counts for all leaves below it.

    :raises ArgumentError: if keys are missing or unknown
    """
    if not isinstance(given, (Mapping, Sequence)):
        return [given] * len(leaves(space))
    parts, values = parts_of(space), given if isinstance(given, Mapping) else dict(enumerate(given))
    texts: dict[Any, Any] = {str(key): key for key in parts}  # which SB3's files have in place of numbers
    values = {key if key in parts else texts.get(key, key): value for key, value in values.items()}
    is_nested = isinstance(space, NESTED)
    if parts.keys() != values.keys() or not is_nested:
        remedy = f"give a value for each of its parts {[*parts]}, or one for all" if is_nested else "give one value"
        raise ArgumentError(f"`{argument}`={given!r} cannot work for the action space {space}: {remedy}")
    return [value for key, part in parts.items() for value in by_leaf(part, argument, values[key])]


def flat_masks(space: spaces.Space, masks: Any) -> np.ndarray:
    """
    Write the masks of a nested space's leaves one after the other, as ``action_masks`` of an environment returns them.

    Example::

        def action_masks(self):
            return flat_masks(self.action_space, {"kind": [True, self.fuel > 0, True]})

    :param space: action space
    :param masks: dictionaries with the keys of Dict spaces and the indices of Tuple spaces, which lead to the mask of a leaf:
        True where an action is possible, (n,) for Discrete, (sum of n,) for MultiDiscrete, (2 n,) for MultiBinary leaves. A
        leaf that is left out allows everything, as Box leaves do
    :return: (total number of choices,)
    :raises ArgumentError: if a key is unknown, or a mask has another size
    """
    if isinstance(space, NESTED):
        parts = parts_of(space)
        if not isinstance(masks, Mapping) or not masks.keys() <= parts.keys():
            raise ArgumentError(f"`masks`={masks!r} cannot work: use a dictionary with keys of {[*parts]}")
        below = [
            flat_masks(part, masks[key]) if key in masks else np.ones(sum(n_choices(part)), dtype=bool)
            for key, part in parts.items()
        ]
        return np.concatenate(below)
    mask, size = np.asarray(masks, dtype=bool).ravel(), sum(n_choices(space))
    if isinstance(space, spaces.Box) or len(mask) != size:
        remedy = "leave it out" if isinstance(space, spaces.Box) else f"use {size} values"
        raise ArgumentError(f"`masks`={masks!r} cannot work for {space}: {remedy}")
    return mask


class NestedActions(Actions):
    """
    Actions of a nested space. In distributions, buffers and networks, an action is one row of floats, leaf after leaf. The
    parameters of a distribution are those of the leaves, one after the other.

    :param space: nested action space
    :param kinds: kind of actions of each leaf
    """

    def __init__(self, space: spaces.Space, kinds: Sequence[Actions]):
        self.space = space
        self.leaves = leaves(space)
        self.kinds = kinds
        self.sizes = [len(n_choices(leaf)) for _, leaf in self.leaves]
        self.shape = (sum(self.sizes),)
        self.n_features = sum(kind.n_features for kind in kinds)
        self.weights = {name: th.ones(len(kinds)) for name in ("ent_coef", "prior_coef")}

    @override
    def parameters(self, distribution: "NestedDistribution") -> th.Tensor:
        return th.cat(self._leaf_parameters(distribution), dim=1)

    @override
    def kl(self, distribution: "NestedDistribution", first: th.Tensor, second: th.Tensor) -> th.Tensor:
        return th.stack([kind.kl(*leaf) for kind, *leaf in self._by_leaf(distribution, first, second)]).sum(dim=0)

    @override
    def prior_kl(self, distribution: "NestedDistribution", prior_parameters: th.Tensor) -> th.Tensor:
        kls = th.stack([kind.prior_kl(*leaf) for kind, *leaf in self._by_leaf(distribution, prior_parameters)])
        return self.weights["prior_coef"].to(kls) @ kls

    def _by_leaf(self, distribution: "NestedDistribution", *parameters: th.Tensor) -> Iterator[tuple[Any, ...]]:
        """Return each leaf's kind, its distribution, and its part of each of the parameters, (B, P)."""
        sizes = [own.shape[1] for own in self._leaf_parameters(distribution)]
        return zip(self.kinds, distribution.distributions, *(each.split(sizes, dim=1) for each in parameters), strict=True)

    def _leaf_parameters(self, distribution: "NestedDistribution") -> list[th.Tensor]:
        return [kind.parameters(leaf) for kind, leaf in zip(self.kinds, distribution.distributions, strict=True)]

    @override
    def entropy(self, distribution: "NestedDistribution", actions: th.Tensor) -> th.Tensor:
        entropies = distribution.leaf_entropies(actions)
        return self.weights["ent_coef"].to(entropies) @ entropies

    @override
    def weigh(self, argument: Literal["ent_coef", "prior_coef"], coef: Any, device: th.device) -> float:
        if self.weights[argument].device != device:
            self.weights[argument] = self.weights[argument].to(device)
        has_parts = isinstance(coef, (Mapping, Sequence))
        weights = by_leaf(self.space, argument, coef if has_parts else 1.0)
        self.weights[argument].copy_(th.tensor(weights))  # in place: compiled updates have this tensor
        return 1.0 if has_parts else coef

    @override
    def tempered(self, distribution: "NestedDistribution", temperature: Any) -> "NestedDistribution":
        tempered = copy.copy(distribution)
        parts = zip(self.kinds, distribution.distributions, by_leaf(self.space, "temperature", temperature), strict=True)
        tempered.distributions = [kind.tempered(leaf, leaf_temperature) for kind, leaf, leaf_temperature in parts]
        return tempered

    @override
    def for_environments(self, actions: th.Tensor) -> list[th.Tensor]:
        converted = []
        for (_, space), kind, part in zip(self.leaves, self.kinds, self.split(actions), strict=True):
            taken = kind.for_environments(part.reshape(-1, *kind.shape))
            converted.append(taken.to(dtype_of(space)).reshape(-1, *(space.shape or ())))
        return converted

    @override
    def for_step(self, actions: th.Tensor) -> list[Any]:
        arrays = [part.numpy() for part in self.for_environments(actions.cpu())]
        return [structure(self.space, iter(env_actions)) for env_actions in zip(*arrays, strict=True)]

    @override
    def check_conversion(self, distribution: Any) -> None:
        for kind, template in zip(self.kinds, distribution.templates, strict=True):
            kind.check_conversion(template)

    @override
    def features(self, actions: th.Tensor) -> th.Tensor:
        return th.cat([kind.features(part) for kind, part in zip(self.kinds, self.split(actions), strict=True)], dim=1)

    def split(self, actions: th.Tensor) -> list[th.Tensor]:
        """Return the action of each leaf, as its distribution takes it, from rows of numbers, (B, n)."""
        parts = zip(self.kinds, actions.split(self.sizes, dim=1), strict=True)
        return [kind.from_buffer(part) for kind, part in parts]


class NestedActionNet(nn.Module):
    """The layers that ``proba_distribution_net`` makes for the leaves, and their parameters that need no observation."""

    def __init__(self, nets: Sequence[nn.Module | tuple[nn.Module, nn.Parameter]]):
        super().__init__()
        pairs = [net if isinstance(net, tuple) else (net,) for net in nets]
        self.nets = nn.ModuleList(net for net, *_ in pairs)
        self.constants = nn.ModuleList(nn.ParameterList(constants) for _, *constants in pairs)

    @override
    def forward(self, latent: th.Tensor) -> list[tuple[th.Tensor, ...]]:
        pairs: Any = zip(self.nets, self.constants, strict=True)
        return [(net(latent), *constants) for net, constants in pairs]


class NestedDistribution(ActionDistribution):
    """
    The distribution over a nested space: the leaves are independent, given the observation.

    :param space: nested action space
    :param make_leaf: returns the distribution over a leaf, which has one dimension if it is discrete
    :param log_std_init: initial logarithm of the standard deviations of Box leaves
    """

    def __init__(
        self, space: spaces.Space, make_leaf: Callable[[spaces.Space], Distribution], log_std_init: float = 0.0
    ) -> None:
        super().__init__()
        one_dimensional = [_with_one_dimension(leaf) for _, leaf in leaves(space)]
        self.templates = [with_python_integers(make_leaf(part)) for part in one_dimensional]
        parts = zip(self.templates, one_dimensional, strict=True)
        self.actions = NestedActions(space, [actions_class_of(type(template))(part) for template, part in parts])
        self.action_dims = n_choices(space)  # as sb3-contrib's, for masks
        self.log_std_init = log_std_init
        self.distributions: list[Distribution] = []  # with parameters

    @override
    def proba_distribution_net(self, latent_dim: int) -> NestedActionNet:
        nets = []
        for template in self.templates:
            options = dict(log_std_init=self.log_std_init) if isinstance(template, DiagGaussianDistribution) else {}
            nets.append(template.proba_distribution_net(latent_dim=latent_dim, **options))
        return NestedActionNet(nets)

    @override
    def proba_distribution(self, parameters: Sequence[tuple[th.Tensor, ...]]) -> "NestedDistribution":
        pairs = zip(self.templates, parameters, strict=True)
        self.distributions = [copy.copy(template).proba_distribution(*leaf) for template, leaf in pairs]
        return self

    def apply_masking(self, masks: np.ndarray | th.Tensor | None) -> None:
        """Exclude actions by masks, (B, total number of choices): True where one is possible, and for the numbers of a Box."""
        sizes = [sum(n_choices(leaf)) for _, leaf in self.actions.leaves]
        parts: Any = [None] * len(sizes)
        if masks is not None:
            parts = th.as_tensor(masks).reshape(-1, sum(sizes)).split(sizes, dim=1)
        for leaf, part in zip(self.distributions, parts, strict=True):
            if hasattr(leaf, "apply_masking"):
                leaf.apply_masking(part)

    def leaf_log_probs(self, actions: th.Tensor) -> th.Tensor:
        """Return log π of each leaf's action, (number of leaves, B), for rows of numbers, (B, n)."""
        parts = zip(self.distributions, self.actions.split(actions), strict=True)
        return th.stack([leaf.log_prob(part) for leaf, part in parts])

    def leaf_entropies(self, actions: th.Tensor) -> th.Tensor:
        """Return the entropy of each leaf, or, where it has no closed form, -log π of its action, (number of leaves, B)."""
        entropies = []
        for kind, leaf, part in zip(self.actions.kinds, self.distributions, self.actions.split(actions), strict=True):
            entropy = kind.entropy(leaf, part)
            entropies.append(-leaf.log_prob(part) if entropy is None else entropy)
        return th.stack(entropies)

    @override
    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        return self.leaf_log_probs(actions).sum(dim=0)

    @override
    def entropy(self) -> th.Tensor:
        entropies: Any = [leaf.entropy() for leaf in self.distributions]
        return th.stack(entropies).sum(dim=0)

    @override
    def sample(self) -> th.Tensor:
        return _row(leaf.sample() for leaf in self.distributions)

    @override
    def mode(self) -> th.Tensor:
        return _row(leaf.mode() for leaf in self.distributions)


def _row(actions: Iterator[th.Tensor]) -> th.Tensor:
    return th.cat([action.reshape(action.shape[0], -1) for action in actions], dim=1)


def _with_one_dimension(space: spaces.Space) -> spaces.Space:
    """Return a leaf's space as SB3's distributions need it: a discrete one without further dimensions."""
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.ravel(), start=space.start.ravel())
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(math.prod(space.shape))
    return space


# ---- validation ----

_lock = threading.Lock()
_before: list[bool] = []  # the setting before each block that is being run, in any thread


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """
    Turn off the validation of arguments in torch's distributions. Each validation costs a transfer from the device, and an
    exported program would contain its result as a constant. The losses are checked once per epoch instead. If several threads
    train, the last one to leave its block restores the setting.
    """
    distributions = th.distributions.Distribution
    with _lock:
        _before.append(distributions._validate_args)
        distributions.set_default_validate_args(False)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                distributions.set_default_validate_args(before)
