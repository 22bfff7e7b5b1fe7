"""
The search for PPO's defaults that PPG's defaults had (``search`` at commit 1410dec, whose page is results/defaults_search.md):
the same seven environments in the same order, seed 0, the same choices, 25 trials of Optuna's TPE of which those end early
that are below the median, and the same measure, the return of training in the last tenth. Rewards are normalized by
``VecNormalize(norm_obs=False)``, as value units do it for PPG.

    python -m benchmarks.ppo_search [--jobs 2]    # can be killed and started again; writes results/ppo_search.md
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial
from stable_baselines3 import PPO

from benchmarks.candidates import NORMALIZED, train_with
from benchmarks.defaults import SEARCHED, TASKS
from benchmarks.evaluations import in_own_process
from benchmarks.harness import Experiment, Outcome, Report, defaults_of, machines
from sb3_ppg.comparison.report import page, table

N_TRIALS = 25
SPACE: dict[str, list] = {
    "n_steps": [1024, 2048],
    "n_epochs": [5, 10, 15],
    "batch_size": [32, 64, 128],
    "gamma": [0.98, 0.99, 0.995],
    "learning_rate": [3e-4, 5e-4],
    "clip_range": [0.2, 0.3],
    "max_grad_norm": [0.5, None],
    "ent_coef": [0.0, 0.001],
}
DISTRIBUTIONS: dict[str, BaseDistribution] = {name: CategoricalDistribution(choices) for name, choices in SPACE.items()}
FIRST = json.dumps({name: defaults_of(PPO)[name] for name in SPACE})
# SB3 divides by the norm if there is one; a large one is none
NO_CLIPPING = 1e9


def train(run: dict[str, Any], folder: Path) -> Outcome:
    arguments = json.loads(run["arguments"])
    arguments["max_grad_norm"] = arguments["max_grad_norm"] or NO_CLIPPING
    env_id = run["env_id"]
    return in_own_process(train_with, "PPO", arguments, NORMALIZED, env_id, 0, TASKS[env_id].n_timesteps)


def tried() -> dict[str, np.ndarray]:
    """Return, by arguments, the scores of the environments up to the first that was not run."""
    rows, found = SEARCH.rows(present=False), {}
    for arguments, own in rows.groupby("arguments", sort=False):
        returns = own.set_index("env_id")["training_return"]
        n_done = next((n for n, task in enumerate(SEARCHED) if task.env_id not in returns), len(SEARCHED))
        found[str(arguments)] = np.array([task.scores(returns[task.env_id]) for task in SEARCHED[:n_done]])
    return found


def is_poor(own: np.ndarray, others: Iterable[np.ndarray]) -> bool:
    """Return whether a trial's mean score is below the median of the others' on the same environments."""
    means = [other[: len(own)].mean() for other in others if len(other) >= len(own)]
    return len(own) > 0 and len(means) >= 4 and bool(own.mean() < np.median(means))


def is_over(trials: dict[str, np.ndarray], arguments: str) -> bool:
    """Return whether a trial has gone through all environments, or was poor on those that come first."""
    own, others = trials[arguments], [other for name, other in trials.items() if name != arguments]
    return len(own) == len(SEARCHED) or is_poor(own, others)


def next_arguments(trials: dict[str, np.ndarray]) -> str:
    """Ask Optuna, telling it the trials: those with a score on all environments are complete, the others were pruned."""
    sampler = optuna.samplers.TPESampler(n_startup_trials=8, seed=len(trials))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for arguments, own in trials.items():
        is_complete = len(own) == len(SEARCHED)
        trial = create_trial(
            state=TrialState.COMPLETE if is_complete else TrialState.PRUNED,
            value=own.mean() if is_complete else None,
            intermediate_values={n: own[: n + 1].mean() for n in range(len(own))},
            params=json.loads(arguments),
            distributions=DISTRIBUTIONS,
        )
        study.add_trial(trial)
    asked = (study.ask(DISTRIBUTIONS).params for _ in range(1000))
    return next(arguments for arguments in map(json.dumps, asked) if arguments not in trials)


def next_runs() -> list[dict[str, Any]]:
    """Return the next two environments of the trial in progress, or those of a new one; none after the last trial."""
    trials = tried()
    arguments = [*trials, FIRST][max(len(trials) - 1, 0)]
    if trials and is_over(trials, arguments):
        if len(trials) == N_TRIALS:
            return []
        arguments = next_arguments(trials)
    n_done = len(trials.get(arguments, ()))
    return [dict(arguments=arguments, env_id=task.env_id) for task in SEARCHED[n_done : n_done + 2]]


def report(experiment: Experiment) -> Report:
    """Return the table of the trials that went through all environments, the best first."""
    trials = tried()
    complete = {name: own for name, own in trials.items() if len(own) == len(SEARCHED)}
    best = sorted(complete, key=lambda name: -complete[name].mean())
    names = [task.env_id.split("-")[0] for task in SEARCHED]
    lines = [
        [*json.loads(name).values(), *(f"{score:.2f}" for score in complete[name]), f"{complete[name].mean():.2f}"]
        for name in best
    ]
    text = page(
        "PPO's defaults: the search",
        f"`python -m benchmarks.ppo_search`. {machines(experiment.rows(present=False))} {len(trials)} trials, of which "
        f"{len(complete)} went through all environments. Scores of the returns of training in the last tenth, seed 0, with "
        "`VecNormalize(norm_obs=False)`.",
        table([*SPACE, *names, "mean"], lines),
    )
    return {"ppo_search.md": text}


SEARCH = Experiment("ppo_search", lambda: [dict(arguments=FIRST, env_id=SEARCHED[0].env_id)], train, report)


def main() -> None:
    """Carry out the search."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    while runs := next_runs():
        SEARCH.carry_out(runs, 2 if "2" in sys.argv else 1)
    print(SEARCH.write())


if __name__ == "__main__":
    main()
