"""
The authors' setting on Procgen's hard levels (``sb3_ppg.family.PAPER``), beside their published runs.

For a GPU: 8M steps of a game are some 20 exaflop. A training stops after a whole phase (2.1M steps) when the time for another
one is lacking, and goes on from there when the command is given again. Rows, one for each rollout, are in results/hard.csv;
``report`` writes results/hard.md and hard.png.

    python -m benchmarks.hard run [--games starpilot ...] [--seeds 0] [--precision bf16] [--minutes 9] [--jobs 1]
    python -m benchmarks.hard run --small --folder /tmp/small     # whether it works: two short phases of 1,024 steps
    python -m benchmarks.hard report

``data/procgen_hard_authors.csv`` is from the runs published with https://github.com/openai/phasic-policy-gradient: mean return
of the latest 400 episodes, averaged over 0.7M steps; runs, and the standard deviation between them.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecMonitor

from benchmarks.machine import processor
from sb3_ppg import PPG, NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.family import PAPER

HERE = Path(__file__).parent
AUTHORS = HERE / "data" / "procgen_hard_authors.csv"
GAMES = ("fruitbot", "starpilot", "chaser", "coinrun")
LATEST_EPISODES = 400
WINDOW = 700_000  # steps, over which the authors' figures are averaged


class Size(NamedTuple):
    """
    :param n_envs: environments
    :param n_timesteps: of a training
    :param changes: to the paper's arguments
    """

    n_envs: int = 256
    n_timesteps: int = 8_000_000
    changes: Mapping[str, Any] = MappingProxyType({})


SMALL = Size(8, 2048, dict(n_steps=32, batch_size=64, aux_batch_size=128, n_policy_iterations=4))


class Curve(BaseCallback):
    """
    Writes down the mean return of the latest 400 episodes, at each rollout.

    :param file: a CSV file
    :param labels: of its rows
    :param seconds: that the training has taken before
    """

    def __init__(self, file: Path, labels: dict[str, Any], seconds: float):
        super().__init__()
        self.file, self.labels = file, labels
        self.start = time.perf_counter() - seconds

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        row = dict(steps=self.num_timesteps, seconds=round(time.perf_counter() - self.start, 1))
        table = pd.DataFrame([{**self.labels, **row, "return": round(float(np.mean(returns)), 4) if returns else np.nan}])
        table.to_csv(self.file, mode="a", index=False, header=not self.file.exists())


def train(game: str, seed: int, precision: str | None, size: Size, folder: Path, deadline: float) -> None:
    """
    One game, phase by phase; each phase ends with a checkpoint, and rows after the latest one are written again.

    :param game: one of ``GAMES``
    :param seed: of the agent and its environments
    :param precision: "bf16", "tf32", or None
    :param size: how much
    :param folder: for rows and checkpoints
    :param deadline: by ``time.monotonic``: no phase begins that would probably not be over then
    """
    labels = dict(game=game, seed=seed, precision=precision or "float32", machine=machine())
    name = f"{game}_{seed}_{labels['precision']}"
    checkpoint, rows = folder / f"{name}.zip", folder / f"{name}.csv"
    env = VecMonitor(
        EnvPoolVecEnv(f"{game.capitalize()}Hard-v0", size.n_envs, seed=seed, treat_truncation_as_termination=True)
    )
    if checkpoint.exists():
        model = PPG.load(checkpoint, env=env)
        known = pd.read_csv(rows)
        known[known["steps"] <= model.num_timesteps].to_csv(rows, index=False)
        seconds = float(known["seconds"].iloc[-1])
    else:
        rows.unlink(missing_ok=True)
        model = PPG(
            "CnnPolicy",
            env,
            **{**PAPER, **size.changes},
            rollout_buffer_class=NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(gamma=0.99)),
            mixed_precision=precision,  # type: ignore[arg-type]
            stats_window_size=LATEST_EPISODES,
            seed=seed,
        )
        seconds = 0.0
    n_of_phase = model.n_steps * model.n_envs * model.n_policy_iterations
    curve, seconds_of_phase = Curve(rows, labels, seconds), 0.0
    while model.num_timesteps < size.n_timesteps and time.monotonic() + seconds_of_phase < deadline:
        start = time.monotonic()
        model.learn(n_of_phase, callback=curve, reset_num_timesteps=False)
        seconds_of_phase = time.monotonic() - start
        model.save(checkpoint)
        print(f"{name}: {model.num_timesteps:,} steps, {n_of_phase / seconds_of_phase:,.0f} a second", flush=True)
    env.close()


def machine() -> str:
    """The GPU's name, or the processor's."""
    return th.cuda.get_device_name() if th.cuda.is_available() else processor()


def run_all(args: argparse.Namespace) -> None:
    """Each training in a process of its own, so many at a time; then all rows into one file."""
    args.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.hard", "one", "--precision", args.precision, "--folder", str(args.folder)]
    command += ["--minutes", str(args.minutes), *(["--small"] if args.small else [])]
    waiting = [[*command, "--games", game, "--seeds", str(seed)] for seed in args.seeds for game in args.games]
    running: list[subprocess.Popen] = []
    failed = 0
    while waiting or running:
        while waiting and len(running) < args.jobs:
            running.append(subprocess.Popen(waiting.pop(0)))
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        failed += sum(process.poll() not in (None, 0) for process in running)
        running = [process for process in running if process.returncode is None]
    parts = [pd.read_csv(file) for file in sorted(args.folder.glob("*_*_*.csv"))]
    pd.concat(parts).to_csv(args.folder / "hard.csv", index=False)
    sys.exit(failed)


# ---- what the rows say ----


def around(curve: pd.DataFrame, millions: float) -> float:
    """
    :param curve: rows of one training
    :param millions: of steps
    :return: the mean return over 0.7M steps around them; NaN if the training did not get there
    """
    distance = (curve["steps"] - 1e6 * millions).abs()
    return float(curve["return"][distance <= WINDOW / 2].mean()) if curve["steps"].max() >= 1e6 * millions else np.nan


def markdown(rows: pd.DataFrame, authors: pd.DataFrame) -> str:
    """The table."""
    lines = [
        "# Procgen, hard: the authors' setting",
        "",
        f"`python -m benchmarks.hard run`, `report`. Mean return of the latest {LATEST_EPISODES} episodes, averaged over 0.7M "
        "steps; of the authors mean and standard deviation of their runs, of ours each seed. "
        f"{' and '.join(rows['machine'].unique())}.",
        "",
        "| game | steps | authors' PPG | authors' PPO | this package | steps/s |",
        "|---|---|---|---|---|---|",
    ]
    for game in dict.fromkeys(rows["game"]):
        own = [curve for _, curve in rows[rows["game"] == game].groupby(["precision", "seed"])]
        speed = np.median([curve["steps"].max() / curve["seconds"].max() for curve in own])
        for millions in (5, 8):
            table = authors[(authors["game"] == game) & (authors["steps_millions"] == millions)].set_index("variant")
            theirs = [
                f"{one['return_mean']:.2f} ± {one['return_run_std']:.2f}" for one in (table.loc["ppg"], table.loc["ppo"])
            ]
            values = [f"{value:.2f}" for value in (around(curve, millions) for curve in own) if not np.isnan(value)]
            if values:
                lines.append(f"| {game} | {millions}M | {' | '.join(theirs)} | {', '.join(values)} | {speed:,.0f} |")
    return "\n".join(lines) + "\n"


def plot(rows: pd.DataFrame, authors: pd.DataFrame, picture: Path) -> None:
    """Our curves, and the authors' points."""
    games = list(dict.fromkeys(rows["game"]))
    figure, all_axes = plt.subplots(1, len(games), figsize=(4 * len(games), 3.6), layout="constrained", squeeze=False)
    for axes, game in zip(all_axes[0], games, strict=True):
        for (precision, seed), curve in rows[rows["game"] == game].groupby(["precision", "seed"]):
            axes.plot(curve["steps"] / 1e6, curve["return"], label=f"this package, {precision}, seed {seed}")
        for variant, color in (("ppg", "black"), ("ppo", "tab:gray")):
            theirs = authors[(authors["game"] == game) & (authors["variant"] == variant) & (authors["steps_millions"] <= 8)]
            style = dict(color=color, fmt="o", capsize=3, label=f"authors' {variant.upper()}")
            axes.errorbar(theirs["steps_millions"], theirs["return_mean"], theirs["return_run_std"], **style)
        axes.set(title=game, xlabel="million steps", ylabel="return")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "one"):  # the latter is what the former calls
        running = commands.add_parser(name)
        running.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES)
        running.add_argument("--seeds", nargs="+", default=[0], type=int)
        running.add_argument("--precision", default="bf16", choices=("bf16", "tf32", "float32"))
        running.add_argument("--minutes", default=1e6, type=float, help="no phase begins that would end later")
        running.add_argument("--jobs", default=1, type=int, help="trainings at a time")
        running.add_argument("--small", action="store_true", help="only whether it works")
        running.add_argument("--folder", default=Path("logs/hard"), type=Path, help="for rows and checkpoints")
    reporting = commands.add_parser("report")
    reporting.add_argument("--folder", default=HERE / "results", type=Path, help="with hard.csv")
    args = parser.parse_args()
    if args.command == "run":
        run_all(args)
    elif args.command == "one":
        precision = None if args.precision == "float32" else args.precision
        deadline = time.monotonic() + 60 * args.minutes
        train(args.games[0], args.seeds[0], precision, SMALL if args.small else Size(), args.folder, deadline)
    else:
        rows, authors = pd.read_csv(args.folder / "hard.csv"), pd.read_csv(AUTHORS)
        text = markdown(rows, authors)
        (args.folder / "hard.md").write_text(text)
        plot(rows, authors, args.folder / "hard.png")
        print(text)


if __name__ == "__main__":
    main()
