"""
The authors' setting on Procgen's hard levels (``sb3_ppg.family.PAPER``), and their published runs.

For a GPU: 8M steps of a game take about 20 exaflop. A training stops after a whole phase (2.1M steps) when there is no time
for another one, and continues when the command is given again; its rows are added when it is over, one for each rollout.
Writes results/hard.csv, hard.md and hard.png.

    python -m benchmarks.hard run [--game starpilot ...] [--precision bf16] [--minutes 9] [--jobs 1] [--folder logs/benchmarks]
    python -m benchmarks.hard run --small --folder /tmp/small --results /tmp/small  # a trial: two short phases of 1,024 steps
    python -m benchmarks.hard report

``data/procgen_hard_authors.csv`` is from the runs published with https://github.com/openai/phasic-policy-gradient: mean return
of the latest 400 episodes, averaged over 0.7M steps; number of runs, and the standard deviation between them.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch as th
from matplotlib.figure import Figure
from stable_baselines3.common.vec_env import VecMonitor

from benchmarks.callbacks import MeanReturns
from benchmarks.harness import Experiment, Report
from benchmarks.machine import processor
from benchmarks.tables import finish, listed, machines, page, table
from sb3_ppg import PPG, NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.family import PAPER

AUTHORS = Path(__file__).parent / "data" / "procgen_hard_authors.csv"
GAMES = ("fruitbot", "starpilot", "chaser", "coinrun")
LATEST_EPISODES = 400
WINDOW = 700_000  # steps, over which the authors' figures are averaged
SMALL: dict[str, Any] = dict(n_steps=32, batch_size=64, aux_batch_size=128, n_policy_iterations=4)


class Training(NamedTuple):
    """
    A training of one game.

    :param precision: "bf16", "tf32" or "float32"
    :param small: whether it is only a trial
    :param end: by ``time.time``: no phase begins that would probably not be over then
    """

    game: str
    seed: int
    precision: str
    small: bool
    end: float


def wanted(
    seed: Sequence[int] = (0,), precision: str = "bf16", small: bool = False, minutes: float = np.inf
) -> list[Training]:
    end = time.time() + 60 * minutes
    return [Training(game, one, precision, small, end) for one in seed for game in GAMES]


def columns(training: Training) -> dict[str, Any]:
    return dict(game=training.game, seed=training.seed, precision=training.precision)


def train(training: Training, folder: Path) -> tuple[pd.DataFrame, None] | None:
    """
    Train one game, phase by phase, with a checkpoint after each.

    :return: the rows; None if the time has run out
    """
    n_envs, n_timesteps = (8, 2048) if training.small else (256, 8_000_000)
    checkpoint, rows = folder / "model.zip", folder / "rows.csv"
    name = f"{training.game.capitalize()}Hard-v0"
    env = VecMonitor(EnvPoolVecEnv(name, n_envs, seed=training.seed, treat_truncation_as_termination=True))
    if checkpoint.exists():
        model = PPG.load(checkpoint, env=env)
        known = pd.read_csv(rows)
        known = known[known["steps"] <= model.num_timesteps]
    else:
        known = pd.DataFrame()
        model = PPG(
            "CnnPolicy",
            env,
            **{**PAPER, **(SMALL if training.small else {})},
            rollout_buffer_class=NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(gamma=0.99)),
            mixed_precision=None if training.precision == "float32" else training.precision,  # type: ignore[arg-type]
            stats_window_size=LATEST_EPISODES,
            seed=training.seed,
        )
    n_of_phase = model.n_steps * model.n_envs * model.n_policy_iterations
    curve = MeanReturns(known["seconds"].iloc[-1] if len(known) else 0.0)
    seconds_of_phase = 0.0
    while model.num_timesteps < n_timesteps and time.time() + seconds_of_phase < training.end:
        start = time.time()
        model.learn(n_of_phase, callback=curve, reset_num_timesteps=False)
        seconds_of_phase = time.time() - start
        pd.concat([known, pd.DataFrame(curve.points)]).to_csv(rows, index=False)  # first: later rows are left out
        model.save(checkpoint)
        print(f"{name}: {model.num_timesteps:,} steps, {n_of_phase / seconds_of_phase:,.0f} a second", flush=True)
    env.close()
    return (pd.read_csv(rows).round(4).assign(machine=machine()), None) if model.num_timesteps >= n_timesteps else None


def machine() -> str:
    """Return the GPU's name, or the processor's."""
    return th.cuda.get_device_name() if th.cuda.is_available() else processor()


def around(curve: pd.DataFrame, millions: float) -> float:
    """Return a training's mean return over 0.7M steps around so many millions; NaN if it did not get there."""
    distance = (curve["steps"] - 1e6 * millions).abs()
    return float(curve["return"][distance <= WINDOW / 2].mean()) if curve["steps"].max() >= 1e6 * millions else np.nan


def markdown(rows: pd.DataFrame, authors: pd.DataFrame) -> str:
    lines = []
    for game in dict.fromkeys(rows["game"]):
        own = [curve for _, curve in rows[rows["game"] == game].groupby(["precision", "seed"])]
        speed = np.median([curve["steps"].max() / curve["seconds"].max() for curve in own])
        for millions in (5, 8):
            published = authors[(authors["game"] == game) & (authors["steps_millions"] == millions)].set_index("variant")
            theirs = [
                f"{one['return_mean']:.2f} ± {one['return_run_std']:.2f}"
                for one in (published.loc["ppg"], published.loc["ppo"])
            ]
            values = [value for value in (around(curve, millions) for curve in own) if not np.isnan(value)]
            if values:
                lines.append([game, f"{millions}M", *theirs, listed(values, 2), f"{speed:,.0f}"])
    return page(
        "Procgen, hard: the authors' setting",
        f"`python -m benchmarks.hard run`, `report`. Mean return of the latest {LATEST_EPISODES} episodes, averaged over 0.7M "
        f"steps: mean and standard deviation of the authors' runs, and each seed of ours. {machines(rows)}",
        table(["game", "steps", "authors' PPG", "authors' PPO", "this package", "steps/s"], lines),
    )


def picture(rows: pd.DataFrame, authors: pd.DataFrame) -> Figure:
    """Draw our curves, and the authors' points."""
    games = list(dict.fromkeys(rows["game"]))
    figure = Figure(figsize=(4 * len(games), 3.6), dpi=110, layout="constrained")
    for axes, game in zip(figure.subplots(1, len(games), squeeze=False)[0], games, strict=True):
        for (precision, seed), curve in rows[rows["game"] == game].groupby(["precision", "seed"]):
            axes.plot(curve["steps"] / 1e6, curve["return"], label=f"this package, {precision}, seed {seed}")
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
    columns,
    options={
        "seed": dict(nargs="*", default=[0], type=int),
        "precision": dict(default="bf16", choices=("bf16", "tf32", "float32")),
        "small": dict(action="store_true", help="only a trial"),
        "minutes": dict(default=np.inf, type=float, help="no phase begins that would end later"),
    },
    resumes=True,
)

if __name__ == "__main__":
    HARD.main()
