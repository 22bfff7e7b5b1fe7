"""MinAtar's preset with one thing changed at a time, in one figure."""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from benchmarks.suites.contestants import ABLATIONS, COLORS, LEADING, TASKS, Training
from benchmarks.suites.queue import Results

N_TIMESTEPS = 1_000_000
LAST = 800_000  # from here on returns are averaged: less noise than the last hundred episodes have
ENV_IDS = ("MinAtar/Breakout-v1", "MinAtar/Asterix-v1")


def late_returns(results: Results) -> pd.DataFrame:
    """
    :param results: of all trainings
    :return: mean return of the last fifth of the first million steps, by contestant, task and seed. Longer trainings of the
        presets count, whose learning rates are constant, so that they pass the same point. What several contestants' settings
        have in common counts once, under the first name
    """
    tasks = [task for task in TASKS if task.env_id in ENV_IDS]
    lengths = {name: {N_TIMESTEPS, tasks[0].n_timesteps} if name in LEADING else {N_TIMESTEPS} for name in LEADING | ABLATIONS}
    known = pd.DataFrame(
        [
            (Training(task, name, 0, length).hash(), task.env_id, name)
            for name, of_name in lengths.items()
            for task in tasks
            for length in of_name
        ],
        columns=["settings", "task", "contestant"],
    ).drop_duplicates("settings")
    curves = results.curves()
    late = curves[(curves["steps"] > LAST) & (curves["steps"] <= N_TIMESTEPS)].merge(known, on="settings")
    return late.groupby(["contestant", "task", "seed"], as_index=False)["return"].mean()


def plot(returns: pd.DataFrame, picture: Path) -> None:
    """
    One point per seed; the ranges of the presets' seeds are shaded.

    :param returns: of all who were trained
    :param picture: to write
    """
    known = set(returns["contestant"])
    names = [name for name in LEADING | ABLATIONS if name in known][::-1]
    figure, panels = plt.subplots(1, len(ENV_IDS), figsize=(9, 1.2 + 0.22 * len(names)), sharey=True, layout="constrained")
    for axes, env_id in zip(panels, ENV_IDS, strict=True):
        table = returns[returns["task"] == env_id]
        for name, color in COLORS.items():
            seeds = table.loc[table["contestant"] == name, "return"]
            axes.axvspan(seeds.min(), seeds.max(), color=color, alpha=0.1)
            axes.axvline(seeds.mean(), color=color, alpha=0.5)
        for position, name in enumerate(names):
            seeds = table.loc[table["contestant"] == name, "return"]
            axes.plot(seeds, [position] * len(seeds), "o", markersize=4, color=COLORS[name[:3]])
        axes.set(title=env_id, xlabel="return", yticks=range(len(names)), yticklabels=names, ylim=(-1, len(names)))
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=100)
    plt.close(figure)
