"""
The members of the family on the same tasks, with what each costs; data of older policies; recomputed advantages.

The trainings are contestants of ``benchmarks.suites``, whose queue can be stopped and goes on, and leave their rows there.
Here they are put in order, and made into a table, a picture and a comparison of speed: results/family.md, family.png and
family_speed.csv.

    python -m benchmarks.family list
    python -m benchmarks.family run [--jobs 2]
    python -m benchmarks.family speed       # let nothing else run beside it: five minutes
    python -m benchmarks.family report
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the processes that are started

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from matplotlib.axes import Axes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.machine import processor
from benchmarks.speed import Measure, take_turns
from benchmarks.suites.contestants import OLDER, PAPERS, RATE_BEFORE, RECOMPUTED, RELATIVES, TASKS, Task, Training
from benchmarks.suites.queue import RESULTS, Results, run
from benchmarks.suites.report import Scores, draw_scores, improvements, interquartile_means
from sb3_ppg import PPG, MinAtarCNN
from sb3_ppg.family import PAPERS_VALUES, with_preset

# What the entries of PPG and PPO were when the family was trained, before they were searched
BEFORE: dict[str, dict] = {
    "minatar": dict(changes=dict(n_epochs=4, learning_rate=RATE_BEFORE)),
    "mujoco": dict(changes=dict(gamma=0.999)),
    "procgen": dict(ppg=PAPERS | dict(mixed_precision="bf16")),
}
BY_NAME = {task.env_id: task._replace(**BEFORE.get(task.suite, {})) for task in TASKS}
SPEED = RESULTS / "family_speed.csv"


class Comparison(NamedTuple):
    """
    Contestants on some tasks.

    :param title: of its table
    :param about: what is compared
    :param contestants: by their names in ``benchmarks.suites``; the first one is what the others are compared with
    :param tasks: names of environments, and steps of a training
    :param closest: the contestants between which three seeds do not decide: they have five
    """

    title: str
    about: str
    contestants: list[str]
    tasks: dict[str, int]
    closest: tuple[str, ...] = ()

    def trainings(self) -> Iterator[Training]:
        """The first seeds first."""
        for seed in range(5):
            for env_id, n_timesteps in self.tasks.items():
                for name in self.contestants if seed < 3 else self.closest:
                    yield Training(BY_NAME[env_id], name, seed, n_timesteps)


MINATAR = {"MinAtar/Breakout-v1": 1_000_000, "MinAtar/Asterix-v1": 1_000_000}
LUNAR_LANDER = {"LunarLander-v3": 500_000}
LATENESS = (0, 1, 2, 4, 8)
COMPARISONS = [
    Comparison(
        "The family",
        "Each member's preset (`sb3_ppg/family.py`) on top of PPG's entry for the task; nothing is tuned for it.",
        ["PPG", "PPO", *RELATIVES],
        {**LUNAR_LANDER, **MINATAR, "StarpilotEasy-v0": 200_000},
        closest=("PPG", "ppg_replay"),
    ),
    Comparison(
        "Late data",
        "Each rollout is used when so many newer ones are there, by PPG's objective as it is, which clips against the policy "
        "that collected it, and by the decoupled one, which clips against the policy before the update.",
        ["PPG", *(name for name in OLDER if name.endswith("late") or name.endswith("decoupled"))],
        {**LUNAR_LANDER, "MinAtar/Breakout-v1": 1_000_000},
    ),
    Comparison(
        "The last rollouts again",
        "Epochs draw from the last n rollouts, with the decoupled objective: 6 passes over each rollout, as PPG has, or 12.",
        ["PPG", "PPG, 12 epochs", *(name for name in OLDER if ", last " in name)],
        LUNAR_LANDER,
    ),
    Comparison(
        "Recomputed advantages",
        "Several epochs, with the advantages from before the update or with those of the present value function.",
        ["PPG, 4 epochs", *(name for name in RECOMPUTED if name != "PPG, 4 epochs")],
        {**LUNAR_LANDER, "Hopper-v5": 300_000},
    ),
]


# ---- what the rows say ----


def returns_of(results: Results, name: str, task: Task, n_timesteps: int) -> np.ndarray:
    """In the order of seeds; on all levels, where the training had some only."""
    rows = results.rows()
    rows = rows[rows["settings"] == Training(task, name, 0, n_timesteps).hash()].sort_values("seed")
    return rows["test_return" if task.is_tested else "train_return"].to_numpy(float)


def table_of(results: Results, comparison: Comparison) -> dict[str, dict[str, np.ndarray]]:
    """By contestant and task, the returns of all seeds there are."""
    return {
        name: {env_id: returns_of(results, name, BY_NAME[env_id], steps) for env_id, steps in comparison.tasks.items()}
        for name in comparison.contestants
    }


def machines(results: Results) -> list[str]:
    """Of the rows that the tables have."""
    shown = [(name, env_id, steps) for one in COMPARISONS for name in one.contestants for env_id, steps in one.tasks.items()]
    hashes = {Training(BY_NAME[env_id], name, 0, steps).hash() for name, env_id, steps in shown}
    rows = results.rows()
    return list(rows[rows["settings"].isin(hashes)]["machine"].unique())


def scored_tasks(table: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Those on which all contestants were trained, with the most seeds."""
    n_seeds = {env_id: min(len(row[env_id]) for row in table.values()) for env_id in next(iter(table.values()))}
    return [env_id for env_id, n in n_seeds.items() if n == max(n_seeds.values()) > 0]


