"""MaskablePPG: Phasic Policy Gradient with invalid action masks, as changes to ``ppg`` and its policies."""

from collections.abc import Collection
from typing import Any, ClassVar, Self

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback, PyTorchObs
from stable_baselines3.common.vec_env import VecEnv
from typing_extensions import override

from sb3_ppg.actions import NESTED
from sb3_ppg.arguments import arguments_explained
from sb3_ppg.environments.watched import workers_watched
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies import Evaluation, MultiInputPhasicActorCriticPolicy, PhasicActorCriticCnnPolicy, PhasicActorCriticPolicy
from sb3_ppg.policies.mlp import ALL_FIELDS
from sb3_ppg.ppg import PPG


class MaskablePhasicActorCriticPolicy(PhasicActorCriticPolicy):
    """
    ``PhasicActorCriticPolicy`` in which actions that a mask excludes have a probability of zero, with sb3-contrib's maskable
    distributions. Its methods take ``action_masks`` like those of sb3-contrib's ``MaskableActorCriticPolicy``: True where an
    action is possible, (B, n) for Discrete, (B, sum of n) for MultiDiscrete, (B, 2 n) for MultiBinary actions; for nested
    spaces, the masks of all leaves as ``sb3_ppg.actions.flat_masks`` returns them. None: no masks.
    """

    algorithm = "MaskablePPG"
    input_keys = ("action_masks",)

    @override
    def make_action_distribution(self) -> Distribution:
        if self.distribution_class is None and not isinstance(self.action_space, NESTED):
            return make_masked_proba_distribution(self.action_space)
        distribution = super().make_action_distribution()
        if not hasattr(distribution, "apply_masking"):
            remedy = "it has no `apply_masking`, see sb3_contrib.common.maskable.distributions.MaskableDistribution"
            raise ArgumentError(f"`distribution_class`={type(distribution).__name__} cannot work with masks: {remedy}")
        return distribution

    @override
    def make_leaf_distribution(self, space: spaces.Space) -> Distribution:
        if isinstance(space, spaces.Box):
            return super().make_leaf_distribution(space)
        return make_masked_proba_distribution(space)

    @override
    def evaluate(
        self,
        obs: PyTorchObs,
        action_masks: np.ndarray | th.Tensor | None = None,
        *,
        reads: Collection[str] = ALL_FIELDS,
        auxiliary: bool = False,
    ) -> Evaluation:
        """
        Run the networks as ``PhasicActorCriticPolicy`` does, and apply the masks to the distribution.

        :param action_masks: True where an action is possible. None: everywhere
        """
        evaluation = super().evaluate(obs, reads=reads, auxiliary=auxiliary)
        if evaluation.distribution is not None:
            evaluation.distribution.apply_masking(action_masks)  # type: ignore[attr-defined]
        return evaluation

    @override
    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """Choose actions as ``PhasicActorCriticPolicy`` does, under masks, which may be the fifth argument."""
        return super().predict(observation, state, episode_start, deterministic, action_masks=action_masks)


class MaskablePhasicActorCriticCnnPolicy(PhasicActorCriticCnnPolicy, MaskablePhasicActorCriticPolicy):
    """``MaskablePhasicActorCriticPolicy`` for images, by default with SB3's ``NatureCNN``."""


class MaskableMultiInputPhasicActorCriticPolicy(MultiInputPhasicActorCriticPolicy, MaskablePhasicActorCriticPolicy):
    """``MaskablePhasicActorCriticPolicy`` for dictionaries, by default with SB3's ``CombinedExtractor``."""


class MaskablePPG(PPG):
    """
    Phasic Policy Gradient with invalid action masking, like sb3-contrib's ``MaskablePPO``. The environment's method
    ``action_masks()`` says which actions are possible (``ActionMasker`` adds it to an environment). Masks are stored with the
    rollouts, and log-probabilities, entropy, π_old and the KL term of both phases respect them.

    Invalid action masking: https://arxiv.org/abs/2006.14171.

    Example::

        from sb3_contrib.common.envs import InvalidActionEnvDiscrete
        from sb3_ppg import MaskablePPG

        env = InvalidActionEnvDiscrete(dim=80, n_invalid_actions=60)
        model = MaskablePPG("MlpPolicy", env).learn(50_000)
        action, _ = model.predict(env.reset()[0], action_masks=env.action_masks())

    Arguments are those of ``PPG``. Action spaces are Discrete, MultiDiscrete, MultiBinary, Dict or Tuple; gSDE cannot be used.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MaskablePhasicActorCriticPolicy,
        "CnnPolicy": MaskablePhasicActorCriticCnnPolicy,
        "MultiInputPolicy": MaskableMultiInputPhasicActorCriticPolicy,
    }
    rollout_buffer_classes = (MaskableRolloutBuffer, MaskableDictRolloutBuffer)
    action_spaces = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, *NESTED)
    policy: MaskablePhasicActorCriticPolicy
    rollout_buffer: MaskableRolloutBuffer
    _use_masking: bool = True  # in the latest run

    @arguments_explained
    @override
    def learn(  # type: ignore[override]
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """
        Train like ``PPG.learn``.

        :param use_masking: whether to use masks. False: treat every action as possible
        :raises ArgumentError: if the environment has no masks
        """
        with workers_watched(self.env):
            supported = self.env is None or is_masking_supported(self.env)
        if use_masking and not supported:
            raise ArgumentError(
                "The environment has no method `action_masks`: write one, wrap it in sb3_contrib's ActionMasker, or use PPG "
                "(in RL Zoo --algo ppg), or learn(use_masking=False)"
            )
        self._use_masking = use_masking
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    @override
    def predict(  # type: ignore[override]
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        action_masks: np.ndarray | None = None,
        *,
        epsilon: float = 0.0,
        temperature: Any = 1.0,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """
        Choose actions, like ``PPG.predict``.

        :param action_masks: True where an action is possible, (n_envs, ...), or (...) for one observation. None: every action
            is possible
        """
        play: Any = dict(epsilon=epsilon, temperature=temperature)
        return super().predict(observation, state, episode_start, deterministic, **play, action_masks=action_masks)

    @override
    def step_inputs(self, env: VecEnv) -> dict[str, Any]:
        return {"action_masks": self._checked(get_action_masks(env)) if self._use_masking else None}

    def _checked(self, action_masks: np.ndarray) -> np.ndarray:
        """Return masks, (n_envs, n), if they have the size of the actions and allow one in each dimension."""
        if action_masks.size != self.n_envs * self.rollout_buffer.mask_dims:
            raise ArgumentError(
                f"`action_masks` of an environment returned {action_masks.size // self.n_envs} values, "
                f"{self.action_space} needs {self.rollout_buffer.mask_dims}; for Dict and Tuple actions, use "
                "sb3_ppg.actions.flat_masks"
            )
        action_masks = action_masks.reshape(self.n_envs, -1).astype(bool)
        sizes = getattr(self.policy._action_dist, "action_dims", [0])  # a distribution of one dimension has no such attribute
        starts = np.cumsum([0, *sizes[:-1]])  # where each dimension of the actions begins in a mask
        possible = np.logical_or.reduceat(action_masks, starts, axis=-1)  # (n_envs, action dimensions)
        if not possible.all():
            env, dimension = np.argwhere(~possible)[0]
            raise ArgumentError(
                f"`action_masks` of environment {env} allow no action in dimension {dimension}: allow one, or end the episode "
                "one step earlier"
            )
        return action_masks
