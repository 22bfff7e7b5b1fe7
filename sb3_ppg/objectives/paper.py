"""
The objective of the paper: Phasic Policy Gradient, https://arxiv.org/abs/2009.04416. It is the base class of all others.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.distributions import Distribution
from torch import nn

from sb3_ppg import losses
from sb3_ppg.arguments import check_value, choice, made_from, number, optional, require
from sb3_ppg.arrays import parameters_of
from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.buffers.rollouts import Rollout
from sb3_ppg.distributed import moments, n_processes
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.policies import Evaluation, PhasicActorCriticPolicy, head_loss


class Coefficients(NamedTuple):
    """
    Weights and limits of the losses' terms, the same for all minibatches of an update: numbers, or, in compiled updates,
    scalar tensors.

    :param clip_range: ε, or None for no clipping
    :param clip_range_vf: in value units, or None for no clipping
    :param value_unit: unit in which value errors are measured, in the units of the (normalized) return
    :param ent_coef: weight of the entropy bonus
    :param vf_coef: weight of the value loss of the policy phase
    :param kl_coef: weight of the KL penalty of the policy phase, or None for no penalty
    :param beta_clone: β_clone, weight of the KL term of the auxiliary phase
    :param prior_coef: weight of the KL divergence from a prior in the policy phase, or None without a prior
    """

    clip_range: float | None
    clip_range_vf: float | None
    value_unit: float
    ent_coef: float
    vf_coef: float
    kl_coef: float | None
    beta_clone: float
    prior_coef: float | None = None


MAX_WEIGHT = 1e6


class Objective(nn.Module):
    """
    The losses that the epochs of both phases minimize, and the networks and data that they need. This class has the paper's
    losses: L^clip, entropy bonus and L^value in the policy phase, L^joint and L^value in the auxiliary phase. To write an
    objective, derive from this class and override what differs.

    An objective uses policies and batches, but no algorithm: the policy's ``evaluate_batch`` finds observations, memory and
    masks in a batch. Its own networks are attributes, as in every ``nn.Module``: the policy's optimizers train their
    parameters, which are saved, shared and restored with the model.

    ``extras`` may return an array ``weights``, which weights the samples: in the policy phase if ``policy_keys`` names it, in
    the value losses of the auxiliary phase if ``aux_keys`` does (there, ``aux_weights`` replaces it). The KL term of the
    auxiliary phase, and terms that a relative adds, such as DAAC's advantage error, are not weighted.

    :param policy: policy in training, to make networks of matching sizes or copies of it. Do not keep it: each method gets it
    :param dual_clip: see ``losses.policy_gradient_loss``; DI-engine has 3 or 5. None: no dual clipping, as in the paper
    :param value_clip: ε of ``losses.clipped_value_loss`` for the value losses of both phases, in the unit of the value heads,
        against the values at collection. None: no clipping, as in the paper
    :param value_loss: "mse": mean squared errors. "huber": linear for large errors, in both phases, so that single targets
        far off weigh less, as in ALF's PPG; see ``losses.squared_error``
    :param huber_threshold: error above which "huber" is linear, in the unit of the value heads
    :raises ArgumentError: for a number that cannot work
    """

    # Names of a rollout's arrays that minibatches of the policy phase have in addition to ``POLICY_KEYS``, see ``Rollout``
    policy_keys: tuple[str, ...] = ()
    # Names of the arrays that the auxiliary phase keeps in addition to observations, targets and the policy's inputs
    aux_keys: tuple[str, ...] = ()
    # The only architecture of the policy that can work. None: any
    architecture: ClassVar[str | None] = None
    # Whether the value function's epochs come before the policy's, where the two are not joint
    values_first: ClassVar[bool] = True
    # Minibatch size of the value function's own epochs, in samples. None: the policy's
    value_batch_size: int | None = None
    # Whether the auxiliary phase shuffles whole sequences of ``n_steps`` samples; False: single samples, without memory
    shuffles_sequences: ClassVar[bool] = True
    # Whether auxiliary minibatches must consist of whole sequences, because a loss uses the samples that follow a sample
    needs_whole_sequences: ClassVar[bool] = False
    # Whether the objective needs the state after a rollout
    needs_rollout_end: ClassVar[bool] = False
    # Whether micro-batches would change the losses by more than rounding
    needs_whole_minibatches: ClassVar[bool] = False
    # Whether the policy may learn from data of older policies
    corrects_for_staleness: ClassVar[bool] = False
    # ``ddof`` of the standard deviation that advantages are divided by, and the number that is added to it
    degrees_of_freedom: ClassVar[int] = 0
    epsilon: ClassVar[float] = 1e-8
    # Optimizer of the parameters that only ``adversary_losses`` trains. None: no adversary
    adversary_optimizer: th.optim.Optimizer | None = None

    def __init__(
        self,
        policy: PhasicActorCriticPolicy,
        dual_clip: float | None = None,
        value_clip: float | None = None,
        value_loss: Literal["mse", "huber"] = "mse",
        huber_threshold: float = 1.0,
    ) -> None:
        super().__init__()
        check_value("dual_clip", dual_clip, optional(number(1, MAX_WEIGHT)))
        check_value("value_clip", value_clip, optional(number(0, MAX_WEIGHT)))
        self.dual_clip = dual_clip
        self.value_clip = value_clip
        check_value("value_loss", value_loss, choice("mse", "huber"))
        check_value("huber_threshold", huber_threshold, number(1e-6, MAX_WEIGHT))
        if value_loss == "mse" and huber_threshold != 1.0:
            raise ArgumentError(f"`huber_threshold`={huber_threshold} cannot work: it is for `value_loss`='huber'")
        self.huber_threshold = huber_threshold if value_loss == "huber" else None
        if value_clip is not None:
            self.aux_keys = (*self.aux_keys, "old_values")

    def _refuse_other_inputs(self, policy: PhasicActorCriticPolicy, reason: str) -> None:
        """Refuse a policy that takes more than observations and masks, for an objective that evaluates single frames."""
        if inputs := {*policy.input_keys} - {"action_masks"}:
            which = f"LSTMs and other policies that take {', '.join(sorted(inputs))}"
            raise ArgumentError(f"{type(self).__name__} cannot work with {which}: {reason}")

    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        """
        :param policy: policy in training
        :param arguments: current values of the algorithm's arguments, as attributes
        :raises ArgumentError: for what this objective cannot work with
        """
        if self.architecture not in (None, policy.architecture):
            raise ArgumentError(
                f"`architecture`={policy.architecture!r} cannot work with {type(self).__name__}: use "
                f"policy_kwargs=dict(architecture={self.architecture!r})"
            )
        remedy = "`value_clip` of the objective clips, too; use one of them"
        require(arguments, arguments.clip_range_vf is None or self.value_clip is None, "clip_range_vf", remedy)
        for name in ("value_net", "aux_value_net"):
            if hasattr(getattr(policy, name), "loss"):
                remedy = f"`{name}` has a loss of its own, which is not clipped; use None"
                require(arguments, arguments.clip_range_vf is None, "clip_range_vf", remedy)
                if self.value_clip is not None:
                    raise ArgumentError(f"`value_clip`={self.value_clip} cannot work: {remedy}")
                if self.huber_threshold is not None:
                    raise ArgumentError(f"`value_loss`='huber' cannot work: `{name}` has a loss of its own; use 'mse'")

    # ---- losses ----

    def joint_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        """
        Return the losses of the policy phase if policy and value function share their epochs.

        :param policy: policy in training
        :param batch: B samples of a rollout, with fields ``POLICY_KEYS``, inputs of the policy, and ``policy_keys``
        :param coefficients: weights of the terms
        :return: sum of the terms, and each term
        """
        distribution, _, latent_vf, _ = policy.evaluate_batch(batch)
        surrogate = self.surrogate(policy, batch, distribution, coefficients)
        value_error = self.value_error(policy, latent_vf, batch, coefficients)
        terms = {**surrogate.terms, **value_error.terms}
        return Losses(surrogate.total + value_error.total, terms, surrogate.log_ratio)

    def policy_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        """Return the losses of the policy phase's epochs on the policy alone; see ``joint_losses``."""
        distribution = policy.evaluate_batch(batch, reads=("distribution",)).distribution
        return self.surrogate(policy, batch, distribution, coefficients)

    def value_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        """Return the losses of the policy phase's epochs on the value function alone; see ``joint_losses``."""
        latent_vf = policy.evaluate_batch(batch, reads=("latent_vf",)).latent_vf
        return self.value_error(policy, latent_vf, batch, coefficients)

    def adversary_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        """Return the losses of ``adversary_optimizer``, which steps before the policy's does; see ``joint_losses``."""
        raise NotImplementedError

    def auxiliary_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        """
        Return the losses of the auxiliary phase.

        :param batch: B samples of the phase, with fields ``observations``, ``targets``, ``recorded`` (those of the method of
            this name), inputs of the policy, and ``aux_keys``
        """
        return self.evaluated_losses(policy, policy.evaluate_batch(batch, auxiliary=True), batch, coefficients)

    def surrogate(
        self, policy: PhasicActorCriticPolicy, batch: Any, distribution: Distribution, coefficients: Coefficients
    ) -> Losses:
        """
        Return the loss of ``policy_gradient``, the entropy bonus and, with ``kl_coef``, the KL penalty; with a prior, also
        E[KL(π_prior, π)]; see ``joint_losses``.
        """
        actions = policy.actions.from_buffer(batch.actions)
        log_prob, entropy = distribution.log_prob(actions), policy.actions.entropy(distribution, actions)
        surrogate, proximal_log_prob, logged = self.policy_gradient(policy, batch, log_prob, coefficients)
        entropy_loss = losses.entropy_loss(entropy, log_prob, weights_of(batch))
        terms = {"policy_gradient_loss": surrogate, "entropy_loss": entropy_loss}
        total = surrogate + coefficients.ent_coef * entropy_loss
        if coefficients.kl_coef is not None:
            terms["kl_penalty"] = losses.kl_penalty(log_prob, proximal_log_prob, weights_of(batch))
            total = total + coefficients.kl_coef * terms["kl_penalty"]
        if coefficients.prior_coef is not None:
            prior_kl = policy.actions.prior_kl(distribution, batch.prior)
            terms["prior_kl"] = losses.weighted_mean(prior_kl, weights_of(batch))
            total = total + coefficients.prior_coef * terms["prior_kl"]
        return Losses(total, {**terms, **logged}, log_prob.detach() - proximal_log_prob)

    def policy_gradient(
        self, policy: PhasicActorCriticPolicy, batch: Any, log_prob: th.Tensor, coefficients: Coefficients
    ) -> tuple[th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        """
        Return the loss on the advantages: L^clip, or without ``clip_range`` the unclipped surrogate.

        :param log_prob: log π(a|s), (B,)
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
        """Return L^value of the policy phase, in value units, from the features of the true head, (B, latent_dim_vf)."""
        loss = self.head_error(policy.value_net, latent, batch, coefficients.value_unit, coefficients.clip_range_vf)
        return Losses(coefficients.vf_coef * loss, {"value_loss": loss})

    def head_error(
        self, head: nn.Module, latent: th.Tensor, batch: Any, unit: float, clip_range_vf: float | None = None
    ) -> th.Tensor:
        """
        Return a value head's loss in either phase, of kind ``value_loss``, clipped by ``value_clip`` or ``clip_range_vf``.

        :param latent: features that the head reads, (B, latent dimension)
        :param unit: the value unit, in the units of the (normalized) return
        :param clip_range_vf: in value units, or None for no clipping
        :return: scalar
        """
        weights, threshold = weights_of(batch), self.huber_threshold
        if hasattr(head, "loss"):  # for which `check` refuses clipping and "huber"
            return head_loss(head, latent, batch.targets, unit, weights)
        values, targets = head(latent).flatten() / unit, batch.targets / unit
        if self.value_clip is not None:
            old_values = batch.old_values / unit
            return losses.clipped_value_loss(values, targets, old_values, self.value_clip, weights, threshold)
        old_values = None if clip_range_vf is None else batch.old_values / unit
        return losses.value_loss(values, targets, old_values, clip_range_vf, weights, threshold)

    def evaluated_losses(
        self, policy: PhasicActorCriticPolicy, evaluation: Evaluation, batch: Any, coefficients: Coefficients
    ) -> Losses:
        """Return the losses of the auxiliary phase, once the networks have been run; see ``auxiliary_losses``."""
        unit = coefficients.value_unit
        terms = {
            "kl": self.kl_to_recorded(policy, evaluation.distribution, batch.recorded).mean(),
            "aux_value_loss": 0.5 * self.head_error(policy.aux_value_net, evaluation.latent_pi, batch, unit),
            "value_loss": 0.5 * self.head_error(policy.value_net, evaluation.latent_vf, batch, unit),
        }
        total = terms["aux_value_loss"] + coefficients.beta_clone * terms["kl"] + terms["value_loss"]
        return Losses(total, terms)

    # ---- data ----

    def value_targets(self, rollout: Rollout, gamma: Any) -> np.ndarray:
        """Return V_targ, (n_envs, n_steps), in the units of the (normalized) return; the rollout has SB3's."""
        return rollout.arrays["targets"]

    def normalized_advantages(self, advantages: np.ndarray, device: th.device | str = "cpu") -> np.ndarray:
        """
        Normalize the advantages of a rollout, if ``normalize_advantage`` is set: once, over the samples of all processes.

        :param advantages: advantages of a rollout, of any shape, in the units of the (normalized) reward
        :param device: device of the process group's backend
        :return: advantages of mean 0 and standard deviation 1
        """
        mean, std = moments(advantages, device)
        n_samples = advantages.size * n_processes()
        return (advantages - mean) / (std * (n_samples / (n_samples - self.degrees_of_freedom)) ** 0.5 + self.epsilon)

    def extras(self, policy: PhasicActorCriticPolicy, rollout: Rollout) -> dict[str, Any]:
        """
        Return further data of each sample, which the rollout gets, for ``policy_keys`` and ``aux_keys``.

        :return: arrays by name, (n_envs, n_steps, ...), or (n_envs, 1, ...) for data that an environment's part has once
        """
        return {}

    def recorded(self, policy: PhasicActorCriticPolicy, batch: Any) -> th.Tensor:
        """Return the data that the auxiliary losses refer to, before a phase's epochs: parameters of π_old(.|s), (B, P)."""
        return policy.actions.parameters(policy.evaluate_batch(batch, reads=("distribution",)).distribution)

    def kl_to_recorded(self, policy: PhasicActorCriticPolicy, distribution: Distribution, recorded: th.Tensor) -> th.Tensor:
        """Return KL(π_old(.|s), π(.|s)), (B,), in nats, from what the method ``recorded`` returned, (B, P)."""
        return policy.actions.kl_divergence(distribution, recorded)

    # ---- moments ----

    def n_value_epochs(self, n_value_epochs: int) -> int:
        """
        Return the number of value epochs on this rollout; ``n_value_epochs`` is the algorithm's argument, never None here.
        Called once in each update, so that it may count, except for rollouts of ``n_value_warmup``, which have that number.
        """
        return n_value_epochs

    def is_due(self, n_samples: int) -> bool:
        """Return whether to run the auxiliary phase now; ``n_samples``: samples collected before the latest rollout."""
        return True

    def before_rollout(self, episode_starts: np.ndarray) -> None:
        """Called before a rollout; ``episode_starts``, (n_envs,), says whether the latest observations begin an episode."""

    def after_environment_step(
        self, dones: np.ndarray, infos: list[dict[str, Any]], reset_infos: list[dict[str, Any]]
    ) -> None:
        """
        :param dones: whether an episode has ended, (n_envs,)
        :param infos: infos of the step
        :param reset_infos: infos of the reset of each environment that has started a new episode
        """

    def before_policy_update(self, policy: PhasicActorCriticPolicy) -> None:
        """Called before the update on each rollout, once its targets and advantages are ready."""

    def after_policy_step(self, policy: PhasicActorCriticPolicy) -> None:
        """Called after each optimizer step on the policy's loss, alone or joint with the value function's."""

    def after_auxiliary_phase(self, policy: PhasicActorCriticPolicy) -> None:
        """Called after the epochs of the auxiliary phase."""

    # ---- parameters ----

    def trained_with_policy(self) -> list[nn.Parameter]:
        """Return the parameters that the policy's optimizers train in addition to the policy's: all but the adversary's."""
        adversary = [] if self.adversary_optimizer is None else parameters_of(self.adversary_optimizer)
        excluded = {*map(id, adversary)}
        return [parameter for parameter in self.parameters() if parameter.requires_grad and id(parameter) not in excluded]


def replays(arguments: Any) -> bool:
    """Return whether the policy phase learns from older rollouts again, see ``Objective.check``."""
    return made_from(arguments.replay_kwargs, RolloutReplay).capacity > 1


def weights_of(batch: Any) -> th.Tensor | None:
    """Return the weights of a minibatch's samples in the losses, (B,); None if there are none."""
    return getattr(batch, "aux_weights", getattr(batch, "weights", None))
