"""
The members of the family on the same tasks, with each member's cost; data of older policies; recomputed advantages.

The trainings are contestants of ``benchmarks.suites`` and leave their rows there. Here they become tables, a picture and a
comparison of speed: results/family.md, family.png and family_speed.csv.

    python -m benchmarks.family list
    python -m benchmarks.family run [--jobs 2]
    python -m benchmarks.family speed       # nothing else should run at the same time: half an hour
    python -m benchmarks.family report
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.harness import Experiment, Report
from benchmarks.machine import processor
from benchmarks.scores import Returns, Scores, draw_scores, score_table, scores_of
from benchmarks.suites.contestants import OLDER, PAPERS, RATE_BEFORE, RECOMPUTED, RELATIVES, TASKS, Training
from benchmarks.suites.experiment import SUITES, speed_of
from benchmarks.tables import finish, machines, page
from benchmarks.turns import take_turns

# The entries of PPG and PPO when the family was trained, before they were searched
BEFORE: dict[str, dict] = {
    "minatar": dict(changes=dict(n_epochs=4, learning_rate=RATE_BEFORE)),
    "mujoco": dict(changes=dict(gamma=0.999)),
    "procgen": dict(ppg=PAPERS | dict(mixed_precision="bf16")),
}
BY_NAME = {task.env_id: task._replace(**BEFORE.get(task.suite, {})) for task in TASKS}
SPEED = "family_speed.csv"


class Comparison(NamedTuple):
    """
    Contestants on some tasks.

    :param title: of its table
    :param about: a paragraph
    :param contestants: by their names in ``benchmarks.suites``; the others are compared with the first
    :param tasks: steps of a training, by environment
    :param closest: contestants between which three seeds do not decide: they have five
    """

    title: str
    about: str
    contestants: list[str]
    tasks: dict[str, int]
    closest: tuple[str, ...] = ()

    def trainings(self) -> list[Training]:
        """Return all trainings, the first seeds first."""
        return [
            Training(BY_NAME[env_id], name, seed, n_timesteps)
            for seed in range(5)
            for env_id, n_timesteps in self.tasks.items()
            for name in (self.contestants if seed < 3 else self.closest)
        ]

    def returns(self, rows: pd.DataFrame) -> Returns:
        """Return the returns of all contestants; on all levels where the training had some only."""
        return {
            name: {env_id: returns_of(rows, name, env_id, n_timesteps) for env_id, n_timesteps in self.tasks.items()}
            for name in self.contestants
        }


LUNAR_LANDER = {"LunarLander-v3": 500_000}
BREAKOUT = {"MinAtar/Breakout-v1": 1_000_000}
LATENESS = (0, 1, 2, 4, 8)
THE_FAMILY, LATE, *OTHERS = COMPARISONS = [
    Comparison(
        "The family",
        "Each member's preset (`sb3_ppg/family.py`) on top of PPG's entry for the task; nothing is tuned for it.",
        ["PPG", "PPO", *RELATIVES],
        {**LUNAR_LANDER, **BREAKOUT, "MinAtar/Asterix-v1": 1_000_000, "StarpilotEasy-v0": 200_000},
        closest=("PPG", "ppg_replay"),
    ),
    Comparison(
        "Late data",
        "Each rollout is used only after so many newer ones have been collected: by PPG's objective as it is, which clips "
        "against the policy that collected it, and by the decoupled one, which clips against the policy before the update.",
        ["PPG", *(name for name in OLDER if name.endswith(("late", "decoupled")))],
        LUNAR_LANDER | BREAKOUT,
    ),
    Comparison(
        "The last rollouts again",
        "Epochs draw from the last n rollouts, with the decoupled objective: 6 passes over each rollout, as in PPG, or 12.",
        ["PPG", "PPG, 12 epochs", *(name for name in OLDER if ", last " in name)],
        LUNAR_LANDER,
    ),
    Comparison(
        "Recomputed advantages",
        "Several epochs, with the advantages from before the update or with those of the current value function.",
        ["PPG, 4 epochs", *(name for name in RECOMPUTED if name != "PPG, 4 epochs")],
        {**LUNAR_LANDER, "Hopper-v5": 300_000},
    ),
]


def wanted() -> list[Training]:
    """Return all trainings, Procgen's at the end, because they take longest."""
    trainings = [training for comparison in COMPARISONS for training in comparison.trainings()]
    return sorted(trainings, key=lambda training: (training.task.suite == "procgen", training.seed))


# ---- report ----