def scores_of(table: dict[str, dict[str, np.ndarray]]) -> Scores:
    """On those tasks; of the seeds that a contestant has on all of them."""
    tasks = scored_tasks(table)
    if not tasks:
        return {}
    scores = {}
    for name, row in table.items():
        n_seeds = min(len(row[env_id]) for env_id in tasks)
        ranges = [(BY_NAME[env_id].low, BY_NAME[env_id].high) for env_id in tasks]
        columns = [(row[env_id][:n_seeds] - low) / (high - low) for env_id, (low, high) in zip(tasks, ranges, strict=True)]
        scores[name] = np.stack(columns, axis=1)
    return scores


def markdown(results: Results) -> str:
    """All tables."""
    lines = [
        "# The family, measured",
        "",
        "`python -m benchmarks.family run`, `speed`, `report`. Per seed the mean return of the last 100 episodes of the "
        "training (of StarPilot: of 200 episodes on all levels, after training on 200). Scores are 0 at what random actions "
        "return and 1 at the return in brackets; their interquartile mean over seeds and tasks, and the probability that a "
        "training is better than one of the first row, with 95 % stratified bootstrap intervals (rliable) from three seeds "
        f"on. Time is that of rollouts and updates over PPG's, in Breakout. {' and '.join(machines(results))}.",
    ]
    times = time_ratios()
    for comparison in COMPARISONS:
        table = table_of(results, comparison)
        scores = scores_of(table)
        means, first = interquartile_means(scores), comparison.contestants[0]
        better = improvements({name: own for name, own in scores.items() if name != first}, scores[first]) if scores else {}
        tasks = [env_id for env_id in comparison.tasks if any(len(row[env_id]) for row in table.values())]
        timed = any(name in times for name in table if name != first)
        scored = f"Scores are of {', '.join(scored_tasks(table)) or 'no task yet'}."
        lines += ["", f"## {comparison.title}", "", f"{comparison.about} {scored}", ""]
        titles = [f"{env_id}, {comparison.tasks[env_id]:,} steps [{BY_NAME[env_id].high:g}]" for env_id in tasks]
        lines.append(f"| | {' | '.join(titles)} | score | better than {first} |" + (" time |" if timed else ""))
        lines.append("|---" * (len(tasks) + 3 + timed) + "|")
        for name, row in table.items():
            returns = [", ".join(f"{value:.1f}" for value in row[env_id]) for env_id in tasks]
            cells = [name, *returns, str(means.get(name, "")), str(better.get(name, ""))]
            lines.append(f"| {' | '.join(cells)} |" + (f" {times.get(name, '')} |" if timed else ""))
    return "\n".join(lines) + "\n"


def draw_lateness(axes: Axes, results: Results, env_id: str, n_timesteps: int) -> None:
    """Returns against how late data are, with the decoupled objective and without."""
    task = BY_NAME[env_id]
    for color, label, name in (("tab:blue", "decoupled", "PPG, decoupled"), ("tab:orange", "as it is", "PPG")):
        found = {late: returns_of(results, f"{name}, {late} late" if late else name, task, n_timesteps) for late in LATENESS}
        found = {late: values for late, values in found.items() if len(values)}
        if found:
            means = [values.mean() for values in found.values()]
            axes.plot(list(found), means, color=color, label=label)
            for late, values in found.items():
                axes.plot([late] * len(values), values, "o", color=color, alpha=0.4)
            axes.legend()
    axes.set_xticks(LATENESS)
    axes.set(title=f"{env_id}: late data", xlabel="rollouts late", ylabel="return")
    axes.grid(alpha=0.3)


