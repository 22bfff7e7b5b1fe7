"""Phasic Policy Gradient: Algorithm 1 of https://arxiv.org/abs/2009.04416 on Stable-Baselines3."""

import copy
import io
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, PyTorchObs, RolloutBufferSamples, Schedule, TensorDict
from stable_baselines3.common.utils import FloatSchedule, explained_variance, obs_as_tensor, update_learning_rate
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import losses
from sb3_ppg.arguments import (
    arguments_explained,
    check_arguments,
    check_policy,
    check_policy_class,
    check_room,
    tell_of_phases,
    warn_of_learning_rates,
    warn_of_truncated_minibatches,
)
from sb3_ppg.buffers.aux_buffer import AuxBuffer, AuxiliaryBatch, gathers_as_sb3, n_bytes, one_observation
from sb3_ppg.callbacks import AuxiliaryPhaseEvents
from sb3_ppg.errors import ArgumentError, NonFiniteEnvironmentError, NonFiniteError, WorkerError
from sb3_ppg.extras import missing_extras_named
from sb3_ppg.policies import CnnPolicy, MixedPrecision, MlpPolicy, MultiInputPolicy, PhasicActorCriticPolicy
from sb3_ppg.saving.files import replaced
from sb3_ppg.saving.model_file import checked_model_file, marked, unmark
from sb3_ppg.saving.training_state import load_training_state, save_training_state
from sb3_ppg.saving.untrusted import generators_kept
from sb3_ppg.training.memory import fitting_micro_batch_size, has_convolutions, keep_freed_memory
from sb3_ppg.training.optimization import (
    Epoch,
    Losses,
    mean_losses,
    optimize_epoch,
    rescale_moments,
    split,
    tensor_float_32,
    unvalidated_distributions,
)
from sb3_ppg.training.processes import average_over_processes, moments, start_alike
from sb3_ppg.training.watched_vec_env import CheckedSteps, statistics_guarded, workers_watched

# Small minibatches of a rollout are gathered together, up to so much: one indexed copy instead of many
GATHERED_BYTES = 2**22
# What an auxiliary phase has led to is evaluated on about so many of its samples
EVALUATED_SAMPLES = 4096
SelfPPG = TypeVar("SelfPPG", bound="PPG")


class Scales(NamedTuple):
    """
    What is the same for all minibatches of an update.

    :param clip_range: ε, or None for no clipping
    :param clip_range_vf: in value units, or None for no clipping
    :param value_unit: in which value errors are measured, in the units of the (normalised) return
    """

    clip_range: float | None
    clip_range_vf: float | None
    value_unit: float


