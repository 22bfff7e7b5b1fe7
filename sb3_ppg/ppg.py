"""Phasic Policy Gradient: Algorithm 1 of https://arxiv.org/abs/2009.04416 on Stable-Baselines3."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import FloatSchedule, update_learning_rate

from sb3_ppg.arguments import (
    arguments_explained,
    check_policy,
    check_policy_class,
    warn_of_learning_rates,
    warn_of_truncated_minibatches,
)
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.checks import check_auxiliary_batches, has_single_samples
from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.callbacks import AuxiliaryPhaseEvents
from sb3_ppg.distributed.collectives import average_batch_statistics, n_processes, rank
from sb3_ppg.epochs import PhasicEpochs
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients, Objective, find_objective, make_objective
from sb3_ppg.optim.epoch import Adversary, Epoch, mean_losses
from sb3_ppg.optim.value_units import change_value_units, set_value_units
from sb3_ppg.policies import CnnPolicy, MixedPrecision, MlpPolicy, MultiInputPolicy, PhasicActorCriticPolicy


class PPG(PhasicEpochs):
    """
    Phasic Policy Gradient (PPG): PPO whose policy network learns from the value function in phases of its own.

    A phase is ``n_policy_iterations`` policy-phase iterations (a rollout, then PPO's update), followed by one auxiliary
    phase over all the rollouts of the phase: the policy network's auxiliary value head is trained on the value targets while
    a KL term holds the policy where it is, and the true value function is trained further.

    Paper: https://arxiv.org/abs/2009.04416. Authors' code: https://github.com/openai/phasic-policy-gradient.
    The defaults are for small environments: those of SB3's ``PPO``, but rollouts of 1,024 steps and clipping at 0.3, and an
    auxiliary phase after each four rollouts. The paper's setting for Procgen is ``sb3_ppg.family.PAPER``, and in
    ``hyperparams/ppg.yml``.

    What is stored when ``learn()`` ends within a phase stays for the next call of ``learn()``.

    Several processes (``torchrun``, and ``process_group`` around the training) train one policy: each collects with its own
    environments, with the same settings; gradients, advantage moments and losses are averaged. The number of environments,
    ``n_steps``, ``batch_size`` and ``aux_batch_size`` are those of one process; ``total_timesteps`` and all that is logged
    are of all together.

    PPO's arguments come first, in PPO's order; PPG's own follow, by keyword only.

    Example::

        from sb3_ppg import PPG

        model = PPG("MlpPolicy", "CartPole-v1", seed=0).learn(100_000)
        action, _ = model.predict(model.get_env().reset(), deterministic=True)

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of ``PhasicActorCriticPolicy``
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate of the policy phase, it can be a function
        of the current progress remaining (from 1 to 0)
    :param n_steps: The number of steps to run for each environment per rollout
    :param batch_size: Minibatch size of the policy phase, in samples
    :param n_epochs: E_π, the number of epochs per rollout on the policy's loss
    :param gamma: Discount factor
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param clip_range: Clipping parameter ε, it can be a function of the current progress remaining. None: no clipping, for
        the KL penalty variant
    :param clip_range_vf: Clipping parameter for the value function, likewise, in the unit of the value heads (see
        ``normalize_value_targets``). None: no clipping
    :param normalize_advantage: Whether to normalise advantages, once over the whole rollout
    :param ent_coef: Entropy coefficient for the loss calculation
    :param vf_coef: Value function coefficient for the loss of the policy phase
    :param max_grad_norm: The maximum value for the gradient clipping, in both phases. None: no clipping, as the authors
    :param use_sde: Whether to use generalized State Dependent Exploration (gSDE) instead of action noise exploration
    :param sde_sample_freq: Sample a new noise matrix every n steps when using gSDE, -1: at the start of the rollout only
    :param rollout_buffer_class: Rollout buffer class to use. If ``None``, it will be automatically selected
    :param rollout_buffer_kwargs: Keyword arguments to pass to the rollout buffer on creation
    :param target_kl: Stop the policy phase's epochs when the approximate KL divergence from the policy that collected the
        rollout (or that the objective clips against) exceeds 1.5 times this, in nats. None: never
    :param stats_window_size: Window size for the rollout logging, specifying the number of episodes to average
    :param tensorboard_log: the log location for tensorboard (if None, no logging)
    :param policy_kwargs: additional arguments to be passed to the policy on creation, ``architecture`` among them, see
        ``PhasicActorCriticPolicy``
    :param verbose: Verbosity level: 0 for no output, 1 for info messages, 2 for debug messages
    :param seed: Seed for the pseudo random generators
    :param device: Device (cpu, cuda, ...) on which the code should be run
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param aux_learning_rate: The learning rate of the auxiliary phase, it can be a function of the current progress remaining.
        None: the same as ``learning_rate``
    :param n_value_epochs: E_V, the number of epochs on the value function's loss, which then has its own optimizer and comes
        first. None: both losses are summed and share E_π epochs and one optimizer
    :param n_policy_iterations: N_π, the number of rollouts in a phase
    :param n_aux_epochs: E_aux, the number of epochs of the auxiliary phase. 0: no auxiliary phase, nothing is stored
    :param aux_batch_size: The largest minibatch of the auxiliary phase, in samples: a multiple of ``n_steps``, as minibatches
        are made of whole sequences, one environment's part of one rollout each, which are spread evenly over the minibatches;
        or, without memory, less than that, for minibatches of single samples (DNA's always are). None: a sixteenth of a
        rollout, as in the paper, with memory of the phase, but at least ``batch_size``, rounded up to whole sequences
    :param beta_clone: β_clone, the weight of the KL term of the auxiliary phase
    :param kl_coef: Weight of the KL penalty 1/2 (log π - log π_old)², which stands in for clipping in the paper's KL variant
    :param normalize_value_targets: Whether both value heads work in standard deviations of the value targets (if these exceed
        one), as in Pop-Art (https://arxiv.org/abs/1602.07714), and both phases measure value errors in that unit. Then
        β_clone, ``vf_coef`` and ``max_grad_norm`` weigh the same however large the rewards: with raw rewards of CartPole, the
        paper's losses as they are wash the policy away. "running": of the targets of all rollouts so far, as DI-engine's value
        normalisation, instead of the latest ``n_policy_iterations``. False: the paper's losses, made for normalised rewards.
        Without an auxiliary phase it has no effect
    :param recompute_advantages: Whether each epoch on a rollout but the first begins with advantages and value targets by the
        present value function, as in PPOxFamily's course. The policy that clipping refers to stays, and what was added to
        rewards at time limits
    :param replay_kwargs: Which rollouts the policy phase's epochs draw from, and how often, see ``RolloutReplay``:
        ``dict(policy_rollouts=4)`` for the last four. Advantages and value targets of older ones are brought up to date before
        an update; ``objective="decoupled"``, or "ewma", corrects for their age. None: the latest alone
    :param micro_batch_size: The most samples in one forward pass. The gradient of a larger minibatch is accumulated over
        several; the step is the same, and needs less memory. "auto": what is fast, see ``fitting_micro_batch_size``. None:
        whole minibatches
    :param mixed_precision: "bf16": the features extractor computes in bfloat16; weights, heads, losses and optimizers stay
        float32. It is about twice as fast where the processor multiplies bfloat16 (AVX-512 BF16, AMX, GPUs). "tf32": matrix
        products in TensorFloat-32, on NVIDIA GPUs. None: float32
    :param objective: What the epochs minimise: "ppg", the paper's; "decoupled", "ewma", "dcpg", "ddcpg", "daac", "idaac" or
        "dna", those of its relatives; or a class derived from ``sb3_ppg.objectives.Objective``
    :param objective_kwargs: Keyword arguments to pass to the objective on creation
    :param aux_buffer_kwargs: Keyword arguments to pass to the auxiliary buffer on creation: ``dict(storage="mmap",
        path=folder)`` keeps the observations of a phase on a disk, see ``AuxBuffer``
    :raises ArgumentError: (a ``ValueError``) if arguments cannot work, alone or together
    :raises TypeError: for an argument that there is not
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    @arguments_explained
    def __init__(
        self,
        policy: str | type[PhasicActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 1024,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule | None = 0.3,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        aux_learning_rate: float | Schedule | None = None,
        n_value_epochs: int | None = None,
        n_policy_iterations: int = 4,
        n_aux_epochs: int = 6,
        aux_batch_size: int | None = None,
        beta_clone: float = 1.0,
        kl_coef: float = 0.0,
        normalize_value_targets: bool | Literal["running"] = True,
        recompute_advantages: bool = False,
        replay_kwargs: dict[str, Any] | None = None,
        micro_batch_size: int | Literal["auto"] | None = "auto",
        mixed_precision: MixedPrecision | None = None,
        objective: str | type[Objective] = "ppg",
        objective_kwargs: dict[str, Any] | None = None,
        aux_buffer_kwargs: dict[str, Any] | None = None,
    ):
        check_policy_class(policy, type(self))
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,  # type: ignore[arg-type]
            use_sde=False,  # set below, and checked by `check_arguments`, which says more than SB3
            sde_sample_freq=sde_sample_freq,
            rollout_buffer_class=rollout_buffer_class,
            rollout_buffer_kwargs=rollout_buffer_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose if rank() == 0 else 0,
            device=device,
            seed=seed,
            _init_setup_model=False,
            supported_action_spaces=self.action_spaces,
        )
        self.use_sde = use_sde
        self.aux_learning_rate = aux_learning_rate
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.n_value_epochs = n_value_epochs
        self.n_policy_iterations = n_policy_iterations
        self.n_aux_epochs = n_aux_epochs
        self.aux_batch_size = aux_batch_size
        self.beta_clone = beta_clone
        self.normalize_value_targets = normalize_value_targets
        self.clip_range = clip_range
        self.clip_range_vf = clip_range_vf
        self.kl_coef = kl_coef
        self.normalize_advantage = normalize_advantage
        self.target_kl = target_kl
        self.recompute_advantages = recompute_advantages
        self.replay_kwargs = replay_kwargs
        self.micro_batch_size = micro_batch_size
        self.mixed_precision = mixed_precision
        self.objective_class = find_objective(objective)
        self.objective_kwargs = objective_kwargs
        self.aux_buffer_kwargs = aux_buffer_kwargs

        self._n_aux_phases = 0
        self._n_stored_rollouts = 0
        self._n_replayed_rollouts = 0
        self._n_rollouts = 0
        if self.env is not None:
            self.check_arguments()
            warn_of_truncated_minibatches(self)
            warn_of_learning_rates(self)
        if _init_setup_model:
            self._setup_model()
            if self.env is not None:
                check_auxiliary_batches(self, self.n_envs)

    def _setup_model(self) -> None:
        if self.rollout_buffer_class is None:
            self.rollout_buffer_class = self.rollout_buffer_classes[isinstance(self.observation_space, spaces.Dict)]
        super()._setup_model()
        self.policy.mixed_precision = self.mixed_precision
        # As PPO: schedules from here on
        self.clip_range = None if self.clip_range is None else FloatSchedule(self.clip_range)
        self.clip_range_vf = None if self.clip_range_vf is None else FloatSchedule(self.clip_range_vf)
        self.objective = make_objective(self.objective_class, self.policy, self.objective_kwargs).to(self.device)
        trained = [*self.policy.parameters(), *self.objective.trained_with_policy()]
        # The policy's own optimizer is that of the policy (or joint) epochs
        if self.objective.trained_with_policy():
            self.policy.optimizer = self.policy.make_optimizer(self.lr_schedule(1), trained)
        self.value_optimizer = self.policy.make_optimizer(self.lr_schedule(1))
        self.aux_optimizer = self.policy.make_optimizer(self.aux_lr_schedule(1), trained)
        self.aux_buffer = AuxBuffer(self.device, **(self.aux_buffer_kwargs or {}))
        self.replay = RolloutReplay(**(self.replay_kwargs or {}))
        check_policy(self)
        self._check_objective()

    @property
    def aux_lr_schedule(self) -> Schedule:
        """Of the auxiliary phase: the present one of the policy phase, if it has none of its own."""
        return self.lr_schedule if self.aux_learning_rate is None else FloatSchedule(self.aux_learning_rate)

    @property
    def n_aux_phases(self) -> int:
        """How many auxiliary phases there have been."""
        return self._n_aux_phases

    # ---- Algorithm 1 ----

    def train(self) -> None:
        """
        What follows a rollout: the policy phase's update, and, when the rollouts of ``N_π`` iterations are together, the
        auxiliary phase.

        :raises NonFiniteLossError: if a loss is NaN or infinite
        """
        start = time.perf_counter()
        try:
            self._policy_phase()
        except BaseException:  # Ctrl-C, too: it has not been learned from
            self.replay.forget(self.rollout_buffer)
            raise
        finally:
            self._n_replayed_rollouts = self.replay.n_stored
        try:
            if self.n_aux_epochs > 0:
                self._store_rollout()
        finally:
            self.replay.keep_latest()
        average_batch_statistics([self.policy, self.objective])
        self.logger.record("time/update_seconds", time.perf_counter() - start)

    def _store_rollout(self) -> None:
        """For the auxiliary phase, which follows if the rollouts of a phase are together."""
        self.aux_buffer.add(self.rollout_buffer, self.aux_data())
        self._n_stored_rollouts = len(self.aux_buffer)
        self.logger.record("time/phase_position", self.aux_buffer.n_new / self.n_policy_iterations)
        if self.aux_buffer.n_new < self.n_policy_iterations:
            return
        try:
            if self.objective.is_due(self.num_timesteps - self.n_steps * self.n_envs * n_processes()):
                self._auxiliary_phase()
        finally:  # after an error, too, the next phase waits for new rollouts
            self.aux_buffer.end_phase()
            self._n_stored_rollouts = len(self.aux_buffer)

    def _policy_phase(self) -> None:
        """Optimise L^clip + entropy bonus for E_π epochs and L^value for E_V epochs on the latest rollout, or rollouts."""
        objective, buffer = self.objective, self.rollout_buffer
        end: Any = self.rollout_end  # None where rollouts came from elsewhere, which few objectives mind
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._policy_phase_optimizers())
        buffer.returns = objective.value_targets(buffer, end)
        if self.normalize_advantage:
            buffer.advantages = objective.normalized_advantages(buffer.advantages, self.device)
        self._n_rollouts = 1 + (self._n_rollouts or self._n_updates // self.n_epochs)  # files of before have the latter only
        self._update_value_units()
        self.replay.add(buffer, end)
        self._bring_older_rollouts_up_to_date()
        objective.before_policy_phase(self.policy)
        for rollout in [*self._older_rollouts(), self.replay.rollouts[-1]]:
            rollout.extras = objective.extras(self.policy, rollout.buffer, rollout.end)  # type: ignore[arg-type]
        self._n_epochs_of_update = 0
        coefficients = self._coefficients()
        if self.n_value_epochs is None:
            history, value_history = self._policy_epochs(objective.joint_losses, coefficients), []
        elif objective.values_first:
            value_history = self._value_epochs(coefficients)
            history = self._policy_epochs(objective.policy_losses, coefficients)
        else:
            history = self._policy_epochs(objective.policy_losses, coefficients)
            value_history = self._value_epochs(coefficients)
        self._n_updates += len(history)
        self._log_policy_phase(history, value_history, coefficients)

    def _update_value_units(self) -> None:
        """To those of the latest rollouts' value targets; or, where units were turned off since, to those of the return."""
        optimizers = (self.policy.optimizer, self.value_optimizer, self.aux_optimizer)
        if self.normalize_value_targets and self.n_aux_epochs > 0:
            n_averaged = self._n_rollouts if self.normalize_value_targets == "running" else self.n_policy_iterations
            weight = 1 / min(self._n_rollouts, n_averaged)  # at first, of all rollouts alike
            change_value_units(self.policy, optimizers, self.rollout_buffer.returns, weight)
        elif self.policy.value_unit != 1.0:
            set_value_units(self.policy, optimizers, 0.0, 1.0)

    def _policy_epochs(self, losses: Callable[..., Losses], coefficients: Coefficients) -> list[Epoch]:
        """In shuffled minibatches; fewer than E_π when ``target_kl`` is exceeded."""
        history: list[Epoch] = []
        adversary = None
        if self.objective.adversary_optimizer is not None:
            losses_of_adversary = partial(self._losses, self.objective.adversary_losses, coefficients)
            adversary = Adversary(self.objective.adversary_optimizer, losses_of_adversary)
        for batches in self._epochs("policy", self.n_epochs, self.batch_size):
            history.append(
                self._epoch(
                    "policy",
                    self.policy.optimizer,
                    batches,
                    partial(self._losses, losses, coefficients),
                    target_kl=self.target_kl,
                    after_step=partial(self.objective.after_policy_step, self.policy),
                    adversary=adversary,
                )
            )
            if history[-1].stopped:
                if self.verbose >= 1:
                    print(f"Early stopping at step {len(history) - 1} due to reaching max kl")
                break
        return history

    def _value_epochs(self, coefficients: Coefficients) -> list[Epoch]:
        """E_V of them, in shuffled minibatches."""
        losses = partial(self._losses, self.objective.value_losses, coefficients)
        batch_size = self.objective.value_batch_size or self.batch_size
        epochs = self._epochs("value", self.objective.n_value_epochs(self.n_value_epochs or 0), batch_size)
        return [self._epoch("policy", self.value_optimizer, batches, losses) for batches in epochs]

    def _auxiliary_phase(self) -> None:
        """Optimise L^joint = L^aux + β_clone E[KL(π_old, π)], and L^value, for E_aux epochs on the rollouts of the phase."""
        start = time.perf_counter()
        self.aux_buffer.single_samples = has_single_samples(self, self._aux_samples_per_batch())
        n_sequences = self._aux_sequences_per_batch()
        events = AuxiliaryPhaseEvents(self._training_callback, self.aux_buffer.n_samples, self.n_aux_epochs)
        if self.verbose >= 1:
            print(f"Auxiliary phase: {self.n_aux_epochs} epochs over {self.aux_buffer.n_samples:,} samples")
        events.start()
        self.policy.set_training_mode(False)
        self.aux_buffer.record(self._recorded, n_sequences)

        learning_rate = self.aux_lr_schedule(self._current_progress_remaining)
        update_learning_rate(self.aux_optimizer, learning_rate)
        losses = partial(self._losses, self.objective.auxiliary_losses, self._coefficients())
        history: list[Epoch] = []
        for _ in range(self.n_aux_epochs):
            history.append(self._epoch("auxiliary", self.aux_optimizer, self.aux_buffer.minibatches(n_sequences), losses))
            events.epoch_end(mean_losses([history[-1]]))
        self.objective.after_auxiliary_phase(self.policy)
        self._n_aux_phases += 1
        self._record("aux", {**mean_losses(history), **self._outcome(n_sequences), "learning_rate": learning_rate})
        self._record("aux", {"n_phases": self._n_aux_phases, "seconds": time.perf_counter() - start})
        events.end()
