"""
The defaults of ``PPG("MlpPolicy", env)``: searched on seven small environments, then compared with those of
``PPO("MlpPolicy", env)`` on these, and on seven that the search has not seen, of which four were added later.

One setting is for all environments. Each run has one environment, as a user's first does, and one thread. A score is 0 at the
return of random actions and 1 at a high return of the task, see the tables below.

    python -m benchmarks.defaults run [--jobs 2]    # defaults and PPO's; the search's best, a further seed; the controls
    python -m benchmarks.defaults report

Rows of all runs: results/defaults.csv. Writes results/defaults.md and defaults.png.
"""

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness import Experiment, Report, defaults_of
from benchmarks.scores import Task, improvements, interquartile_means
from benchmarks.tables import COLORS, finish, machines, page, table
from sb3_ppg import PPG
from sb3_ppg.family import PAPERS_VALUES

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
# The arguments that were searched, by `python -m benchmarks.defaults search` at commit 1410dec
SPACE = ["n_steps", "n_policy_iterations", "n_epochs", "batch_size", "gamma", "learning_rate", "clip_range"]
SPACE += ["max_grad_norm", "ent_coef"]
N_BEST = 2  # settings of the search that are trained with a further seed, in addition to LIKE_PPO and the defaults
SEARCH_SEEDS = (0, 1)  # of which the second is for the candidates
FINAL_SEEDS = range(10, 15)  # played no part in the search


def as_text(arguments: dict[str, Any]) -> str:
    """Return the searched arguments as JSON, in the order of the table."""
    return json.dumps({name: arguments[name] for name in SPACE})


DEFAULTS = as_text(defaults_of(PPG))
FIRST = as_text({**PAPERS_VALUES, "batch_size": 64})  # the paper's for Procgen, with smaller rollouts and minibatches
LIKE_PPO = as_text({**defaults_of(PPO), "n_policy_iterations": 8})  # with an auxiliary phase after each eight rollouts
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
    env = make_vec_env(run["env_id"], 1, seed=seed)
    name = run["algorithm"].removesuffix(NORMALIZED)
    if name != run["algorithm"]:
        env = VecNormalize(env, norm_obs=False)
    algorithm, arguments = {"PPG": PPG, "PPO": PPO}[name], json.loads(run["arguments"])
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", stats_window_size=10**6, **arguments)
    start = time.process_time()
    model.learn(int(0.9 * n_timesteps))
    assert model.ep_info_buffer is not None
    n_before = len(model.ep_info_buffer)
    model.learn(n_timesteps - model.num_timesteps, reset_num_timesteps=False)
    returns = [episode["r"] for episode in list(model.ep_info_buffer)[n_before:]]
    return {"return": round(float(np.mean(returns)), 2), "seconds": round(time.process_time() - start)}, None


def scores(rows: pd.DataFrame, algorithm: str, arguments: str, tasks: Sequence[Task], seeds: Sequence[int]) -> np.ndarray:
    """Return the scores, (n_seeds, n_tasks); NaN where there is no row."""
    rows = rows[(rows["algorithm"] == algorithm) & (rows["arguments"] == arguments)]
    returns = rows.pivot(index="seed", columns="env_id", values="return")
    returns = returns.reindex(index=list(seeds), columns=[task.env_id for task in tasks]).astype(float)
    return np.stack([task.scores(returns[task.env_id].to_numpy()) for task in tasks], axis=1)


def returns_of(task: Task, scores: np.ndarray) -> np.ndarray:
    """Return the returns that have these scores."""
    return task.low + scores * (task.high - task.low)


def tried(experiment: Experiment) -> dict[str, np.ndarray]:
    """Return, by arguments, the scores of the searched environments up to the first that was not run."""
    rows = experiment.rows(present=False)
    names = rows[(rows["algorithm"] == "PPG") & (rows["seed"] == 0)]["arguments"].unique()
    found = {name: scores(rows, "PPG", name, SEARCHED, [0])[0] for name in names}
    return {name: own[np.isnan(own).cumsum() == 0] for name, own in found.items()}


def candidates(experiment: Experiment) -> list[str]:
    """
    Return the arguments of the trials with the highest mean scores on all searched environments; the defaults, chosen between
    these and PPO's; and PPO's.
    """
    complete = {name: own.mean() for name, own in tried(experiment).items() if len(own) == len(SEARCHED)}
    best = sorted(complete, key=lambda name: -complete[name])[:N_BEST]
    return list(dict.fromkeys([*best, DEFAULTS, LIKE_PPO]))


