"""
The defaults of ``PPG("MlpPolicy", env)``: searched on seven small environments, then compared with those of
``PPO("MlpPolicy", env)`` on these, and on seven that the search has not seen, of which four were added later.

One setting is for all environments. Each training has one environment, as a user's first does, and one thread. A score is 0
at the return of random actions and 1 at a high return of the task, see the tables below.

    python -m benchmarks.defaults search        # may be stopped, and continues
    python -m benchmarks.defaults run [--jobs 2]    # defaults and PPO's; the search's best, a further seed; the controls
    python -m benchmarks.defaults report

Rows of all trainings: results/defaults.csv. Writes results/defaults.md and defaults.png.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness import Experiment, Report, defaults_of
from benchmarks.scores import Task, improvements, interquartile_means
from benchmarks.tables import COLORS, finish, machines, page, table
from sb3_ppg import PPG
from sb3_ppg.family import PAPERS_VALUES

Arguments = dict[str, Any]

# Short trainings first: a trial that is worse than half of the others ends after any of them
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
SPACE: dict[str, list] = {
    "n_steps": [1024, 2048],
    "n_policy_iterations": [4, 8, 16],
    "n_epochs": [5, 10, 15],
    "batch_size": [32, 64, 128],
    "gamma": [0.98, 0.99, 0.995],
    "learning_rate": [3e-4, 5e-4],
    "clip_range": [0.2, 0.3],
    "max_grad_norm": [0.5, None],
    "ent_coef": [0.0, 0.001],
}
DISTRIBUTIONS: dict[str, BaseDistribution] = {name: CategoricalDistribution(choices) for name, choices in SPACE.items()}
N_TRIALS = 40
N_BEST = 2  # settings of the search that are trained with a further seed, in addition to LIKE_PPO and the defaults
FURTHER_SEED = 1
FINAL_SEEDS = range(10, 15)  # played no part in the search


def as_text(arguments: Arguments) -> str:
    """Return the searched arguments as JSON, in the order of the table."""
    return json.dumps({name: arguments[name] for name in SPACE})


DEFAULTS = as_text(defaults_of(PPG))
FIRST = as_text({**PAPERS_VALUES, "batch_size": 64})  # the paper's for Procgen, with smaller rollouts and minibatches
LIKE_PPO = as_text({**defaults_of(PPO), "n_policy_iterations": 8})  # with an auxiliary phase after each eight rollouts
NORMALIZED = " + VecNormalize(norm_obs=False)"  # after an algorithm's name

LIKE_PPG = json.dumps({name: defaults_of(PPG)[name] for name in ("n_steps", "clip_range")})
# What each part of the difference between the defaults is worth: algorithm and arguments
CONTROLS = {
    "PPO": ("PPO", "{}"),
    "PPO, normalized rewards": ("PPO" + NORMALIZED, "{}"),
    "PPO, normalized rewards, PPG's n_steps and clip_range": ("PPO" + NORMALIZED, LIKE_PPG),
    "PPG without auxiliary phase, normalized rewards": ("PPG" + NORMALIZED, '{"n_aux_epochs": 0}'),
    "PPG without value units": ("PPG", '{"normalize_value_targets": false}'),
    "PPO, PPG's n_steps and clip_range": ("PPO", LIKE_PPG),
    "PPG without auxiliary phase": ("PPG", '{"n_aux_epochs": 0}'),
    "PPG, normalized rewards": ("PPG" + NORMALIZED, "{}"),
    "PPG": ("PPG", DEFAULTS),
}


def training(algorithm: str, arguments: str, env_id: str, seed: int) -> dict[str, Any]:
    """
    Return the columns that identify a row.

    :param algorithm: "PPG" or "PPO", perhaps with ``NORMALIZED``
    :param arguments: JSON of those that are given; the others are the algorithm's defaults
    """
    return dict(algorithm=algorithm, arguments=arguments, env_id=env_id, seed=seed)


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, float], None]:
    """Train an agent; the mean return of the episodes that end in the last tenth of the training."""
    n_timesteps, seed = TASKS[training["env_id"]].n_timesteps, training["seed"]
    env = make_vec_env(training["env_id"], 1, seed=seed)
    name = training["algorithm"].removesuffix(NORMALIZED)
    if name != training["algorithm"]:
        env = VecNormalize(env, norm_obs=False)
    algorithm, arguments = {"PPG": PPG, "PPO": PPO}[name], json.loads(training["arguments"])
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", stats_window_size=10**6, **arguments)
    start = time.process_time()
    model.learn(int(0.9 * n_timesteps))
    assert model.ep_info_buffer is not None
    n_before = len(model.ep_info_buffer)
    model.learn(n_timesteps - model.num_timesteps, reset_num_timesteps=False)
    returns = [episode["r"] for episode in list(model.ep_info_buffer)[n_before:]]
    return {"return": round(float(np.mean(returns)), 2), "seconds": round(time.process_time() - start)}, None


def scores(rows: pd.DataFrame, algorithm: str, arguments: str, tasks: Sequence[Task], seeds: Iterable[int]) -> np.ndarray:
    """Return the scores, (n_seeds, n_tasks); NaN where there is no row."""
    rows = rows[(rows["algorithm"] == algorithm) & (rows["arguments"] == arguments)]
    returns = rows.pivot(index="seed", columns="env_id", values="return").reindex(index=list(seeds))
    columns = [task.scores(returns.get(task.env_id, pd.Series(np.nan, returns.index)).to_numpy(float)) for task in tasks]
    return np.stack(columns, axis=1)


# ---- the search ----


def tried(experiment: Experiment) -> dict[str, np.ndarray]:
    """Return, by arguments, the scores of the searched environments up to the first that was not run."""
    rows = experiment.rows(present=False)
    names = rows[(rows["algorithm"] == "PPG") & (rows["seed"] == 0)]["arguments"].unique()
    found = {name: scores(rows, "PPG", name, SEARCHED, [0])[0] for name in names}
    return {name: own[: int(np.isnan(own).argmax()) if np.isnan(own).any() else len(own)] for name, own in found.items()}


def next_arguments(trials: dict[str, np.ndarray]) -> str:
    """Ask Optuna, telling it the trials: those with a score on all environments are complete, the others were pruned."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(n_startup_trials=8))
    for arguments, own in trials.items():
        if arguments == FIRST or len(own) == 0:
            continue  # FIRST is outside of the search's space
        is_complete = len(own) == len(SEARCHED)
        trial = create_trial(
            state=TrialState.COMPLETE if is_complete else TrialState.PRUNED,
            value=own.mean() if is_complete else None,
            intermediate_values={n: own[: n + 1].mean() for n in range(len(own))},
            params=json.loads(arguments),
            distributions=DISTRIBUTIONS,
        )
        study.add_trial(trial)
    return as_text(study.ask(DISTRIBUTIONS).params)


