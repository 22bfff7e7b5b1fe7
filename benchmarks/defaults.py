"""
The defaults of ``PPG("MlpPolicy", env)``: searched on seven small environments, then compared with those of
``PPO("MlpPolicy", env)`` on these and on three that the search has not seen.

One setting is for all environments. Each training has one environment, as one begins in Python, and one thread. A score is 0
at what random actions return and 1 at a high return of the task, see the tables below.

    python -m benchmarks.defaults search [--trials 40] # may be stopped, goes on, and may run twice at a time
    python -m benchmarks.defaults run [--jobs 2] # the defaults beside PPO's; the best of the search on a further seed
    python -m benchmarks.defaults report

Rows of all trainings: results/defaults.csv. Writes results/defaults.md and defaults.png.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the processes that are started

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import optuna
import pandas as pd
import torch as th
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.machine import end_with_parent, processor
from benchmarks.suites.contestants import COLORS
from benchmarks.suites.queue import RESULTS, locked
from benchmarks.suites.report import improvements, interquartile_means
from sb3_ppg import PPG
from sb3_ppg.family import PAPERS_VALUES

ROWS = RESULTS / "defaults.csv"
LOCKS = Path("logs/defaults")
Arguments = dict[str, Any]


class Task(NamedTuple):
    """
    What is learned.

    :param env_id: a small environment with vectors
    :param n_timesteps: of a training
    :param low: the return whose score is 0, what random actions reach
    :param high: the return whose score is 1
    """

    env_id: str
    n_timesteps: int
    low: float
    high: float


# Short trainings first: a trial that is worse than half of the others ends after any of them
SEARCHED = [
    Task("CartPole-v1", 50_000, low=22.0, high=500.0),
    Task("Pendulum-v1", 80_000, low=-1230.0, high=-150.0),
    Task("Reacher-v5", 60_000, low=-43.0, high=-5.0),
    Task("Hopper-v5", 100_000, low=18.0, high=2000.0),
    Task("HalfCheetah-v5", 100_000, low=-280.0, high=2000.0),
    Task("LunarLander-v3", 150_000, low=-180.0, high=200.0),
    Task("BipedalWalker-v3", 150_000, low=-100.0, high=200.0),
]
UNSEEN = [
    Task("Acrobot-v1", 60_000, low=-500.0, high=-80.0),
    Task("InvertedDoublePendulum-v5", 80_000, low=55.0, high=9300.0),
    Task("Walker2d-v5", 150_000, low=2.0, high=2000.0),
]
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


def defaults_of(algorithm: type[PPO] | type[PPG]) -> Arguments:
    """
    :param algorithm: whose constructor has them
    :return: of what is searched
    """
    parameters = signature(algorithm).parameters
    return {name: parameters[name].default for name in SPACE if name in parameters}


# What the first version had: the paper's for Procgen, with smaller rollouts and minibatches
FIRST: Arguments = {**PAPERS_VALUES, "batch_size": 64}
# SB3's of PPO, with an auxiliary phase after each eight rollouts
LIKE_PPO: Arguments = {**defaults_of(PPO), "n_policy_iterations": 8}
STARTS = [FIRST, LIKE_PPO]
N_BEST = 2  # settings of the search that are trained with a further seed, beside LIKE_PPO and the defaults
FURTHER_SEED = 1
FINAL_SEEDS = range(10, 15)  # that nothing was chosen by


class Training(NamedTuple):
    """
    One agent's.

    :param algorithm: "PPG" or "PPO"
    :param arguments: JSON of those that are given; the others are the defaults of the algorithm
    :param env_id: of its task
    :param seed: of the agent and its environment
    """

    algorithm: str
    arguments: str
    env_id: str
    seed: int

    def run(self) -> float:
        """
        :return: mean return of the episodes that end in the last tenth of the training
        """
        th.set_num_threads(1)
        task = next(task for task in (*SEARCHED, *UNSEEN) if task.env_id == self.env_id)
        env = make_vec_env(self.env_id, 1, seed=self.seed)
        algorithm = {"PPG": PPG, "PPO": PPO}[self.algorithm]
        model = algorithm(
            "MlpPolicy", env, seed=self.seed, device="cpu", stats_window_size=10**6, **json.loads(self.arguments)
        )
        model.learn(int(0.9 * task.n_timesteps))
        assert model.ep_info_buffer is not None
        n_before = len(model.ep_info_buffer)
        model.learn(task.n_timesteps - model.num_timesteps, reset_num_timesteps=False)
        return float(np.mean([episode["r"] for episode in list(model.ep_info_buffer)[n_before:]]))


def rows() -> pd.DataFrame:
    """One of each training."""
    columns = [*Training._fields, "return", "seconds", "machine"]
    return pd.read_csv(ROWS) if ROWS.exists() else pd.DataFrame(columns=columns)


def is_free(name: str) -> AbstractContextManager:
    """
    :param name: of what one process at a time does
    :raises BlockingIOError: if another process does it
    """
    LOCKS.mkdir(parents=True, exist_ok=True)
    return locked(LOCKS / hashlib.sha256(name.encode()).hexdigest()[:16], wait=False)


def missing(trainings: Iterable[Training]) -> list[Training]:
    """
    :param trainings: that are wanted
    :return: those that have no row
    """
    known = set(rows()[list(Training._fields)].itertuples(index=False, name=None))
    return [training for training in trainings if tuple(training) not in known]


def add_row(training: Training) -> None:
    """
    :param training: to run; several processes may
    """
    start = time.process_time()
    mean = training.run()
    row = dict(**training._asdict(), **{"return": round(mean, 2)}, seconds=round(time.process_time() - start))
    with locked(RESULTS / ".defaults.lock"):
        table = pd.DataFrame([row | {"machine": processor()}])
        table.to_csv(ROWS, mode="a", index=False, header=not ROWS.exists())
    print(row, flush=True)


def scores(table: pd.DataFrame, algorithm: str, arguments: str, tasks: list[Task], seeds: Iterable[int]) -> np.ndarray:
    """
    :param table: all rows
    :return: (n_seeds, n_tasks); NaN where there is no row
    """
    table = table[(table["algorithm"] == algorithm) & (table["arguments"] == arguments)]
    returns = table.pivot(index="seed", columns="env_id", values="return")
    returns = returns.reindex(index=list(seeds), columns=[task.env_id for task in tasks]).to_numpy(float)
    low, high = (np.array([getattr(task, name) for task in tasks]) for name in ("low", "high"))
    return (returns - low) / (high - low)


# ---- the search ----


def as_text(arguments: Arguments) -> str:
    """In the order of the table."""
    return json.dumps({name: arguments[name] for name in SPACE})


def tried() -> dict[str, np.ndarray]:
    """By arguments, the scores of the searched environments up to the first that was not run."""
    table = rows()
    names = table[(table["algorithm"] == "PPG") & (table["seed"] == 0)]["arguments"].unique()
    found = {name: scores(table, "PPG", name, SEARCHED, [0])[0] for name in names}
    return {name: own[: int(np.isnan(own).argmax()) if np.isnan(own).any() else len(own)] for name, own in found.items()}


def study_of(trials: dict[str, np.ndarray]) -> optuna.Study:
    """With what the rows say: those with a score on all environments are complete, the others were pruned."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(n_startup_trials=8))
    for arguments, own in trials.items():
        params = json.loads(arguments)
        if any(value not in SPACE[name] for name, value in params.items()):
            continue  # the first version's
        common = dict(params=params, distributions=DISTRIBUTIONS)
        if len(own) == len(SEARCHED):
            study.add_trial(create_trial(value=own.mean(), **common))
        elif len(own) > 0:
            means = {n: own[: n + 1].mean() for n in range(len(own))}
            study.add_trial(create_trial(state=TrialState.PRUNED, intermediate_values=means, **common))
    return study


