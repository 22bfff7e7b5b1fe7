"""PPG-EWMA and stale data against the numbers of the authors' code, and what follows from the paper."""

import math

import numpy as np
import pytest
import torch as th

from sb3_ppg import RewardNormalizer
from sb3_ppg.objectives import OBJECTIVES
from tests.golden import DoubleNormalizedRewardRolloutBuffer, GoldenTraining, arguments, settings
from tests.helpers import calls_of

# What they compute and do not use, a loss of the value function before it is trained, and the order of the calls here
NOT_COMPARED = {"weight_squared", "vf", "collected_after_update"}
NAMES = dict(adam_eps="adam_eps", learning_rate="lr", gamma="gamma", gae_lambda="lambda", n_epochs="n_epoch_pi")
NAMES |= dict(kl_coef="kl_penalty", ent_coef="entcoef", vf_coef="vfcoef", beta_clone="beta_clone", aux_learning_rate="aux_lr")
NAMES |= dict(n_policy_iterations="n_pi", n_aux_epochs="n_aux_epochs")
EWMA = ["ewma_dual", "ewma_detach", "ewma_kl", "ewma_stale"]
STALE = ["stale_decoupled", "stale_behavior", "stale_proximal"]


class EWMATraining(GoldenTraining):
    """A run with the settings of the file."""

    def __init__(self, file: str, monkeypatch):
        setting = settings(file)
        n_samples = setting["n_envs"] * setting["n_steps"]
        ewma = not math.isnan(setting["kl_ewma_decay"])
        kwargs = dict(importance_limit=setting["imp_samp_max"])
        if ewma:
            kwargs |= dict(decay=setting["kl_ewma_decay"], advantage_decay=setting["adv_ewma_decay"])
        objective = "ewma" if ewma else "decoupled"
        if setting["staleness_loss"] != "decoupled":
            objective, kwargs = "ppg", {}
        self.staleness, self.n_pi = setting["staleness"], setting["n_pi"]
        self.is_proximal = setting["staleness_loss"] == "proximal"
        self.n_value_epochs = None if setting["n_epoch_vf"] == setting["n_epoch_pi"] else setting["n_epoch_vf"]
        super().__init__(
            file,
            monkeypatch,
            architecture={"dual": "dual", "detach": "detached"}[setting["arch"]],
            **arguments(setting, **NAMES),
            rollout_buffer_class=DoubleNormalizedRewardRolloutBuffer,
            batch_size=n_samples // setting["nminibatch"],
            n_value_epochs=self.n_value_epochs,
            clip_range=setting["clip_param"] or None,
            aux_batch_size=setting["aux_mbsize"] * setting["n_steps"],
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(gamma=setting["reward_normaliser_gamma"])),
            objective=objective,
            objective_kwargs=kwargs,
        )
        if ewma or objective == "decoupled":
            self.model.objective.restart(self.policy)  # the weights of the file
        self.average = self.model.objective.proximal.module if ewma else None
        self.policy_gradients = calls_of(self.model.objective, "policy_gradient")

    def total_weight(self) -> float:
        decay = self.model.objective.decay
        return sum(decay**k for k in range(int(self.model.objective.proximal.n_averaged)))

    @th.no_grad()
    def present_log_prob(self, rollout: int) -> np.ndarray:
        logits, actions = self.outputs(rollout)["logits"], self.golden[f"roll{rollout}/action"]
        return np.take_along_axis(logits, actions[..., None], axis=2)[..., 0]

    def use(self, rollout: int, values: np.ndarray) -> None:
        """One iteration: the policy phase's update, and what follows if it ends a phase."""
        key, buffer = f"roll{rollout}", self.model.rollout_buffer
        log_probs = self.golden[f"{key}/logp_old"]
        if f"{key}/logp_recomputed" in self.golden:
            self.check(self.present_log_prob(rollout), f"{key}/logp_recomputed")
        if self.is_proximal:
            log_probs = self.present_log_prob(rollout)
        if f"{key}/logp_importance" in self.golden:
            self.check(log_probs, f"{key}/logp_importance")
        self.fill_rollout_buffer(rollout, values, log_probs, "reward_raw")
        self.check(buffer.reward_normalizer.return_rms.var, f"{key}/reward_normaliser_variance")
        self.check(buffer.rewards.T, f"{key}/reward_normalised")
        self.check(buffer.advantages.T, f"{key}/advantage_raw")
        moments = buffer.advantages.mean(), buffer.advantages.var()
        self.check(moments, f"{key}/advantage_moments/batch_mean_var")
        self.policy_gradients.clear()
        self.update(rollout, "value_epochs", "policy_phase")
        self.check_moments(rollout, moments)
        self.check_policy_phase(rollout)

    def check_moments(self, rollout: int, of_rollout: tuple[float, float]) -> None:
        """By which advantages are normalised: of this rollout, or averages, of which we keep no sums."""
        key, objective = f"roll{rollout}/advantage_moments", self.model.objective
        weight, mean, variance = float(self.n_envs * self.n_steps), *of_rollout
        if getattr(objective, "advantage_decay", 0) > 0:
            weight, mean, variance = objective.advantage_weight, objective.advantage_mean, objective.advantage_variance
        squares = weight * (variance + mean**2)
        ours = dict(weight=weight, mean=mean, var=variance, weighted_sum=weight * mean, weighted_sum_of_squares=squares)
        for name, value in ours.items():
            self.check(value, f"{key}/{name}")

    def check_policy_phase(self, rollout: int) -> None:
        phase, model, names = f"roll{rollout}/policy_phase", self.model, {}
        if model.objective_class is not OBJECTIVES["ppg"]:
            names["imp_samp_clipfrac"] = ("importance_clip_fraction", 1)
        else:
            assert not self.golden[f"{phase}/imp_samp_clipfrac"].any()  # it has no limit
        kind = "joint" if self.n_value_epochs is None else "policy"
        if kind == "policy":
            self.check_steps("value", f"roll{rollout}/value_epochs", {"vf": ("value_loss", model.vf_coef)})
        self.check_openais_policy_phase(phase, kind, **names)
        log_ratios = th.stack([step.log_ratio for step in self.steps_of(kind)])
        proximal = th.stack([log_probs for _, (_, log_probs, *_) in self.policy_gradients])
        self.check(proximal, f"{phase}/logp_proximal")
        self.check(proximal + log_ratios, f"{phase}/logp_new")

    def check_before_auxiliary_phase(self) -> None:
        self.check_weights("weights_after_policy_phase")
        if self.average is not None:
            self.check_weights("ewma_after_policy_phase", self.average)
            self.check(self.total_weight(), f"ewma_total_weight/after_roll{self.n_pi - 1}")

    def check_auxiliary_phase(self) -> None:
        super().check_auxiliary_phase()
        if self.average is not None:
            self.check_weights("ewma_after_reset", self.average)
            self.check(self.total_weight(), "ewma_total_weight/after_reset")

    def check_average(self, rollout: str) -> None:
        if any(key.startswith(f"{rollout}/ewma_after/") for key in self.golden):
            self.check_weights(f"{rollout}/ewma_after", self.average)
        self.check(self.total_weight(), f"ewma_total_weight/after_{rollout}")


