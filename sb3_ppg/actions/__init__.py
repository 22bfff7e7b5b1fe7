"""Kinds of action distributions, one class each; ``register`` adds another."""

from sb3_ppg.actions.base import ActionDistribution, Actions, actions_class_of, register
from sb3_ppg.actions.kinds import BernoulliActions, CategoricalActions, GaussianActions, MultiCategoricalActions
from sb3_ppg.actions.nested import (
    NESTED,
    Leaf,
    NestedActions,
    NestedDistribution,
    by_leaf,
    flat_masks,
    flat_space,
    leaves,
    n_choices,
)

__all__ = [
    "NESTED",
    "ActionDistribution",
    "Actions",
    "BernoulliActions",
    "CategoricalActions",
    "GaussianActions",
    "Leaf",
    "MultiCategoricalActions",
    "NestedActions",
    "NestedDistribution",
    "actions_class_of",
    "by_leaf",
    "flat_masks",
    "flat_space",
    "leaves",
    "n_choices",
    "register",
]
