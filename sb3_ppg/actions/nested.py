"""Dict and Tuple action spaces: one distribution composed of those of the leaves, and one row of numbers for all leaves."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution, Distribution
from torch import nn

from sb3_ppg.actions.base import ActionDistribution, Actions, actions_class_of, with_python_integers
from sb3_ppg.errors import ArgumentError

NESTED = (spaces.Dict, spaces.Tuple)


class Leaf(NamedTuple):
    """A space in a nested one that is not nested itself; ``path``: keys and indices that lead to it, separated by dots."""

    path: str
    space: spaces.Space

    @property
    def n_choices(self) -> list[int]:
        """Number of choices in each dimension, in C order; one in each dimension of a Box."""
        match self.space:
            case spaces.Discrete():
                return [int(self.space.n)]
            case spaces.MultiDiscrete():
                return self.space.nvec.ravel().tolist()
            case spaces.MultiBinary():
                return [2] * math.prod(self.space.shape)
        return [1] * math.prod(self.space.shape)  # type: ignore[arg-type] # of a Box


def parts_of(space: spaces.Space) -> dict[Any, spaces.Space]:
    """Return the parts of a nested space by key or index; nothing for another space."""
    parts = space.spaces if isinstance(space, NESTED) else {}
    return dict(parts) if isinstance(parts, Mapping) else dict(enumerate(parts))


def leaves(space: spaces.Space, path: str = "") -> list[Leaf]:
    """
    List the leaves of a space with this path, in the order of their numbers in a row.

    :raises ArgumentError: for a leaf that is not a Box with bounds, Discrete, MultiDiscrete or MultiBinary
    """
    if isinstance(space, NESTED):
        prefix = f"{path}." if path else ""
        return [leaf for key, part in parts_of(space).items() for leaf in leaves(part, f"{prefix}{key}")]
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        remedy = "describe this choice by Box, Discrete, MultiDiscrete and MultiBinary spaces, in an ActionWrapper"
    elif isinstance(space, spaces.Box) and not space.is_bounded():
        remedy = "give it finite bounds"
    elif math.prod(space.shape or ()) == 0:
        remedy = "leave it out, it has no numbers"
    elif path and isinstance(space, spaces.Box) and _is_too_wide(space):
        remedy = "give it bounds within 2**53, up to which a float is an exact integer"
    else:
        return [Leaf(path, space)]
    raise ArgumentError(f"The action space has {space} at {path!r}, which cannot work: {remedy}")


def _is_too_wide(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.integer) and max(abs(int(space.low.min())), abs(int(space.high.max()))) > 2**53


def n_choices(space: spaces.Space) -> list[int]:
    """Return ``Leaf.n_choices`` of all leaves of a space, one after the other."""
    return [n for leaf in leaves(space) for n in leaf.n_choices]


def flat_space(space: spaces.Space) -> spaces.Space:
    """
    :param space: action space
    :return: the space of actions in buffers: the space itself, or, for a nested space, a row of floats, described as a
        MultiDiscrete space so that SB3 accepts it: ``nvec`` has the number of choices of each dimension of each leaf
    :raises ArgumentError: if it has no leaves, or two with one path; see also ``leaves``
    """
    if not isinstance(space, NESTED):
        return space
    paths = [leaf.path for leaf in leaves(space)]
    if not paths:
        raise ArgumentError(f"The action space {space} has no actions")
    if twice := {path for path in paths if paths.count(path) > 1}:
        raise ArgumentError(f"The action space {space} has two parts of the path {min(twice)!r}: rename a key")
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
    List what an argument of this name gives each leaf: one value, or dictionaries and sequences with the keys of the space, or
    of its upper levels, where a value counts for all leaves below it.

    :raises ArgumentError: if keys are missing or unknown
    """
    if not isinstance(given, (Mapping, Sequence)):
        return [given] * len(leaves(space))
    parts, values = parts_of(space), given if isinstance(given, Mapping) else dict(enumerate(given))
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
        self.sizes = [len(leaf.n_choices) for leaf in self.leaves]
        self.shape = (sum(self.sizes),)
        self.n_features = sum(kind.n_features for kind in kinds)
        self.entropy_weights = th.ones(len(kinds))

    def parameters(self, distribution: "NestedDistribution") -> th.Tensor:
        return th.cat(self._leaf_parameters(distribution), dim=1)

    def kl(self, distribution: "NestedDistribution", first: th.Tensor, second: th.Tensor) -> th.Tensor:
        sizes = [parameters.shape[1] for parameters in self._leaf_parameters(distribution)]
        parts = zip(self.kinds, distribution.distributions, first.split(sizes, dim=1), second.split(sizes, dim=1), strict=True)
        return th.stack([kind.kl(*others) for kind, *others in parts]).sum(dim=0)

    def _leaf_parameters(self, distribution: "NestedDistribution") -> list[th.Tensor]:
        return [kind.parameters(one) for kind, one in zip(self.kinds, distribution.distributions, strict=True)]

    def entropy(self, distribution: "NestedDistribution", actions: th.Tensor) -> th.Tensor:
        """Return the entropies of the leaves, multiplied by ``entropy_weights`` and added up."""
        entropies = distribution.leaf_entropies(actions)
        return self.entropy_weights.to(entropies) @ entropies

    def weigh_entropy(self, ent_coef: Any, device: th.device) -> float:
        if self.entropy_weights.device != device:
            self.entropy_weights = self.entropy_weights.to(device)
        has_parts = isinstance(ent_coef, (Mapping, Sequence))
        weights = by_leaf(self.space, "ent_coef", ent_coef if has_parts else 1.0)
        self.entropy_weights.copy_(th.tensor(weights))  # in place: compiled updates have this tensor
        return 1.0 if has_parts else ent_coef

    def tempered(self, distribution: "NestedDistribution", temperature: Any) -> "NestedDistribution":
        """Return the distribution at one temperature for all leaves, or at one for each part of the space."""
        temperatures, tempered = by_leaf(self.space, "temperature", temperature), copy.copy(distribution)
        parts = zip(self.kinds, distribution.distributions, temperatures, strict=True)
        tempered.distributions = [kind.tempered(one, its) for kind, one, its in parts]
        return tempered

    def for_environments(self, actions: np.ndarray) -> list[Any]:  # type: ignore[override]
        """Return the actions of rows of numbers, (n_envs, n), as the space describes them, one for each environment."""
        of_leaves = []
        for leaf, kind, part in zip(self.leaves, self.kinds, self.split(th.as_tensor(actions)), strict=True):
            taken = kind.for_environments(part.numpy().reshape(-1, *kind.shape))
            of_leaves.append(taken.astype(leaf.space.dtype).reshape(-1, *leaf.space.shape))  # type: ignore[misc]
        return [structure(self.space, iter(of_env)) for of_env in zip(*of_leaves, strict=True)]

    def features(self, actions: th.Tensor) -> th.Tensor:
        return th.cat([kind.features(part) for kind, part in zip(self.kinds, self.split(actions), strict=True)], dim=1)

    def split(self, actions: th.Tensor) -> list[th.Tensor]:
        """Return the action of each leaf, as its distribution takes it, from rows of numbers, (B, n)."""
        parts = zip(self.kinds, actions.split(self.sizes, dim=1), strict=True)
        return [kind.from_buffer(part) for kind, part in parts]