def plot(results: Results, picture: Path) -> None:
    """The scores of the family; late data on two tasks."""
    late = COMPARISONS[1]
    table = table_of(results, late)
    tasks = {
        env_id: n for env_id, n in late.tasks.items() if any(len(row[env_id]) for name, row in table.items() if "late" in name)
    }
    figure, all_axes = plt.subplots(
        1, 1 + len(tasks), figsize=(4.5 + 3.8 * len(tasks), 4), layout="constrained", squeeze=False
    )
    scores, *others = all_axes[0]
    draw_scores(scores, scores_of(table_of(results, COMPARISONS[0])))
    for axes, (env_id, n_timesteps) in zip(others, tasks.items(), strict=True):
        draw_lateness(axes, results, env_id, n_timesteps)
    figure.savefig(picture, dpi=120)
    plt.close(figure)


# ---- speed ----


def one_phase(zoo_name: str) -> Measure:
    """Seconds of training, rollouts included, in MinAtar's Breakout, a phase of 4 rollouts of 4,096 samples."""
    th.set_num_threads(1)
    entry = dict(n_steps=128, batch_size=512, n_epochs=4, n_policy_iterations=4, aux_batch_size=512, gamma=0.99)
    network = dict(architecture="detached", features_extractor_class=MinAtarCNN, net_arch=[])
    preset = with_preset(zoo_name, {**PAPERS_VALUES, **entry, "policy_kwargs": network})
    if zoo_name in RELATIVES:  # what its preset says comes on top, as in the trainings
        changes = RELATIVES[zoo_name].changes or {}
        preset |= {name: value for name, value in changes.items() if name != "policy_kwargs"}
        preset["policy_kwargs"] |= changes.get("policy_kwargs", {})
    env = VecNormalize(make_vec_env("MinAtar/Breakout-v1", 32, seed=0), norm_obs=False)
    model = PPG("CnnPolicy", env, seed=0, device="cpu", **preset)

    def measure() -> dict[str, float]:
        start = time.process_time()
        model.learn(4 * 4096, reset_num_timesteps=False)
        return {"seconds": time.process_time() - start}

    return measure


def measure_speed() -> None:
    """Each member beside PPG, in turns."""
    table = take_turns({name: (one_phase, (name,)) for name in ("ppg", *RELATIVES)})
    table.assign(machine=processor()).to_csv(SPEED, index=False)


def time_ratios() -> dict[str, str]:
    """By contestant, the median of its seconds over PPG's."""
    if not SPEED.exists():
        return {}
    medians = pd.read_csv(SPEED).groupby("contestant")["seconds"].median()
    ratios = medians / medians["ppg"]
    return {"PPG" if name == "ppg" else name: f"{ratio:.2f}" for name, ratio in ratios.items()}


def main() -> None:
    """The commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what is missing")
    running = commands.add_parser("run", help="train what is missing")
    running.add_argument("--jobs", default=1, type=int, help="trainings at a time")
    running.add_argument("--folder", default="logs/suites", type=Path, help="for what is needed to go on")
    commands.add_parser("speed", help="measure it")
    commands.add_parser("report", help="write the table and the picture")
    args = parser.parse_args()
    results = Results()
    if args.command == "speed":
        measure_speed()
    elif args.command == "report":
        text = markdown(results)
        (RESULTS / "family.md").write_text(text)
        plot(results, RESULTS / "family.png")
        print(text)
    else:
        chosen = [training for comparison in COMPARISONS for training in comparison.trainings()]
        missing = list({(one.hash(), one.seed): one for one in chosen if not results.has(one)}.values())
        missing.sort(key=lambda one: (one.task.suite == "procgen", one.seed))  # what takes longest at the end
        if args.command == "list":
            for one in missing:
                print(one.hash(), one.task.env_id, one.contestant, one.n_timesteps, one.seed)
        else:
            run(missing, results, args.folder, args.jobs)


if __name__ == "__main__":
    main()
