"""Phasic Policy Gradient: Algorithm 1 of https://arxiv.org/abs/2009.04416 on Stable-Baselines3."""

import copy
import io
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, PyTorchObs, RolloutBufferSamples, Schedule, TensorDict
from stable_baselines3.common.utils import FloatSchedule, obs_as_tensor, update_learning_rate
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import NESTED, NestedActions, by_leaf, flat_space
from sb3_ppg.arguments import (
    FINITE,
    arguments_explained,
    check_arguments,
    check_value,
    made_from,
    require,
    warn_of_missing_gpu,
)
from sb3_ppg.buffers.aux_buffer import AuxBuffer, AuxiliaryBatch
from sb3_ppg.buffers.checks import (
    check_auxiliary_batches,
    check_replay,
    check_rollout_buffer_class,
    check_samples,
    check_vector_rewards,
    has_single_samples,
)
from sb3_ppg.buffers.nested import map_arrays
from sb3_ppg.buffers.protocol import has_usual_samples
from sb3_ppg.buffers.replay import KINDS, Kind, Rollout, RolloutReplay, full_like
from sb3_ppg.buffers.rollouts import RolloutEnd, one_observation, samples, store_floats
from sb3_ppg.buffers.vector_rewards import (
    TARGETS,
    component_context,
    component_samples,
    component_summary,
    with_vector_rewards,
)
from sb3_ppg.callbacks import tell, without_rank_zero_callbacks
from sb3_ppg.distributed.agreement import agreed
from sb3_ppg.distributed.collectives import average_batch_statistics, n_processes, rank
from sb3_ppg.environments.gymnasium_vec_env import GymnasiumVecEnv
from sb3_ppg.environments.vector_rewards import RewardReader, mean_vector_return, tell_weights, with_scalar_reward
from sb3_ppg.environments.watched import check_first_observations, innermost, normalizers, statistics_protected
from sb3_ppg.errors import ArgumentError, warn
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients, Objective, find_objective, make_objective, objective_name, targets_of
from sb3_ppg.offline.warm_start import fit_to_data
from sb3_ppg.optim.compiled import CompiledTraining, tracing
from sb3_ppg.optim.diagnostics import auxiliary_outcome, leaf_summary, policy_phase_summary
from sb3_ppg.optim.epoch import Epoch, mean_losses, optimize_epoch
from sb3_ppg.optim.micro_batches import fitting_micro_batch_size, looks_at_the_batch, split
from sb3_ppg.optim.precision import unvalidated_distributions
from sb3_ppg.optim.value_units import change_value_units, set_value_units
from sb3_ppg.play import Player
from sb3_ppg.policies import CnnPolicy, MixedPrecision, MlpPolicy, MultiInputPolicy, PhasicActorCriticPolicy, VectorValueHead
from sb3_ppg.saving.files import atomic_write
from sb3_ppg.saving.generators import generators_kept
from sb3_ppg.saving.model_file import checked_model_file, mark_class
from sb3_ppg.saving.training_state import load_training_state, save_training_state
from sb3_ppg.training.collecting import check_log_probs, finish_rollout, recompute_advantages, take_steps
from sb3_ppg.training.session import Session, training

WRITTEN = ("stdout", "log", "json", "csv", "tensorboard")  # SB3's names of all outputs of a log
# The number of samples, about, on which the outcome of an auxiliary phase, and the leaves of nested actions, are evaluated
EVALUATED_SAMPLES = 4096


