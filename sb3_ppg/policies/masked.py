"""Policies that give no probability to actions that are not possible, by sb3-contrib's maskable distributions."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import ClassVar

import numpy as np
import torch as th
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppg.policies.mlp import (
    AuxiliaryEvaluation,
    MultiInputPhasicActorCriticPolicy,
    PhasicActorCriticCnnPolicy,
    PhasicActorCriticPolicy,
)

Masks = np.ndarray | th.Tensor | None
# Whose method runs, and under which masks: of each thread, as a policy may serve several
_applied: ContextVar[tuple["MaskablePhasicActorCriticPolicy", Masks] | None] = ContextVar("_applied", default=None)


class MaskablePhasicActorCriticPolicy(PhasicActorCriticPolicy):
    """
    ``PhasicActorCriticPolicy`` whose distributions give no probability to what an action mask excludes, by sb3-contrib's
    maskable distributions. Its methods take ``action_masks`` as those of sb3-contrib's ``MaskableActorCriticPolicy`` do:
    True where an action is possible, (B, n) for Discrete, (B, sum of n) for MultiDiscrete, (B, 2 n) for MultiBinary
    actions; None: no masks.
    """

    algorithm: ClassVar[str] = "MaskablePPG"
    action_dist: MaskableDistribution
    mask_starts: np.ndarray  # where the part of a mask begins that is for each dimension of the actions, (n_dimensions,)

    def _build_action_net(self) -> None:
        self.action_dist = make_masked_proba_distribution(self.action_space)
        self.action_net = self.action_dist.proba_distribution_net(latent_dim=self.mlp_extractor.latent_dim_pi)
        sizes = getattr(self.action_dist, "action_dims", [0])  # which a distribution of one dimension does not have
        self.mask_starts = np.cumsum([0, *sizes[:-1]])
        if self.ortho_init:
            self.action_net.apply(partial(self.init_weights, gain=0.01))

    @contextmanager
    def _masked_by(self, action_masks: Masks) -> Iterator[None]:
        """Apply masks to the distributions that are made meanwhile. None: those that are applied already, if any."""
        token = _applied.set((self, self._action_masks() if action_masks is None else action_masks))
        try:
            yield
        finally:
            _applied.reset(token)

    def _action_masks(self) -> Masks:
        """Those that are applied, while one of the methods below runs."""
        match _applied.get():
            case (policy, masks) if policy is self:
                return masks
        return None

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        return self.masked_distribution(latent_pi, self._action_masks())

    def masked_distribution(self, latent_pi: th.Tensor, action_masks: Masks) -> MaskableDistribution:
        """
        :param latent_pi: of the policy's network, (B, latent_dim_pi)
        :param action_masks: as the methods below take them
        :return: π(.|s)
        """
        distribution = super()._get_action_dist_from_latent(latent_pi)
        assert isinstance(distribution, MaskableDistribution)
        distribution.apply_masking(action_masks)
        return distribution

    def forward(
        self, obs: th.Tensor, deterministic: bool = False, action_masks: Masks = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """As in SB3, under the masks."""
        with self._masked_by(action_masks):
            return super().forward(obs, deterministic)

    def evaluate_actions(
        self, obs: PyTorchObs, actions: th.Tensor, action_masks: Masks = None
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """As in SB3, under the masks."""
        with self._masked_by(action_masks):
            return super().evaluate_actions(obs, actions)

    def get_distribution(self, obs: PyTorchObs, action_masks: Masks = None) -> Distribution:
        """As in SB3, under the masks."""
        with self._masked_by(action_masks):
            return super().get_distribution(obs)

    def evaluate_policy(self, obs: PyTorchObs, action_masks: Masks = None) -> tuple[Distribution, th.Tensor]:
        """As ``PhasicActorCriticPolicy``, under the masks."""
        with self._masked_by(action_masks):
            return super().evaluate_policy(obs)

    def evaluate_values(self, obs: PyTorchObs, action_masks: Masks = None) -> th.Tensor:
        """As ``PhasicActorCriticPolicy``: values do not depend on the masks."""
        return super().evaluate_values(obs)

    def evaluate_auxiliary(self, obs: PyTorchObs, action_masks: Masks = None) -> AuxiliaryEvaluation:
        """As ``PhasicActorCriticPolicy``, under the masks."""
        with self._masked_by(action_masks):
            return super().evaluate_auxiliary(obs)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: Masks = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """As in SB3, under the masks."""
        with self._masked_by(action_masks):
            return super().predict(observation, state, episode_start, deterministic)


class MaskablePhasicActorCriticCnnPolicy(PhasicActorCriticCnnPolicy, MaskablePhasicActorCriticPolicy):  # type: ignore[misc]
    """``MaskablePhasicActorCriticPolicy`` for images, by default through SB3's ``NatureCNN``."""


class MaskableMultiInputPhasicActorCriticPolicy(MultiInputPhasicActorCriticPolicy, MaskablePhasicActorCriticPolicy):  # type: ignore[misc]
    """``MaskablePhasicActorCriticPolicy`` for dictionaries, by default through SB3's ``CombinedExtractor``."""
