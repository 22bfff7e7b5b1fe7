"""
DNA: Aitchison, Sweetser, "DNA: Proximal Policy Optimization with a Dual Network Architecture",
https://arxiv.org/abs/2206.10027. Authors' code: https://github.com/maitchison/PPO.
"""

from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution
from torch.nn import functional as F
from typing_extensions import override

from sb3_ppg.actions import NESTED
from sb3_ppg.arguments import check_value, choice, count, number, optional, require
from sb3_ppg.buffers.rollouts import Rollout
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives.paper import Coefficients, Objective, weights_of
from sb3_ppg.policies import PhasicActorCriticPolicy, head_loss

Constraint = Literal["kl", "reverse_kl", "logits"]


class DistillationObjective(Objective):
    """
    DNA: policy and value network are trained separately, with different λ for advantages and value targets. Then, the value
    network's predictions are distilled into the policy network's auxiliary value head, while a constraint, weighted by
    ``beta_clone``, keeps the policy unchanged. This is the auxiliary phase, after each rollout: ``n_policy_iterations=1``.

    :param policy: policy in training, with ``architecture="dual"``
    :param td_lambda: λ of the value targets; ``gae_lambda`` is that of the advantages
    :param constraint: "kl": KL(π_old, π), as in PPG. "reverse_kl": KL(π, π_old), as in the authors' code before and after the
        paper. "logits": half the mean squared difference of the outputs of the policy's last layer (raw logits for Discrete
        actions, means for Box; not for Dict and Tuple), as in the code published for the paper. It penalizes a constant shift
        of all logits, which does not change the policy, and does not penalize a change of standard deviations
    :param value_batch_size: minibatch size of the value function's epochs, in samples. None: ``batch_size``
    :param delay: environment steps before the first distillation; none follows the first rollout
    :raises ArgumentError: for arguments that cannot work
    """

    architecture: ClassVar[str] = "dual"
    values_first: ClassVar[bool] = False
    needs_rollout_end: ClassVar[bool] = True
    shuffles_sequences: ClassVar[bool] = False

    def __init__(
        self,
        policy: PhasicActorCriticPolicy,
        td_lambda: float = 0.95,
        constraint: Constraint = "kl",
        value_batch_size: int | None = None,
        delay: int = 0,
    ) -> None:
        super().__init__(policy)
        check_value("td_lambda", td_lambda, number(0, 1))
        check_value("constraint", constraint, choice(*get_args(Constraint)))
        check_value("value_batch_size", value_batch_size, optional(count(), "for `batch_size`"))
        self.td_lambda = td_lambda
        self.constraint = constraint
        self.value_batch_size = value_batch_size
        self.delay = delay

    @override
    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        super().check(policy, arguments)
        name = type(self).__name__
        remedy = f"{name} has no joint epochs; use at least 1"
        require(arguments, arguments.n_value_epochs is not None, "n_value_epochs", remedy)
        if self.constraint == "logits" and isinstance(policy.action_space, NESTED):
            raise ArgumentError(f"`constraint`='logits' cannot work with {policy.action_space}: use 'kl' or 'reverse_kl'")

    @override
    def value_targets(self, rollout: Rollout, gamma: Any) -> np.ndarray:
        values = rollout.arrays["old_values"]
        return values + rollout.gae(values, rollout.arrays["last_values"][:, 0], gamma, self.td_lambda)

    @override
    def is_due(self, n_samples: int) -> bool:
        return n_samples > self.delay

    @override
    def recorded(self, policy: PhasicActorCriticPolicy, batch: Any) -> th.Tensor:
        """
        Return columns, (B, 1 + L + P): V(s) of the value network after its epochs, the L outputs of ``action_net`` if
        ``constraint`` is "logits" (else L is 0), and the P parameters of π_old(.|s).
        """
        distribution, latent_pi, latent_vf, _ = policy.evaluate_batch(batch)
        logits = [policy.action_net(latent_pi)] if self.constraint == "logits" else []
        return th.cat([policy.value_net(latent_vf), *logits, policy.actions.parameters(distribution)], dim=1)

    @override
    def kl_to_recorded(self, policy: PhasicActorCriticPolicy, distribution: Distribution, recorded: th.Tensor) -> th.Tensor:
        n_parameters = policy.actions.parameters(distribution).shape[1]
        return policy.actions.kl_divergence(distribution, recorded[:, -n_parameters:], self.constraint == "reverse_kl")

    @override
    def auxiliary_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        distribution, latent, _, _ = policy.evaluate_batch(batch, reads=("distribution", "latent_pi"), auxiliary=True)
        weights = weights_of(batch)
        error = head_loss(policy.aux_value_net, latent, batch.recorded[:, 0], coefficients.value_unit, weights)
        terms = {"aux_value_loss": 0.5 * error}
        if self.constraint == "logits":
            logits = policy.action_net(latent)
            distance = F.mse_loss(logits, batch.recorded[:, 1 : 1 + logits.shape[1]]) / 2
            terms["logits_distance"] = distance
        else:
            terms["kl"] = distance = self.kl_to_recorded(policy, distribution, batch.recorded).mean()
        return Losses(terms["aux_value_loss"] + coefficients.beta_clone * distance, terms)