def is_poor(own: np.ndarray, others: Iterable[np.ndarray]) -> bool:
    """Return whether a trial's mean score is below the median of the others' on the same environments."""
    means = [other[: len(own)].mean() for other in others if len(other) >= len(own)]
    return len(means) >= 4 and own.mean() < np.median(means)


def search(experiment: Experiment, _: Sequence[Any] = (), n_trials: int = N_TRIALS) -> None:
    """Try settings until there are so many trials; a trial ends where it is poor."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    while len(trials := tried(experiment)) < n_trials:
        unfinished = (start for start in (FIRST, LIKE_PPO) if len(trials.get(start, ())) < len(SEARCHED))
        arguments = next(unfinished, None) or next_arguments(trials)
        for n, task in enumerate(SEARCHED):
            experiment.run_one(training("PPG", arguments, task.env_id, 0))
            others = tried(experiment)
            if is_poor(others.pop(arguments)[: n + 1], others.values()):
                break


def candidates(experiment: Experiment) -> list[str]:
    """
    Return the arguments of the trials with the highest mean scores on all searched environments; the defaults, chosen between
    these and PPO's; and PPO's.
    """
    complete = {name: own.mean() for name, own in tried(experiment).items() if len(own) == len(SEARCHED)}
    best = sorted(complete, key=lambda name: -complete[name])[:N_BEST]
    return list(dict.fromkeys([*best, DEFAULTS, LIKE_PPO]))


# ---- the comparison ----


def wanted() -> Iterator[dict[str, Any]]:
    """Yield the trainings with the defaults of both algorithms, then those of the search's best, then the controls."""
    for seed in FINAL_SEEDS:
        for algorithm, arguments in (("PPO", "{}"), ("PPG", DEFAULTS)):
            yield from (training(algorithm, arguments, env_id, seed) for env_id in TASKS)
    compared = candidates(SEARCH)
    for seed in (0, FURTHER_SEED):
        for arguments in compared:
            yield from (training("PPG", arguments, task.env_id, seed) for task in SEARCHED)
    for seed in FINAL_SEEDS:
        for algorithm, arguments in CONTROLS.values():  # the simplest explanations first
            yield from (training(algorithm, arguments, task.env_id, seed) for task in TEN)


def final_scores(rows: pd.DataFrame, tasks: Sequence[Task]) -> dict[str, np.ndarray]:
    """Return the scores with both defaults, (n_seeds, n_tasks), of the seeds with which all of these tasks were trained."""
    both = {name: scores(rows, name, arguments, tasks, FINAL_SEEDS) for name, arguments in (("PPO", "{}"), ("PPG", DEFAULTS))}
    complete = ~np.isnan(np.stack(list(both.values()))).any(axis=(0, 2))
    return {name: own[complete] for name, own in both.items()}


def trained(rows: pd.DataFrame) -> list[Task]:
    """Return the tasks that both algorithms have learned with their defaults, all seeds of them."""
    return [task for task in TASKS.values() if len(final_scores(rows, [task])["PPG"]) == len(FINAL_SEEDS)]