def runs(contestants: Iterable[tuple[str, str]], seeds: Iterable[int], tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
    """Yield the runs of algorithms with arguments, the first seeds first."""
    for seed, (algorithm, arguments), task in itertools.product(seeds, contestants, tasks):
        yield dict(algorithm=algorithm, arguments=arguments, env_id=task.env_id, seed=seed)


def wanted() -> Iterator[dict[str, Any]]:
    """Yield the runs with the defaults of both algorithms, then those of the search's best, then the controls."""
    yield from runs(BOTH.values(), FINAL_SEEDS, TASKS.values())
    yield from runs([("PPG", arguments) for arguments in candidates(EXPERIMENT)], SEARCH_SEEDS, SEARCHED)
    yield from runs(CONTROLS.values(), FINAL_SEEDS, TEN)  # the simplest explanations first


def final_scores(rows: pd.DataFrame, contestants: dict[str, tuple[str, str]], tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """Return the scores of contestants, (n_seeds, n_tasks), of the seeds with which all of these were trained on all tasks."""
    found = {name: scores(rows, *contestant, tasks, FINAL_SEEDS) for name, contestant in contestants.items()}
    complete = ~np.isnan(np.stack(list(found.values()))).any(axis=(0, 2))
    return {name: own[complete] for name, own in found.items()}


def comparison(rows: pd.DataFrame) -> list[str]:
    """Return the paragraphs that compare the defaults."""
    others = [*UNSEEN, *ADDED]
    groups = {"all fourteen": [*SEARCHED, *others], "the seven of the search": SEARCHED, "the seven others": others}
    summary, lines = [], []
    for title, tasks in groups.items():
        own = final_scores(rows, BOTH, tasks)
        better = improvements({"PPG": own["PPG"]}, own["PPO"])
        summary.append([title, *interquartile_means(own).values(), better["PPG"]])
    for task in TASKS.values():
        returns = [returns_of(task, own) for own in final_scores(rows, BOTH, [task]).values()]
        cells = [f"{own.mean():.1f} ({own.min():.1f}, {own.max():.1f})" for own in returns]
        lines.append([f"{task.env_id} [{task.high:g}]", f"{task.n_timesteps:,}", *cells])
    n_seeds = len(final_scores(rows, BOTH, list(TASKS.values()))["PPG"])
    return [
        f'## `PPG("MlpPolicy", env)` and `PPO("MlpPolicy", env)`, {n_seeds} seeds that played no part in the search',
        table(["", "PPO", "PPG", "PPG better"], summary),
        table(["return, mean of the seeds (lowest, highest)", "steps", "PPO", "PPG"], lines),
    ]


def controls(rows: pd.DataFrame) -> list[str]:
    """Return the paragraphs that take the difference between the defaults apart."""
    found, lines = final_scores(rows, CONTROLS, TEN), []
    for name, own in interquartile_means(found).items():
        means = found[name].mean(axis=0)
        lines.append([name, own, *(f"{returns_of(task, mean):.0f}" for task, mean in zip(TEN, means, strict=True))])
    return [
        f"## What the difference consists of, {len(found['PPG'])} of these seeds",
        'Interquartile means of the scores; mean returns. "Normalized rewards": `VecNormalize(env, norm_obs=False)`. PPG '
        "without auxiliary phase has no value units either.",
        table(["", "score", *[task.env_id.split("-")[0] for task in TEN]], lines),
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
    rows, trials, lines = experiment.rows(present=False), tried(experiment), []
    for arguments in dict.fromkeys([DEFAULTS, *candidates(experiment), FIRST]):
        means = scores(rows, "PPG", arguments, SEARCHED, SEARCH_SEEDS).mean(axis=1)
        lines.append([*json.loads(arguments).values(), *("" if np.isnan(mean) else f"{mean:.2f}" for mean in means)])
    text = page(
        "Defaults",
        "`python -m benchmarks.defaults search` at commit 1410dec, `run`, `report`. One setting for all environments; one "
        "environment and one thread per training. A return is the mean of the episodes that end in the last tenth of the "
        "training; a score is 0 at the return of random actions and 1 at a high return of the task. The table has "
        "interquartile means, and the probability that a training of PPG is better, with 95 % stratified bootstrap intervals "
        f"(rliable). {machines(rows)}",
        *comparison(rows),
        *controls(rows),
        "## The search",
        f"Optuna's TPE, seed 0 of {', '.join(task.env_id for task in SEARCHED)}, in this order; {len(trials)} trials, of "
        f"which {sum(len(own) == len(SEARCHED) for own in trials.values())} went through all: the others ended where they "
        "were below the median of all trials. Scores are means. The first row is the defaults, which have PPO's "
        "`batch_size`, `max_grad_norm` and `ent_coef`; the last two are PPO's defaults with an auxiliary phase after every "
        "eight rollouts, and the paper's values.",
        table([*SPACE, *(f"seed {seed}" for seed in SEARCH_SEEDS)], lines),
    )
    return {"defaults.md": text, "defaults.png": picture(rows)}


EXPERIMENT = Experiment("defaults", wanted, train, report)

if __name__ == "__main__":
    EXPERIMENT.main()
