"""
The defaults of ``PPG("MlpPolicy", env)`` and of ``PPO("MlpPolicy", env)``: on the seven small environments of the search for
PPG's (`search` at commit 1410dec), and on seven that it has not seen, of which four were added later.

One setting is for all environments. Each run has one environment, as a user's first does, and one thread. A score is 0 at the
return of random actions and 1 at a high return of the task, see the tables below.

    python -m benchmarks.defaults run [--jobs 2]    # the defaults of both, and what the difference consists of
    python -m benchmarks.defaults report

Rows of all runs: results/defaults.csv. Writes results/defaults.md and defaults.png.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.harness import COLORS, Experiment, Report, defaults_of, machines, trained
from benchmarks.scores import Task, improvements, interquartile_means
from sb3_ppg import PPG
from sb3_ppg.comparison.report import finish, page, table

SEARCHED = [
    Task("CartPole-v1", 50_000, 22.0, 500.0),
    Task("Pendulum-v1", 80_000, -1230.0, -150.0),
    Task("Reacher-v5", 60_000, -43.0, -5.0),
    Task("Hopper-v5", 100_000, 18.0, 2000.0),
    Task("HalfCheetah-v5", 100_000, -280.0, 2000.0),
    Task("LunarLander-v3", 150_000, -180.0, 200.0),
    Task("BipedalWalker-v3", 150_000, -100.0, 200.0),
]
UNSEEN = [
    Task("Acrobot-v1", 60_000, -500.0, -80.0),
    Task("InvertedDoublePendulum-v5", 80_000, 55.0, 9300.0),
    Task("Walker2d-v5", 150_000, 2.0, 2000.0),
]
TEN = [*SEARCHED, *UNSEEN]
ADDED = [
    Task("Swimmer-v5", 100_000, 0.0, 100.0),
    Task("Pusher-v5", 100_000, -150.0, -30.0),
    Task("InvertedPendulum-v5", 60_000, 5.0, 1000.0),
    Task("LunarLanderContinuous-v3", 100_000, -180.0, 200.0),
]
TASKS = {task.env_id: task for task in (*TEN, *ADDED)}
# The arguments that were searched
SPACE = ["n_steps", "n_policy_iterations", "n_epochs", "batch_size", "gamma", "learning_rate", "clip_range"]
SPACE += ["max_grad_norm", "ent_coef"]
FINAL_SEEDS = range(10, 15)  # played no part in the search


def as_text(arguments: dict[str, Any]) -> str:
    """Return the searched arguments as JSON, in the order of the table."""
    return json.dumps({name: arguments[name] for name in SPACE})


DEFAULTS = as_text(defaults_of(PPG))
NORMALIZED = " + VecNormalize(norm_obs=False)"  # after an algorithm's name
# What each part of the difference between the defaults is worth: algorithm and arguments, as JSON; the others are the defaults
CONTROLS = {
    "PPO": ("PPO", "{}"),
    "PPO, normalized rewards": ("PPO" + NORMALIZED, "{}"),
    "PPG without auxiliary phase, normalized rewards": ("PPG" + NORMALIZED, '{"n_aux_epochs": 0}'),
    "PPG": ("PPG", DEFAULTS),
}
BOTH = {name: CONTROLS[name] for name in ("PPO", "PPG")}


def train(run: dict[str, Any], folder: Path) -> tuple[dict[str, float], None]:
    """Train an agent; the mean return of the episodes that end in the last tenth of the run."""
    n_timesteps, seed = TASKS[run["env_id"]].n_timesteps, run["seed"]
    name, settings = run["algorithm"].removesuffix(NORMALIZED), dict(policy="MlpPolicy", **json.loads(run["arguments"]))
    if name != run["algorithm"]:
        settings["normalize"] = "dict(norm_obs=False, norm_reward=True)"
    done = trained(folder, name.lower(), run["env_id"], settings, seed, n_timesteps)
    late = done.rows().query("steps > 0.9 * @n_timesteps")
    return {"return": round(float(late["return"].mean()), 2), "seconds": round(late["seconds"].iloc[-1])}, None


def scores(rows: pd.DataFrame, algorithm: str, arguments: str, tasks: Sequence[Task], seeds: Sequence[int]) -> np.ndarray:
    """Return the scores, (n_seeds, n_tasks); NaN where there is no row."""
    rows = rows[(rows["algorithm"] == algorithm) & (rows["arguments"] == arguments)]
    returns = rows.pivot(index="seed", columns="env_id", values="return")
    returns = returns.reindex(index=list(seeds), columns=[task.env_id for task in tasks]).astype(float)
    return np.stack([task.scores(returns[task.env_id].to_numpy()) for task in tasks], axis=1)


def returns_of(task: Task, scores: np.ndarray) -> np.ndarray:
    """Return the returns that have these scores."""
    return task.low + scores * (task.high - task.low)


def runs(contestants: Iterable[tuple[str, str]], seeds: Iterable[int], tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    """Yield the runs of algorithms with arguments, the first seeds first."""
    for seed, (algorithm, arguments), task in itertools.product(seeds, contestants, tasks):
        yield dict(algorithm=algorithm, arguments=arguments, env_id=task.env_id, seed=seed)


def wanted() -> Iterator[dict[str, Any]]:
    """Yield the runs with the defaults of both algorithms, then the controls."""
    yield from runs(BOTH.values(), FINAL_SEEDS, TASKS.values())
    yield from runs(CONTROLS.values(), FINAL_SEEDS, TEN)  # the simplest explanations first


def final_scores(rows: pd.DataFrame, contestants: dict[str, tuple[str, str]], tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """Return the scores of contestants, (n_seeds, n_tasks), of the seeds with which all of these were trained on all tasks."""
    found = {name: scores(rows, *contestant, tasks, FINAL_SEEDS) for name, contestant in contestants.items()}
    complete = ~np.isnan(np.stack(list(found.values()))).any(axis=(0, 2))
    return {name: own[complete] for name, own in found.items()}


def summary(rows: pd.DataFrame, opponent: str, groups: dict[str, list[Task]]) -> str:
    """Return a table of the scores of PPG and an opponent, by group of tasks."""
    lines = []
    for title, tasks in groups.items():
        own = final_scores(rows, {name: CONTROLS[name] for name in (opponent, "PPG")}, tasks)
        better = improvements({"PPG": own["PPG"]}, own[opponent])
        lines.append([title, *interquartile_means(own).values(), better["PPG"]])
    return table(["", opponent, "PPG", "PPG better"], lines)


def comparison(rows: pd.DataFrame) -> list[str]:
    """Return the paragraphs that compare the defaults."""
    others, lines = [*UNSEEN, *ADDED], []
    groups = {"all fourteen": [*SEARCHED, *others], "the seven of the search": SEARCHED, "the seven others": others}
    for task in TASKS.values():
        returns = [returns_of(task, own) for own in final_scores(rows, BOTH, [task]).values()]
        cells = [f"{own.mean():.1f} ({own.min():.1f}, {own.max():.1f})" for own in returns]
        lines.append([f"{task.env_id} [{task.high:g}]", f"{task.n_timesteps:,}", *cells])
    n_seeds = len(final_scores(rows, BOTH, list(TASKS.values()))["PPG"])
    return [
        f'## `PPG("MlpPolicy", env)` and `PPO("MlpPolicy", env)`, {n_seeds} seeds that played no part in the search',
        summary(rows, "PPO", groups),
        table(["return, mean of the seeds (lowest, highest)", "steps", "PPO", "PPG"], lines),
    ]


def controls(rows: pd.DataFrame) -> list[str]:
    """Return the paragraphs that take the difference between the defaults apart."""
    found, lines = final_scores(rows, CONTROLS, TEN), []
    for name, own in interquartile_means(found).items():
        means = found[name].mean(axis=0)
        lines.append([name, own, *(f"{returns_of(task, mean):.0f}" for task, mean in zip(TEN, means, strict=True))])
    groups = {"all ten": TEN, "the seven of the search": SEARCHED, "the three others": UNSEEN}
    return [
        f"## What the difference consists of, {len(found['PPG'])} of these seeds",
        'Interquartile means of the scores; mean returns. "Normalized rewards": `VecNormalize(env, norm_obs=False)`. PPG '
        "without auxiliary phase has no value units either.",
        table(["", "score", *[task.env_id.split("-")[0] for task in TEN]], lines),
        summary(rows, "PPO, normalized rewards", groups),
    ]


def picture(rows: pd.DataFrame) -> Figure:
    """Draw the scores of all seeds, by environment."""
    figure = Figure(figsize=(8, 5), dpi=110, layout="constrained")
    axes = figure.subplots()
    for shift, name in ((0.15, "PPO"), (-0.15, "PPG")):
        for position, task in enumerate(TASKS.values()):
            own = final_scores(rows, BOTH, [task])[name][:, 0]
            axes.plot(own, [position + shift] * len(own), "o", color=COLORS[name], alpha=0.4)
            label = None if position else name
            axes.plot(own.mean(), position + shift, "|", color=COLORS[name], markersize=18, label=label)
    names = [task.env_id + ("" if task in SEARCHED else " (not searched)") for task in TASKS.values()]
    axes.set_yticks(range(len(TASKS)), names)
    axes.invert_yaxis()
    finish(axes, "", "score of a training, and the mean of the seeds", "", legend="best")
    return figure


def report(experiment: Experiment) -> Report:
    rows = experiment.rows()
    text = page(
        "Defaults",
        "`python -m benchmarks.defaults`. One setting for all environments, from [a search](defaults_search.md); one "
        "environment and one thread per training. A return is the mean of the episodes that end in the last tenth of the "
        "training; a score is 0 at the return of random actions and 1 at a high return of the task. The table has "
        "interquartile means, and the probability that a training of PPG is better, with 95 % stratified bootstrap intervals "
        f"(rliable). {machines(rows)}",
        *comparison(rows),
        *controls(rows),
    )
    return {"defaults.md": text, "defaults.png": picture(rows)}


EXPERIMENT = Experiment("defaults", wanted, train, report)

if __name__ == "__main__":
    EXPERIMENT.main()