def comparison(rows: pd.DataFrame) -> list[str]:
    """Return the paragraphs that compare the defaults."""
    others = [*UNSEEN, *ADDED]
    groups = {"all fourteen": [*SEARCHED, *others], "the seven of the search": SEARCHED, "the seven others": others}
    n_seeds = len(final_scores(rows, groups["all fourteen"])["PPG"])
    if n_seeds == 0:
        return []
    summary, lines = [], []
    for title, tasks in groups.items():
        own = final_scores(rows, tasks)
        better = improvements({"PPG": own["PPG"]}, own["PPO"])
        summary.append([title, *interquartile_means(own).values(), better["PPG"]])
    for task in trained(rows):
        returns = [task.low + own[:, 0] * (task.high - task.low) for own in final_scores(rows, [task]).values()]
        cells = [f"{own.mean():.1f} ({own.min():.1f}, {own.max():.1f})" for own in returns]
        lines.append([f"{task.env_id} [{task.high:g}]", f"{task.n_timesteps:,}", *cells])
    return [
        f'## `PPG("MlpPolicy", env)` and `PPO("MlpPolicy", env)`, {n_seeds} seeds that played no part in the search',
        table(["", "PPO", "PPG", "PPG better"], summary),
        table(["return, mean of the seeds (lowest, highest)", "steps", "PPO", "PPG"], lines),
    ]


def controls(rows: pd.DataFrame) -> list[str]:
    """Return the paragraphs that take the difference between the defaults apart."""
    found = {name: scores(rows, *one, TEN, FINAL_SEEDS) for name, one in CONTROLS.items()}
    found = {name: own for name, own in found.items() if not np.isnan(own[0]).any()}
    if found.keys() <= {"PPO", "PPG"}:
        return []  # no control has been run
    complete = ~np.isnan(np.stack(list(found.values()))).any(axis=(0, 2))  # seeds that all have
    lines = []
    for name, own in interquartile_means({name: own[complete] for name, own in found.items()}).items():
        means = found[name][complete].mean(axis=0)
        returns = [f"{task.low + mean * (task.high - task.low):.0f}" for task, mean in zip(TEN, means, strict=True)]
        lines.append([name, own, *returns])
    return [
        f"## What the difference consists of, {complete.sum()} of these seeds",
        'Interquartile means of the scores; mean returns. "Normalized rewards": `VecNormalize(env, norm_obs=False)`. PPG '
        "without auxiliary phase has no value units either.",
        table(["", "score", *[task.env_id.split("-")[0] for task in TEN]], lines),
    ]


def picture(rows: pd.DataFrame) -> Figure:
    """Draw the scores of all seeds, by environment."""
    figure = Figure(figsize=(8, 5), dpi=110, layout="constrained")
    axes, tasks = figure.subplots(), trained(rows)
    for shift, name in ((0.15, "PPO"), (-0.15, "PPG")):
        for position, task in enumerate(tasks):
            own = final_scores(rows, [task])[name][:, 0]
            axes.plot(own, [position + shift] * len(own), "o", color=COLORS[name], alpha=0.4)
            label = None if position else name
            axes.plot(own.mean(), position + shift, "|", color=COLORS[name], markersize=18, label=label)
    names = [task.env_id + ("" if task in SEARCHED else " (not searched)") for task in tasks]
    axes.set_yticks(range(len(tasks)), names)
    axes.invert_yaxis()
    finish(axes, "", "score of a training, and the mean of the seeds", "", legend="best")
    return figure


def report(experiment: Experiment) -> Report:
    rows, trials, lines = experiment.rows(present=False), tried(experiment), []
    for arguments in dict.fromkeys([DEFAULTS, *candidates(experiment), FIRST]):
        of_seeds = [scores(rows, "PPG", arguments, SEARCHED, [seed]) for seed in (0, FURTHER_SEED)]
        means = ["" if np.isnan(own).any() else f"{own.mean():.2f}" for own in of_seeds]
        lines.append([*json.loads(arguments).values(), *means])
    compared = comparison(rows)
    text = page(
        "Defaults",
        "`python -m benchmarks.defaults search`, `run`, `report`. One setting for all environments; one environment and one "
        "thread per training. A return is the mean of the episodes that end in the last tenth of the training; a score is 0 "
        "at the return of random actions and 1 at a high return of the task. The table has interquartile means, and the "
        f"probability that a training of PPG is better, with 95 % stratified bootstrap intervals (rliable). {machines(rows)}",
        *compared,
        *controls(rows),
        "## The search",
        f"Optuna's TPE, seed 0 of {', '.join(task.env_id for task in SEARCHED)}, in this order; {len(trials)} trials, of "
        f"which {sum(len(own) == len(SEARCHED) for own in trials.values())} went through all: the others ended where they "
        "were below the median of all trials. Scores are means. The first row is the defaults, which have PPO's "
        "`batch_size`, `max_grad_norm` and `ent_coef`; the last two are PPO's defaults with an auxiliary phase after every "
        "eight rollouts, and the paper's values.",
        table([*SPACE, "seed 0", f"seed {FURTHER_SEED}"], lines),
    )
    return {"defaults.md": text} | ({"defaults.png": picture(rows)} if compared else {})


SEARCH = Experiment("defaults", wanted, train, report, commands={"search": search})

if __name__ == "__main__":
    SEARCH.main()
