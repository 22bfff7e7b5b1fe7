"""
Fine-tuning of cloned policies with a prior, without one, and training from scratch.

A teacher is trained for part of the way (MiniGrid: on a smaller room), and 20,000 of its steps, with its exploration, are
recorded. PPG clones them by ``warm_start``, and goes on learning: near the clone, whose weight falls to zero, or freely. All
have the entries of ``hyperparams/ppg.yml``.

    python -m benchmarks.finetuning [run] [--jobs 2] [--task LunarLander-v3] [--contestant prior] [--seed 0]
    python -m benchmarks.finetuning report
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.harness import Experiment, Report
from benchmarks.scores import interquartile_means
from benchmarks.suites.contestants import Settings, entry, made
from benchmarks.tables import machines
from sb3_ppg.comparison import training as comparison
from sb3_ppg.comparison.report import draw_seeds, finish, page, table
from sb3_ppg.comparison.runs import Outcome
from sb3_ppg.offline import Dataset, record

N_RECORDED, N_EPISODES, SEEDS = 20_000, 50, range(5)


class Task(NamedTuple):
    """The environment of the teacher, the length of its training, and that of the others."""

    teacher: str
    n_teacher_timesteps: int
    n_timesteps: int


TASKS = {
    "LunarLander-v3": Task("LunarLander-v3", 150_000, 300_000),
    "Hopper-v5": Task("Hopper-v5", 150_000, 300_000),
    "MiniGrid-DoorKey-8x8-v0": Task("MiniGrid-DoorKey-5x5-v0", 100_000, 500_000),
}
CONTESTANTS: dict[str, Settings] = {
    "prior": dict(prior="self", prior_coef="lin_0.2", ent_coef=0.0),  # in place of the entropy bonus
    "no prior": {},
    "scratch": {},
}
FORMATS = {"before": ",.2f", "dip": ",.2f", "half": ",.0f", "all": ",.0f", "after": ",.2f"}  # of the table's columns
COLORS = {"prior": "tab:blue", "no prior": "tab:red", "scratch": "tab:gray"}


def wanted() -> list[dict[str, Any]]:
    return [dict(task=task, contestant=name, seed=seed) for seed in SEEDS for task in TASKS for name in CONTESTANTS]


def recorded(name: str, seed: int, folder: Path) -> Dataset:
    """Train the teacher of a seed, and let it act."""
    task = TASKS[name]
    settings = entry("ppg", name) | dict(n_timesteps=task.n_teacher_timesteps)
    teacher = made("ppg", task.teacher, settings, 100 + seed, folder).model
    teacher.learn(task.n_teacher_timesteps)
    assert teacher.env is not None
    return record(teacher, teacher.env, N_RECORDED, seed=seed)


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Train, and evaluate before and after it."""
    name, contestant, task = run["task"], run["contestant"], TASKS[run["task"]]
    before: dict[str, float] = {}
    data = None if contestant == "scratch" else recorded(name, run["seed"], folder)
    settings = entry("ppg", name) | dict(n_timesteps=task.n_timesteps) | CONTESTANTS[contestant]

    def make(seed: int, folder: Path) -> comparison.Made:
        own = made("ppg", name, settings, seed, folder)
        if data is not None:
            own.model.warm_start(data)  # type: ignore[attr-defined]
        before["before"] = comparison.evaluate(own, N_EPISODES)[0]
        return own

    row, points = comparison.train(make, run["seed"], task.n_timesteps, folder, N_EPISODES)
    return row | before | {"data": np.nan if data is None else round(float(data.episode_returns().mean()), 2)}, points


def milestones(curve: pd.DataFrame, goal: float, length: int) -> dict[str, float]:
    """Return the steps until half of the goal and all of it, the length if it is not reached; and the deepest dip."""
    values, steps = curve["return"].to_numpy(), curve["steps"].to_numpy()
    reached = {name: values >= part * goal for name, part in (("half", 0.5), ("all", 1.0))}
    found = {name: float(steps[is_there][0]) if is_there.any() else float(length) for name, is_there in reached.items()}
    return found | {"dip": float(np.max(np.maximum.accumulate(values) - values))}


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per task."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    figure = Figure(figsize=(12, 4), dpi=110, layout="constrained")
    for axes, (name, task) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        of_task = curves[curves["task"] == name]
        goal = of_task[of_task["steps"] == task.n_timesteps].groupby("contestant")["return"].mean().max()
        for contestant in CONTESTANTS:
            own = rows[(rows["task"] == name) & (rows["contestant"] == contestant)]
            of_seeds = of_task[of_task["contestant"] == contestant]
            if own.empty:
                continue
            marks = pd.DataFrame([milestones(one, goal, task.n_timesteps) for _, one in of_seeds.groupby("seed")])
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
        f"`python -m benchmarks.finetuning`, one thread per training. {machines(rows)} Interquartile means, with 95 % "
        "bootstrap intervals (rliable). Before and after: deterministic episodes, DoorKey's with samples. Dip: the deepest "
        "fall of the return in training below its highest before. Steps: until half and all of the mean return that the best "
        "of the three has at the end; the length of the training, if that was not reached.",
        table(["environment", "", "seeds", "before", "dip", "steps to half", "steps to all", "after"], lines),
    )
    return {"finetuning.md": text, "finetuning.png": figure}


FINETUNING = Experiment("finetuning", wanted, train, report)

if __name__ == "__main__":
    FINETUNING.main()