class NestedActionNet(nn.Module):
    """
    A layer for the parameters of each leaf's distribution, and its parameters that do not depend on the observation.

    :param nets: result of ``proba_distribution_net`` for each leaf
    """

    def __init__(self, nets: Sequence[nn.Module | tuple[nn.Module, nn.Parameter]]):
        super().__init__()
        pairs = [net if isinstance(net, tuple) else (net,) for net in nets]
        self.nets = nn.ModuleList(net for net, *_ in pairs)
        self.constants = nn.ModuleList(nn.ParameterList(constants) for _, *constants in pairs)

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
        one_dimensional = [_with_one_dimension(leaf.space) for leaf in leaves(space)]
        self.templates = [with_python_integers(make_leaf(part)) for part in one_dimensional]
        parts = zip(self.templates, one_dimensional, strict=True)
        self.actions = NestedActions(space, [actions_class_of(type(one))(part) for one, part in parts])
        self.action_dims = n_choices(space)  # as sb3-contrib's, for masks
        self.log_std_init = log_std_init
        self.distributions: list[Distribution] = []  # with parameters

    def proba_distribution_net(self, latent_dim: int) -> NestedActionNet:
        """Return the layers for the parameters, which take (B, latent_dim)."""
        nets = []
        for template in self.templates:
            options = dict(log_std_init=self.log_std_init) if isinstance(template, DiagGaussianDistribution) else {}
            nets.append(template.proba_distribution_net(latent_dim=latent_dim, **options))
        return NestedActionNet(nets)

    def proba_distribution(self, parameters: Sequence[tuple[th.Tensor, ...]]) -> "NestedDistribution":
        pairs = zip(self.templates, parameters, strict=True)
        self.distributions = [copy.copy(template).proba_distribution(*its) for template, its in pairs]
        return self

    def apply_masking(self, masks: np.ndarray | th.Tensor | None) -> None:
        """Exclude actions by masks, (B, total number of choices): True where one is possible, and for the numbers of a Box."""
        sizes = [sum(leaf.n_choices) for leaf in self.actions.leaves]
        parts: Any = [None] * len(sizes)
        if masks is not None:
            parts = th.as_tensor(masks).reshape(-1, sum(sizes)).split(sizes, dim=1)
        for one, part in zip(self.distributions, parts, strict=True):
            if hasattr(one, "apply_masking"):
                one.apply_masking(part)

    def leaf_log_probs(self, actions: th.Tensor) -> th.Tensor:
        """Return log π of each leaf's action, (number of leaves, B), for rows of numbers, (B, n)."""
        parts = zip(self.distributions, self.actions.split(actions), strict=True)
        return th.stack([one.log_prob(part) for one, part in parts])

    def leaf_entropies(self, actions: th.Tensor) -> th.Tensor:
        """Return the entropy of each leaf, or, where it has no closed form, -log π of its action, (number of leaves, B)."""
        entropies = []
        for one, part in zip(self.distributions, self.actions.split(actions), strict=True):
            entropy = one.entropy()
            entropies.append(-one.log_prob(part) if entropy is None else entropy)
        return th.stack(entropies)

    def log_prob(self, actions: th.Tensor) -> th.Tensor:
        return self.leaf_log_probs(actions).sum(dim=0)

    def entropy(self) -> th.Tensor | None:
        entropies: Any = [one.entropy() for one in self.distributions]
        return None if any(one is None for one in entropies) else th.stack(entropies).sum(dim=0)

    def sample(self) -> th.Tensor:
        return _row(one.sample() for one in self.distributions)

    def mode(self) -> th.Tensor:
        return _row(one.mode() for one in self.distributions)


def _row(actions: Iterator[th.Tensor]) -> th.Tensor:
    """Write the actions of all leaves into rows of numbers."""
    return th.cat([action.reshape(len(action), -1) for action in actions], dim=1)


def _with_one_dimension(space: spaces.Space) -> spaces.Space:
    """Return a leaf's space as SB3's distributions need it: a discrete one without further dimensions."""
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec.ravel(), start=space.start.ravel())
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(math.prod(space.shape))
    return space
