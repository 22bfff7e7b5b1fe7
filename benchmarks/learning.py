"""
Learning curves and final returns of PPG and PPO with the same number of steps; 100 deterministic episodes per agent.

- CartPole-v1 with all defaults, seeds 0 to 4: ``PPG("MlpPolicy", "CartPole-v1", seed=s).learn(100_000)``.
- Through RL Zoo, with ``hyperparams/ppg.yml`` and with RL Zoo's own tuned PPO, seeds 0 to 2: the environments for which
  ``ppg.yml`` claims to be tuned. LunarLander's curve is that of deterministic episodes, because PPO's random actions cost so
  much there that the gap between the returns in training is several times that between the agents.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rl_zoo3 import ALGOS

from benchmarks.episodes import curve, evaluation
from benchmarks.harness import COLORS, Experiment, Outcome, Report, defaults_of, listed, machines, trained
from benchmarks.suites.contestants import Settings, entry, zoo_entry
from sb3_ppg.comparison.report import draw_seeds, finish, page, table
from sb3_ppg.comparison.runs import short_hash

N_EPISODES = 100
ZOO_ENVS = ["CartPole-v1", "Acrobot-v1", "MountainCarContinuous-v0", "Pendulum-v1"]
ZOO_ENVS += ["LunarLander-v3", "LunarLanderContinuous-v3"]
EVALUATED = "LunarLander-v3, RL Zoo"
N_EVALUATIONS = 20  # in training
DEFAULTS: Settings = dict(policy="MlpPolicy", n_timesteps=100_000)


# By title: an environment, the number of seeds, and the entry of each algorithm, by its name in RL Zoo
TASKS: dict[str, tuple[str, int, dict[str, Settings]]] = {
    "CartPole-v1, defaults": ("CartPole-v1", 5, {"ppg": DEFAULTS, "ppo": DEFAULTS}),
    **{f"{name}, RL Zoo": (name, 3, {"ppg": entry("ppg", name), "ppo": zoo_entry("ppo", name)}) for name in ZOO_ENVS},
}


def hyperparameters(algo: str, settings: Settings) -> str:
    """Return a hash of an entry, or of the algorithm's defaults."""
    return short_hash(repr(list(defaults_of(ALGOS[algo]).items()) if settings == DEFAULTS else sorted(settings.items())))


def wanted() -> list[dict[str, Any]]:
    return [
        dict(task=title, contestant=algo.upper(), seed=seed, hyperparameters=hyperparameters(algo, settings))
        for title, (_, n_seeds, entries) in TASKS.items()
        for seed in range(n_seeds)
        for algo, settings in entries.items()
    ]


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Train an agent and evaluate it after its last step; LunarLander's also before, which its seconds include."""
    algo = run["contestant"].lower()
    env_id, _, entries = TASKS[run["task"]]
    n_timesteps, is_evaluated = int(entries[algo]["n_timesteps"]), run["task"] == EVALUATED
    frequency = n_timesteps // (N_EVALUATIONS if is_evaluated else 1)
    evaluations = ["--eval-freq", str(frequency), "--eval-episodes", str(N_EPISODES)]
    done = trained(folder, algo, env_id, entries[algo], run["seed"], n_timesteps, *evaluations)
    (mean, std), last, points = evaluation(done), done.rows().iloc[-1], curve(done)
    if is_evaluated:
        with np.load(done.folder / "evaluations.npz") as found:
            points = pd.DataFrame({"steps": found["timesteps"], "return": found["results"].mean(axis=1).round(2)})
    return dict(steps=last["steps"], mean=mean, std=std, seconds=round(last["seconds"], 1)), points


def draw_contestant(axes: Axes, rows: pd.DataFrame, curves: pd.DataFrame, title: str, name: str) -> tuple[int, pd.Series]:
    """
    Draw the learning curve and, as diamonds, the returns of deterministic episodes after training.

    :param rows: rows of all runs
    :param curves: curves of these runs, and of earlier ones with other hyperparameters
    :param title: a task of ``TASKS``
    :return: the length of the runs; the final returns
    """
    rows = rows[(rows["task"] == title) & (rows["contestant"] == name)]
    curves = curves.merge(rows[["task", "contestant", "seed", "hyperparameters"]])
    # Each seed has as many points, at about the same steps
    seeds = {seed: points["return"].to_numpy() for seed, points in curves.groupby("seed")}
    steps = curves.loc[curves["seed"] == curves["seed"].iloc[0], "steps"]
    draw_seeds(axes, pd.DataFrame(seeds, index=steps), name, COLORS[name])
    length = rows["steps"].max()
    axes.plot([length] * len(rows), rows["mean"], "D", color=COLORS[name], alpha=0.6, markersize=5, clip_on=False)
    return length, rows["mean"]


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per task."""
    rows, curves, lines = experiment.rows().sort_values("seed"), experiment.curves(), []
    n_lines = -(-len(TASKS) // 4)
    figure = Figure(figsize=(12, 3.6 * n_lines), dpi=130, layout="constrained")  # small, so that letters are large on a page
    panels = list(figure.subplots(n_lines, 4).flat)
    for axes, title in zip(panels, TASKS, strict=False):
        for name in ("PPG", "PPO"):
            length, returns = draw_contestant(axes, rows, curves, title, name)
            mean = f"{returns.mean():.1f} ± {returns.sem():.1f}"
            lines.append([title, name, f"{length / 1000:.0f}k", listed(returns), mean])
        finish(axes, title.replace(", ", "\n"), "environment steps")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize="small")
    for axes in panels[len(TASKS) :]:
        axes.set_axis_off()
    text = page(
        "Final returns",
        f"`python -m benchmarks.learning`, one thread per training. {machines(rows)} For each seed the mean of {N_EPISODES} "
        "deterministic episodes after training; ± is the standard error of the mean over seeds.",
        table(["environment", "algorithm", "steps", "return per seed", "mean"], lines),
    )
    return {"learning.md": text, "learning.png": figure}


LEARNING = Experiment("learning", wanted, train, report)

if __name__ == "__main__":
    LEARNING.main()
