"""
The authors' setting on Procgen's hard levels (``sb3_ppg.family.PAPER``), and their published runs.

For a GPU: 8M steps of a game take about 20 exaflop. A training that was stopped continues from its latest phase (2.1M steps)
when the command is given again.

    python -m benchmarks.hard run [--game starpilot ...] [--seed 0] [--precision bf16] [--jobs 1] [--folder logs/benchmarks]
    python -m benchmarks.hard run --small --folder /tmp/small --results /tmp/small  # a trial: two short phases of 1,024 steps
    python -m benchmarks.hard report

``data/procgen_hard_authors.csv`` is from the runs published with https://github.com/openai/phasic-policy-gradient: mean return
of the latest 400 episodes, averaged over 0.7M steps; number of runs, and the standard deviation between them.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th
from matplotlib.figure import Figure
from stable_baselines3.common.vec_env import VecMonitor

from benchmarks.harness import Experiment, Report
from benchmarks.machine import processor
from benchmarks.suites.training import Episodes, curve, learn
from benchmarks.tables import finish, listed, machines, page, table
from sb3_ppg import PPG, NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.family import PAPER

AUTHORS = Path(__file__).parent / "data" / "procgen_hard_authors.csv"
GAMES = ("fruitbot", "starpilot", "chaser", "coinrun")
LATEST_EPISODES = 400
CURVE_POINTS = 122  # about one for each rollout
WINDOW = 700_000  # steps, over which the authors' figures are averaged
SMALL: dict[str, Any] = dict(n_steps=32, batch_size=64, aux_batch_size=128, n_policy_iterations=4)


def wanted(seed: Sequence[int] = (0,), precision: str = "bf16", small: bool = False) -> list[dict[str, Any]]:
    """
    Return a training of each game.

    :param precision: "bf16", "tf32" or "float32"
    :param small: whether they are only trials
    """
    return [dict(game=game, seed=one, precision=precision, small=small) for one in seed for game in GAMES]


def train(training: dict[str, Any], folder: Path) -> tuple[pd.DataFrame, None]:
    """Train one game; a row for each point of the learning curve."""
    n_envs, n_timesteps = (8, 2048) if training["small"] else (256, 8_000_000)
    name = f"{training['game'].capitalize()}Hard-v0"
    model = PPG(
        "CnnPolicy",
        VecMonitor(EnvPoolVecEnv(name, n_envs, seed=training["seed"], treat_truncation_as_termination=True)),
        **{**PAPER, **(SMALL if training["small"] else {})},
        rollout_buffer_class=NormalizedRewardRolloutBuffer,
        rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(gamma=0.99)),
        mixed_precision=None if training["precision"] == "float32" else training["precision"],
        seed=training["seed"],
    )
    _, episodes = learn(model, n_timesteps, Episodes(folder / "episodes.csv", time.time))
    machine = th.cuda.get_device_name() if th.cuda.is_available() else processor()
    return curve(episodes, n_timesteps, CURVE_POINTS, LATEST_EPISODES).assign(machine=machine), None


def around(curve: pd.DataFrame, millions: float) -> float:
    """Return a training's mean return over 0.7M steps around so many millions; NaN if it did not get there."""
    distance = (curve["steps"] - 1e6 * millions).abs()
    return float(curve["return"][distance <= WINDOW / 2].mean()) if curve["steps"].max() >= 1e6 * millions else np.nan


def markdown(rows: pd.DataFrame, authors: pd.DataFrame) -> str:
    lines = []
    for game in rows["game"].unique():
        own = [one for _, one in rows[rows["game"] == game].groupby(["precision", "seed"])]
        speed = np.median([curve["steps"].max() / curve["seconds"].max() for curve in own])
        for millions in (5, 8):
            published = authors[(authors["game"] == game) & (authors["steps_millions"] == millions)].set_index("variant")
            cells = ("{return_mean:.2f} ± {return_run_std:.2f}".format(**published.loc[name]) for name in ("ppg", "ppo"))
            values = [value for value in (around(curve, millions) for curve in own) if not np.isnan(value)]
            if values:
                lines.append([game, f"{millions}M", *cells, listed(values, 2), f"{speed:,.0f}"])
    return page(
        "Procgen, hard: the authors' setting",
        f"`python -m benchmarks.hard run`, `report`. Mean return of the latest {LATEST_EPISODES} episodes, averaged over 0.7M "
        f"steps: mean and standard deviation of the authors' runs, and each seed of ours. {machines(rows)}",
        table(["game", "steps", "authors' PPG", "authors' PPO", "this package", "steps/s"], lines),
    )


def picture(rows: pd.DataFrame, authors: pd.DataFrame) -> Figure:
    """Draw our curves, and the authors' points."""
    games = rows["game"].unique()
    figure = Figure(figsize=(4 * len(games), 3.6), dpi=110, layout="constrained")
    for axes, game in zip(figure.subplots(1, len(games), squeeze=False)[0], games, strict=True):
        for (precision, seed), own in rows[rows["game"] == game].groupby(["precision", "seed"]):
            axes.plot(own["steps"] / 1e6, own["return"], label=f"this package, {precision}, seed {seed}")
        for variant, color in (("ppg", "black"), ("ppo", "tab:gray")):
            theirs = authors[(authors["game"] == game) & (authors["variant"] == variant) & (authors["steps_millions"] <= 8)]
            style = dict(color=color, fmt="o", capsize=3, label=f"authors' {variant.upper()}")
            axes.errorbar(theirs["steps_millions"], theirs["return_mean"], theirs["return_run_std"], **style)
        finish(axes, game, "million steps", legend="best")
    return figure


def report(experiment: Experiment) -> Report:
    rows, authors = experiment.rows(present=False), pd.read_csv(AUTHORS)
    return {"hard.md": markdown(rows, authors), "hard.png": picture(rows, authors)} if len(rows) else {}


HARD = Experiment(
    "hard",
    wanted,
    train,
    report,
    options={
        "seed": dict(nargs="*", default=[0], type=int),
        "precision": dict(default="bf16", choices=("bf16", "tf32", "float32")),
        "small": dict(action="store_true", help="only a trial"),
    },
    resumes=True,
)

if __name__ == "__main__":
    HARD.main()
