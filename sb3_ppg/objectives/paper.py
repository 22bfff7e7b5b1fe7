"""The objectives of the paper: Phasic Policy Gradient, https://arxiv.org/abs/2009.04416."""

from typing import Any

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from torch import nn

from sb3_ppg import losses
from sb3_ppg.arguments import check_value, number, require
from sb3_ppg.buffers.aux_buffer import AuxiliaryBatch
from sb3_ppg.buffers.rollouts import RolloutEnd, by_environment
from sb3_ppg.buffers.sample_data import SampleData
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives.base import MAX_WEIGHT, Coefficients, Objective
from sb3_ppg.policies import Evaluation, PhasicActorCriticPolicy, head_loss
from sb3_ppg.policies.heads import has_own_loss
from sb3_ppg.protocols import PhasicModel


class PaperObjective(Objective):
    """
    L^clip + entropy bonus and L^value in the policy phase, L^joint and L^value in the auxiliary phase.

    ``weights`` of ``extras`` weight each sample's terms in the policy phase, those of ``aux_data`` the value losses of the
    auxiliary phase. KL terms, and terms that a relative adds, such as DCPG's distance or DAAC's advantage error, are not
    weighted.

    :param policy: policy in training
    :param dual_clip: see ``losses.policy_gradient_loss``; DI-engine has 3 or 5. None: no dual clipping, as in the paper
    :param value_clip: ε of ``losses.clipped_value_loss`` for the value losses of both phases, in the unit of the value heads,
        against the values at collection. None: no clipping, as in the paper
    :raises ArgumentError: for a number that cannot work
    """

    def __init__(
        self, policy: PhasicActorCriticPolicy, dual_clip: float | None = None, value_clip: float | None = None
    ) -> None:
        super().__init__(policy)
        if dual_clip is not None:
            check_value("dual_clip", dual_clip, number(1, MAX_WEIGHT))
        if value_clip is not None:
            check_value("value_clip", value_clip, number(0, MAX_WEIGHT))
        self.dual_clip = dual_clip
        self.value_clip = value_clip

    def check(self, model: PhasicModel) -> None:
        super().check(model)
        remedy = "`value_clip` of the objective clips, too; use one of them"
        require(model, model.clip_range_vf is None or self.value_clip is None, "clip_range_vf", remedy)
        for name in ("value_net", "aux_value_net"):
            if has_own_loss(getattr(model.policy, name)):
                remedy = f"`{name}` has a loss of its own, which is not clipped; use None"
                require(model, model.clip_range_vf is None, "clip_range_vf", remedy)
                if self.value_clip is not None:
                    raise ArgumentError(f"`value_clip`={self.value_clip} cannot work: {remedy}")

    def aux_data(self, rollout_buffer: RolloutBuffer, end: RolloutEnd) -> SampleData:
        kept = super().aux_data(rollout_buffer, end)
        if self.value_clip is not None:
            kept.values = by_environment(rollout_buffer, rollout_buffer.values)
        return kept

    def joint_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        distribution, _, latent_vf, _ = policy.evaluate(*inputs)
        of_policy = self.surrogate(policy, inputs, batch, distribution, coefficients)
        of_values = self.value_error(policy, latent_vf, batch, coefficients)
        return Losses(of_policy.total + of_values.total, {**of_policy.terms, **of_values.terms}, of_policy.log_ratio)

    def policy_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        distribution = policy.evaluate(*inputs, reads=("distribution",)).distribution
        return self.surrogate(policy, inputs, batch, distribution, coefficients)

    def value_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        latent_vf = policy.evaluate(*inputs, reads=("latent_vf",)).latent_vf
        return self.value_error(policy, latent_vf, batch, coefficients)

    def surrogate(
        self,
        policy: PhasicActorCriticPolicy,
        inputs: tuple,
        batch: Any,
        distribution: Distribution,
        coefficients: Coefficients,
    ) -> Losses:
        """
        Return the loss of ``policy_gradient``, the entropy bonus and, with ``kl_coef``, the KL penalty.

        :param policy: policy in training
        :param inputs: arguments of its ``evaluate``
        :param batch: B samples of a rollout
        :param distribution: π(.|s)
        :param coefficients: weights of the terms
        :return: sum of the terms, and each term
        """
        actions = policy.actions.from_buffer(batch.actions)
        log_prob, entropy = distribution.log_prob(actions), policy.actions.entropy(distribution, actions)
        surrogate, proximal_log_prob, others = self.policy_gradient(policy, inputs, batch, log_prob, coefficients)
        entropy_loss = losses.entropy_loss(entropy, log_prob, weights_of(batch))
        terms = {"policy_gradient_loss": surrogate, "entropy_loss": entropy_loss}
        total = surrogate + coefficients.ent_coef * entropy_loss
        if coefficients.kl_coef is not None:
            terms["kl_penalty"] = losses.kl_penalty(log_prob, proximal_log_prob)
            total = total + coefficients.kl_coef * terms["kl_penalty"]
        return Losses(total, {**terms, **others}, log_prob.detach() - proximal_log_prob)

    def policy_gradient(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, log_prob: th.Tensor, coefficients: Coefficients
    ) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        """
        Return the loss on the advantages: L^clip, or without ``clip_range`` the unclipped surrogate.

        :param policy: policy in training
        :param inputs: arguments of its ``evaluate``, to evaluate another proximal policy
        :param batch: B samples of a rollout
        :param log_prob: log π(a|s), (B,)
        :param coefficients: weights of the terms
        :return: the loss, scalar; log π_prox(a|s) of the policy that clipping and penalty refer to, (B,); scalars for the log
        """
        old_log_prob, clip_range = batch.old_log_prob, coefficients.clip_range
        loss = losses.policy_gradient_loss(
            log_prob, old_log_prob, batch.advantages, clip_range, self.dual_clip, weights_of(batch)
        )
        return loss, old_log_prob, {}

    def value_error(
        self, policy: PhasicActorCriticPolicy, latent: th.Tensor, batch: Any, coefficients: Coefficients
    ) -> Losses:
        """
        Return L^value of the policy phase, in value units.

        :param policy: policy in training
        :param latent: features that its true value head reads, (B, latent_dim_vf)
        :param batch: B samples of a rollout
        :param coefficients: weights of the terms
        :return: the weighted term, and the term
        """
        loss = self.head_error(policy.value_net, latent, batch, coefficients.value_unit, coefficients.clip_range_vf)
        return Losses(coefficients.vf_coef * loss, {"value_loss": loss})

    def head_error(
        self, head: nn.Module, latent: th.Tensor, batch: Any, unit: float, clip_range_vf: float | None = None
    ) -> th.Tensor:
        """
        Return the loss of a value head in either phase, clipped by ``value_clip`` or ``clip_range_vf``.

        :param head: one of the two value heads
        :param latent: features that it reads, (B, latent dimension)
        :param batch: B samples of the phase
        :param unit: the value unit
        :param clip_range_vf: in value units, or None for no clipping
        :return: scalar
        """
        targets, weights = targets_of(batch), weights_of(batch)
        if self.value_clip is None and clip_range_vf is None:
            return head_loss(head, latent, targets, unit, weights)
        kept = SampleData.of(batch).values.flatten() if isinstance(batch, AuxiliaryBatch) else batch.old_values
        in_units = (head(latent).flatten() / unit, targets / unit, kept / unit)
        if self.value_clip is None:
            return losses.value_loss(*in_units, clip_range_vf, weights)
        return losses.clipped_value_loss(*in_units, self.value_clip, weights)

    def auxiliary_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: AuxiliaryBatch, coefficients: Coefficients
    ) -> Losses:
        return self.evaluated_losses(policy, policy.evaluate(*inputs, auxiliary=True), batch, coefficients)

    def evaluated_losses(
        self, policy: PhasicActorCriticPolicy, evaluation: Evaluation, batch: AuxiliaryBatch, coefficients: Coefficients
    ) -> Losses:
        """
        Return the losses of the auxiliary phase, once the networks have been run.

        :param policy: policy in training
        :param evaluation: distribution and latents of the batch
        :param batch: B samples of the phase
        :param coefficients: weights of the terms
        :return: sum of the terms, and each term
        """
        unit = coefficients.value_unit
        terms = {
            "kl": self.kl_to_recorded(policy, evaluation.distribution, batch.recorded).mean(),
            "aux_value_loss": 0.5 * self.head_error(policy.aux_value_net, evaluation.latent_pi, batch, unit),
            "value_loss": 0.5 * self.head_error(policy.value_net, evaluation.latent_vf, batch, unit),
        }
        total = terms["aux_value_loss"] + coefficients.beta_clone * terms["kl"] + terms["value_loss"]
        return Losses(total, terms)


def weights_of(batch: Any) -> th.Tensor | None:
    """Return the weights of a minibatch's samples in the losses, (B,); None if there are none."""
    weights = SampleData.of(batch).weights
    return None if weights is None else weights.flatten()


def targets_of(batch: Any) -> th.Tensor:
    """Return V_targ of a minibatch of either phase, (B,); for vector rewards those of each component, (B, K)."""
    of_components = SampleData.of(batch).component_targets
    if of_components is not None:
        return of_components
    return batch.value_targets if isinstance(batch, AuxiliaryBatch) else batch.returns
