"""
Objectives whose proximal policy is not the one that collected the data.

PPG-EWMA: Hilton, Cobbe, Schulman, "Batch size-invariance for policy optimization", https://arxiv.org/abs/2110.00641.
Authors' code: https://github.com/openai/ppo-ewma.
"""

import math
from typing import Any, ClassVar, cast

import numpy as np
import torch as th
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from sb3_ppg import losses
from sb3_ppg.arguments import BELOW_ONE, check_value, number, require
from sb3_ppg.distributed import moments, n_processes
from sb3_ppg.errors import ArgumentError
from sb3_ppg.objectives.paper import MAX_WEIGHT, Coefficients, Objective, replays, weights_of
from sb3_ppg.policies import PhasicActorCriticPolicy

Parameters = tuple[th.Tensor, ...] | list[th.Tensor]


class DecoupledObjective(Objective):
    """
    The paper's objective for data of older policies: clipping and KL penalty refer to a proximal policy, the policy before the
    update, and importance weights correct for the policy that collected the data. With fresh data, it equals the paper's.

    :param importance_limit: the largest importance weight π / π_behavior
    :param kwargs: arguments of ``Objective`` except ``dual_clip``
    :raises ArgumentError: for a limit below one
    """

    corrects_for_staleness: ClassVar[bool] = True

    def __init__(self, policy: PhasicActorCriticPolicy, importance_limit: float = 100.0, **kwargs: Any) -> None:
        super().__init__(policy, **kwargs)
        if self.dual_clip is not None:
            raise ArgumentError(
                f"`dual_clip`={self.dual_clip} cannot work: {type(self).__name__} has no such clipping; use None"
            )
        check_value("importance_limit", importance_limit, number(1, MAX_WEIGHT))
        self.importance_limit = importance_limit
        self.proximal = AveragedModel(policy)
        self.proximal.requires_grad_(False).eval()
        del self.proximal.module.optimizer  # the copy is not trained
        self.restart(policy)

    def restart(self, policy: PhasicActorCriticPolicy) -> None:
        """Set the proximal policy to this policy."""
        self.proximal.get_buffer("n_averaged").fill_(0)
        self.proximal.update_parameters(policy)  # the first is copied

    @override
    def before_policy_update(self, policy: PhasicActorCriticPolicy) -> None:
        self.restart(policy)

    @override
    def policy_gradient(
        self, policy: PhasicActorCriticPolicy, batch: Any, log_prob: th.Tensor, coefficients: Coefficients
    ) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        with th.no_grad():
            proximal = cast(PhasicActorCriticPolicy, self.proximal.module)
            distribution = proximal.evaluate_batch(batch, reads=("distribution",)).distribution
            proximal_log_prob = distribution.log_prob(policy.actions.from_buffer(batch.actions))
        loss = losses.decoupled_policy_gradient_loss(
            log_prob,
            proximal_log_prob,
            batch.old_log_prob,
            batch.advantages,
            coefficients.clip_range,
            self.importance_limit,
            weights_of(batch),
        )
        log_weight = log_prob.detach() - batch.old_log_prob
        at_limit = (log_weight > math.log(self.importance_limit)).to(log_weight.dtype).mean()
        return loss, proximal_log_prob, {"importance_clip_fraction": at_limit}


class EWMAObjective(DecoupledObjective):
    """
    PPG-EWMA: the proximal policy is an exponentially weighted moving average of the policy after each of its optimizer steps
    since the last auxiliary phase, with bias-corrected weights. Batch size and age of the data then become free choices, see
    the paper.

    :param center_of_mass: decay / (1 - decay) of the average, in optimizer steps. The authors recommend 8, the number of
        minibatches in their iteration
    :param decay: decay of the average, instead of ``center_of_mass``
    :param advantage_decay: decay per rollout of the averages of the moments that normalize advantages. 0: each rollout is
        normalized by its own moments
    :param kwargs: arguments of ``DecoupledObjective``
    :raises ArgumentError: for numbers that cannot work
    """

    advantage_weight: th.Tensor
    advantage_mean: th.Tensor
    advantage_variance: th.Tensor

    def __init__(
        self,
        policy: PhasicActorCriticPolicy,
        center_of_mass: float = 8.0,
        decay: float | None = None,
        advantage_decay: float = 0.0,
        **kwargs: Any,
    ) -> None:
        check_value("center_of_mass", center_of_mass, number(0, MAX_WEIGHT))
        decay = center_of_mass / (1 + center_of_mass) if decay is None else decay
        check_value("decay", decay, BELOW_ONE)
        check_value("advantage_decay", advantage_decay, BELOW_ONE)
        self.decay = float(decay)
        self.advantage_decay = advantage_decay
        super().__init__(policy, **kwargs)
        self.proximal.multi_avg_fn = self.average
        for name in ("advantage_weight", "advantage_mean", "advantage_variance"):
            self.register_buffer(name, th.zeros((), dtype=th.float64))

    @override
    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        super().check(policy, arguments)
        averages = self.advantage_decay > 0
        remedy = "the average of the advantages' moments would count a rollout several times; use `advantage_decay`=0"
        require(arguments, not (averages and arguments.recompute_advantages), "recompute_advantages", remedy)
        require(arguments, not (averages and replays(arguments)), "replay_kwargs", remedy)

    def average(self, averaged: Parameters, current: Parameters, n_averaged: th.Tensor | int) -> None:
        """Update the parameters of the proximal policy, the average of ``n_averaged`` policies so far."""
        n_policies = th.as_tensor(n_averaged + 1, dtype=th.float64)  # including the current one
        weight = (1 - self.decay) / (1 - self.decay**n_policies)
        for mean, parameter in zip(averaged, current, strict=True):
            mean.lerp_(parameter, weight.to(mean.dtype))

    @override
    def before_policy_update(self, policy: PhasicActorCriticPolicy) -> None:
        """Continue the average within a phase; start it with the current policy, whose parameters may have been set."""
        if self.proximal.get_buffer("n_averaged") == 1:
            self.restart(policy)

    @override
    def after_policy_step(self, policy: PhasicActorCriticPolicy) -> None:
        self.proximal.update_parameters(policy)

    @override
    def after_auxiliary_phase(self, policy: PhasicActorCriticPolicy) -> None:
        self.restart(policy)

    @override
    def normalized_advantages(self, advantages: np.ndarray, device: th.device | str = "cpu") -> np.ndarray:
        if self.advantage_decay == 0:
            return super().normalized_advantages(advantages, device)
        mean, std = moments(advantages, device)
        if not np.isfinite(std):  # the losses are not finite either, and raise an error
            return advantages - mean
        n_samples = advantages.size * n_processes()
        self.advantage_weight.mul_(self.advantage_decay).add_(n_samples)
        share = n_samples / self.advantage_weight.item()
        shift = mean - self.advantage_mean.item()
        self.advantage_mean.add_(share * shift)
        self.advantage_variance.mul_(1 - share).add_(share * std**2 + share * (1 - share) * shift**2)
        return (advantages - self.advantage_mean.item()) / (self.advantage_variance.item() ** 0.5 + self.epsilon)
