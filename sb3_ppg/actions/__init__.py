"""Kinds of action distributions, one class each; ``register`` adds another."""

from sb3_ppg.actions.base import ActionDistribution, Actions, actions_class_of, register
from sb3_ppg.actions.kinds import BernoulliActions, CategoricalActions, GaussianActions, MultiCategoricalActions

__all__ = [
    "ActionDistribution",
    "Actions",
    "BernoulliActions",
    "CategoricalActions",
    "GaussianActions",
    "MultiCategoricalActions",
    "actions_class_of",
    "register",
]
