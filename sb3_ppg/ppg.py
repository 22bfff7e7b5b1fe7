"""Phasic Policy Gradient: Algorithm 1 of https://arxiv.org/abs/2009.04416 on Stable-Baselines3."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from typing_extensions import override

from sb3_ppg.buffers.rollouts import Kind, Rollout
from sb3_ppg.callbacks import tell
from sb3_ppg.distributed import average_batch_statistics, n_processes
from sb3_ppg.losses import Losses
from sb3_ppg.optim.diagnostics import auxiliary_summary, leaf_summary, policy_summary, record_all
from sb3_ppg.optim.update import Update, mean_losses
from sb3_ppg.optim.value_units import change_value_units, set_value_units
from sb3_ppg.phasic_algorithm import PhasicAlgorithm
from sb3_ppg.training.checks import check_extras, check_rollout


class PPG(PhasicAlgorithm):
    """
    Phasic Policy Gradient (PPG): PPO with an auxiliary phase, in which the policy network also learns the value targets.

    A phase consists of ``n_policy_iterations`` iterations of the policy phase (a rollout, then PPO's update) and one auxiliary
    phase on all these rollouts. The auxiliary phase trains the policy network's auxiliary value head on the value targets,
    while a KL term keeps the policy unchanged, and trains the true value function further.

    Paper: https://arxiv.org/abs/2009.04416. Authors' code: https://github.com/openai/phasic-policy-gradient.
    The defaults are meant for small environments. They are those of SB3's ``PPO``, except for rollouts of 1,024 steps and a
    clip range of 0.3, with an auxiliary phase after every four rollouts. The paper's settings for Procgen are in
    ``sb3_ppg.family.PAPER`` and in ``hyperparams/ppg.yml``.

    If ``learn()`` ends within a phase, the rollouts of this phase are kept for the next call of ``learn()``.

    With several processes (``torchrun``, and ``process_group`` around ``learn``), all train one policy with the same
    settings. Each process collects rollouts with its own environments; gradients, the mean and variance of advantages, and
    losses are averaged. The number of environments, ``n_steps``, ``batch_size`` and ``aux_batch_size`` are per process;
    ``total_timesteps`` and all logged values are over all processes.

    PPO's arguments come first, in PPO's order; the arguments that PPG adds follow, and are keyword-only.

    Example::

        from sb3_ppg import PPG

        model = PPG("MlpPolicy", "CartPole-v1", seed=0).learn(100_000)
        action, _ = model.predict(model.get_env().reset(), deterministic=True)

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of ``PhasicActorCriticPolicy``
    :param env: The environment to learn from (if registered in Gym, can be str), or the result of ``gymnasium.make_vec``
    :param learning_rate: The learning rate of the policy phase, it can be a function
        of the current progress remaining (from 1 to 0)
    :param n_steps: The number of steps to run for each environment per rollout
    :param batch_size: Minibatch size of the policy phase, in samples
    :param n_epochs: E_π, the number of epochs on the policy loss per rollout
    :param gamma: Discount factor; with ``reward_weights`` one number, or one for each component
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator; with
        ``reward_weights`` one number, or one for each component
    :param clip_range: Clipping parameter ε, it can be a function of the current progress remaining. None: no clipping, for the
        variant with a KL penalty (``kl_coef``)
    :param clip_range_vf: Clipping parameter for the value function, in value units (see ``normalize_value_targets``), it can
        be a function of the current progress remaining. None: no clipping
    :param normalize_advantage: Whether to normalize advantages, once per rollout
    :param ent_coef: Entropy coefficient for the loss calculation. For a Dict or Tuple action space, it can have a coefficient
        for each part, ``dict(kind=0.01, move=0.001)``
    :param vf_coef: Value function coefficient for the loss of the policy phase
    :param max_grad_norm: The maximum value for the gradient clipping, in both phases. None: no clipping, as in the authors'
        code
    :param use_sde: Whether to use generalized State Dependent Exploration (gSDE) instead of action noise exploration
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE, -1: at the start of the rollout only
    :param rollout_buffer_class: Rollout buffer class to use. If ``None``, it will be automatically selected
    :param rollout_buffer_kwargs: Keyword arguments to pass to the rollout buffer on creation
    :param target_kl: Stop the epochs of the policy phase when the approximate KL divergence from the policy that collected the
        rollout (or from the one that the objective clips against) exceeds 1.5 times this value, in nats. None: never
    :param stats_window_size: Window size for the rollout logging, specifying the number of episodes to average
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation, such as ``architecture``, see
        ``PhasicActorCriticPolicy``
    :param verbose: Verbosity level: 0 for no output, 1 for info messages, 2 for debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param aux_learning_rate: The learning rate of the auxiliary phase, it can be a function of the mean progress remaining in
        the phase's policy updates. None: the same as ``learning_rate``
    :param value_learning_rate: The learning rate of the value epochs (``n_value_epochs``), it can be a function of the current
        progress remaining. None: the same as ``learning_rate``
    :param n_value_epochs: E_V, the number of epochs on the value loss alone, before the policy epochs (with "daac", "idaac"
        and "dna" after them) and with their own optimizer. None: the policy and value losses are summed, and share E_π epochs
        and one optimizer
    :param n_policy_iterations: N_π, the number of rollouts per phase
    :param n_aux_epochs: E_aux, the number of epochs of the auxiliary phase. 0: no auxiliary phase, and no rollouts are stored
        for it
    :param aux_batch_size: The largest minibatch of the auxiliary phase, in samples, rounded up to whole sequences (a sequence
        is one environment's part of one rollout), which are spread evenly over the minibatches. Less than ``n_steps``, for
        policies without memory: minibatches of single samples (which DNA always uses, and DDCPG never). None: a sixteenth of
        a rollout, as in the paper (with memory, of a phase), but at least ``batch_size``
    :param beta_clone: β_clone, the weight of the KL term of the auxiliary phase
    :param kl_coef: Weight of the KL penalty 1/2 (log π - log π_old)², which replaces clipping in the paper's KL variant
    :param normalize_value_targets: Whether value heads predict in value units, and both phases measure value errors in them.
        The unit is the standard deviation of the value targets of about the last ``n_policy_iterations`` rollouts together,
        and at least 1, as in Pop-Art (https://arxiv.org/abs/1602.07714). The effect of β_clone, ``vf_coef`` and
        ``max_grad_norm`` then does not depend on the scale of the rewards; without value units, the paper's losses ruin the
        policy with raw rewards such as CartPole's. "running": the targets are those of all rollouts so far, as in DI-engine's
        value normalization. False: the paper's losses, which are made for normalized rewards. The argument has no effect
        without an auxiliary phase
    :param recompute_advantages: Whether to recompute advantages and value targets with the current value function before each
        epoch on a rollout except the first, as in the PPO x Family course. The policy that clipping refers to does not change,
        nor do the values that were added to rewards at time limits
    :param replay_kwargs: Which rollouts the epochs of the policy phase use, and how often, see ``RolloutReplay``.
        ``dict(policy_rollouts=4)``: the last four. Advantages and value targets of older rollouts are recomputed before an
        update; ``objective="decoupled"``, or "ewma", corrects for their age. None: only the latest rollout
    :param micro_batch_size: The largest number of samples in one forward pass. Gradients of a larger minibatch are accumulated
        over several passes: the optimizer step is the same, and needs less memory. "auto": a size that is fast, see
        ``fitting_micro_batch_size``. None: whole minibatches
    :param compile_updates: Whether torch compiles the optimizer steps of both phases. This takes about half a minute the first
        time on a machine, and makes training of small networks two to four times as fast; docs/guides/speed.md says what
        is not compiled. "auto": only if the run is long enough to gain from it
    :param mixed_precision: "bf16": the features extractor computes in bfloat16; weights, heads, losses and optimizers stay
        float32. It is faster on hardware that multiplies bfloat16 (AVX-512 BF16, AMX, GPUs). None: float32
    :param objective: The losses that the epochs minimize: "ppg", the paper's; "decoupled", "ewma", "dcpg", "ddcpg", "daac",
        "idaac" or "dna", those of its relatives; or a class derived from ``sb3_ppg.objectives.Objective``
    :param objective_kwargs: Keyword arguments to pass to the objective on creation
    :param aux_buffer_kwargs: Keyword arguments to pass to the auxiliary buffer on creation.
        ``dict(storage="mmap", path=folder)`` keeps the observations of a phase on disk, see ``AuxBuffer``
    :param allow_nonfinite_observations: Whether the features extractor can handle observations that are NaN or infinite, such
        as padding. False: they end the run with an error that names the environment and the step
    :param ignore_terminations: For environments that report their time limit as a termination: the step of the limit. An
        episode that ends at this step is bootstrapped with γ V(last observation). True: every end is bootstrapped, as with
        DI-engine's ``ignore_done``, which is wrong if episodes can end with a failure or at a goal. False: trust the
        environment
    :param reward_weights: A weight for each component of vector rewards, as in MO-Gymnasium. Both value heads then have one
        value per component, and the weights combine the advantages; ``gamma`` and ``gae_lambda`` may be lists. "observation":
        the weights are the entry "weights" of the observations, see ``DrawnWeights``, so that one policy is trained for all
        weights. None: rewards are scalar
    :param prior: A pretrained agent that the policy stays near, for fine-tuning: a model of this package, of SB3 or of
        sb3-contrib with the same spaces and kind of action distribution. A copy of its policy is kept, with the statistics of
        its ``VecNormalize``; its weights are not copied into this model, see docs/guides/fine_tuning.md. "self": this
        model's own policy when ``warm_start`` ends or, without that, when training begins. None: no prior
    :param prior_coef: Weight of E[KL(π_prior, π)] in the loss of the policy phase, as in VPT
        (https://arxiv.org/abs/2206.11795); it can be a function of the current progress remaining. For a Dict or Tuple action
        space, it can have a coefficient for each part
    :param n_value_warmup: The number of rollouts at the beginning of a run that train the value function alone, with
        ``n_value_epochs`` or else ``n_epochs`` epochs, while the policy stays as it is. The first phase begins after them
    :raises ArgumentError: (a ``ValueError``) if arguments cannot work, alone or together
    :raises TypeError: for an unknown argument
    """

    # ---- Algorithm 1 ----

    @override
    def train(self) -> None:
        """
        Train on the latest rollout: run the policy phase's update and, after every N_π rollouts, the auxiliary phase.

        :raises NonFiniteLossError: if a loss is NaN or infinite
        """
        start = time.perf_counter()
        rollout = self.policy_update()
        if self.n_aux_epochs > 0 and not self.is_warming_up:
            self.aux_buffer.add(rollout.kept(self.stored_keys), self._current_progress_remaining)
            self.logger.record("time/phase_position", len(self.aux_buffer) / self.n_policy_iterations)
            if len(self.aux_buffer) >= self.n_policy_iterations:
                try:
                    n_before = self.num_timesteps - self.n_steps * self.n_envs * n_processes()
                    if self.objective.is_due(n_before):  # always, except for DNA's first steps
                        self.auxiliary_phase()
                finally:  # after a failed phase, too, the next one waits for new rollouts
                    self.aux_buffer.reset()
        self.rollout_end = None  # set by the next `collect_rollouts`
        average_batch_statistics([self.policy, self.objective])
        self._compiles_updates = self._compiles_updates and not self.compiled_training.has_stopped
        self.logger.record("time/update_seconds", time.perf_counter() - start)

    def policy_update(self) -> Rollout:
        """
        Optimize L^clip and the entropy bonus for E_π epochs, and L^value for E_V epochs, on the latest rollouts. Return the
        latest one, with its value targets.
        """
        self.policy.set_training_mode(False)
        plan, updates = self._plan(), []
        latest = self.latest_rollout()
        with self.replay.learning_from(latest):  # without replay, from nothing else
            as_collected = self._prepare(latest, [kind for kind, *_ in plan])
            self.policy.set_training_mode(True)
            for kind, losses, n_epochs, batch_size in plan:
                updates.append(update := self._begin_update(kind, losses))
                for _ in range(n_epochs):
                    if not (due := self.replay.due(kind)):
                        break  # all rollouts are used up
                    if self.recompute_advantages and any(earlier.epochs for earlier in updates):  # not before the first epoch
                        for rollout in due:
                            self.update_advantages(rollout)
                    if update.epoch(self.replay.epoch(kind, batch_size, self.minibatch_keys, self.device)).stopped:
                        if self.verbose >= 1:
                            print(f"Early stopping at step {len(update.epochs) - 1} due to reaching max kl")
                        break
                self._n_updates += len(update.epochs) if kind == "policy" else 0
        self._log_policy_update(as_collected, updates)
        return latest

    def auxiliary_phase(self) -> None:
        """Optimize L^joint = L^aux + β_clone E[KL(π_old, π)], and L^value, for E_aux epochs on the rollouts of the phase."""
        start, buffer = time.perf_counter(), self.aux_buffer
        callback = None if self.session is None else self.session.callback
        report = partial(tell, callback, n_samples=buffer.n_samples, n_aux_epochs=self.n_aux_epochs)
        if self.verbose >= 1:
            print(f"Auxiliary phase: {self.n_aux_epochs} epochs over {buffer.n_samples:,} samples")
        report("on_aux_phase_start", epoch=0)
        buffer.single_samples, n_sequences = self.aux_sequences()
        micro_batch_size = self.resolved_micro_batch_size()
        self.policy.set_training_mode(False)
        buffer.record(partial(self.objective.recorded, self.policy), n_sequences, micro_batch_size)  # π_old
        update = self._begin_update("auxiliary", self.objective.auxiliary_losses)
        for number in range(1, self.n_aux_epochs + 1):
            self.policy.set_training_mode(True)  # a callback may have evaluated the policy
            epoch = update.epoch(buffer.minibatches(n_sequences))
            report("on_aux_epoch_end", epoch=number, losses=mean_losses([epoch]))
        self.objective.after_auxiliary_phase(self.policy)
        self._n_aux_phases += 1
        outcome = auxiliary_summary(self.policy, self.objective, buffer, n_sequences, micro_batch_size)
        record_all(self.logger, "aux", {**mean_losses(update.epochs), **outcome, "learning_rate": update.learning_rate})
        record_all(self.logger, "aux", {"n_phases": self._n_aux_phases, "seconds": time.perf_counter() - start})
        report("on_aux_phase_end", epoch=self.n_aux_epochs)

    # ---- updates ----

    @property
    def is_warming_up(self) -> bool:
        """True while the latest rollout trains the value function alone, see ``n_value_warmup``."""
        return 0 < self.num_timesteps <= self._warmup_end

    def latest_rollout(self) -> Rollout:
        """Return a copy of the rollout that was collected."""
        return Rollout.of(self.rollout_buffer, self.rollout_end, states=self.policy.state_keys)

    def _prepare(self, latest: Rollout, kinds: Sequence[Kind]) -> Rollout:
        """
        Prepare the latest rollout and replayed ones: value targets, advantages, value unit, the objective's data. Return a
        copy of the latest one that keeps the values predicted at its collection, and their targets.
        """
        objective, replay = self.objective, self.replay
        check_rollout(self, latest)
        latest.arrays["targets"] = objective.value_targets(latest, self.rollout_buffer.gamma)
        as_collected = replace(latest, arrays={**latest.arrays})
        self._normalize_advantages(latest)
        self._n_rollouts += 1
        self._update_value_units(latest)
        older = replay.older(kinds)
        for rollout in older:
            self.update_advantages(rollout)
        if replay.capacity > 1:
            self.logger.record("train/older_rollouts", len(older))
        objective.before_policy_update(self.policy)
        for rollout in [*older, latest]:
            extras = objective.extras(self.policy, rollout)
            if rollout is latest:  # the others have extras already
                check_extras(self, latest, extras)
            rollout.arrays |= extras
        return as_collected

    def update_advantages(self, rollout: Rollout) -> None:
        """Recompute a rollout's advantages and value targets with the current value function."""
        batch_size = self.resolved_micro_batch_size() or max(self.batch_size, 1024)
        discounts = (self.rollout_buffer.gamma, self.rollout_buffer.gae_lambda)  # which a callback may change
        rollout.recompute(self.policy, *discounts, batch_size)
        self._normalize_advantages(rollout)

    def _normalize_advantages(self, rollout: Rollout) -> None:
        if self.normalize_advantage:
            advantages = self.objective.normalized_advantages(rollout.arrays["advantages"], self.device)
            rollout.arrays["advantages"] = advantages

    def _update_value_units(self, rollout: Rollout) -> None:
        """Set the value unit from a rollout's value targets, or back to that of the return if units have been turned off."""
        if self.normalize_value_targets and self.n_aux_epochs > 0:
            n_averaged = self._n_rollouts if self.normalize_value_targets == "running" else self.n_policy_iterations
            weight = 1 / min(self._n_rollouts, n_averaged)  # at first all rollouts weigh the same
            head, old_values = cast(Any, self.policy.value_net), rollout.arrays["old_values"]
            is_new = getattr(head, "is_new", False)
            outputs = (old_values - head.mean.cpu().numpy()) / head.std.cpu().numpy() if is_new else None
            change_value_units(self.policy, self.optimizers, rollout.arrays["targets"], weight)
            if outputs is not None:  # losses compare old values with the head's new ones
                values = head.mean.cpu().numpy() + head.std.cpu().numpy() * outputs
                rollout.arrays["old_values"] = values.astype(old_values.dtype)
        elif self.policy.value_unit != 1.0:
            set_value_units(self.policy, self.optimizers, 0.0, 1.0)

    def _plan(self) -> list[tuple[Kind, Callable[..., Losses], int, int]]:
        """Return the kinds of epochs in their order, each with its losses, number of epochs, and samples in a minibatch."""
        objective = self.objective
        if self.n_value_epochs is None and not self.is_warming_up:
            return [("policy", objective.joint_losses, self.n_epochs, self.batch_size)]
        n_value_epochs = self.n_value_epochs or self.n_epochs
        if not self.is_warming_up:
            n_value_epochs = objective.n_value_epochs(n_value_epochs)
        plan: list[tuple[Kind, Callable[..., Losses], int, int]] = [
            ("value", objective.value_losses, n_value_epochs, objective.value_batch_size or self.batch_size),
            ("policy", objective.policy_losses, self.n_epochs, self.batch_size),
        ]
        if self.is_warming_up:
            return plan[:1]
        return plan if objective.values_first else plan[::-1]  # E_V before E_π, as in the authors' code

    def _begin_update(self, kind: Literal["policy", "value", "auxiliary"], losses: Callable[..., Losses]) -> Update:
        optimizer, schedule = {
            "policy": (self.policy.optimizer, self.lr_schedule),
            "value": (self.value_optimizer, self.value_lr_schedule),
            "auxiliary": (self.aux_optimizer, self.aux_lr_schedule),
        }[kind]
        progress = self._current_progress_remaining
        if kind == "auxiliary":  # the mean of the phase: at a run's end, the rate may be 0
            progress = float(np.mean(self.aux_buffer.progress))
        limits: Any = (self.resolved_micro_batch_size(), self.max_grad_norm, self.target_kl)
        rate, coefficients = schedule(progress), self.coefficients(progress)
        update = Update(kind, self.policy, self.objective, losses, optimizer, rate, coefficients, *limits)
        update.compiled = self.compiled_training.steps_of(update)
        return update

    def _log_policy_update(self, rollout: Rollout, updates: list[Update]) -> None:
        self.logger.record("train/learning_rate", self.lr_schedule(self._current_progress_remaining))
        record_all(self.logger, "train", policy_summary(self.policy, rollout, updates))
        if self.value_learning_rate is not None:
            rate = next(update.learning_rate for update in updates if update.kind == "value")
            self.logger.record("train/value_learning_rate", rate)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        taken = [update.compiled is not None and update.compiled.has_run for update in updates if update.epochs]
        self.logger.record("train/compiled", int(bool(taken) and all(taken)))
        leaves = leaf_summary(self.policy, rollout, self.batch_size, self.resolved_micro_batch_size())
        for name, value in leaves.items():
            self.logger.record(f"train/{name}", value, exclude=("stdout", "log"))  # which cut long names off
