"""Environments that ``register()`` makes known: EnvPool's Procgen, MinAtar's games, sb3-contrib's with action masks."""

import importlib
import time
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import WrapperSpec
from gymnasium.utils import RecordConstructorArgs
from stable_baselines3.common.env_util import unwrap_wrapper
from stable_baselines3.common.monitor import Monitor
from typing_extensions import override

from sb3_ppg.errors import PROCGEN_GAMES, ArgumentError, nearest, remedy_for_environment

PROCGEN_MODES = {
    **dict.fromkeys(("Easy", "Hard"), PROCGEN_GAMES),
    "Exploration": "Caveflyer Climber Coinrun Heist Jumper Leaper Maze Ninja",
    "Extreme": "Chaser Dodgeball Leaper Starpilot",
    "Memory": "Caveflyer Dodgeball Heist Jumper Maze Miner",
}
PROCGEN_IDS = {f"{game}{mode}-v0" for mode, games in PROCGEN_MODES.items() for game in games.split()}
MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
PIXELS_PER_CELL = 24  # in pictures of MinAtar
# Our IDs for sb3-contrib's environments with action masks
MASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "InvalidActionsDiscrete-v0": ("InvalidActionEnvDiscrete", dict(dim=100, n_invalid_actions=80)),
    "InvalidActionsMultiDiscrete-v0": ("InvalidActionEnvMultiDiscrete", dict(dims=[4, 4, 4], n_invalid_actions=6)),
    "InvalidActionsMultiBinary-v0": ("InvalidActionEnvMultiBinary", dict(dims=10, n_invalid_actions=5)),
}


def register_environments() -> None:
    """
    Register the environments with Gymnasium, MinAtar's with the IDs that the package uses: v0 with all six actions, v1 with
    those that have an effect.
    """
    for env_id in PROCGEN_IDS:
        gym.register(
            env_id, entry_point="sb3_ppg.environments:EnvPoolEnv", kwargs={"env_id": env_id}, disable_env_checker=True
        )
    enlarged = (WrapperSpec("Enlarged", "sb3_ppg.zoo.environments:Enlarged", {}),)
    for game in MINATAR_GAMES:
        for version, minimal in enumerate((False, True)):
            env_id = f"MinAtar/{game.title().replace('_', '')}-v{version}"
            kwargs: dict[str, Any] = dict(game=game, use_minimal_action_set=minimal)
            gym.register(env_id, "minatar.gym:BaseEnv", kwargs=kwargs, additional_wrappers=enlarged, disable_env_checker=True)
    for env_id, (name, kwargs) in MASKED.items():
        gym.register(env_id, entry_point=f"sb3_contrib.common.envs:{name}", kwargs=kwargs)


def imported(module: str) -> ModuleType:
    """Import a module that an option names; argparse would hide some of its errors."""
    try:
        return importlib.import_module(module)
    except (TypeError, ValueError) as error:
        raise RuntimeError(f"{module} cannot be imported") from error


def environment_maker(env_id: str) -> Any:
    """Return the class or function that makes an environment; raise an ``ArgumentError`` with a remedy if there is none."""
    if env_id not in gym.registry:
        if extra := remedy_for_environment(env_id):
            raise ArgumentError(f"there is no environment {env_id}: {extra}")
        remedy = "If a module of yours registers it, use --gym-packages MODULE (and --env ENV, not MODULE:ENV)"
        raise ArgumentError(f"there is no environment {env_id}{nearest(env_id, gym.registry)}. {remedy}")
    entry_point: Any = gym.registry[env_id].entry_point
    return gym.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point


class CutEpisodes(gym.Wrapper):
    """
    Reports episodes that a wrapper around SB3's ``Monitor`` truncates, in the same form as the Monitor. All other attributes
    are those of that wrapper, because ``set_attr`` of vectorized environments only reaches the outermost wrapper.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        is_own = name.startswith("_") or name == "env"
        super().__setattr__(name, value) if is_own else setattr(self.env, name, value)

    @override
    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        monitor: Any = unwrap_wrapper(self.env, Monitor) if truncated else None
        if monitor is not None and not monitor.needs_reset:  # which has not seen the end
            seconds, rewards = time.time() - monitor.t_start, monitor.rewards
            info["episode"] = {"r": round(sum(rewards), 6), "l": len(rewards), "t": round(seconds, 6)}
            info["episode"] |= {key: info[key] for key in monitor.info_keywords if key in info} | monitor.current_reset_info
            if monitor.results_writer is not None:
                monitor.results_writer.write_row(info["episode"])
        return observation, reward, terminated, truncated, info


class Enlarged(gym.Wrapper, RecordConstructorArgs):
    """MinAtar's pictures have one pixel per cell and numbers from 0 to 1; these have 240x240 pixels of type uint8."""

    def __init__(self, env: gym.Env):
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    @override
    def render(self) -> Any:
        picture = self.env.render()
        if self.render_mode != "rgb_array":
            return picture
        return np.kron(np.asarray(picture) * 255, np.ones((PIXELS_PER_CELL, PIXELS_PER_CELL, 1))).astype(np.uint8)
