"""What is known of an algorithm by the modules that it imports, and what its variants override."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, RolloutBufferSamples, Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_ppg.buffers.aux_buffer import AuxBuffer, AuxiliaryBatch
from sb3_ppg.buffers.replay import Rollout, RolloutReplay
from sb3_ppg.policies import MixedPrecision, PhasicActorCriticPolicy


class PhasicModel(OnPolicyAlgorithm):
    """
    An algorithm with auxiliary phases: its attributes, and the public hooks by which memory, masks and the like come in.

    A variant overrides ``act``, ``after_environment_step`` and ``next_values`` for what its policy needs while it collects,
    ``network_inputs`` for what its networks need wherever they are evaluated on stored samples, and ``context`` and
    ``is_context`` for what the auxiliary phase has to keep for that. Another objective needs none of these.
    """

    # For arrays and for dictionaries of observations: the defaults, and what a buffer of the user's has to derive from
    rollout_buffer_classes: ClassVar[tuple[type[RolloutBuffer], type[DictRolloutBuffer]]] = (RolloutBuffer, DictRolloutBuffer)
    action_spaces: ClassVar[tuple[type[spaces.Space], ...]] = (
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
    )
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {}
    has_memory: ClassVar[bool] = False  # whether a sample needs those before it
    policy: PhasicActorCriticPolicy
    objective: nn.Module  # an instance of the argument `objective`
    aux_buffer: AuxBuffer
    replay: RolloutReplay
    batch_size: int
    n_policy_iterations: int
    n_aux_epochs: int
    n_value_epochs: int | None
    aux_batch_size: int | None
    kl_coef: float
    clip_range: float | Schedule | None
    clip_range_vf: float | Schedule | None
    normalize_advantage: bool
    normalize_value_targets: Any  # see `PPG`
    objective_class: Any  # of `objective`
    recompute_advantages: bool
    replay_kwargs: dict[str, Any] | None
    aux_buffer_kwargs: dict[str, Any] | None
    micro_batch_size: Any  # see `PPG`
    mixed_precision: MixedPrecision | None
    _n_aux_phases: int
    _n_rollouts: int  # that have been learned from, over all calls of `learn`
    _n_replayed_rollouts: int  # as many as the replay holds, likewise
    _n_stored_rollouts: int  # as many as the auxiliary buffer holds, except in a model loaded without that buffer
    _checkpoint: list[Any] | None = None  # of PhasicCheckpointCallback, the latest: its run, and when it was written

    def act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """
        Choose actions while a rollout is collected.

        :param observations: the latest ones, (n_envs, ...)
        :param env: which gave them
        :return: actions, (n_envs, ...); V(s), (n_envs, 1); log π(a|s), (n_envs,); what else the rollout buffer's ``add`` takes
        """
        return *self.policy(observations), {}

    def after_environment_step(self) -> None:
        """The environments have taken the actions of ``act``, and callbacks have agreed."""

    def next_values(
        self, observations: PyTorchObs, episode_starts: np.ndarray, env: int | None = None, memory: np.ndarray | None = None
    ) -> th.Tensor:
        """
        V of what follows the latest step.

        :param observations: (B, ...)
        :param episode_starts: whether they begin an episode, (B,)
        :param env: of which environment. None: of all
        :param memory: from ``memory``. None: the present one
        :return: (B, 1)
        """
        return self.policy.predict_values(observations)

    def memory(self) -> np.ndarray | None:
        """
        :return: what the policy remembers before the next step, for ``next_values`` of observations that have become old,
            (n_envs, ...); None if it remembers nothing
        """
        return None

    def network_inputs(self, batch: RolloutBufferSamples | AuxiliaryBatch) -> tuple:
        """
        What the policy's ``evaluate_...`` methods take.

        :param batch: samples of a rollout, or of the auxiliary phase
        :return: the observations, (B, ...), and what else these networks need
        """
        return (batch.observations,)

    def context(self) -> dict[str, np.ndarray]:
        """
        What the auxiliary phase keeps of the latest rollout beside observations and value targets, for ``network_inputs``.
        (Of an empty rollout buffer: arrays of the same shapes and types.)

        :return: by name, (n_envs, n_steps, ...), or (n_envs, 1, ...) for what a sequence has once
        """
        return {}

    def is_context(self, context: dict[str, np.ndarray]) -> bool:
        """
        :param context: of a rollout, from a file: finite numbers in the shapes and types of ``context``
        :return: whether a rollout can have it
        """
        return True

    def aux_data(self) -> dict[str, np.ndarray]:
        """
        :return: ``context``, and what the objective keeps of a rollout beside it
        """
        return self.context()

    def is_valid_aux_data(self, context: dict[str, np.ndarray]) -> bool:
        """
        :param context: of a rollout, from a file: finite numbers in the shapes and types of ``aux_data``
        :return: whether a rollout can have it
        """
        return self.is_context(context)

    def rollout_template(self) -> Rollout:
        """
        :return: one of the shapes and types of those that are collected, as the replay has them
        """
        raise NotImplementedError

    def _micro_batch_size(self) -> int | None:
        """The most samples in one forward pass; None: whole minibatches."""
        raise NotImplementedError

    def save_aux_buffer(self, path: Any) -> None:
        """See ``PhasicAlgorithm``."""
        raise NotImplementedError

    def load_aux_buffer(self, path: Any) -> None:
        """See ``PhasicAlgorithm``."""
        raise NotImplementedError
