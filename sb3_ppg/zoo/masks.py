"""Evaluation under action masks, which RL Zoo's scripts do not know (rl_zoo3 2.9.2)."""

from functools import partial, wraps
from typing import Any

import gymnasium as gym
import rl_zoo3
import rl_zoo3.exp_manager
import rl_zoo3.utils
from rl_zoo3.callbacks import TrialEvalCallback
from sb3_contrib.common import envs
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import ArgumentError, MaskablePPG

# sb3-contrib's environments to try it with, by IDs of ours
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "InvalidActionsDiscrete-v0": ("InvalidActionEnvDiscrete", dict(dim=100, n_invalid_actions=80)),
    "InvalidActionsMultiDiscrete-v0": ("InvalidActionEnvMultiDiscrete", dict(dims=[4, 4, 4], n_invalid_actions=6)),
    "InvalidActionsMultiBinary-v0": ("InvalidActionEnvMultiBinary", dict(dims=10, n_invalid_actions=5)),
}


def register_masks() -> None:
    """Let ``train`` evaluate, and ``enjoy``, ``record_video`` and our scripts act, under the environment's masks."""
    for env_id, (name, kwargs) in ENVS.items():
        gym.register(env_id, entry_point=partial(_make, name), kwargs=kwargs)
    vars(rl_zoo3.exp_manager).update(EvalCallback=_EvalCallback, TrialEvalCallback=_TrialEvalCallback)
    _predict_under_masks()


def _make(name: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env:
    if render_mode is not None:
        raise ArgumentError(f"{name} of sb3-contrib has no pictures: use --no-render")
    return getattr(envs, name)(**kwargs)


class _EvalCallback(MaskableEvalCallback):
    """SB3's, or sb3-contrib's where there are masks."""

    def _on_step(self) -> bool:
        if isinstance(self.model, MaskablePPG):
            return super()._on_step()
        return EvalCallback._on_step(self)


class _TrialEvalCallback(TrialEvalCallback, _EvalCallback):
    """That of a hyperparameter search, likewise."""


def _predict_under_masks() -> None:
    """Scripts make an environment, then ask the model for actions; they do not tell it what is possible."""
    make, predict = rl_zoo3.utils.create_test_env, MaskablePPG.predict
    environments: list[VecEnv] = []

    @wraps(make)
    def create_test_env(*args: Any, **kwargs: Any) -> VecEnv:
        environments[:] = [make(*args, **kwargs)]
        return environments[0]

    @wraps(predict)
    def predict_under_masks(
        self: MaskablePPG,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> Any:
        if action_masks is None and environments and is_masking_supported(environments[0]):
            action_masks = get_action_masks(environments[0])
        return predict(self, observation, state, episode_start, deterministic, action_masks)

    for module in (rl_zoo3, rl_zoo3.utils):
        vars(module)["create_test_env"] = create_test_env
    MaskablePPG.predict = predict_under_masks  # type: ignore[method-assign]