class PPG(OnPolicyAlgorithm):
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

    With several processes (``torchrun``, and ``process_group`` around the training), all train one policy with the same
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
    :param aux_learning_rate: The learning rate of the auxiliary phase, it can be a function of the current progress remaining.
        None: the same as ``learning_rate``
    :param value_learning_rate: The learning rate of the value epochs (``n_value_epochs``), it can be a function of the current
        progress remaining. None: the same as ``learning_rate``
    :param n_value_epochs: E_V, the number of epochs on the value loss alone, before the policy epochs and with their own
        optimizer. None: the policy and value losses are summed, and share E_π epochs and one optimizer
    :param n_policy_iterations: N_π, the number of rollouts per phase
    :param n_aux_epochs: E_aux, the number of epochs of the auxiliary phase. 0: no auxiliary phase, and no rollouts are stored
        for it
    :param aux_batch_size: The largest minibatch of the auxiliary phase, in samples. A multiple of ``n_steps``: minibatches of
        whole sequences (a sequence is one environment's part of one rollout), spread evenly over the minibatches. Less than
        ``n_steps``, for policies without memory: minibatches of single samples (those of DNA always are). None: a sixteenth of
        a rollout, as in the paper (with memory, of a phase), but at least ``batch_size``; with memory, and from ``n_steps``
        on, rounded up to whole sequences
    :param beta_clone: β_clone, the weight of the KL term of the auxiliary phase
    :param kl_coef: Weight of the KL penalty 1/2 (log π - log π_old)², which replaces clipping in the paper's KL variant
    :param normalize_value_targets: Whether value heads predict in value units, and both phases measure value errors in them.
        The unit is the standard deviation of the value targets, averaged over about ``n_policy_iterations`` rollouts, and at
        least 1, as in Pop-Art (https://arxiv.org/abs/1602.07714). The effect of β_clone, ``vf_coef`` and ``max_grad_norm``
        then does not depend on the scale of the rewards; without value units, the paper's losses ruin the policy with raw
        rewards such as CartPole's. "running": the unit is that of the targets of all rollouts so far, as in DI-engine's value
        normalization. False: the paper's losses, which are made for normalized rewards. It has no effect without an auxiliary
        phase
    :param recompute_advantages: Whether to recompute advantages and value targets with the current value function before each
        epoch on a rollout except the first, as in PPOxFamily's course. The policy that clipping refers to does not change, nor
        do the values that were added to rewards at time limits
    :param replay_kwargs: Which rollouts the epochs of the policy phase use, and how often, see ``RolloutReplay``.
        ``dict(policy_rollouts=4)``: the last four. Advantages and value targets of older rollouts are recomputed before an
        update; ``objective="decoupled"``, or "ewma", corrects for their age. None: only the latest rollout
    :param micro_batch_size: The largest number of samples in one forward pass. Gradients of a larger minibatch are accumulated
        over several passes: the optimizer step is the same, and needs less memory. "auto": a size that is fast, see
        ``fitting_micro_batch_size``. None: whole minibatches
    :param compile_updates: Whether torch compiles the optimizer steps of both phases, which takes half a minute or more the
        first time on a machine, and makes training of small networks about twice as fast; docs/guides/speed.md says what is
        not compiled. "auto": only if the run is long enough to gain from it
    :param mixed_precision: "bf16": the features extractor computes in bfloat16; weights, heads, losses and optimizers stay
        float32. It is faster on hardware that multiplies bfloat16 (AVX-512 BF16, AMX, GPUs). "tf32": matrix products in
        TensorFloat-32, on NVIDIA GPUs. None: float32
    :param objective: The losses that the epochs minimize: "ppg", the paper's; "decoupled", "ewma", "dcpg", "ddcpg", "daac",
        "idaac" or "dna", those of its relatives; or a class derived from ``sb3_ppg.objectives.Objective``
    :param objective_kwargs: Keyword arguments to pass to the objective on creation
    :param aux_buffer_kwargs: Keyword arguments to pass to the auxiliary buffer on creation.
        ``dict(storage="mmap", path=folder)`` keeps the observations of a phase on disk, see ``AuxBuffer``
    :param allow_nonfinite_observations: Whether the features extractor can handle observations that are NaN or infinite, such
        as padding. False: they end the training with an error that names the environment and the step
    :param ignore_terminations: Whether to bootstrap every end of an episode with γ V(last observation), as at a time limit,
        like DI-engine's ``ignore_done``. For environments that report time limits as terminations. Wrong if episodes can end
        with a failure or at a goal
    :param reward_weights: A weight for each component of vector rewards, as in MO-Gymnasium. Both value heads then have one
        value per component, and the weights combine the advantages; ``gamma`` and ``gae_lambda`` may be lists. "observation":
        the weights are the entry "weights" of the observations, see ``DrawnWeights``, so that one policy is trained for all
        weights. None: rewards are scalar
    :raises ArgumentError: (a ``ValueError``) if arguments cannot work, alone or together
    :raises TypeError: for an unknown argument
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    # For arrays and for dictionaries of observations: the default buffers, and the base classes of a user's own
    rollout_buffer_classes: ClassVar[tuple[type[RolloutBuffer], type[DictRolloutBuffer]]] = (RolloutBuffer, DictRolloutBuffer)
    action_spaces: ClassVar[tuple[type[spaces.Space], ...]] = (
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
        *NESTED,
    )
    has_memory: ClassVar[bool] = False  # whether the policy needs earlier samples of an episode to evaluate one
    policy: PhasicActorCriticPolicy
    value_optimizer: th.optim.Optimizer
    aux_optimizer: th.optim.Optimizer
    objective: Objective
    aux_buffer: AuxBuffer
    replay: RolloutReplay
    rollout_end: RolloutEnd | None = None  # what follows the latest rollout
    session: Session | None = None  # while `learn` runs
    max_grad_norm: float | None  # type: ignore[assignment]
    ent_coef: Any
    _checkpoint: list[Any] | None = None  # the latest of PhasicCheckpointCallback: its run, and when it was written
    _fitting_micro_batch_size: tuple[int | None] | None = None  # None until it is known

    @arguments_explained
    def __init__(
        self,
        policy: str | type[PhasicActorCriticPolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 1024,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float | list[float] = 0.99,
        gae_lambda: float | list[float] = 0.95,
        clip_range: float | Schedule | None = 0.3,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float | dict[str, Any] | Sequence[Any] = 0.0,
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
        value_learning_rate: float | Schedule | None = None,
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
        compile_updates: bool | Literal["auto"] = "auto",
        mixed_precision: MixedPrecision | None = None,
        objective: str | type[Objective] = "ppg",
        objective_kwargs: dict[str, Any] | None = None,
        aux_buffer_kwargs: dict[str, Any] | None = None,
        allow_nonfinite_observations: bool = False,
        ignore_terminations: bool = False,
        reward_weights: list[float] | Literal["observation"] | None = None,
    ):
        _check_policy_class(policy, type(self))
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,  # type: ignore[arg-type]
            gae_lambda=gae_lambda,  # type: ignore[arg-type]
            ent_coef=ent_coef,  # type: ignore[arg-type]
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,  # type: ignore[arg-type]
            use_sde=False,  # set below, and checked by `check_arguments`, whose message says more than SB3's
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
        self.value_learning_rate = value_learning_rate
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
        self.compile_updates = compile_updates
        self.mixed_precision = mixed_precision
        self.objective_class = find_objective(objective)
        self.objective_kwargs = objective_kwargs
        self.aux_buffer_kwargs = aux_buffer_kwargs
        self.allow_nonfinite_observations = allow_nonfinite_observations
        self.ignore_terminations = ignore_terminations
        self.reward_weights = reward_weights

        warn_of_missing_gpu(device, self.device)
        self._n_aux_phases = 0
        self._n_rollouts = 0  # that have been learned from
        self._n_stored_rollouts = 0  # in the auxiliary buffer, except in a model that was loaded without it
        self._n_replayed_rollouts = 0  # in the replay, except in a model that was loaded without it
        if self.env is not None:
            self.check_arguments()
            self._warn_of_unlikely_arguments()
        if _init_setup_model:
            self._setup_model()
            if self.env is not None:
                check_auxiliary_batches(self, self.n_envs)

    @staticmethod
    def _wrap_env(env: GymEnv | VectorEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """Take vector environments of Gymnasium, and environments with vector rewards, too; see SB3's method."""
        venv: Any = GymnasiumVecEnv(env) if isinstance(env, VectorEnv) else with_scalar_reward(env)
        return OnPolicyAlgorithm._wrap_env(venv, verbose, monitor_wrapper)

    def _setup_model(self) -> None:
        if self.rollout_buffer_class is None:
            self.rollout_buffer_class = self.rollout_buffer_classes[isinstance(self.observation_space, spaces.Dict)]
        # As SB3's method, with other spaces, classes and arguments
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        buffer_class, buffer_kwargs, policy_kwargs = with_vector_rewards(self)
        self.rollout_buffer = buffer_class(
            self.n_steps,
            self.observation_space,
            flat_space(self.action_space),
            device=self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
            **buffer_kwargs,
        )
        policy: Any = self.policy_class
        self.policy = policy(
            self.observation_space, self.action_space, self.lr_schedule, use_sde=self.use_sde, **policy_kwargs
        ).to(self.device)
        self._maybe_recommend_cpu()
        self._reward_reader = None if self.n_reward_components is None else RewardReader(self.n_reward_components)
        store_floats(self.rollout_buffer, self.env)
        check_samples(self)
        self.policy.mixed_precision = self.mixed_precision
        # Schedules from here on, as in PPO
        self.clip_range = None if self.clip_range is None else FloatSchedule(self.clip_range)
        self.clip_range_vf = None if self.clip_range_vf is None else FloatSchedule(self.clip_range_vf)
        self.objective = make_objective(self.objective_class, self.policy, self.objective_kwargs).to(self.device)
        trained = [*self.policy.parameters(), *self.objective.trained_with_policy()]
        # The policy's own optimizer is the one of the policy (or joint) epochs
        if self.objective.trained_with_policy():
            self.policy.optimizer = self.policy.make_optimizer(self.lr_schedule(1), trained)
        self.value_optimizer = self.policy.make_optimizer(self.value_lr_schedule(1))
        self.aux_optimizer = self.policy.make_optimizer(self.aux_lr_schedule(1), trained)
        self.aux_buffer = made_from("aux_buffer_kwargs", self.aux_buffer_kwargs, AuxBuffer, self.device)
        self.replay = made_from("replay_kwargs", self.replay_kwargs, RolloutReplay)
        self._check_policy()
        self._check_objective()
        self._tell_weights()

    @property
    def aux_lr_schedule(self) -> Schedule:
        """Schedule of the auxiliary phase's learning rate; by default the policy phase's learning rate."""
        return self.lr_schedule if self.aux_learning_rate is None else FloatSchedule(self.aux_learning_rate)

    @property
    def value_lr_schedule(self) -> Schedule:
        """Schedule of the value epochs' learning rate; by default the policy phase's learning rate."""
        return self.lr_schedule if self.value_learning_rate is None else FloatSchedule(self.value_learning_rate)

    @property
    def n_reward_components(self) -> int | None:
        """K, the number of components of vector rewards; None for scalar rewards."""
        if self.reward_weights == "observation":
            return self.observation_space["weights"].shape[0]  # type: ignore[index]
        return None if self.reward_weights is None else len(self.reward_weights)

    @property
    def n_aux_phases(self) -> int:
        """Number of auxiliary phases so far."""
        return self._n_aux_phases

    # ---- Algorithm 1 ----

    def train(self) -> None:
        """
        Train on the latest rollout: run the policy phase's update and, after every N_π rollouts, the auxiliary phase.

        :raises NonFiniteLossError: if a loss is NaN or infinite
        """
        start = time.perf_counter()
        try:
            self.policy_phase()
        except BaseException:  # Ctrl-C included: nothing has been learned from the rollout
            self.replay.forget(self.rollout_buffer)
            raise
        finally:
            self._n_replayed_rollouts = self.replay.n_stored
        try:
            if self.n_aux_epochs > 0:
                self._store_rollout()
        finally:
            self.replay.keep_latest()
        self.rollout_end = None  # the next rollout has another
        average_batch_statistics([self.policy, self.objective])
        self.logger.record("time/update_seconds", time.perf_counter() - start)

    def policy_phase(self) -> None:
        """Optimize L^clip and the entropy bonus for E_π epochs, and L^value for E_V epochs, on the latest rollouts."""
        self.policy.set_training_mode(True)
        objective, adversary = self.objective, None
        optimizers = {"policy": self.policy.optimizer, "value": self.value_optimizer}
        self._update_learning_rate([*optimizers.values()])
        if self.value_learning_rate is not None:
            learning_rate = self.value_lr_schedule(self._current_progress_remaining)
            update_learning_rate(self.value_optimizer, learning_rate)
            self.logger.record("train/value_learning_rate", learning_rate)
        plan = self._plan()
        self._prepare_rollouts([kind for kind, *_ in plan])
        coefficients = self.coefficients()
        if objective.adversary_optimizer is not None:
            self._update_learning_rate(objective.adversary_optimizer)
            of_adversary = partial(self.minibatch_losses, objective.adversary_losses, coefficients)
            adversary = (objective.adversary_optimizer, of_adversary)
        after_step = partial(objective.after_policy_step, self.policy)
        of_policy: dict[str, Any] = dict(target_kl=self.target_kl, after_step=after_step, adversary=adversary)
        history: dict[Kind, list[Epoch]] = {kind: [] for kind in KINDS}
        for kind, losses, n_epochs, batch_size in plan:
            compiled = self.compiled_training.begin_update(kind, losses, optimizers[kind], coefficients)
            for _ in range(n_epochs):
                due = self.replay.due(kind)
                if not due:
                    break
                if self.recompute_advantages and any(history.values()):
                    for rollout in due:
                        recompute_advantages(self, rollout.buffer, rollout.end)  # type: ignore[arg-type] # collected here
                epoch = optimize_epoch(
                    "policy",
                    [self.policy, objective],
                    optimizers[kind],
                    self.replay.epoch(kind, batch_size),
                    partial(self.minibatch_losses, losses, coefficients),
                    self.resolved_micro_batch_size(),
                    self.max_grad_norm,
                    compiled=compiled,
                    **(of_policy if kind == "policy" else {}),
                )
                history[kind].append(epoch)
                if epoch.stopped:
                    if self.verbose >= 1:
                        print(f"Early stopping at step {len(history[kind]) - 1} due to reaching max kl")
                    break
        self._n_updates += len(history["policy"])
        self._log_policy_phase(history, coefficients)

    def _plan(self) -> list[tuple[Kind, Callable[..., Losses], int, int]]:
        """Return the kinds of epochs in their order, each with its losses, number of epochs, and samples in a minibatch."""
        objective = self.objective
        if self.n_value_epochs is None:
            return [("policy", objective.joint_losses, self.n_epochs, self.batch_size)]
        n_value_epochs, value_batch_size = objective.n_value_epochs(self.n_value_epochs), objective.value_batch_size
        plan: list[tuple[Kind, Callable[..., Losses], int, int]] = [
            ("value", objective.value_losses, n_value_epochs, value_batch_size or self.batch_size),
            ("policy", objective.policy_losses, self.n_epochs, self.batch_size),
        ]
        return plan if objective.values_first else plan[::-1]

    def _prepare_rollouts(self, kinds: list[Kind]) -> None:
        """Compute what the epochs need of the latest rollout and of older ones that they use again."""
        objective, buffer = self.objective, self.rollout_buffer
        end: Any = self.rollout_end  # None for rollouts from elsewhere
        if end is None and (objective.needs_rollout_end or self.replay.capacity > 1 or self.recompute_advantages):
            raise ArgumentError(
                f"`objective`={objective_name(type(objective))!r}, `replay_kwargs` or `recompute_advantages` as they are need "
                f"the end of the rollout, which `{type(self).__name__}.collect_rollouts` has not stored: set "
                "`self.rollout_end` to a sb3_ppg.buffers.rollouts.RolloutEnd there"
            )
        buffer.returns = objective.value_targets(buffer, end)
        if self.normalize_advantage:
            buffer.advantages = objective.normalized_advantages(buffer.advantages, self.device)
        self._n_rollouts += 1
        self._update_value_units()
        self.replay.add(buffer, end)
        older = self.replay.older(kinds)
        for rollout in older:
            recompute_advantages(self, rollout.buffer, rollout.end)  # type: ignore[arg-type] # collected here
        if self.replay.capacity > 1:
            self.logger.record("train/older_rollouts", len(older))
        objective.before_policy_phase(self.policy)
        for rollout in [*older, self.replay.rollouts[-1]]:
            extras = objective.extras(self.policy, rollout.buffer, rollout.end)  # type: ignore[arg-type]
            rollout.extras = {**component_samples(rollout.buffer), **extras}

    def _update_value_units(self) -> None:
        """Measure values in the unit of the latest value targets; if this has been turned off, in that of the return again."""
        optimizers = (self.policy.optimizer, self.value_optimizer, self.aux_optimizer)
        if self.normalize_value_targets and self.n_aux_epochs > 0:
            n_averaged = self._n_rollouts if self.normalize_value_targets == "running" else self.n_policy_iterations
            weight = 1 / min(self._n_rollouts, n_averaged)  # at first all rollouts weigh the same
            targets = component_samples(self.rollout_buffer).get(TARGETS, self.rollout_buffer.returns)
            change_value_units(self.policy, optimizers, targets, weight)
        elif self.policy.value_unit != 1.0:
            set_value_units(self.policy, optimizers, 0.0, 1.0)

    def _store_rollout(self) -> None:
        """Store the rollout for the auxiliary phase, and run this phase once all its rollouts are stored."""
        self.aux_buffer.add(self.rollout_buffer, self.aux_data())
        self._n_stored_rollouts = len(self.aux_buffer)
        self.logger.record("time/phase_position", self.aux_buffer.n_new / self.n_policy_iterations)
        if self.aux_buffer.n_new < self.n_policy_iterations:
            return
        try:
            if self.objective.is_due(self.num_timesteps - self.n_steps * self.n_envs * n_processes()):
                self.auxiliary_phase()
        finally:  # after an error, too, the next phase waits for new rollouts
            self.aux_buffer.end_phase()
            self._n_stored_rollouts = len(self.aux_buffer)

    def auxiliary_phase(self) -> None:
        """Optimize L^joint = L^aux + β_clone E[KL(π_old, π)], and L^value, for E_aux epochs on the rollouts of the phase."""
        start = time.perf_counter()
        self.aux_buffer.single_samples = has_single_samples(self, self.aux_samples_per_batch())
        n_sequences = self._aux_sequences_per_batch()
        n_samples, callback = self.aux_buffer.n_samples, None if self.session is None else self.session.callback
        report = partial(tell, callback, n_samples=n_samples, n_aux_epochs=self.n_aux_epochs)
        if self.verbose >= 1:
            print(f"Auxiliary phase: {self.n_aux_epochs} epochs over {n_samples:,} samples")
        report("on_aux_phase_start", epoch=0)
        self.policy.set_training_mode(False)
        self.aux_buffer.record(self.recorded, n_sequences)

        learning_rate = self.aux_lr_schedule(self._current_progress_remaining)
        update_learning_rate(self.aux_optimizer, learning_rate)
        objective_losses, coefficients = self.objective.auxiliary_losses, self.coefficients()
        losses = partial(self.minibatch_losses, objective_losses, coefficients)
        compiled = self.compiled_training.begin_update("auxiliary", objective_losses, self.aux_optimizer, coefficients)
        history: list[Epoch] = []
        for _ in range(self.n_aux_epochs):
            self.policy.set_training_mode(True)  # a callback may have evaluated the policy
            epoch = optimize_epoch(
                "auxiliary",
                [self.policy, self.objective],
                self.aux_optimizer,
                self.aux_buffer.minibatches(n_sequences),
                losses,
                self.resolved_micro_batch_size(),
                self.max_grad_norm,
                compiled=compiled,
            )
            history.append(epoch)
            report("on_aux_epoch_end", epoch=len(history), losses=mean_losses([epoch]))
        self.objective.after_auxiliary_phase(self.policy)
        self._n_aux_phases += 1
        self._record("aux", {**mean_losses(history), **self._outcome(n_sequences), "learning_rate": learning_rate})
        self._record("aux", {"n_phases": self._n_aux_phases, "seconds": time.perf_counter() - start})
        report("on_aux_phase_end", epoch=len(history))

    @th.no_grad()
    @unvalidated_distributions()
    def recorded(self, batch: AuxiliaryBatch) -> th.Tensor:
        """
        Compute the data that the auxiliary losses refer to, such as π_old, before the epochs. The micro-batches are the same
        as in the epochs, so that rounding is the same and KL(π_old, π) starts at zero.

        :param batch: B samples of the phase
        :return: the parameters of π_old(.|s), or other data that the objective records, (B, P)
        """
        inputs = map(self.network_inputs, split(batch, self.resolved_micro_batch_size()))
        return th.cat([self.objective.recorded(self.policy, part) for part in inputs])

    def _outcome(self, n_sequences: int) -> dict[str, float]:
        """Evaluate an auxiliary phase on an evenly spread part of its samples."""
        self.policy.set_training_mode(False)
        some = self.aux_buffer.evenly_spread(max(1, EVALUATED_SAMPLES // self.aux_buffer.sequence_length))
        batches = (batch for _, batch in self.aux_buffer.batches(some, n_sequences))
        parts = (part for batch in batches for part in split(batch, self.resolved_micro_batch_size()))
        evaluated = ((self.network_inputs(part), targets_of(part), part.recorded) for part in parts)
        outcome = auxiliary_outcome(self.policy, self.objective.kl_to_recorded, evaluated)
        self.policy.set_training_mode(True)
        return outcome

    # ---- sizes and coefficients ----

    def coefficients(self) -> Coefficients:
        """
        :return: the current coefficients of the losses, with schedules evaluated
        """
        clip_range, clip_range_vf = (
            schedule(self._current_progress_remaining) if callable(schedule) else schedule
            for schedule in (self.clip_range, self.clip_range_vf)
        )
        return Coefficients(
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            value_unit=self.policy.value_unit,
            ent_coef=self.policy.actions.weigh_entropy(self.ent_coef, self.device),
            vf_coef=self.vf_coef,
            kl_coef=self.kl_coef or None,
            beta_clone=self.beta_clone,
        )

    def minibatch_losses(self, losses: Callable[..., Losses], coefficients: Coefficients, batch: Any) -> Losses:
        """
        :param losses: method of the objective
        :param coefficients: weights of the terms
        :param batch: samples of a rollout, or of the auxiliary phase
        :return: their losses
        """
        return losses(self.policy, self.network_inputs(batch), batch, coefficients)

    def aux_samples_per_batch(self) -> int:
        """
        :return: number of samples in an auxiliary minibatch: by default a sixteenth of a rollout (with memory, of a phase,
            because samples of a sequence are similar), but at least ``batch_size``
        """
        n_samples = self.aux_buffer.n_samples if self.has_memory else self.n_steps * self.n_envs
        return self.aux_batch_size or max(math.ceil(n_samples / 16), self.batch_size)

    def _aux_sequences_per_batch(self) -> int:
        return math.ceil(self.aux_samples_per_batch() / self.aux_buffer.sequence_length)

    def resolved_micro_batch_size(self) -> int | None:
        """
        :return: the largest number of samples in one forward pass; None for whole minibatches
        """
        if self.micro_batch_size != "auto":
            return self.micro_batch_size
        if self.objective.needs_whole_minibatches:
            return None
        if self._fitting_micro_batch_size is None:  # once per training: the network stays as it is
            observation = obs_as_tensor(one_observation(self.rollout_buffer), self.device)
            self._fitting_micro_batch_size = (fitting_micro_batch_size(self.policy, observation),)
        return self._fitting_micro_batch_size[0]

    # ---- logs ----

    def _record(self, group: str, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.logger.record(f"{group}/{name}", value)

    def _log_policy_phase(self, history: dict[Kind, list[Epoch]], coefficients: Coefficients) -> None:
        if not history["policy"]:
            return  # all rollouts are too new, or used up
        clip_range = coefficients.clip_range
        summary = policy_phase_summary(self.policy, self.rollout_buffer, history["policy"], history["value"], clip_range)
        self._record("train", summary)
        if isinstance(self.policy.actions, NestedActions):
            for name, value in self._leaf_summary().items():
                self.logger.record(f"train/{name}", value, exclude=("stdout", "log"))  # which cut long names off
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        scales = {name: getattr(coefficients, name) for name in ("clip_range", "clip_range_vf", "value_unit")}
        self._record("train", {name: value for name, value in scales.items() if value is not None})
        self._record("train", component_summary(self.rollout_buffer, self.policy))

    def _leaf_summary(self) -> dict[str, float]:
        """Evaluate the leaves of nested actions on an evenly spread part of the rollout."""
        stride = math.ceil(self.n_steps * self.n_envs / EVALUATED_SAMPLES)
        some = samples(self.rollout_buffer, self.batch_size, lambda n: np.arange(0, n, stride))
        parts = (part for _, batch in some for part in split(batch, self.resolved_micro_batch_size()))
        self.policy.set_training_mode(False)
        summary = leaf_summary(self.policy, ((self.network_inputs(part), part.actions) for part in parts))
        self.policy.set_training_mode(True)
        return summary

    # ---- hooks: what memory, masks and the like override ----

    def act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """
        Choose actions while a rollout is collected.

        :param observations: the latest observations, (n_envs, ...)
        :param env: the environments
        :return: actions, (n_envs, ...); V(s), (n_envs, 1); log π(a|s), (n_envs,); further arguments of the rollout buffer's
            ``add``
        """
        acting_policy = None if self.session is None else self.session.acting_policy
        return *(acting_policy or self.policy)(observations), {}

    def after_environment_step(self) -> None:
        """Update the model after an environment step, unless a callback has stopped the training."""

    def vector_reader(self) -> Callable[[np.ndarray, list[dict[str, Any]]], np.ndarray] | None:
        """
        :return: reader of vector rewards, which gets the infos of each step of the next rollout; None for scalar rewards
        """
        if self._reward_reader is None:
            return None
        self._reward_reader.begin(self._last_episode_starts)  # type: ignore[arg-type] # set when training starts
        return self._reward_reader.read

    def next_values(
        self, observations: PyTorchObs, episode_starts: np.ndarray, env: int | None = None, memory: np.ndarray | None = None
    ) -> th.Tensor:
        """
        Compute the values of the observations after the latest step.

        :param observations: (B, ...)
        :param episode_starts: whether they begin an episode, (B,)
        :param env: index of the environment that the observations are from. None: they are from all environments
        :param memory: from ``memory``. None: the current one
        :return: V, (B, 1); for vector rewards (B, K)
        """
        return self.policy.predict_values(observations)

    def memory(self) -> np.ndarray | None:
        """
        :return: the policy's memory before the next step, (n_envs, ...), for ``next_values`` of older observations; None
            for policies without memory
        """
        return None

    def network_inputs(self, batch: RolloutBufferSamples | AuxiliaryBatch) -> tuple:
        """
        :param batch: samples of a rollout, or of the auxiliary phase
        :return: arguments of the policy's ``evaluate``: the observations, (B, ...), and any other inputs of its networks
        """
        return (batch.observations,)

    def context(self) -> dict[str, np.ndarray]:
        """
        :return: arrays of the latest rollout that the auxiliary phase keeps for ``network_inputs``, in addition to
            observations and value targets, by name: (n_envs, n_steps, ...), or (n_envs, 1, ...) for data that a sequence has
            once. With an empty rollout buffer, arrays of the same shapes and types
        """
        return {}

    def aux_data(self) -> dict[str, np.ndarray]:
        """
        :return: ``context``, and the arrays of a rollout that the objective keeps
        """
        end = self.rollout_end or self._rollout_end_template()
        of_components = component_context(self.rollout_buffer)
        return {**self.context(), **of_components, **self.objective.aux_data(self.rollout_buffer, end)}

    def rollout_template(self) -> Rollout:
        """
        :return: a rollout of zeros with the shapes and types of collected rollouts
        """
        return Rollout(full_like(self.rollout_buffer), self._rollout_end_template())

    def _rollout_end_template(self) -> RolloutEnd:
        observations = map_arrays(lambda one: np.repeat(one, self.n_envs, axis=0), one_observation(self.rollout_buffer))
        values = next(self.policy.value_net.parameters()).new_zeros(self.n_envs, self.n_reward_components or 1, device="cpu")
        return RolloutEnd(observations, values.squeeze(1).numpy(), np.zeros(self.n_envs, dtype=bool), self.memory())

    # ---- SB3's training loop ----

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        Collect a rollout as in SB3, with the same local variables for callbacks. If one of several processes stops, all stop.

        :raises NonFiniteActionError: if the policy gives an action or a value that is NaN or infinite
        :raises NonFiniteEnvironmentError: if an observation or a reward is NaN or infinite
        :raises ProcessGroupError: if another process has failed
        """
        session = self.session or Session(self)
        if session.agreed_end() is not None:
            return False
        start = time.perf_counter()
        session.callback = callback
        session.acting_policy = self.compiled_training.acting_policy()
        exchange = session.exchange
        with exchange.rollout(), nullcontext() if session.acting_policy is None else tracing():
            end = take_steps(self, env, callback, rollout_buffer, n_rollout_steps)
            exchange.continues = end is not None
        if not exchange.continues or end is None:
            return False
        self.rollout_end = finish_rollout(self, rollout_buffer, *end)
        if not session.has_checked_log_probs:
            check_log_probs(self, rollout_buffer)
            session.has_checked_log_probs = True
        callback.on_rollout_end()
        self._record("rollout", mean_vector_return(self.ep_info_buffer or []))
        self.logger.record("time/rollout_seconds", time.perf_counter() - start)
        return True

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """
        Train as in SB3; ``tb_log_name`` is by default the algorithm's name. If ``total_timesteps`` ends within a phase, its
        rollouts have trained the policy, and are kept for the auxiliary phase of the next call.

        :raises ArgumentError: if attributes cannot work together
        :raises NonFiniteError: if an observation, a reward, a loss or a gradient is NaN or infinite. For this error and
            the next two, callbacks are told that the training has ended
        :raises WorkerError: if the process of an environment has died
        :raises ProcessGroupError: if another process has failed
        :raises SystemExit: after SIGTERM, when the iteration is finished and a ``PhasicCheckpointCallback`` has saved it
        """
        self._fitting_micro_batch_size = None
        with training(self, callback, total_timesteps, reset_num_timesteps):
            name = tb_log_name or type(self).__name__
            super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
            if log_interval is not None and self.logger.name_to_value:
                values = dict(self.logger.name_to_value)
                self.dump_logs()  # SB3 writes before each update, so not what the last one has recorded
                for name, value in values.items():  # these stay readable, and are not written again
                    self.logger.record(name, value, exclude=WRITTEN)
        return self

    def warm_start(
        self, dataset: Any, agent: Any = None, n_epochs: int = 10, batch_size: int = 256, fit_std: bool = True
    ) -> Self:
        """
        Start from recorded data: clone its behavior with the losses, loop and optimizer of the auxiliary phase, and fit both
        value heads to its discounted returns. If an episode was cut off, its return is bootstrapped with the value function.
        Call ``learn`` afterwards to continue training. ``VecNormalize`` gets the statistics of the data, unless this model has
        already been trained with its own.

        :param dataset: recorded data, see ``sb3_ppg.offline.load_dataset``
        :param agent: an SB3 model without memory to imitate on the data's observations, which its own ``VecNormalize``
            normalizes, instead of the data's actions. One like PPO, whose action distribution has to be of the same kind: with
            KL(π_agent, π). Any other, such as SAC: with its deterministic actions, without fitting ``log_std``
        :param n_epochs: number of passes over the data
        :param batch_size: minibatch size, in samples
        :param fit_std: whether to also fit the standard deviation of Box actions; data without exploration drives it to zero
        :return: this model
        :raises ArgumentError: if the data cannot come from this environment, if the agent has another kind of action
            distribution, or for a model with memory or masks
        :raises NonFiniteLossError: if a loss or a gradient is NaN or infinite
        """
        fit_to_data(self, dataset, agent, n_epochs, batch_size, fit_std)
        return self

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        """Prepare as SB3 does; the first of several processes alone writes logs, evaluates, and shows a progress bar."""
        if rank() > 0:
            callback, progress_bar = without_rank_zero_callbacks(callback), False
            if not self._custom_logger:
                self._logger, self._custom_logger = Logger(folder=None, output_formats=[]), True
        assert self.env is not None
        with agreed(), statistics_protected(normalizers(self.env)):
            started = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
            if not self.allow_nonfinite_observations:
                check_first_observations(self.env, self._last_obs)  # type: ignore[arg-type]
        return started

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # The last rollout may exceed the budget, where a linear schedule would be negative
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def _maybe_recommend_cpu(self, mlp_class_name: str = MlpPolicy.__name__) -> None:
        super()._maybe_recommend_cpu(mlp_class_name)

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        """
        Set the environment to learn in, as in SB3.

        :param env: environment
        :param force_reset: whether to reset it before training
        """
        super().set_env(env, force_reset)
        store_floats(self.rollout_buffer, self.env)
        self._tell_weights()

    def _tell_weights(self) -> None:
        if self.env is not None and isinstance(self.reward_weights, list):
            tell_weights(self.env, self.reward_weights)

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Seed as in SB3. Several processes share one seed: their environments are numbered consecutively, their initial weights
        are the same, and each draws from its own random generators once it learns.

        :param seed: seed, the same in all processes
        """
        super().set_random_seed(seed)
        if self.env is not None and rank() > 0:
            first = getattr(innermost(self.env), "_seeds", [None])[0] if seed is None else seed  # None: that of `make_vec_env`
            if first is not None:
                self.env.seed(first + rank() * self.n_envs)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        *,
        epsilon: float = 0.0,
        temperature: Any = 1.0,
        **context: Any,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        Choose actions, like SB3's ``predict``.

        :param epsilon: probability of sampling an action instead of taking the most likely one, for each environment, see
            ``Player``
        :param temperature: T > 0: actions are sampled from π(a|s)^(1/T), normalized; see ``Player``
        :param context: other arguments of the policy's ``predict``
        :raises ArgumentError: if arguments cannot work, such as an ``epsilon`` without ``deterministic``
        """
        if epsilon or temperature != 1:
            return Player(self, epsilon, temperature).predict(observation, state, episode_start, deterministic, **context)
        return self.policy.predict(observation, state, episode_start, deterministic, **context)

    # ---- arguments that have to fit together ----

    def check_arguments(self) -> None:
        """
        Check all arguments, when the model is made and again before it learns.

        :raises ArgumentError: if arguments cannot work, alone or together
        """
        check_arguments(self)
        remedy = "nothing would hold the policy near the one that collected the data; set `kl_coef` above 0, or a clip range"
        require(self, self.clip_range is not None or self.kl_coef > 0, "clip_range", remedy)
        remedy = f"gSDE is for continuous actions (Box), these are {self.action_space}; leave it False"
        require(self, not self.use_sde or isinstance(self.action_space, spaces.Box), "use_sde", remedy)
        remedy = "the advantage of a single sample is normalized to zero; use more steps, or normalize_advantage=False"
        require(self, self.n_steps * self.n_envs > 1 or not self.normalize_advantage, "n_steps", remedy)
        for coefficient in by_leaf(self.action_space, "ent_coef", self.ent_coef):
            check_value("ent_coef", coefficient, FINITE)
        remedy = "both losses share one optimizer; set `n_value_epochs`, which gives the value function its own, or use None"
        require(self, self.value_learning_rate is None or self.n_value_epochs is not None, "value_learning_rate", remedy)
        check_rollout_buffer_class(self)
        check_vector_rewards(self)
        if hasattr(self, "aux_buffer"):  # the model is complete
            self._check_policy()
            check_auxiliary_batches(self, self.n_envs)
            self._check_objective()

    def _check_policy(self) -> None:
        """Refuse arguments that the networks cannot work with."""
        splits = isinstance(self.micro_batch_size, int)
        remedy = "batch normalization of micro-batches differs from that of their minibatch; use None"
        require(self, not splits or not looks_at_the_batch(self.policy), "micro_batch_size", remedy)
        mode = self.policy.compile_mode
        remedy = f"CUDA graphs (compile_mode={mode!r}) do not add up gradients over micro-batches; use None or another mode"
        require(self, not splits or mode not in ("reduce-overhead", "max-autotune"), "micro_batch_size", remedy)
        has_layers = any(True for _ in self.policy.features_extractor.parameters())
        remedy = "it is for the features extractor, and this one has no layers; leave it None"
        require(self, self.mixed_precision != "bf16" or has_layers, "mixed_precision", remedy)
        heads = (self.policy.value_net, self.policy.aux_value_net)
        has_vectors = all(isinstance(head, VectorValueHead) for head in heads)
        remedy = f"both value heads have to be sb3_ppg.policies.VectorValueHead; use these, or None ({heads})"
        require(self, self.reward_weights is None or has_vectors, "reward_weights", remedy)
        works = not self.normalize_value_targets or self.n_aux_epochs == 0 or self.policy.can_change_value_units
        remedy = f"`value_net` and `aux_value_net` are no sb3_ppg.policies.ValueHead; use that class, or False ({heads})"
        require(self, works, "normalize_value_targets", remedy)

    def _check_objective(self) -> None:
        cls = type(self.objective)
        if cls is not self.objective_class:
            is_made = isinstance(self.objective, Objective)
            given, made_with = (self.objective_class, cls) if is_made else (self.objective, self.objective_class)
            remedy = f"this model was made with {made_with.__name__}: give another one to the constructor"
            raise ArgumentError(f"`objective`={given!r} cannot work: {remedy}")
        remedy = (
            f"{cls.__name__} adds data to minibatches, and this class draws them in its own way; use one without `get`, or "
            "with `recomputable = True`, see docs/extending.md"
        )
        is_possible = cls.extras is Objective.extras or has_usual_samples(self.rollout_buffer)
        require(self, is_possible, "rollout_buffer_class", remedy)
        has_own_targets = cls.value_targets is not Objective.value_targets
        remedy = f"{cls.__name__} has its own value targets, which are scalar; use another objective, or None"
        require(self, self.reward_weights is None or not has_own_targets, "reward_weights", remedy)
        remedy = f"{cls.__name__} has its own value targets, which are not recomputed; use False"
        require(self, not (self.recompute_advantages and has_own_targets), "recompute_advantages", remedy)
        require(self, not (self.replay.capacity > 1 and has_own_targets), "replay_kwargs", remedy.replace("False", "None"))
        check_replay(self)
        self.objective.check(self)

    def _warn_of_unlikely_arguments(self) -> None:
        rollout_size = self.n_steps * self.n_envs
        if rollout_size % self.batch_size > 0:
            warn(
                f"You have specified a mini-batch size of {self.batch_size}, but because the rollout has "
                f"`n_steps * n_envs = {rollout_size}` samples, there will be a truncated mini-batch of size "
                f"{rollout_size % self.batch_size}. We recommend a `batch_size` that is a factor of `n_steps * n_envs`."
            )
        for name in ("learning_rate", "aux_learning_rate", "value_learning_rate"):
            value = getattr(self, name)
            rate = value(1.0) if callable(value) else value
            if rate is not None and rate > 1:
                warn(
                    f"`{name}`={rate:g} is above 1, which ruins any network. Is it meant for another argument? PPG takes "
                    "PPO's arguments in PPO's order, and its own by keyword only"
                )

    # ---- files ----

    def save(
        self, path: str | Path | io.BufferedIOBase, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """
        Save the model, like SB3's ``save``. The file replaces a previous one only when it is complete. To resume training
        exactly, also call ``save_aux_buffer``. With several processes, only the first one writes the file.

        :param path: path of the zip file (".zip" is added to a name without suffix), or a stream
        :param exclude: names of attributes to leave out
        :param include: names of attributes to save although they are excluded by default
        :raises OSError: if the file cannot be written; a previous one is left unchanged
        """
        mark_class(self)
        if not isinstance(path, (str, Path)):
            super().save(path, exclude, include)
        elif rank() == 0:
            path = Path(path)
            with atomic_write(path if path.suffix else path.with_name(f"{path.name}.zip")) as temporary:
                super().save(temporary, exclude, include)

    @classmethod
    def load(cls, path: str | Path | io.BufferedIOBase, *args: Any, **kwargs: Any) -> Self:
        """
        Load a model, like SB3's ``load``, but leave the global random generators unchanged unless ``seed`` is given.

        :param path: path of the zip file, or a stream
        :raises FileNotFoundError: if there is no file
        :raises ModelFormatError: if the file is damaged, or of another class or a newer version
        :raises ArgumentError: if arguments cannot work, or if ``objective`` has other parameters than the file
        """
        if "objective" in kwargs:
            kwargs["objective_class"] = find_objective(kwargs.pop("objective"))
        with checked_model_file(path, cls) as file, nullcontext() if "seed" in kwargs else generators_kept():
            try:
                model = super().load(file, *args, **kwargs)
            except ValueError as error:
                if "objective_class" not in kwargs or isinstance(error, ArgumentError):
                    raise
                name = objective_name(kwargs["objective_class"])
                raise ArgumentError(
                    f"`objective`={name!r} cannot take the file's parameters: load it without `objective`, and give the "
                    'parameters of its policy to a new model: set_parameters({"policy": ...}, exact_match=False)'
                ) from error
        return model

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        Set parameters, like SB3's ``set_parameters``. If there is an error, all parameters stay unchanged.

        :raises ModelFormatError: if a file is damaged, or of another class or a newer version
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
        Save the training state that is not in the model's file, so that ``load_aux_buffer`` can resume exactly: the rollouts
        of the phase, ``VecNormalize``'s statistics, and the states of Python's, NumPy's and torch's global random generators.

        Call it together with ``save``, outside a rollout; ``PhasicCheckpointCallback`` does both. After an error, a previous
        file is left unchanged.

        :param path: path of the file, a NumPy npz file without pickle; by convention ``aux_buffer_path(path of the model)``
        :raises OSError: if the file cannot be written
        :raises ArgumentError: if the model was loaded without the rollouts of its phase
        :raises NonFiniteError: if a number in this state or in the model is NaN or infinite
        """
        save_training_state(self, Path(path))

    def load_aux_buffer(self, path: str | Path) -> None:
        """
        Restore the state that ``save_aux_buffer`` saved. ``learn(..., reset_num_timesteps=False)`` then continues as if there
        had been no interruption, except that the environments start new episodes.

        :param path: path of the file
        :raises FileNotFoundError: if there is no file
        :raises ArgumentError: if the machine has too little memory for the rollouts
        :raises ModelFormatError: if the file is damaged, written by a newer version, or another model's; nothing is changed
        """
        load_training_state(self, Path(path))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the session (it ends with ``learn``) and compiled functions."""
        return {name: value for name, value in vars(self).items() if name != "compiled_training"} | {"session": None}

    @cached_property
    def compiled_training(self) -> CompiledTraining:
        """Functions that torch has compiled for this model."""
        return CompiledTraining(self)

    def _excluded_save_params(self) -> list[str]:
        of_training = ("rollout_end", "session", "compiled_training", "_fitting_micro_batch_size", "_reward_reader")
        return [*super()._excluded_save_params(), "aux_buffer", "replay", "objective", *of_training]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        of_objective = ["objective"] if self.objective.state_dict() else []  # most objectives have nothing to save
        if self.objective.adversary_optimizer is not None:
            of_objective.append("objective.adversary_optimizer")
        return ["policy", "policy.optimizer", "value_optimizer", "aux_optimizer", *of_objective], []


def _check_policy_class(policy: Any, algorithm: type[PPG]) -> None:
    """Refuse a policy that is neither a known name nor a class with an auxiliary value head for this algorithm."""
    names = ", ".join(map(repr, algorithm.policy_aliases))
    base = next(iter(algorithm.policy_aliases.values()))
    if isinstance(policy, str):
        if policy not in algorithm.policy_aliases:
            raise ArgumentError(f"`policy`={policy!r} is unknown to {algorithm.__name__}: use one of {names}")
        return
    remedy = f"use one of {names}, or derive your class from {base.__module__}.{base.__name__}"
    if not isinstance(policy, type) or not issubclass(policy, PhasicActorCriticPolicy):
        raise ArgumentError(f"`policy`={getattr(policy, '__name__', policy)} has no auxiliary value head: {remedy}")
    if not issubclass(policy, base) or policy.algorithm not in [cls.__name__ for cls in algorithm.__mro__]:
        raise ArgumentError(f"`policy`={policy.__name__} is for {policy.algorithm}, not for {algorithm.__name__}: {remedy}")
