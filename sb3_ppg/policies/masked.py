"""Policies in which impossible actions have a probability of zero, with sb3-contrib's maskable distributions."""

from collections.abc import Collection
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppg.actions import NESTED
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies.mlp import (
    EVERYTHING,
    Evaluation,
    MultiInputPhasicActorCriticPolicy,
    PhasicActorCriticCnnPolicy,
    PhasicActorCriticPolicy,
)


class MaskablePhasicActorCriticPolicy(PhasicActorCriticPolicy):
    """
    ``PhasicActorCriticPolicy`` in which actions that a mask excludes have a probability of zero, with sb3-contrib's maskable
    distributions. Its methods take ``action_masks`` like those of sb3-contrib's ``MaskableActorCriticPolicy``: True where an
    action is possible, (B, n) for Discrete, (B, sum of n) for MultiDiscrete, (B, 2 n) for MultiBinary actions; for nested
    spaces, the masks of all leaves as ``sb3_ppg.actions.flat_masks`` returns them. None: no masks.
    """

    algorithm: ClassVar[str] = "MaskablePPG"

    @cached_property
    def mask_starts(self) -> np.ndarray:
        """Index in a mask at which each dimension of the actions begins, (n_dimensions,)."""
        sizes = getattr(self.action_dist, "action_dims", [0])  # a distribution of one dimension has no such attribute
        return np.cumsum([0, *sizes[:-1]])

    def make_action_distribution(self) -> Distribution:
        if self.distribution_class is None and not isinstance(self.action_space, NESTED):
            return make_masked_proba_distribution(self.action_space)
        if self.distribution_class is not None and not issubclass(self.distribution_class, MaskableDistribution):
            raise ArgumentError(
                f"`distribution_class`={self.distribution_class.__name__} cannot work with masks: derive it from "
                "sb3-contrib's MaskableDistribution"
            )
        return super().make_action_distribution()

    def make_leaf_distribution(self, space: spaces.Space) -> Distribution:
        if isinstance(space, spaces.Box):
            return super().make_leaf_distribution(space)
        return make_masked_proba_distribution(space)

    def evaluate(
        self,
        obs: PyTorchObs,
        action_masks: np.ndarray | th.Tensor | None = None,
        *,
        reads: Collection[str] = EVERYTHING,
        auxiliary: bool = False,
    ) -> Evaluation:
        """
        Run the networks as ``PhasicActorCriticPolicy`` does, and apply the masks to the distribution.

        :param action_masks: True where an action is possible. None: everywhere
        """
        evaluation = super().evaluate(obs, reads=reads, auxiliary=auxiliary)
        if evaluation.distribution is not None:
            evaluation.distribution.apply_masking(action_masks)  # type: ignore[attr-defined]
        return evaluation

    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """Choose actions under the masks, with sb3-contrib's arguments."""
        return super().predict(observation, state, episode_start, deterministic, action_masks=action_masks)


class MaskablePhasicActorCriticCnnPolicy(PhasicActorCriticCnnPolicy, MaskablePhasicActorCriticPolicy):
    """``MaskablePhasicActorCriticPolicy`` for images, by default with SB3's ``NatureCNN``."""


class MaskableMultiInputPhasicActorCriticPolicy(MultiInputPhasicActorCriticPolicy, MaskablePhasicActorCriticPolicy):
    """``MaskablePhasicActorCriticPolicy`` for dictionaries, by default with SB3's ``CombinedExtractor``."""
