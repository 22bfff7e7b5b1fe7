"""Kinds of action distributions, one class each; ``register`` adds another."""

from sb3_ppg.actions.base import ActionDistribution, Actions, actions_class_of, register
from sb3_ppg.actions.kinds import BernoulliActions, CategoricalActions, GaussianActions, MultiCategoricalActions
from sb3_ppg.actions.nested import (
    NESTED,
    NestedActions,
    NestedDistribution,
    flat_masks,
    flat_space,
    leaves,
)

__all__ = [
    "NESTED",
    "ActionDistribution",
    "Actions",
    "BernoulliActions",
    "CategoricalActions",
    "GaussianActions",
    "MultiCategoricalActions",
    "NestedActions",
    "NestedDistribution",
    "actions_class_of",
    "flat_masks",
    "flat_space",
    "leaves",
    "register",
]
