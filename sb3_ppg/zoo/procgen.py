"""Procgen in RL Zoo: EnvPool's games under names that Gymnasium knows, and many at a time for training."""

import os
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from typing import Any

import gymnasium as gym
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from sb3_ppg.distributed.collectives import rank

ALL_GAMES = """
    Bigfish Bossfight Caveflyer Chaser Climber Coinrun Dodgeball Fruitbot Heist Jumper Leaper Maze Miner Ninja Plunder
    Starpilot"""
GAMES = {
    **dict.fromkeys(("Easy", "Hard"), ALL_GAMES),
    "Exploration": "Caveflyer Climber Coinrun Heist Jumper Leaper Maze Ninja",
    "Extreme": "Chaser Dodgeball Leaper Starpilot",
    "Memory": "Caveflyer Dodgeball Heist Jumper Maze Miner",
}
ENV_IDS = {f"{game}{mode}-v0" for mode, games in GAMES.items() for game in games.split()}


def register_procgen() -> None:
    """
    Make the games known to Gymnasium, and let ``train`` run them in EnvPool.

    A training on some levels (``--env-kwargs num_levels:200``) is evaluated on all, unless ``--eval-env-kwargs`` says
    otherwise.
    """
    for env_id in ENV_IDS:
        gym.register(
            env_id, entry_point="sb3_ppg.environments:EnvPoolEnv", kwargs={"env_id": env_id}, disable_env_checker=True
        )
    _evaluate_on_all_levels()
    _train_in_envpool()


def _evaluate_on_all_levels() -> None:
    original = ExperimentManager.__init__

    @wraps(original)
    def init(self: ExperimentManager, *args: Any, **kwargs: Any) -> None:
        call = signature(original).bind(self, *args, **kwargs)
        given = call.arguments
        env_kwargs = given.get("env_kwargs") or {}
        if given["env_id"] in ENV_IDS and env_kwargs.get("num_levels") and not given.get("eval_env_kwargs"):
            given["eval_env_kwargs"] = {**env_kwargs, "num_levels": 0, "start_level": 0}
            given["args"].eval_env_kwargs = given["eval_env_kwargs"]  # for `report` and `push_to_hub`
        original(*call.args, **call.kwargs)
        if given["env_id"] in ENV_IDS:
            self.deterministic_eval = False  # as for the Zoo's other games

    ExperimentManager.__init__ = init  # type: ignore[method-assign]


def _train_in_envpool() -> None:
    original = ExperimentManager.create_envs

    @wraps(original)
    def create_envs(self: ExperimentManager, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        # With wrappers of single environments, single environments
        if self.env_name.gym_id in ENV_IDS and self.env_wrapper is None:
            options = self.eval_env_kwargs if eval_env else self.env_kwargs
            monitor_file = (
                None if eval_env or no_log else os.path.join(self.save_path, str(vars(self).get("first_monitor", 0) + rank()))
            )
            self.vec_env_class = partial(_envpool, self.env_name.gym_id, self.seed, options, monitor_file)  # type: ignore[assignment]
        return original(self, n_envs, eval_env, no_log)

    ExperimentManager.create_envs = create_envs  # type: ignore[method-assign]


def _envpool(
    env_id: str, seed: int, options: dict[str, Any], monitor_file: str | None, env_fns: list[Callable[[], gym.Env]]
) -> VecEnv:
    """In the place of a ``VecEnv`` class, which takes functions that make single environments."""
    from sb3_ppg.environments import EnvPoolVecEnv

    return VecMonitor(EnvPoolVecEnv(env_id, len(env_fns), seed, **options), monitor_file)
