"""The algorithm as its parts see it: the constructor, state, sizes, and the methods that variants override."""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import FloatSchedule, obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import NESTED
from sb3_ppg.arguments import arguments_explained, warn_of_missing_gpu
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.buffers.rollouts import POLICY_KEYS, RolloutEnd, smallest_observations
from sb3_ppg.distributed import n_processes, rank
from sb3_ppg.environments.vector_rewards import RewardReader
from sb3_ppg.environments.watched import TimeLimits
from sb3_ppg.errors import ArgumentError, warn
from sb3_ppg.objectives import Coefficients, Objective, find_objective
from sb3_ppg.optim.compiled import CompiledTraining, is_worthwhile, missing_compiler, reason_against
from sb3_ppg.optim.micro_batches import fitting_micro_batch_size
from sb3_ppg.policies import CnnPolicy, MixedPrecision, MlpPolicy, MultiInputPolicy, PhasicActorCriticPolicy

# The counterpart of each of our algorithms; its plain policy classes are accepted in place of our policies' names
COUNTERPARTS: dict[str, Any] = {"PPG": PPO, "RecurrentPPG": RecurrentPPO, "MaskablePPG": MaskablePPO}
# Attributes that count how far a run has come
COUNTERS = ("num_timesteps", "_n_updates", "_n_rollouts", "_n_aux_phases")


