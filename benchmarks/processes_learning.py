"""
The same training in one process and in two: Walker2d-v5, where environments in Python take most of the time. 64 environments,
rollouts of 2,048 steps and minibatches of 512 for all processes together; 500,000 steps, three seeds.

    python -m benchmarks.processes_learning    # 25 minutes on two cores, on which nothing else should run
"""

import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch as th
from matplotlib.figure import Figure
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness import Experiment, Report, in_processes
from benchmarks.suites.training import Episodes, curve
from benchmarks.tables import draw_seeds, finish, formatted, machines, page
from sb3_ppg import PPG, process_group
from sb3_ppg.distributed.collectives import n_processes, rank

ENV_ID, N_ENVS, N_STEPS, N_TIMESTEPS, N_SEEDS = "Walker2d-v5", 64, 32, 500_000, 3
SETTINGS = {  # processes, threads in each, color
    "1 process, 1 thread": (1, 1, "tab:blue"),
    "1 process, 2 threads": (1, 2, "tab:gray"),
    "2 processes, 1 thread each": (2, 1, "tab:orange"),
}


def wanted() -> list[dict[str, Any]]:
    return [dict(setting=setting, seed=seed) for seed in range(N_SEEDS) for setting in SETTINGS]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train in new processes, each of which notes its own episodes."""
    size, n_threads, _ = SETTINGS[training["setting"]]
    row = in_processes(size, learn, n_threads, training["seed"], folder)
    files = [Episodes(folder / f"episodes_{number}.csv") for number in range(size)]
    episodes = pd.concat([one.read(row["steps"]) for one in files]).sort_values("steps", kind="stable")
    last = round(float(episodes["return"].tail(100).mean()), 1)
    return row | dict(last=last), curve(episodes, N_TIMESTEPS)


def learn(n_threads: int, seed: int, folder: Path) -> dict[str, float]:
    """Train in this process and the others of its group."""
    th.set_num_threads(n_threads)
    with process_group():
        size = n_processes()
        env = VecNormalize(make_vec_env(ENV_ID, N_ENVS // size))
        sizes: dict[str, Any] = dict(n_steps=N_STEPS, batch_size=512 // size, aux_batch_size=1024 // size)
        model = PPG("MlpPolicy", env, n_epochs=5, learning_rate=5e-4, clip_range=0.2, seed=seed, device="cpu", **sizes)
        start = time.perf_counter()
        model.learn(N_TIMESTEPS, callback=Episodes(folder / f"episodes_{rank()}.csv", time.perf_counter))
        return dict(steps=model.num_timesteps, seconds=round(time.perf_counter() - start, 1))


def report(experiment: Experiment) -> Report:
    """Return the table, and the picture of returns against steps and against seconds."""
    rows, curves = experiment.rows(), experiment.curves()
    rows["speed"] = rows["steps"] / rows["seconds"]
    own = rows.groupby("setting", sort=False).agg(speed=("speed", "median"), mean=("last", "mean"), error=("last", "sem"))
    own = own.assign(ratio=own["speed"] / own["speed"].iloc[0], error=own["error"].fillna(0)).reset_index()
    n_seeds = rows["seed"].nunique()
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, (_, _, color) in SETTINGS.items():
        points = curves[curves["setting"] == name].pivot(index="steps", columns="seed", values=["return", "seconds"]).dropna()
        if len(points):
            draw_seeds(left, points["return"], name, color)
            draw_seeds(right, points["return"].set_axis(points["seconds"].mean(axis=1)), name, color)
    finish(left, ENV_ID, "environment steps of all processes", "return of the latest 100 episodes", "upper left")
    finish(right, f"{N_ENVS} environments in all", "seconds", "")
    columns = {"setting": "{setting}", "steps/s": "{speed:,.0f}", "relative to one thread": "{ratio:.2f}"}
    text = page(
        "Several processes: learning",
        f"`python -m benchmarks.processes_learning`. {machines(rows)} {ENV_ID}, {N_TIMESTEPS:,} steps, seeds: {n_seeds}; the "
        f"same {N_ENVS} environments, rollouts and minibatches, divided among the processes. The return is that of the last "
        "100 episodes of the training, with the standard error of the mean over seeds; speeds are medians.",
        formatted(own, columns | {"return": "{mean:.0f} ± {error:.0f}" if n_seeds > 1 else "{mean:.0f}"}),
    )
    return {"processes_learning.md": text, "processes_learning.png": figure}


PROCESSES_LEARNING = Experiment("processes_learning", wanted, train, report)

if __name__ == "__main__":
    PROCESSES_LEARNING.main()