@pytest.mark.parametrize("file", EWMA + STALE)
def test_the_authors_numbers(file, monkeypatch):
    training = EWMATraining(file, monkeypatch)
    has_aux = training.model.n_aux_epochs > 0
    if has_aux:
        keys = ("roll{}/logits_before_aux", "roll{}/logits_cloning_target", "aux/minibatch_order")
        training.impose_auxiliary_phase(range(training.n_pi), *keys, training.check_before_auxiliary_phase)
    if training.average is not None:
        training.check(training.total_weight(), "ewma_total_weight/init")
    collected: list[np.ndarray] = []
    n_rollouts = 1 + max(int(key.split("/")[0][4:]) for key in training.golden if key.startswith("roll"))
    for iteration in range(n_rollouts + training.staleness):
        if iteration < n_rollouts:
            collected.append(training.check_outputs(iteration)["value"])
        used = iteration - training.staleness
        if used < 0:
            continue
        training.use(used, collected[used])
        if used == training.n_pi - 1 and has_aux:
            training.check_auxiliary_phase()
        elif training.average is not None:
            training.check_average(f"roll{used}")
    last = "weights_after_second_policy_phase" if has_aux else "weights_after_policy_phase"
    training.check_weights(last)
    if training.average is not None:
        training.check_weights("ewma_after_second_policy_phase", training.average)
    training.check_that_all_are_used(NOT_COMPARED)
