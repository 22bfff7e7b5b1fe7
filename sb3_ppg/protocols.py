"""Protocol of an algorithm, for modules that use one without importing it."""

from typing import Any, ClassVar, Protocol

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecEnv

# Attributes that count how far a training has come
COUNTERS = ("num_timesteps", "_n_updates", "_n_rollouts", "_n_aux_phases")


class PhasicModel(Protocol):
    """An algorithm with auxiliary phases. ``PPG`` documents each of its arguments, attributes and hooks."""

    has_memory: ClassVar[bool]
    rollout_buffer_classes: ClassVar[Any]
    observation_space: spaces.Space
    action_space: spaces.Space
    device: th.device
    n_envs: int
    n_steps: int
    batch_size: int
    gamma: Any
    gae_lambda: Any
    reward_weights: Any
    n_value_epochs: int | None
    n_policy_iterations: int
    n_aux_epochs: int
    aux_batch_size: int | None
    beta_clone: float
    n_epochs: int
    micro_batch_size: Any
    compile_updates: Any
    target_kl: float | None
    max_grad_norm: Any
    clip_range: Any
    clip_range_vf: Any
    normalize_advantage: bool
    recompute_advantages: bool
    allow_nonfinite_observations: bool
    ignore_terminations: bool
    replay_kwargs: dict[str, Any] | None
    rollout_buffer_class: Any
    rollout_buffer_kwargs: Any
    policy_kwargs: Any
    use_sde: bool
    sde_sample_freq: int
    mixed_precision: Any
    verbose: int
    num_timesteps: int
    env: Any
    policy: Any
    objective: Any
    value_optimizer: Any
    aux_optimizer: Any
    normalize_value_targets: Any
    _logger: Any
    _custom_logger: bool
    tensorboard_log: str | None
    rollout_buffer: Any
    aux_buffer: Any
    replay: Any
    session: Any
    ep_info_buffer: Any
    ep_success_buffer: Any
    _stats_window_size: int
    _last_obs: Any
    _last_episode_starts: Any
    _n_updates: int
    _n_rollouts: int
    _n_aux_phases: int
    _missing_rollouts: tuple[int, int] | None
    _checkpoint: Any

    def get_env(self) -> VecEnv | None: ...

    @property
    def n_reward_components(self) -> int | None: ...

    def vector_reader(self) -> Any: ...

    def network_inputs(self, batch: Any) -> tuple: ...

    @property
    def aux_lr_schedule(self) -> Any: ...

    @property
    def logger(self) -> Any: ...

    @property
    def compiled_training(self) -> Any: ...

    def aux_samples_per_batch(self) -> int: ...

    def n_kept_rollouts(self) -> tuple[int, int]: ...

    def context(self) -> dict[str, np.ndarray]: ...

    def memory(self) -> np.ndarray | None: ...

    def next_values(
        self, observations: PyTorchObs, episode_starts: np.ndarray, env: int | None = None, memory: np.ndarray | None = None
    ) -> th.Tensor: ...

    def aux_data(self) -> dict[str, np.ndarray]: ...

    def rollout_template(self) -> Any: ...

    def resolved_micro_batch_size(self) -> int | None: ...

    def check_arguments(self) -> None: ...

    def act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]: ...

    def after_environment_step(self) -> None: ...

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None: ...

    def save(self, path: Any) -> None: ...

    def get_parameters(self) -> dict[str, dict]: ...

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto") -> None: ...
