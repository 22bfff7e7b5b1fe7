"""
Fine-tuning of cloned policies with a prior, without one, and training from scratch.

A teacher is trained for part of the way (MiniGrid: on a smaller room), and 20,000 of its steps, with its exploration, are
recorded. PPG clones them by ``warm_start``, and goes on learning: near the clone, whose weight falls to zero, or freely. All
have the entries of ``hyperparams/ppg.yml``. The runs are those of this module at commit 76f21b7.

    python -m benchmarks.finetuning report    # tables and pictures from the rows
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.harness import Experiment, Report, machines
from benchmarks.scores import interquartile_means
from sb3_ppg.comparison.report import draw_seeds, finish, page, table

SEEDS = range(5)


TASKS = {"LunarLander-v3": 300_000, "Hopper-v5": 300_000, "MiniGrid-DoorKey-8x8-v0": 500_000}  # steps
FORMATS = {"before": ",.2f", "dip": ",.2f", "half": ",.0f", "all": ",.0f", "after": ",.2f"}  # of the table's columns
COLORS = {"prior": "tab:blue", "no prior": "tab:red", "scratch": "tab:gray"}


def wanted() -> list[dict[str, Any]]:
    return [dict(task=task, contestant=name, seed=seed) for seed in SEEDS for task in TASKS for name in COLORS]


def milestones(curve: pd.DataFrame, goal: float, length: int) -> dict[str, float]:
    """Return the steps until half of the goal and all of it, the length if it is not reached; and the deepest dip."""
    values, steps = curve["return"].to_numpy(), curve["steps"].to_numpy()
    reached = {name: values >= part * goal for name, part in (("half", 0.5), ("all", 1.0))}
    found = {name: float(steps[is_there][0]) if is_there.any() else float(length) for name, is_there in reached.items()}
    return found | {"dip": float(np.max(np.maximum.accumulate(values) - values))}


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per task."""
    rows, lines = experiment.rows(), []
    n_contestants = rows.groupby(["task", "seed"])["contestant"].nunique()
    complete = n_contestants[n_contestants == len(COLORS)].index  # the seeds that all have
    rows, curves = (table[table.set_index(["task", "seed"]).index.isin(complete)] for table in (rows, experiment.curves()))
    figure = Figure(figsize=(12, 4), dpi=110, layout="constrained")
    for axes, (name, n_timesteps) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        of_task = curves[curves["task"] == name]
        goal = of_task[of_task["steps"] == n_timesteps].groupby("contestant")["return"].mean().max()
        for contestant in COLORS:
            own = rows[(rows["task"] == name) & (rows["contestant"] == contestant)]
            of_seeds = of_task[of_task["contestant"] == contestant]
            if own.empty:
                continue
            marks = pd.DataFrame([milestones(run, goal, n_timesteps) for _, run in of_seeds.groupby("seed")])
            columns = {"before": own["before"], **marks, "after": own["mean"]}
            values = interquartile_means({key: column.to_numpy()[:, None] for key, column in columns.items()})
            cells = [format(values[key], digits) for key, digits in FORMATS.items()]
            lines.append([name, contestant, len(own), *cells])
            by_seed = of_seeds.pivot_table(index="steps", columns="seed", values="return")
            draw_seeds(axes, by_seed, contestant, COLORS[contestant])
        finish(axes, name, "environment steps", legend="best")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    text = page(
        "Fine-tuning",
        f"`python -m benchmarks.finetuning` at commit 76f21b7, one thread per training. {machines(rows)} Interquartile means, "
        "with 95 % bootstrap intervals (rliable). Before and after: deterministic episodes, DoorKey's with samples. Dip: the "
        "deepest fall of the return in training below its highest before. Steps: until half and all of the mean return that "
        "the best of the three has at the end; the length of the training, if that was not reached. Only seeds that all three "
        "have.",
        table(["environment", "", "seeds", "before", "dip", "steps to half", "steps to all", "after"], lines),
    )
    return {"finetuning.md": text, "finetuning.png": figure}


FINETUNING = Experiment("finetuning", wanted, None, report)

if __name__ == "__main__":
    FINETUNING.main()
