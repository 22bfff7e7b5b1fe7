"""The objectives of the paper: Phasic Policy Gradient, https://arxiv.org/abs/2009.04416."""

from typing import Any

import torch as th

from sb3_ppg import losses
from sb3_ppg.actions import from_buffer
from sb3_ppg.buffers.aux_buffer import AuxiliaryBatch
from sb3_ppg.objectives.base import MOST, Coefficients, Objective, require_number
from sb3_ppg.policies import AuxiliaryEvaluation, PhasicActorCriticPolicy
from sb3_ppg.training.optimization import Losses


class PaperObjective(Objective):
    """
    L^clip + entropy bonus and L^value in the policy phase, L^joint and L^value in the auxiliary phase.

    :param policy: in training
    :param dual_clip: see ``losses.policy_gradient_loss``; DI-engine has 3 or 5. None: no dual clipping, as in the paper
    :raises ArgumentError: for a number that cannot work
    """

    def __init__(self, policy: PhasicActorCriticPolicy, dual_clip: float | None = None) -> None:
        super().__init__(policy)
        if dual_clip is not None:
            require_number("dual_clip", dual_clip, 1, MOST)
        self.dual_clip = dual_clip

    def joint_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        observations, *context = inputs
        actions = from_buffer(policy.action_space, batch.actions)
        values, log_prob, entropy = policy.evaluate_actions(observations, actions, *context)
        of_policy = self.surrogate(policy, inputs, batch, log_prob, entropy, coefficients)
        of_values = self.value_error(batch, values.flatten(), coefficients)
        return Losses(of_policy.total + of_values.total, {**of_policy.terms, **of_values.terms}, of_policy.log_ratio)

    def policy_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        distribution, _ = policy.evaluate_policy(*inputs)
        log_prob = distribution.log_prob(from_buffer(policy.action_space, batch.actions))
        return self.surrogate(policy, inputs, batch, log_prob, distribution.entropy(), coefficients)

    def value_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        return self.value_error(batch, policy.evaluate_values(*inputs), coefficients)

    def surrogate(
        self,
        policy: PhasicActorCriticPolicy,
        inputs: tuple,
        batch: Any,
        log_prob: th.Tensor,
        entropy: th.Tensor | None,
        coefficients: Coefficients,
    ) -> Losses:
        """
        L^clip, or the unclipped surrogate with a KL penalty, and the entropy bonus.

        :param policy: in training
        :param inputs: of its ``evaluate_...`` methods, for proximal policies other than the one that collected the batch
        :param batch: B samples of a rollout
        :param log_prob: log π(a|s), (B,)
        :param entropy: H(π(.|s)), (B,), or None where it has no closed form
        :param coefficients: of the terms
        :return: their sum, and each term
        """
        surrogate = losses.policy_gradient_loss(
            log_prob, batch.old_log_prob, batch.advantages, coefficients.clip_range, self.dual_clip
        )
        return self.with_entropy_and_penalty(surrogate, log_prob, batch.old_log_prob, entropy, coefficients)

    def with_entropy_and_penalty(
        self,
        surrogate: th.Tensor,
        log_prob: th.Tensor,
        proximal_log_prob: th.Tensor,
        entropy: th.Tensor | None,
        coefficients: Coefficients,
    ) -> Losses:
        """
        :param surrogate: the loss on the advantages, scalar
        :param log_prob: log π(a|s), (B,)
        :param proximal_log_prob: under the policy that clip and penalty refer to, (B,)
        :param entropy: H(π(.|s)), (B,), or None where it has no closed form
        :param coefficients: of the terms
        :return: the surrogate with the entropy bonus, and with the KL penalty if there is one
        """
        terms = {"policy_gradient_loss": surrogate, "entropy_loss": losses.entropy_loss(entropy, log_prob)}
        total = surrogate + coefficients.ent_coef * terms["entropy_loss"]
        if coefficients.kl_coef > 0:
            terms["kl_penalty"] = losses.kl_penalty(log_prob, proximal_log_prob)
            total = total + coefficients.kl_coef * terms["kl_penalty"]
        return Losses(total, terms, log_prob.detach() - proximal_log_prob)

    def value_error(self, batch: Any, values: th.Tensor, coefficients: Coefficients) -> Losses:
        """
        L^value of the policy phase, in value units.

        :param batch: B samples of a rollout
        :param values: V(s), (B,)
        :param coefficients: of the terms
        :return: the weighted term, and the term
        """
        unit = coefficients.value_unit
        loss = losses.value_loss(values / unit, batch.returns / unit, batch.old_values / unit, coefficients.clip_range_vf)
        return Losses(coefficients.vf_coef * loss, {"value_loss": loss})

    def auxiliary_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: AuxiliaryBatch, coefficients: Coefficients
    ) -> Losses:
        return self.evaluated_losses(policy, policy.evaluate_auxiliary(*inputs), batch, coefficients)

    def evaluated_losses(
        self,
        policy: PhasicActorCriticPolicy,
        evaluation: AuxiliaryEvaluation,
        batch: AuxiliaryBatch,
        coefficients: Coefficients,
    ) -> Losses:
        """
        Of the auxiliary phase, once the networks have been run.

        :param policy: in training
        :param evaluation: of the batch
        :param batch: B samples of the phase
        :param coefficients: of the terms
        :return: their sum, and each term
        """
        unit = coefficients.value_unit
        targets = batch.value_targets / unit
        terms = {
            "kl": self.kl_to_recorded(evaluation.distribution, batch.recorded).mean(),
            "aux_value_loss": losses.auxiliary_value_loss(evaluation.aux_values / unit, targets),
            "value_loss": losses.auxiliary_value_loss(evaluation.values / unit, targets),
        }
        total = losses.joint_loss(terms["aux_value_loss"], terms["kl"], terms["value_loss"], coefficients.beta_clone)
        return Losses(total, terms)