class PhasicInterface(OnPolicyAlgorithm):
    """
    The constructor, and the members of an algorithm that other modules use: checks of arguments, collection of rollouts,
    guards of a run, files, the prior and warm starts. All other modules get only what they need. ``PhasicAlgorithm``
    completes this class; ``PPG`` documents the arguments.
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
    policy: PhasicActorCriticPolicy
    value_optimizer: th.optim.Optimizer
    aux_optimizer: th.optim.Optimizer
    objective: Objective
    aux_buffer: AuxBuffer
    replay: RolloutReplay
    rollout_end: RolloutEnd | None = None  # what follows the latest rollout
    session: Any = None  # a `sb3_ppg.training.session.Session`, while `learn` runs
    # Arguments that SB3 has as other types
    gamma: Any
    gae_lambda: Any
    ent_coef: Any
    max_grad_norm: float | None  # type: ignore[assignment]
    # State
    reward_reader: RewardReader | None
    time_limits: TimeLimits
    memory: dict[str, th.Tensor]  # of the policy before the next step, (n_envs, ...) by name; empty without memory
    _last_obs: Any
    _last_episode_starts: Any
    _warmup_end: int = 0  # step at which the value warm-up ends, for the run's first environments
    _compiles_updates: bool | None = None  # in the latest run
    _log_folder: str = ""  # of the latest run's logger
    # Numbers of stored and replayed rollouts that a loaded model is waiting for; None once they have been loaded or given up
    _missing_rollouts: tuple[int, int] | None = None
    _checkpoint: list[Any] | None = None  # the latest of PhasicCheckpointCallback: its run, and when it was written
    _fitting_micro_batch_size: tuple[int | None] | None = None  # None until it is known

    @arguments_explained
    def __init__(
        self,
        policy: str | type[BasePolicy],
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
        ignore_terminations: bool | int = False,
        reward_weights: list[float] | Literal["observation"] | None = None,
        prior: Any = None,
        prior_coef: float | Schedule | dict[str, Any] | Sequence[Any] = 0.2,
        n_value_warmup: int = 0,
    ):
        policy = _known_policy(policy, type(self))
        super().__init__(
            policy,  # type: ignore[arg-type]
            env,  # type: ignore[arg-type]
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,  # type: ignore[arg-type]
            gae_lambda=gae_lambda,  # type: ignore[arg-type]
            ent_coef=ent_coef,  # type: ignore[arg-type]
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,  # type: ignore[arg-type]
            use_sde=use_sde,
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
        self.clip_range: Any = clip_range  # a schedule, or None, once the model is complete
        self.clip_range_vf: Any = clip_range_vf
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
        self.prior = prior  # a `Prior` or one of its constants, or None, once the model is complete
        self.prior_coef: Any = prior_coef
        self.n_value_warmup = n_value_warmup
        self._n_aux_phases = 0
        self._n_rollouts = 0  # number of rollouts that have been learned from

        warn_of_missing_gpu(device, self.device)
        if self.env is not None:
            self.check_arguments()
            if rest := n_steps * self.n_envs % batch_size:  # as PPO warns
                warn(
                    f"You have specified a mini-batch size of {batch_size}, but because the rollout has `n_steps * n_envs = "
                    f"{n_steps * self.n_envs}` samples, there will be a truncated mini-batch of size {rest}. We recommend a "
                    "`batch_size` that is a factor of `n_steps * n_envs`."
                )
        if _init_setup_model:
            self._setup_model()
            if self.env is not None:  # a loaded model's batches are checked when it learns: it may only play
                self.check_arguments()

    @property
    def n_aux_phases(self) -> int:
        """Number of auxiliary phases so far."""
        return self._n_aux_phases

    @property
    def aux_lr_schedule(self) -> Schedule:
        """Schedule of the auxiliary phase's learning rate; by default the policy phase's learning rate."""
        return self.lr_schedule if self.aux_learning_rate is None else FloatSchedule(self.aux_learning_rate)

    @property
    def optimizers(self) -> tuple[th.optim.Optimizer, ...]:
        """The optimizers of the policy (or joint) epochs, of the value epochs, and of the auxiliary phase."""
        return self.policy.optimizer, self.value_optimizer, self.aux_optimizer

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

    # ---- arguments ----

    def check_arguments(self) -> None:
        """Refuse arguments that cannot work: before the model is made, when it is complete, and before it learns."""

    def n_kept_rollouts(self) -> tuple[int, int]:
        """
        Return the number of rollouts in the auxiliary buffer, and the number in the replay for later updates. For a model that
        was loaded without its rollouts, these are the numbers that it had when it was saved.
        """
        return self._missing_rollouts or (len(self.aux_buffer), self.replay.n_stored)

    # ---- sizes and coefficients ----

    def coefficients(self, progress_remaining: float | None = None) -> Coefficients:
        """
        Return the coefficients of the losses, with schedules at a progress from 1 to 0; None: the current one. The weights of
        nested actions' parts are set, too.
        """
        progress = self._current_progress_remaining if progress_remaining is None else progress_remaining
        clip_range, clip_range_vf, prior_coef = (
            schedule(progress) if callable(schedule) else schedule
            for schedule in (self.clip_range, self.clip_range_vf, self.prior_coef)
        )
        weigh = partial(self.policy.actions.weigh, device=self.device)
        return Coefficients(
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            value_unit=self.policy.value_unit,
            ent_coef=weigh("ent_coef", self.ent_coef),
            vf_coef=self.vf_coef,
            kl_coef=self.kl_coef or None,
            beta_clone=self.beta_clone,
            prior_coef=None if self.prior is None else weigh("prior_coef", prior_coef),
        )

    def aux_samples_per_batch(self) -> int:
        """Return the number of samples in an auxiliary minibatch, by default a sixteenth of a rollout."""
        # With memory, a sixteenth of a phase, because samples of a sequence are similar
        n_samples = self.aux_buffer.n_samples if self.policy.state_keys else self.n_steps * self.n_envs
        return self.aux_batch_size or max(math.ceil(n_samples / 16), self.batch_size)

    def aux_sequences(self) -> tuple[bool, int]:
        """Return whether the sequences of an auxiliary phase are single samples, and their number in a minibatch."""
        size, objective = self.aux_samples_per_batch(), self.objective
        needs_sequences = self.policy.state_keys or objective.needs_whole_sequences
        single_samples = not needs_sequences and (not objective.shuffles_sequences or size < self.n_steps)
        return single_samples, math.ceil(size / (1 if single_samples else self.n_steps))

    def resolved_micro_batch_size(self) -> int | None:
        """Return the largest number of samples in one forward pass; None for whole minibatches."""
        if self.micro_batch_size != "auto":
            return self.micro_batch_size
        if self.objective.needs_whole_minibatches:
            return None
        if self._fitting_micro_batch_size is None:  # once per run: the network stays as it is
            observation = obs_as_tensor(smallest_observations(self.rollout_buffer, 1), self.device)
            self._fitting_micro_batch_size = (fitting_micro_batch_size(self.policy, observation),)
        return self._fitting_micro_batch_size[0]

    # ---- hooks: what variants override ----

    def step_inputs(self, env: VecEnv) -> dict[str, Any]:
        """Return what environments add to the next step's inputs of the policy: arrays by name, (n_envs, ...)."""
        return {}

    # ---- arrays of rollouts ----

    @property
    def minibatch_keys(self) -> tuple[str, ...]:
        """Names of a rollout's arrays that minibatches of the policy phase have."""
        prior_keys = () if self.prior is None else ("prior",)
        return (*POLICY_KEYS, *self.policy.input_keys, *prior_keys, *self.objective.policy_keys)

    @property
    def stored_keys(self) -> tuple[str, ...]:
        """Names of a rollout's arrays that the auxiliary phase keeps."""
        return ("observations", "targets", *self.policy.input_keys, *self.objective.aux_keys)

    # ---- compiled updates ----

    def begin_compiled_training(self, total_timesteps: float, reset_num_timesteps: bool = True) -> None:
        """
        Decide whether a run of ``learn`` is compiled. If it continues another one, "auto" keeps that one's choice, because
        compiled updates round differently.
        """
        training, choice = self.compiled_training, self.compile_updates
        training.is_asked_for, training.verbose, training.has_stopped = choice is True, self.verbose, False
        earlier = None if reset_num_timesteps else self._compiles_updates
        reason = reason_against(self.policy, self.objective)
        if choice == "auto" and earlier is not None:
            choice = earlier
        elif choice == "auto":
            n_epochs, n_samples = self.n_epochs + (self.n_value_epochs or 0), total_timesteps / n_processes()
            n_steps = n_samples * (n_epochs / self.batch_size + self.n_aux_epochs / self.aux_samples_per_batch())
            choice = reason is None and is_worthwhile(self.policy, n_steps, n_samples * (n_epochs + self.n_aux_epochs))
        reason = (reason or missing_compiler(self.policy.device)) if choice else None
        if reason is not None:
            warn(f"The updates are not compiled: {reason}")
        training.is_enabled = bool(choice) and reason is None
        if earlier is None:
            self._compiles_updates = training.is_enabled

    @cached_property
    def compiled_training(self) -> CompiledTraining:
        """Functions that torch has compiled for this model."""
        return CompiledTraining()


def _known_policy(policy: Any, algorithm: type[PhasicInterface]) -> Any:
    """Return a policy's name, also for a plain class of SB3 or sb3-contrib, or a class for this algorithm; refuse others."""
    aliases = algorithm.policy_aliases
    base: Any = next(iter(aliases.values()))
    plain = next(COUNTERPARTS[cls.__name__] for cls in algorithm.__mro__ if cls.__name__ in COUNTERPARTS).policy_aliases
    policy = next((name for name, cls in plain.items() if cls is policy), policy)
    is_class = isinstance(policy, type) and issubclass(policy, base)
    is_for_it = is_class and policy.algorithm in [cls.__name__ for cls in algorithm.__mro__]
    if not is_for_it and policy not in [*aliases]:
        given, classes = getattr(policy, "__name__", repr(policy)), ", ".join(cls.__name__ for cls in aliases.values())
        remedy = f"use one of {', '.join(map(repr, aliases))}, or derive your class from one of {classes} in {base.__module__}"
        lstm = "LSTM policies are for sb3_ppg.RecurrentPPG"
        raise ArgumentError(f"`policy`={given} is not for {algorithm.__name__}: {remedy}. {lstm}")
    return policy
