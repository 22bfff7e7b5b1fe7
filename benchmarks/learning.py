"""
Learning curves and final returns of PPG and PPO with the same number of steps; 100 deterministic episodes per agent.

- CartPole-v1 with all defaults, seeds 0 to 4: ``PPG("MlpPolicy", "CartPole-v1", seed=s).learn(100_000)``.
- Through RL Zoo, with ``hyperparams/ppg.yml`` and with RL Zoo's own tuned PPO, seeds 0 to 2: the environments for which
  ``ppg.yml`` claims to be tuned.
"""

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rl_zoo3 import ALGOS
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import is_masking_supported
from stable_baselines3.common.vec_env import sync_envs_normalization

from benchmarks.harness import Experiment, Report, defaults_of, short_hash
from benchmarks.suites.contestants import Settings, entry, zoo_entry
from benchmarks.suites.training import Episodes, curve, learn, make
from benchmarks.tables import draw_seeds, finish, listed, machines, mean_and_error, page, table

N_EPISODES = 100
COLORS = ("tab:blue", "tab:red", "tab:cyan", "tab:gray")  # of a task's contestants
ZOO_ENVS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
]
DEFAULTS: Settings = dict(policy="MlpPolicy", n_timesteps=100_000)


class Task(NamedTuple):
    """
    An environment, and who learns it.

    :param contestants: by name, an algorithm's name in RL Zoo and its entry
    """

    env_id: str
    n_seeds: int
    contestants: dict[str, tuple[str, Settings]]


Tasks = dict[str, Task]  # by title
TASKS: Tasks = {
    "CartPole-v1, defaults": Task("CartPole-v1", 5, {"PPG": ("ppg", DEFAULTS), "PPO": ("ppo", DEFAULTS)}),
    **{
        f"{name}, RL Zoo": Task(name, 3, {"PPG": ("ppg", entry("ppg", name)), "PPO": ("ppo", zoo_entry("ppo", name))})
        for name in ZOO_ENVS
    },
}


def hyperparameters(algo: str, settings: Settings) -> str:
    """Return a hash of an entry, or of the algorithm's defaults."""
    return short_hash(repr(list(defaults_of(ALGOS[algo]).items()) if settings == DEFAULTS else sorted(settings.items())))


def wanted(tasks: Tasks) -> list[dict[str, Any]]:
    return [
        dict(task=title, contestant=name, seed=seed, hyperparameters=hyperparameters(*contestant))
        for title, task in tasks.items()
        for seed in range(task.n_seeds)
        for name, contestant in task.contestants.items()
    ]


def train(tasks: Tasks, training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """
    Train an agent as RL Zoo does, and evaluate it.

    :return: the mean return of 100 deterministic episodes; the mean return of the latest 20 episodes at evenly spaced steps
    """
    task = tasks[training["task"]]
    algo, settings = task.contestants[training["contestant"]]
    n_timesteps, start = int(settings["n_timesteps"]), time.time()
    with contextlib.redirect_stdout(None):
        model: Any
        manager, model = make(algo, task.env_id, settings, folder, training["seed"])
        model, episodes = learn(model, n_timesteps, Episodes(folder / "episodes.csv"))
        manager.seed += 1000
        evaluation = manager.create_envs(1, eval_env=True)
    sync_envs_normalization(model.get_env(), evaluation)
    returns, _ = evaluate_policy(
        model, evaluation, N_EPISODES, return_episode_rewards=True, warn=False, use_masking=is_masking_supported(evaluation)
    )
    row = dict(steps=model.num_timesteps, mean=round(np.mean(returns), 2), std=round(np.std(returns), 2))
    return {**row, "seconds": round(time.time() - start)}, curve(episodes, n_timesteps, n_latest=20)


def draw_contestant(axes: Axes, rows: pd.DataFrame, curves: pd.DataFrame, name: str, color: str) -> None:
    """
    Draw the returns in training and, as diamonds, those of deterministic episodes after it.

    :param rows: of one contestant on one task
    :param curves: of these trainings, and of earlier ones with other hyperparameters
    """
    curves = curves[curves["hyperparameters"].isin(rows["hyperparameters"])]
    # Each seed has as many points, at about the same steps
    seeds = {seed: points["return"].to_numpy() for seed, points in curves.groupby("seed")}
    steps = curves.loc[curves["seed"] == curves["seed"].iloc[0], "steps"]
    draw_seeds(axes, pd.DataFrame(seeds, index=steps), name, color)
    axes.plot([rows["steps"].max()] * len(rows), rows["mean"], "D", color=color, alpha=0.6, markersize=5, clip_on=False)


def report(title: str, tasks: Tasks, experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per task."""
    rows, curves, lines = experiment.rows().sort_values("seed"), experiment.curves(), []
    n_lines = -(-len(tasks) // 4)
    figure = Figure(figsize=(12, 3.6 * n_lines), dpi=130, layout="constrained")  # small, so that letters are large on a page
    panels = list(figure.subplots(n_lines, 4).flat)
    for axes, (name, task) in zip(panels, tasks.items(), strict=False):
        for contestant, color in zip(task.contestants, COLORS, strict=False):
            own, points = (one[(one["task"] == name) & (one["contestant"] == contestant)] for one in (rows, curves))
            if len(own):
                draw_contestant(axes, own, points, contestant, color)
                returns = own["mean"]
                last = [f"{own['steps'].max() / 1000:.0f}k", listed(returns), mean_and_error(returns)]
                lines.append([name, contestant, *last])
        finish(axes, name.replace(", ", "\n"), "environment steps", "return")
        if axes.has_data():
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize="small")
    for axes in panels[len(tasks) :]:
        axes.set_axis_off()
    text = page(
        title,
        f"`python -m benchmarks.{experiment.name}`, one thread per training. {machines(rows)} For each seed the mean of "
        f"{N_EPISODES} deterministic episodes after training; ± is the standard error of the mean over seeds.",
        table(["environment", "algorithm", "steps", "return per seed", "mean"], lines),
    )
    return {f"{experiment.name}.md": text, f"{experiment.name}.png": figure}


def comparison(name: str, title: str, tasks: Tasks) -> Experiment:
    """Return the experiment that trains each task's contestants."""
    return Experiment(name, partial(wanted, tasks), partial(train, tasks), partial(report, title, tasks))


LEARNING = comparison("learning", "Final returns", TASKS)

if __name__ == "__main__":
    LEARNING.main()