def is_poor(own: np.ndarray, others: Iterable[np.ndarray]) -> bool:
    """
    :param own: scores of a trial so far
    :param others: those of all trials
    :return: whether their mean is below the median of the others' on the same environments
    """
    means = [other[: len(own)].mean() for other in others if len(other) >= len(own)]
    return len(means) >= 4 and own.mean() < np.median(means)


def search(n_trials: int) -> None:
    """
    :param n_trials: to be reached, with those there are
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    while len(trials := tried()) < n_trials:
        unfinished = [as_text(start) for start in STARTS if len(trials.get(as_text(start), ())) < len(SEARCHED)]
        for arguments in [*unfinished, as_text(study_of(trials).ask(DISTRIBUTIONS).params)]:
            try:
                with is_free(arguments):
                    carry_out(arguments)
                break
            except BlockingIOError:
                continue


def carry_out(arguments: str) -> None:
    """
    :param arguments: of a trial, which ends where it is poor
    """
    for n, task in enumerate(SEARCHED):
        for training in missing([Training("PPG", arguments, task.env_id, 0)]):
            add_row(training)
        present = tried()
        if is_poor(present.pop(arguments)[: n + 1], present.values()):
            break


def candidates() -> list[str]:
    """
    The arguments of the trials with the highest mean scores on all searched environments; the defaults, chosen between
    these and PPO's; and PPO's.
    """
    complete = {name: own.mean() for name, own in tried().items() if len(own) == len(SEARCHED)}
    best = sorted(complete, key=lambda name: -complete[name])[:N_BEST]
    return list(dict.fromkeys([*best, defaults(), as_text(LIKE_PPO)]))


# ---- the comparison ----


def defaults() -> str:
    """Those of ``PPG``, of what is searched."""
    return as_text(defaults_of(PPG))


def wanted() -> Iterator[Training]:
    """What `run` trains."""
    for seed in FINAL_SEEDS:
        for algorithm, arguments in (("PPO", "{}"), ("PPG", defaults())):
            yield from (Training(algorithm, arguments, task.env_id, seed) for task in (*SEARCHED, *UNSEEN))
    compared = candidates()
    for seed in (0, FURTHER_SEED):
        for arguments in compared:
            yield from (Training("PPG", arguments, task.env_id, seed) for task in SEARCHED)


def run(trainings: list[Training], n_jobs: int) -> None:
    """
    :param trainings: those that are missing
    :param n_jobs: how many at a time
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, mp_context=spawn, initializer=end_with_parent) as pool:
        for done in as_completed([pool.submit(add_row, training) for training in trainings]):
            done.result()


