"""Evaluation under action masks, which RL Zoo's scripts do not know (rl_zoo3 2.9.2)."""

from functools import partial, wraps
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import gymnasium as gym
import rl_zoo3.exp_manager
import rl_zoo3.utils
from rl_zoo3.callbacks import TrialEvalCallback
from sb3_contrib.common import envs
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import ArgumentError, MaskablePPG
from sb3_ppg.zoo.patches import Patches

# sb3-contrib's environments to try it with, by IDs of ours
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "InvalidActionsDiscrete-v0": ("InvalidActionEnvDiscrete", dict(dim=100, n_invalid_actions=80)),
    "InvalidActionsMultiDiscrete-v0": ("InvalidActionEnvMultiDiscrete", dict(dims=[4, 4, 4], n_invalid_actions=6)),
    "InvalidActionsMultiBinary-v0": ("InvalidActionEnvMultiBinary", dict(dims=10, n_invalid_actions=5)),
}


class NoPicturesError(ArgumentError, TypeError):
    """A ``TypeError``, after which SB3's ``make_vec_env`` makes the environment without a way to render it."""


def register_masks() -> None:
    """Make sb3-contrib's environments known to Gymnasium, and let ``train`` evaluate under the environment's masks."""
    for env_id, (name, kwargs) in ENVS.items():
        gym.register(env_id, entry_point=partial(_make, name), kwargs=kwargs)
    vars(rl_zoo3.exp_manager).update(EvalCallback=_EvalCallback, TrialEvalCallback=_TrialEvalCallback)


def _make(name: str, render_mode: str | None = None, **kwargs: Any) -> gym.Env:
    if render_mode is not None:
        raise NoPicturesError(f"{name} of sb3-contrib has no pictures: use --no-render")
    return getattr(envs, name)(**kwargs)


class _EvalCallback(MaskableEvalCallback):
    """SB3's, or sb3-contrib's where there are masks."""

    def _on_step(self) -> bool:
        if isinstance(self.model, MaskablePPG):
            return super()._on_step()
        return EvalCallback._on_step(self)


class _TrialEvalCallback(TrialEvalCallback, _EvalCallback):
    """That of a hyperparameter search, likewise."""


def is_masked(model: BaseAlgorithm, env: VecEnv) -> bool:
    """
    :param model: which acts
    :param env: in which it acts
    :return: whether its ``predict`` has to be told the environment's masks
    """
    return isinstance(model, MaskablePPG) and is_masking_supported(env)


def act_under_masks(patches: Patches) -> None:
    """
    ``enjoy`` and ``record_video`` make an environment, load a model, then ask it for actions, and do not tell it what is
    possible. Each model that is loaded acts under the masks of the environment that was made for it.

    :param patches: which ends this
    """
    make, predict = rl_zoo3.utils.create_test_env, MaskablePPG.predict
    load: Any = MaskablePPG.load
    made: list[VecEnv] = []
    played: WeakKeyDictionary[MaskablePPG, VecEnv] = WeakKeyDictionary()

    @wraps(make)
    def create_test_env(*args: Any, **kwargs: Any) -> VecEnv:
        made[:] = [make(*args, **kwargs)]
        return made[0]

    @wraps(load)
    def load_to_play(cls: type[MaskablePPG], *args: Any, **kwargs: Any) -> MaskablePPG:
        model = load.__func__(cls, *args, **kwargs)
        played.update((model, env) for env in made if is_masked(model, env))
        return model

    @wraps(predict)
    def predict_under_masks(self: MaskablePPG, *args: Any, **kwargs: Any) -> Any:
        given = signature(predict).bind(self, *args, **kwargs).arguments
        if self in played and given.get("action_masks") is None:
            given["action_masks"] = get_action_masks(played[self])
        return predict(**given)

    patches.replace_in_the_zoo(make, create_test_env)
    patches.replace(MaskablePPG, "load", classmethod(load_to_play))
    patches.replace(MaskablePPG, "predict", predict_under_masks)