def returns_of(rows: pd.DataFrame, name: str, env_id: str, n_timesteps: int) -> np.ndarray:
    """Return one contestant's returns in one environment, in the order of seeds."""
    task = BY_NAME[env_id]
    rows = rows[rows["settings"] == Training(task, name, 0, n_timesteps).hash()].sort_values("seed")
    return rows["test_return" if task.is_tested else "train_return"].to_numpy(float)


def scored_tasks(returns: Returns) -> list[str]:
    """Return the environments in which all contestants were trained with the most seeds."""
    n_seeds = {env_id: min(len(own[env_id]) for own in returns.values()) for env_id in next(iter(returns.values()))}
    return [env_id for env_id, n in n_seeds.items() if n == max(n_seeds.values()) > 0]


def family_scores(returns: Returns) -> Scores:
    """Return the scores in these environments."""
    return scores_of(returns, [BY_NAME[env_id] for env_id in scored_tasks(returns)])


def section(comparison: Comparison, rows: pd.DataFrame, times: dict[str, str]) -> list[str]:
    """Return the paragraphs of a comparison."""
    returns, first = comparison.returns(rows), comparison.contestants[0]
    tasks = {
        f"{env_id}, {n_timesteps:,} steps [{BY_NAME[env_id].high:g}]": BY_NAME[env_id]
        for env_id, n_timesteps in comparison.tasks.items()
        if any(len(own[env_id]) for own in returns.values())
    }
    is_timed = any(name in times for name in returns if name != first)
    further = {"time": lambda name: times.get(name, "")} if is_timed else {}
    return [
        f"## {comparison.title}",
        f"{comparison.about} Scores are of {', '.join(scored_tasks(returns)) or 'no task yet'}.",
        score_table(returns, tasks, family_scores(returns), first, further),
    ]


def picture(rows: pd.DataFrame) -> Figure:
    """Draw the scores of the family; returns against how late data are, with the decoupled objective and without."""
    figure = Figure(figsize=(4.5 + 3.8 * len(LATE.tasks), 4), dpi=120, layout="constrained")
    scores, *others = figure.subplots(1, 1 + len(LATE.tasks), squeeze=False)[0]
    draw_scores(scores, family_scores(THE_FAMILY.returns(rows)))
    returns = LATE.returns(rows)
    for axes, env_id in zip(others, LATE.tasks, strict=True):
        for color, label, name in (("tab:blue", "decoupled", "PPG, decoupled"), ("tab:orange", "as it is", "PPG")):
            found = {late: returns[f"{name}, {late} late" if late else name][env_id] for late in LATENESS}
            found = {late: values for late, values in found.items() if len(values)}
            axes.plot(list(found), [values.mean() for values in found.values()], color=color, label=label)
            for late, values in found.items():
                axes.plot([late] * len(values), values, "o", color=color, alpha=0.4)
        axes.set_xticks(LATENESS)
        finish(axes, f"{env_id}: late data", "rollouts late", legend="best")
    return figure


def report(experiment: Experiment) -> Report:
    rows = experiment.rows(present=False)
    rows = rows[rows["settings"].isin({training.hash() for training in experiment.wanted()})]
    times = time_ratios(experiment.results / SPEED)
    text = page(
        "The family, measured",
        "`python -m benchmarks.family run`, `speed`, `report`. Returns are, for each seed, the mean of the last 100 episodes "
        "of the training (StarPilot: of 200 episodes on all levels, after training on 200 levels). A score is 0 at the "
        "return of random actions and 1 at the return in brackets. The tables have the interquartile mean over seeds and "
        "tasks, and the probability that a training is better than one of the first row, with 95 % stratified bootstrap "
        "intervals (rliable) from three seeds on. Time is that of rollouts and updates in Breakout, divided by PPG's. "
        f"{machines(rows)}",
        *(paragraph for comparison in COMPARISONS for paragraph in section(comparison, rows, times)),
    )
    return {"family.md": text, "family.png": picture(rows)}


# ---- speed ----


def measure_speed(experiment: Experiment, _: Sequence[Training]) -> None:
    """Measure each member and PPG in turns."""
    task = BY_NAME["MinAtar/Breakout-v1"]
    table = take_turns({name: (speed_of, (task, name)) for name in ("PPG", *RELATIVES)})
    table.assign(machine=processor()).to_csv(experiment.results / SPEED, index=False)


def time_ratios(file: Path) -> dict[str, str]:
    """Return the median of each contestant's seconds over PPG's."""
    if not file.exists():
        return {}
    medians = pd.read_csv(file).groupby("contestant")["seconds"].median()
    return {name: f"{ratio:.2f}" for name, ratio in (medians / medians["PPG"]).items()}


FAMILY = replace(SUITES, wanted=wanted, report=report, options={}, commands={"speed": measure_speed})

if __name__ == "__main__":
    FAMILY.main()