class Seeds(NamedTuple):
    """
    What was trained with some seeds.

    :param ppo: (n_seeds, n_tasks), scores with PPO's defaults
    :param ppg: likewise, with PPG's
    """

    ppo: np.ndarray
    ppg: np.ndarray

    @classmethod
    def of(cls, tasks: list[Task]) -> "Seeds":
        """The seeds that nothing was chosen by, as far as all of these tasks were trained with them."""
        table, settings = rows(), (("PPO", "{}"), ("PPG", defaults()))
        both = [scores(table, name, arguments, tasks, FINAL_SEEDS) for name, arguments in settings]
        complete = ~np.isnan(np.stack(both)).any(axis=(0, 2))
        return cls(*(own[complete] for own in both))

    @property
    def cells(self) -> str:
        """Interquartile means, and how probably a training of PPG is better."""
        means = interquartile_means({"PPO": self.ppo, "PPG": self.ppg})
        return f"{means['PPO']} | {means['PPG']} | {improvements({'PPG': self.ppg}, self.ppo)['PPG']}"


def comparison() -> list[str]:
    """The lines of a table: with the defaults of both."""
    final = Seeds.of([*SEARCHED, *UNSEEN])
    if len(final.ppg) == 0:
        return []
    parts = {"all ten": [*SEARCHED, *UNSEEN], "the seven of the search": SEARCHED, "the three others": UNSEEN}
    lines = [
        "",
        f'## `PPG("MlpPolicy", env)` and `PPO("MlpPolicy", env)`, {len(final.ppg)} seeds that nothing was chosen by',
        "",
        "| | PPO | PPG | PPG better |",
        "|---|---|---|---|",
        *(f"| {title} | {Seeds.of(tasks).cells} |" for title, tasks in parts.items()),
        "",
        "| return, mean of the seeds (lowest, highest) | steps | PPO | PPG |",
        "|---|---|---|---|",
    ]
    for task in (*SEARCHED, *UNSEEN):
        returns = [task.low + own[:, 0] * (task.high - task.low) for own in Seeds.of([task])]
        cells = [f"{own.mean():.1f} ({own.min():.1f}, {own.max():.1f})" for own in returns]
        lines.append(f"| {task.env_id} [{task.high:g}] | {task.n_timesteps:,} | {' | '.join(cells)} |")
    return lines


