"""
Learning curves and final returns of PPG and PPO with the same number of steps; 100 deterministic episodes per agent.

- CartPole-v1 with all defaults, seeds 0 to 4: ``PPG("MlpPolicy", "CartPole-v1", seed=s).learn(100_000)``.
- Through RL Zoo, with ``hyperparams/ppg.yml`` and with RL Zoo's own tuned PPO, seeds 0 to 2: the environments for which
  ``ppg.yml`` claims to be tuned.
"""

import contextlib
import time
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.vec_env import sync_envs_normalization

from benchmarks.harness import Experiment, Report, short_hash
from benchmarks.suites.contestants import Settings, entry, zoo_entry
from benchmarks.suites.training import make
from benchmarks.tables import COLORS, by_seed, draw_seeds, finish, listed, machines, mean_and_error, page, table
from sb3_ppg import PPG

N_EPISODES = 100
CURVE_POINTS = 50
ZOO_ENVS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
]
TASKS = [("CartPole-v1", "defaults", range(5)), *((env_id, "RL Zoo", range(3)) for env_id in ZOO_ENVS)]


def wanted() -> list[dict[str, Any]]:
    """Return all trainings; "hyperparameters" is a hash of the file's entry, or of the defaults."""
    return [
        dict(
            env=env_id,
            setting=setting,
            algo=algo,
            seed=seed,
            hyperparameters=hyperparameters(env_id, algo) if setting == "RL Zoo" else defaults(algo),
        )
        for env_id, setting, seeds in TASKS
        for algo in ("ppg", "ppo")
        for seed in seeds
    ]


def settings_of(env_id: str, algo: str) -> Settings:
    """Return an environment's entry: ours, or RL Zoo's for PPO."""
    return entry(algo, env_id) if algo == "ppg" else zoo_entry(algo, env_id)


def hyperparameters(env_id: str, algo: str) -> str:
    """Return a hash of an environment's entry."""
    return short_hash(repr(sorted(settings_of(env_id, algo).items())))


def defaults(algo: str) -> str:
    """Return a hash of an algorithm's defaults."""
    parameters = signature({"ppg": PPG, "ppo": PPO}[algo]).parameters
    return short_hash(repr([(name, parameter.default) for name, parameter in parameters.items()]))


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    env_id, algo = training["env"], training["algo"]
    in_python = dict(policy="MlpPolicy", n_timesteps=100_000)
    settings = in_python if training["setting"] == "defaults" else settings_of(env_id, algo)
    return train_and_evaluate(algo, env_id, settings, training["seed"], folder)


def train_and_evaluate(
    algo: str, env_id: str, settings: Settings, seed: int, folder: Path
) -> tuple[dict[str, Any], pd.DataFrame]:
    """
    Train an agent as RL Zoo does, and evaluate it.

    :param algo: its name in RL Zoo
    :return: the mean return of 100 deterministic episodes; the learning curve
    """
    start = time.time()
    with contextlib.redirect_stdout(None):
        model: Any
        manager, model = make(algo, env_id, settings, folder, seed)
        model.learn(int(settings["n_timesteps"]))
        manager.seed += 1000
        evaluation = manager.create_envs(1, eval_env=True)
    sync_envs_normalization(model.get_env(), evaluation)
    returns, _ = evaluate_policy(
        model, evaluation, N_EPISODES, return_episode_rewards=True, warn=False, use_masking=is_masking_supported(evaluation)
    )
    monitor = load_results(manager.save_path)
    row = dict(steps=int(monitor["l"].sum()), mean=round(np.mean(returns), 2), std=round(np.std(returns), 2))
    return {**row, "seconds": round(time.time() - start)}, curve(monitor)


def curve(monitor: pd.DataFrame) -> pd.DataFrame:
    """Return the mean return of the last 20 episodes, at evenly spaced steps."""
    steps, smooth = monitor["l"].cumsum(), monitor["r"].rolling(20, min_periods=1).mean()
    grid = np.linspace(0, steps.iloc[-1], CURVE_POINTS + 1)[1:]
    return pd.DataFrame({"steps": grid.astype(int), "return": np.interp(grid, steps, smooth).round(2)})


def draw_and_list(axes: Axes, rows: pd.DataFrame, curves: pd.DataFrame, query: str, name: str, color: str) -> list[list[str]]:
    """
    Draw the curves of a contestant's seeds.

    :param query: the rows of the contestant
    :return: a line of a table, if there are rows: its name, steps, returns and their mean
    """
    own = rows.query(query).sort_values("seed")
    if own.empty:
        return []
    draw_seeds(axes, by_seed(curves.query(query)), name, color)
    return [[name, f"{own['steps'].max() / 1000:.0f}k", listed(own["mean"]), mean_and_error(own["mean"])]]


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per environment and setting."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    figure = Figure(figsize=(12, 6.2), dpi=130, layout="constrained")  # small, so that its letters are large enough on a page
    panels = list(figure.subplots(2, 4).flat)
    for axes, (env_id, setting, _) in zip(panels, TASKS, strict=False):
        for name in ("PPG", "PPO"):
            query = f"env == '{env_id}' and setting == '{setting}' and algo == '{name.lower()}'"
            found = draw_and_list(axes, rows, curves, query, name, COLORS[name])
            lines += [[env_id, setting, *line] for line in found]
        finish(axes, f"{env_id}\n{setting}", "environment steps", "return in training", legend="lower right")
    for axes in panels[len(TASKS) :]:
        axes.set_axis_off()
    text = page(
        "Final returns",
        f"`python -m benchmarks.learning`, one thread per training. {machines(rows)} For each seed the mean of "
        f"{N_EPISODES} deterministic episodes after training; ± is the standard error of the mean over seeds.",
        table(["environment", "setting", "algorithm", "steps", "return per seed", "mean"], lines),
    )
    return {"learning.md": text, "learning.png": figure}


LEARNING = Experiment("learning", wanted, train, report)

if __name__ == "__main__":
    LEARNING.main()