class PPG(OnPolicyAlgorithm):
    """
    Phasic Policy Gradient (PPG): PPO whose policy network learns from the value function in phases of its own.

    A phase is ``n_policy_iterations`` policy-phase iterations (a rollout, then PPO's update), followed by one auxiliary
    phase over all the rollouts of the phase: the policy network's auxiliary value head is trained on the value targets while
    a KL term holds the policy where it is, and the true value function is trained further.

    Paper: https://arxiv.org/abs/2009.04416. Authors' code: https://github.com/openai/phasic-policy-gradient.
    The defaults are for small environments; ``hyperparams/ppg.yml`` has the paper's setting for Procgen.

    What is stored when ``learn()`` ends within a phase stays for the next call of ``learn()``.

    Several processes (``torchrun``, with the process group initialised before) train one policy: each collects with its own
    environments and seed, with the same settings; gradients, advantage moments and losses are averaged. ``batch_size``,
    ``aux_batch_size`` and ``total_timesteps`` count one process's samples.

    PPO's arguments come first, in PPO's order; PPG's own follow, by keyword only.

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
        rollout exceeds 1.5 times this, in nats. None: never
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
        are made of whole sequences, one environment's part of one rollout each, which are spread evenly over the minibatches.
        None: a sixteenth of the stored sequences, rounded up
    :param beta_clone: β_clone, the weight of the KL term of the auxiliary phase
    :param kl_coef: Weight of the KL penalty 1/2 (log π - log π_old)², which stands in for clipping in the paper's KL variant
    :param normalize_value_targets: Whether both value heads work in standard deviations of the value targets (if these exceed
        one), as in Pop-Art (https://arxiv.org/abs/1602.07714), and both phases measure value errors in that unit. Then
        β_clone, ``vf_coef`` and ``max_grad_norm`` weigh the same however large the rewards: with raw rewards of CartPole, the
        paper's losses as they are wash the policy away. False: the paper's losses, made for normalised rewards
    :param micro_batch_size: The most samples in one forward pass. The gradient of a larger minibatch is accumulated over
        several; the step is the same, and needs less memory. "auto": what is fast, see ``fitting_micro_batch_size``. None:
        whole minibatches
    :param mixed_precision: "bf16": the features extractor computes in bfloat16; weights, heads, losses and optimizers stay
        float32. It is about twice as fast where the processor multiplies bfloat16 (AVX-512 BF16, AMX, GPUs). "tf32": matrix
        products in TensorFloat-32, on NVIDIA GPUs. None: float32
    :param aux_buffer_kwargs: Keyword arguments to pass to the auxiliary buffer on creation: ``dict(storage="mmap",
        path=folder)`` keeps the observations of a phase on a disk, see ``AuxBuffer``
    :raises ArgumentError: (a ``ValueError``) if arguments cannot work, alone or together
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    # For arrays and for dictionaries of observations: the defaults, and what a buffer of the user's has to derive from
    rollout_buffer_classes: ClassVar[tuple[type[RolloutBuffer], type[DictRolloutBuffer]]] = (RolloutBuffer, DictRolloutBuffer)
    action_spaces: ClassVar[tuple[type[spaces.Space], ...]] = (
        *(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    )
    policy: PhasicActorCriticPolicy
    max_grad_norm: float | None  # type: ignore[assignment]
    _checkpoint: list[Any] | None = None  # of PhasicCheckpointCallback, the latest: its run, and when it was written

    @arguments_explained
    def __init__(
        self,
        policy: str | type[PhasicActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-4,
        n_steps: int = 256,
        batch_size: int = 64,
        n_epochs: int = 1,
        gamma: float = 0.999,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule | None = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.01,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = None,
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
        n_policy_iterations: int = 32,
        n_aux_epochs: int = 6,
        aux_batch_size: int | None = None,
        beta_clone: float = 1.0,
        kl_coef: float = 0.0,
        normalize_value_targets: bool = True,
        micro_batch_size: int | Literal["auto"] | None = "auto",
        mixed_precision: MixedPrecision | None = None,
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
            verbose=verbose,
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
        self.micro_batch_size = micro_batch_size
        self.mixed_precision = mixed_precision
        self.aux_buffer_kwargs = aux_buffer_kwargs

        self._n_aux_phases = 0
        # As many as the auxiliary buffer holds, except in a model loaded without that buffer
        self._n_stored_rollouts = 0
        self._training_callback: BaseCallback | None = None  # while `learn` runs
        self._fitting_micro_batch_size: tuple[int | None] | None = None  # once it is known

        if self.env is not None:
            self._check_arguments()
            warn_of_truncated_minibatches(self)
            warn_of_learning_rates(self)
        if _init_setup_model:
            self._setup_model()

    # ---- the algorithm ----

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        As in SB3, with the same locals for callbacks, but for what variants of the algorithm change: ``_act``, ``_remember``
        and ``_next_values``.

        :raises NonFiniteEnvironmentError: if an observation or a reward is NaN or infinite
        """
        assert self._last_obs is not None
        start = time.perf_counter()
        self._training_callback = callback
        checked = CheckedSteps(env, self._last_obs)
        self.policy.set_training_mode(False)
        n_steps = 0
        actions: Any  # a tensor, then an array, by the name that callbacks of SB3 know
        rollout_buffer.reset()
        callback.on_rollout_start()
        with unvalidated_distributions():
            if self.use_sde:
                self.policy.reset_noise(env.num_envs)
            while n_steps < n_rollout_steps:
                if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                    self.policy.reset_noise(env.num_envs)
                with th.no_grad():
                    obs_tensor = obs_as_tensor(self._last_obs, self.device)  # type: ignore[arg-type]
                    actions, values, log_probs, also_stored = self._act(obs_tensor, env)
                actions = actions.cpu().numpy()
                clipped_actions = self._for_environments(actions)
                new_obs, rewards, dones, infos = checked.step(clipped_actions)
                self.num_timesteps += env.num_envs

                callback.update_locals(locals())
                if not callback.on_step():
                    return False

                self._update_info_buffer(infos, dones)
                n_steps += 1
                self._remember()
                if isinstance(self.action_space, spaces.Discrete):
                    actions = actions.reshape(-1, 1)
                self._bootstrap_at_time_limits(rewards, dones, infos)
                starts = self._last_episode_starts
                rollout_buffer.add(self._last_obs, actions, rewards, starts, values, log_probs, **also_stored)  # type: ignore[arg-type]
                self._last_obs, self._last_episode_starts = new_obs, dones  # type: ignore[assignment]
            with th.no_grad():
                values = self._next_values(obs_as_tensor(new_obs, self.device), dones)  # type: ignore[arg-type]
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        callback.update_locals(locals())
        callback.on_rollout_end()
        self.logger.record("time/rollout_seconds", time.perf_counter() - start)
        return True

    def _for_environments(self, actions: np.ndarray) -> np.ndarray:
        """Within the bounds of the action space."""
        if not isinstance(self.action_space, spaces.Box):
            return actions
        if self.policy.squash_output:
            return self.policy.unscale_action(actions)
        return np.clip(actions, self.action_space.low, self.action_space.high)

    def _bootstrap_at_time_limits(self, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]) -> None:
        """Where an episode was cut off, what would have followed is added to its last reward: γ V(last observation)."""
        for index in np.flatnonzero(dones):
            last_observation = infos[index].get("terminal_observation")
            if last_observation is not None and infos[index].get("TimeLimit.truncated", False):
                with th.no_grad():
                    observation, _ = self.policy.obs_to_tensor(last_observation)
                    (value,) = self._next_values(observation, np.array([False]), int(index))
                rewards[index] += self.gamma * value

    def train(self) -> None:
        """
        What follows a rollout in the paper's Algorithm 1: the policy phase's update, and, when the rollouts of ``N_π``
        iterations are together, the auxiliary phase.

        :raises NonFiniteLossError: if a loss is NaN or infinite
        """
        start = time.perf_counter()
        self._policy_phase()
        if self.n_aux_epochs > 0:
            self.aux_buffer.add(self.rollout_buffer, self._context())
            self._n_stored_rollouts = len(self.aux_buffer)
            self.logger.record("time/phase_position", self._n_stored_rollouts / self.n_policy_iterations)
            if self._n_stored_rollouts >= self.n_policy_iterations:
                try:
                    self._auxiliary_phase()
                finally:  # after an error, too, the next phase starts with nothing
                    self.aux_buffer.reset()
                    self._n_stored_rollouts = 0
        self.logger.record("time/update_seconds", time.perf_counter() - start)

    def _policy_phase(self) -> None:
        """Optimise L^clip + entropy bonus for E_π epochs and L^value for E_V epochs on the latest rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.policy.optimizer, self.value_optimizer])
        if self.normalize_advantage:
            mean, std = moments(self.rollout_buffer.advantages, self.device)
            self.rollout_buffer.advantages = (self.rollout_buffer.advantages - mean) / (std + 1e-8)

        if self.normalize_value_targets and self.n_aux_epochs > 0:
            self._change_value_units()
        scales = self._scales()
        value_history: list[Epoch] = []
        loss_fn = self._joint_losses
        if self.n_value_epochs is not None:
            value_losses = partial(self._value_losses, scales=scales)
            value_history = self._policy_phase_epochs(self.n_value_epochs, value_losses, self.value_optimizer)
            loss_fn = self._policy_losses
        policy_losses = partial(loss_fn, scales=scales)
        history = self._policy_phase_epochs(self.n_epochs, policy_losses, self.policy.optimizer, self.target_kl)
        self._n_updates += len(history)
        self._log_policy_phase(history, value_history, scales)

    def _change_value_units(self) -> None:
        """
        Let both value heads work in standard deviations of the value targets, averaged over about ``N_π`` rollouts, as in
        Pop-Art. What their optimizers remember of gradients changes with the unit.

        The unit is at least one: targets that are small or constant, as before the first reward, are left as they are.
        """
        mean, std = moments(self.rollout_buffer.returns, self.device)
        if not np.isfinite(std):
            return  # the losses are not finite, and say so
        n_rollouts = 1 + self._n_updates // self.n_epochs  # which `learn` does not reset
        weight = 1 / min(n_rollouts, self.n_policy_iterations)  # at first, of all rollouts alike
        old_mean, old_std = self.policy.value_net.mean.item(), self.policy.value_net.std.item()
        shift = mean - old_mean
        variance = (1 - weight) * old_std**2 + weight * std**2 + weight * (1 - weight) * shift**2
        for head in (self.policy.value_net, self.policy.aux_value_net):
            factor = head.change_units(old_mean + weight * shift, max(variance**0.5, 1.0))
            for optimizer in (self.policy.optimizer, self.value_optimizer, self.aux_optimizer):
                rescale_moments(optimizer, head.parameters(), factor)

    def _policy_phase_epochs(
        self,
        n_epochs: int,
        loss_fn: Callable[[RolloutBufferSamples], Losses],
        optimizer: th.optim.Optimizer,
        target_kl: float | None = None,
    ) -> list[Epoch]:
        """Epochs over the latest rollout, in shuffled minibatches; fewer when ``target_kl`` is exceeded."""
        history: list[Epoch] = []
        micro_batch_size = self._micro_batch_size()
        for epoch in range(n_epochs):
            history.append(
                optimize_epoch(
                    "policy",
                    self.policy,
                    optimizer,
                    self._rollout_minibatches(),
                    loss_fn,
                    micro_batch_size,
                    self.max_grad_norm,
                    target_kl,
                )
            )
            if history[-1].stopped:
                if self.verbose >= 1:
                    print(f"Early stopping at step {epoch} due to reaching max kl")
                break
        return history

    def _rollout_minibatches(self) -> Iterator[RolloutBufferSamples]:
        """One epoch of the latest rollout: many small minibatches are gathered at once."""
        buffer = self.rollout_buffer
        at_once = 1
        if gathers_as_sb3(buffer):
            minibatch_bytes = n_bytes(buffer.observations) * self.batch_size / (buffer.buffer_size * buffer.n_envs)
            at_once = max(1, int(GATHERED_BYTES / minibatch_bytes))
        for samples in buffer.get(at_once * self.batch_size):
            yield from split(samples, self.batch_size)

    def _auxiliary_phase(self) -> None:
        """Optimise L^joint = L^aux + β_clone E[KL(π_old, π)], and L^value, for E_aux epochs on the rollouts of the phase."""
        start = time.perf_counter()
        n_sequences = self._aux_sequences_per_batch()
        micro_batch_size = self._micro_batch_size()
        events = AuxiliaryPhaseEvents(self._training_callback, self.aux_buffer.n_samples, self.n_aux_epochs)
        if self.verbose >= 1:
            print(f"Auxiliary phase: {self.n_aux_epochs} epochs over {self.aux_buffer.n_samples:,} samples")
        events.start()
        self.policy.set_training_mode(False)
        self.aux_buffer.record_old_policy(
            partial(self._distribution_parameters, micro_batch_size=micro_batch_size), n_sequences
        )

        self.policy.set_training_mode(True)
        learning_rate = self.aux_lr_schedule(self._current_progress_remaining)
        update_learning_rate(self.aux_optimizer, learning_rate)
        auxiliary_losses = partial(self._auxiliary_losses, value_unit=self.policy.value_unit)
        history: list[Epoch] = []
        for _ in range(self.n_aux_epochs):
            epoch = optimize_epoch(
                "auxiliary",
                self.policy,
                self.aux_optimizer,
                self.aux_buffer.minibatches(n_sequences),
                auxiliary_losses,
                micro_batch_size,
                self.max_grad_norm,
            )
            history.append(epoch)
            events.epoch_end(mean_losses([epoch]))
        self._n_aux_phases += 1
        for name, value in {**mean_losses(history), **self._outcome(n_sequences, micro_batch_size)}.items():
            self.logger.record(f"aux/{name}", value)
        self.logger.record("aux/learning_rate", learning_rate)
        self.logger.record("aux/n_phases", self._n_aux_phases)
        self.logger.record("aux/seconds", time.perf_counter() - start)
        events.end()

    @th.no_grad()
    def _outcome(self, n_sequences: int, micro_batch_size: int | None) -> dict[str, float]:
        """
        What an auxiliary phase has led to, from a part of its samples, evenly spread: KL(π_old, π), and the explained variance
        of both value heads; over all processes.
        """
        self.policy.set_training_mode(False)
        n_evaluated = min(self.aux_buffer.n_sequences, max(1, EVALUATED_SAMPLES // self.n_steps))
        order = np.linspace(0, self.aux_buffer.n_sequences - 1, n_evaluated).astype(int)
        kls, errors, targets = [], [], []
        with unvalidated_distributions():
            for _, batch in self.aux_buffer.batches(order, n_sequences):
                for part in split(batch, micro_batch_size):
                    distribution, aux_values, values = self._evaluate_auxiliary(part)
                    kls.append(losses.kl_divergence(distribution, part.old_parameters))
                    errors.append(part.value_targets - th.stack([values, aux_values]))
                    targets.append(part.value_targets)
        unexplained = th.cat(errors, dim=1).var(dim=1) / th.cat(targets).var()
        numbers = th.stack([th.cat(kls).mean(), *(1 - unexplained)])
        average_over_processes([numbers])
        self.policy.set_training_mode(True)
        return dict(zip(("final_kl", "explained_variance", "aux_explained_variance"), numbers.tolist(), strict=True))

    # ---- the losses of a minibatch ----

    def _joint_losses(self, batch: RolloutBufferSamples, scales: Scales) -> Losses:
        values, log_prob, entropy = self._evaluate_actions(batch)
        policy = self._surrogate(batch, log_prob, entropy, scales)
        value = self._value_error(batch, values, scales)
        return Losses(policy.total + value.total, {**policy.terms, **value.terms}, policy.log_ratio)

    def _policy_losses(self, batch: RolloutBufferSamples, scales: Scales) -> Losses:
        distribution = self._distribution(batch)
        return self._surrogate(batch, distribution.log_prob(self._taken_actions(batch)), distribution.entropy(), scales)

    def _value_losses(self, batch: RolloutBufferSamples, scales: Scales) -> Losses:
        return self._value_error(batch, self._values(batch), scales)

    def _surrogate(
        self, batch: RolloutBufferSamples, log_prob: th.Tensor, entropy: th.Tensor | None, scales: Scales
    ) -> Losses:
        surrogate = losses.policy_gradient_loss(log_prob, batch.old_log_prob, batch.advantages, scales.clip_range)
        terms = {"policy_gradient_loss": surrogate, "entropy_loss": losses.entropy_loss(entropy, log_prob)}
        total = terms["policy_gradient_loss"] + self.ent_coef * terms["entropy_loss"]
        if self.kl_coef > 0:
            terms["kl_penalty"] = losses.kl_penalty(log_prob, batch.old_log_prob)
            total = total + self.kl_coef * terms["kl_penalty"]
        return Losses(total, terms, log_prob.detach() - batch.old_log_prob)

    def _value_error(self, batch: RolloutBufferSamples, values: th.Tensor, scales: Scales) -> Losses:
        unit = scales.value_unit
        value_loss = losses.value_loss(
            values.flatten() / unit, batch.returns / unit, batch.old_values / unit, scales.clip_range_vf
        )
        return Losses(self.vf_coef * value_loss, {"value_loss": value_loss})

    def _auxiliary_losses(self, batch: AuxiliaryBatch, value_unit: float) -> Losses:
        distribution, aux_values, values = self._evaluate_auxiliary(batch)
        targets = batch.value_targets / value_unit
        terms = {
            "kl": losses.kl_divergence(distribution, batch.old_parameters).mean(),
            "aux_value_loss": losses.auxiliary_value_loss(aux_values / value_unit, targets),
            "value_loss": losses.auxiliary_value_loss(values / value_unit, targets),
        }
        total = losses.joint_loss(terms["aux_value_loss"], terms["kl"], terms["value_loss"], self.beta_clone)
        return Losses(total, terms)

    def _taken_actions(self, batch: RolloutBufferSamples) -> th.Tensor:
        # The rollout buffer gives every action as float, (B, action dimensions)
        return batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions

    @th.no_grad()
    @unvalidated_distributions()
    def _distribution_parameters(self, batch: AuxiliaryBatch, micro_batch_size: int | None = None) -> th.Tensor:
        """In the micro-batches of the epochs that follow, for rounding to be the same: KL(π_old, π) starts at zero."""
        parts = split(batch, micro_batch_size)
        return th.cat([losses.distribution_parameters(self._distribution(part)) for part in parts])

    # ---- what variants of the algorithm change: what the policy needs to know beside an observation ----

    def _act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """
        :param observations: the latest ones, (n_envs, ...)
        :param env: which gave them
        :return: actions, (n_envs, ...); V(s), (n_envs, 1); log π(a|s), (n_envs,); what else the rollout buffer's ``add`` takes
        """
        return *self.policy(observations), {}

    def _remember(self) -> None:
        """The step is over."""

    def _next_values(self, observations: PyTorchObs, episode_starts: np.ndarray, env: int | None = None) -> th.Tensor:
        """
        V of what follows the latest step.

        :param observations: (B, ...)
        :param episode_starts: whether they begin an episode, (B,)
        :param env: of which environment. None: of all
        :return: (B, 1)
        """
        return self.policy.predict_values(observations)

    def _context(self) -> dict[str, np.ndarray]:
        """
        What the auxiliary phase keeps of the latest rollout beside observations and value targets. (Of an empty rollout
        buffer: arrays of the same shapes and types.)

        :return: by name, (n_envs, n_steps, ...), or (n_envs, 1, ...) for what a sequence has once
        """
        return {}

    def _evaluate_actions(self, batch: RolloutBufferSamples) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """V(s), (B, 1); log π(a|s), (B,); H(π(.|s)), (B,)."""
        return self.policy.evaluate_actions(batch.observations, self._taken_actions(batch))

    def _distribution(self, batch: RolloutBufferSamples | AuxiliaryBatch) -> Distribution:
        """π(.|s)."""
        return self.policy.get_distribution(batch.observations)

    def _values(self, batch: RolloutBufferSamples) -> th.Tensor:
        """V(s), (B, 1)."""
        return self.policy.predict_values(batch.observations)

    def _evaluate_auxiliary(self, batch: AuxiliaryBatch) -> tuple[Distribution, th.Tensor, th.Tensor]:
        """π(.|s); the auxiliary head's value, (B,); V(s), (B,)."""
        return self.policy.evaluate_auxiliary(batch.observations)

    # ---- set-up ----

    def _setup_model(self) -> None:
        if self.rollout_buffer_class is None:
            self.rollout_buffer_class = self.rollout_buffer_classes[isinstance(self.observation_space, spaces.Dict)]
        super()._setup_model()
        self.policy.mixed_precision = self.mixed_precision
        # As PPO: schedules from here on
        self.clip_range = None if self.clip_range is None else FloatSchedule(self.clip_range)
        self.clip_range_vf = None if self.clip_range_vf is None else FloatSchedule(self.clip_range_vf)
        self.aux_lr_schedule = self.lr_schedule if self.aux_learning_rate is None else FloatSchedule(self.aux_learning_rate)
        # The policy's own optimizer is that of the policy (or joint) epochs
        self.value_optimizer = self.policy.make_optimizer(self.lr_schedule(1))
        self.aux_optimizer = self.policy.make_optimizer(self.aux_lr_schedule(1))
        self.aux_buffer = AuxBuffer(self.device, **(self.aux_buffer_kwargs or {}))
        check_policy(self)

    def _check_arguments(self) -> None:
        check_arguments(self)

    def _aux_sequences_per_batch(self) -> int:
        if self.aux_batch_size is None:
            return math.ceil(self.aux_buffer.n_sequences / 16)
        return self.aux_batch_size // self.n_steps

    def _micro_batch_size(self) -> int | None:
        if self.micro_batch_size != "auto":
            return self.micro_batch_size
        if self._fitting_micro_batch_size is None:  # asked once per training: the network stays as it is
            observation = obs_as_tensor(one_observation(self.rollout_buffer), self.device)
            self._fitting_micro_batch_size = (fitting_micro_batch_size(self.policy, observation),)
        return self._fitting_micro_batch_size[0]

    def _maybe_recommend_cpu(self, mlp_class_name: str = MlpPolicy.__name__) -> None:
        super()._maybe_recommend_cpu(mlp_class_name)

    # ---- learning, saving, logging ----

    def learn(
        self: SelfPPG,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfPPG:
        """
        As in SB3; ``tb_log_name`` is by default the algorithm's. Rollouts of a phase that ``total_timesteps`` leaves
        incomplete are used by the policy phase, and stay for the auxiliary phase of the next call.

        :raises ArgumentError: for attributes that cannot work together
        :raises NonFiniteError: if an observation, a reward, a loss or a gradient is NaN or infinite; callbacks are told that
            the training has ended
        :raises WorkerError: if the process of an environment has died; likewise
        """
        if self.env is None:
            raise ArgumentError("There is no environment to learn in: use `load(..., env=...)` or `set_env(...)` before")
        self._check_arguments()
        check_room(self, self.n_policy_iterations - len(self.aux_buffer))
        self._fitting_micro_batch_size = None
        if self.n_aux_epochs > 0 and self._n_stored_rollouts > len(self.aux_buffer):
            warnings.warn(
                f"This model was saved after {self._n_stored_rollouts} of the {self.n_policy_iterations} rollouts of a phase, "
                "without those rollouts: the phase starts over",
                stacklevel=2,
            )
            self._n_stored_rollouts = len(self.aux_buffer)
        tell_of_phases(self, total_timesteps)
        start_alike(self.policy, self._common_settings(total_timesteps), self.seed)
        if has_convolutions(self.policy) and self.device.type == "cpu":
            keep_freed_memory()
        try:
            with (
                missing_extras_named(),
                tensor_float_32(self.mixed_precision == "tf32"),
                workers_watched(self.env),
                statistics_guarded(self.env),
            ):
                name = tb_log_name or type(self).__name__
                super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
                if log_interval is not None and self.logger.name_to_value:
                    self.dump_logs()  # SB3 writes before each update: what the last one has recorded
                return self
        except (NonFiniteError, WorkerError) as error:
            if isinstance(error, NonFiniteEnvironmentError):
                self._last_obs = None  # the environments have moved on: they start anew
            if self._training_callback is not None:
                self._training_callback.on_training_end()  # checkpoints are saved, files closed
            raise
        finally:
            self._training_callback = None

    def save(
        self, path: str | Path | io.BufferedIOBase, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """
        As in SB3. A file takes the place of the one before it when it is complete. ``save_aux_buffer`` saves the rest.

        :param path: of the zip file (".zip" is added to a name without suffix), or a stream
        :param exclude: names of attributes that are not saved
        :param include: names of attributes that are saved in spite of being excluded by default
        :raises OSError: if it cannot be written; the file that was there is left as it was
        """
        with marked(self):
            if not isinstance(path, (str, Path)):
                super().save(path, exclude, include)
                return
            path = Path(path)
            with replaced(path if path.suffix else path.with_name(f"{path.name}.zip")) as temporary:
                super().save(temporary, exclude, include)

    @classmethod
    def load(cls: type[SelfPPG], path: str | Path | io.BufferedIOBase, *args: Any, **kwargs: Any) -> SelfPPG:
        """
        As in SB3, but the global random generators are as they were, unless the keyword argument ``seed`` asks for another.

        :param path: of the zip file, or a stream
        :raises FileNotFoundError: if there is none
        :raises ModelFormatError: if the file is damaged, another class's or a newer version's
        """
        with checked_model_file(path, cls) as file, nullcontext() if "seed" in kwargs else generators_kept():
            model = super().load(file, *args, **kwargs)
        unmark(model)
        return model

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        As in SB3, but all or nothing: after an error the parameters are as they were.

        :raises ModelFormatError: if a file is damaged, another class's or a newer version's
        """
        if not isinstance(load_path_or_dict, dict):
            with checked_model_file(load_path_or_dict, type(self)) as file:
                load_path_or_dict = load_from_zip_file(file, load_data=False, device=device)[1]
        before: Any = copy.deepcopy(self.get_parameters())
        try:
            super().set_parameters(load_path_or_dict, exact_match, device)
        except Exception:
            super().set_parameters(before)
            raise

    def save_aux_buffer(self, path: str | Path) -> None:
        """
        Save what a training in progress has beside its model, for ``load_aux_buffer`` and an exact resume: the rollouts of
        the phase, ``VecNormalize``'s statistics, and the states of Python's, NumPy's and torch's global generators.

        Call it together with ``save``, outside of a rollout; ``PhasicCheckpointCallback`` does both.

        :param path: of the file, an npz of NumPy's without pickle; by convention ``aux_buffer_path(path of the model)``
        :raises OSError: if it cannot be written; the file that was there is left as it was
        :raises NonFiniteError: if a number of this state, or of the model's, is NaN or infinite; likewise
        """
        save_training_state(self, Path(path))

    def load_aux_buffer(self, path: str | Path) -> None:
        """
        Go on where ``save_aux_buffer`` was called: ``learn(..., reset_num_timesteps=False)`` is then that of a training which
        was not interrupted, but for the environments, which start new episodes.

        :param path: of the file
        :raises FileNotFoundError: if there is none
        :raises ArgumentError: if the machine cannot hold the rollouts
        :raises ModelFormatError: if the file is damaged, too new, or another model's; nothing is changed then
        """
        load_training_state(self, Path(path))

    def _is_context(self, context: dict[str, np.ndarray]) -> bool:
        """
        :param context: of a rollout, from a file: finite numbers in the shapes and types of ``_context``
        :return: whether a rollout can have it
        """
        return True

    def _common_settings(self, total_timesteps: int) -> dict[str, Any]:
        """What several processes have to agree on, for their gradients to meet."""
        names = [
            *("n_envs", "n_steps", "batch_size", "n_epochs", "n_value_epochs", "n_policy_iterations", "n_aux_epochs"),
            *("aux_batch_size", "normalize_advantage", "normalize_value_targets", "target_kl"),
        ]
        return {"total_timesteps": total_timesteps, **{name: getattr(self, name) for name in names}}

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # The last rollout may overshoot the budget, where a linear schedule would be negative
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def _scales(self) -> Scales:
        return Scales(self._now(self.clip_range), self._now(self.clip_range_vf), self.policy.value_unit)

    def _now(self, schedule: float | Schedule | None) -> float | None:
        """The present value of a clip range; a plain number if somebody has set the attribute to one."""
        return schedule(self._current_progress_remaining) if callable(schedule) else schedule

    def _log_policy_phase(self, history: list[Epoch], value_history: list[Epoch], scales: Scales) -> None:
        """Under PPO's names: means over samples and epochs, but ``approx_kl`` of the last epoch, ``loss`` of the last step."""
        means = {**(mean_losses(value_history) if value_history else {}), **mean_losses(history)}
        means["loss"] = float(history[-1].losses["loss"][-1])
        for name, value in {**means, **self._diagnostics([epoch.log_ratio for epoch in history], scales)}.items():
            self.logger.record(f"train/{name}", value)
        self.logger.record(
            "train/explained_variance",
            explained_variance(self.rollout_buffer.values.flatten(), self.rollout_buffer.returns.flatten()),
        )
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", th.exp(self.policy.log_std).mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, scale in scales._asdict().items():
            if scale is not None:
                self.logger.record(f"train/{name}", scale)

    def _diagnostics(self, log_ratios: list[th.Tensor], scales: Scales) -> dict[str, float]:
        """How far the policy has moved, from the log-ratios of each epoch; over all processes."""
        diagnostics = {"approx_kl": losses.approximate_kl(log_ratios[-1])}
        if scales.clip_range is not None:
            diagnostics["clip_fraction"] = losses.clip_fraction(th.cat(log_ratios), scales.clip_range)
        average_over_processes(list(diagnostics.values()))
        return {name: value.item() for name, value in diagnostics.items()}

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "aux_buffer", "_training_callback", "_fitting_micro_batch_size"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "value_optimizer", "aux_optimizer"], []