def markdown() -> str:
    """The tables."""
    table, trials = rows(), tried()
    n_complete = sum(len(own) == len(SEARCHED) for own in trials.values())
    lines = [
        "# Defaults",
        "",
        "`python -m benchmarks.defaults search`, `run`, `report`. One setting for all environments; one environment and one "
        "thread per training; the mean return of the episodes that end in the last tenth of it. Scores are 0 at what random "
        "actions return and 1 at a high return of the task; interquartile means, and the probability that a training of PPG "
        f"is better, with 95 % stratified bootstrap intervals (rliable). {' and '.join(table['machine'].unique())}.",
        *comparison(),
        "",
        "## The search",
        "",
        f"Optuna's TPE, seed 0 of {', '.join(task.env_id for task in SEARCHED)}, in this order; {len(trials)} trials, of "
        f"which {n_complete} went through all: the others were below the median of all trials after one of "
        "them. Scores: means. The first row is the defaults, which have PPO's `batch_size`, `max_grad_norm` and `ent_coef`; "
        "the last two are PPO's, with an auxiliary phase after each eight rollouts, and the paper's, of the first version.",
        "",
        f"| {' | '.join(SPACE)} | seed 0 | seed {FURTHER_SEED} |",
        "|---" * (len(SPACE) + 2) + "|",
    ]
    for arguments in dict.fromkeys([defaults(), *candidates(), as_text(FIRST)]):
        of_seeds = [scores(table, "PPG", arguments, SEARCHED, [seed]) for seed in (0, FURTHER_SEED)]
        means = ["" if np.isnan(own).any() else f"{own.mean():.2f}" for own in of_seeds]
        values = [str(value) for value in json.loads(arguments).values()]
        lines.append(f"| {' | '.join([*values, *means])} |")
    return "\n".join(lines) + "\n"


def plot(picture: Path) -> None:
    """The scores of all seeds, by environment."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    tasks = [*SEARCHED, *UNSEEN]
    for shift, name in ((0.15, "ppo"), (-0.15, "ppg")):
        color = COLORS[name.upper()]
        for position, task in enumerate(tasks):
            own = getattr(Seeds.of([task]), name)[:, 0]
            axes.plot(own, [position + shift] * len(own), "o", color=color, alpha=0.4)
            axes.plot(own.mean(), position + shift, "|", color=color, markersize=18, label=None if position else name.upper())
    axes.set_yticks(range(len(tasks)), [task.env_id + (" (not searched)" if task in UNSEEN else "") for task in tasks])
    axes.invert_yaxis()
    axes.set(xlabel="score of a training, and the mean of the seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("search").add_argument("--trials", default=40, type=int)
    running = commands.add_parser("run")
    running.add_argument("--jobs", default=1, type=int)
    running.add_argument("--list", action="store_true", help="only list what is missing")
    commands.add_parser("report")
    args = parser.parse_args()
    if args.command == "search":
        search(args.trials)
    elif args.command == "run":
        trainings = missing(wanted())
        if args.list:
            print(*trainings, sep="\n")
        else:
            run(trainings, args.jobs)
    else:
        text = markdown()
        (RESULTS / "defaults.md").write_text(text)
        if comparison():
            plot(RESULTS / "defaults.png")
        print(text)


if __name__ == "__main__":
    main()
