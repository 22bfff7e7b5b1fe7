"""The runs that are wanted, what identifies their rows, and what a step costs."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks.harness import Experiment, processor
from benchmarks.suites.contestants import CONTESTANTS, LEADING, TASKS, Task, Training, contestants_on
from benchmarks.suites.report import END, SPEED, report, speed
from benchmarks.suites.training import make_model, train
from benchmarks.turns import Measure, take_turns, whole_phases


def wanted() -> list[Training]:
    """Return all runs: the leading contestants before the others, which have at most a million steps; the first seeds first."""
    trainings = [
        Training(task, name, seed, task.n_timesteps if name in LEADING else min(task.n_timesteps, END))
        for name in CONTESTANTS
        for task in TASKS
        for seed in range(task.n_seeds)
        if name in contestants_on(task)
    ]
    return sorted(trainings, key=lambda training: (training.contestant not in LEADING, training.seed))


def speed_of(task: Task, name: str) -> Measure:
    """Measure one phase of PPG or one rollout of PPO."""
    with TemporaryDirectory() as folder:
        _, model = make_model(Training(task, name, 0, task.n_timesteps), Path(folder))
    assert isinstance(model, OnPolicyAlgorithm)
    return whole_phases(model)


def measure_speed(experiment: Experiment, trainings: Sequence[Training]) -> None:
    """Measure the leading contestants on the tasks of these runs, in place of what is known of the tasks."""
    for task in {training.task.env_id: training.task for training in trainings}.values():
        table = take_turns({name: (speed_of, (task, name)) for name in LEADING})
        known = speed(experiment.results)
        table = pd.concat([known[known["task"] != task.env_id], table.assign(task=task.env_id, machine=processor())])
        table.to_csv(experiment.results / SPEED, index=False)


SUITES = Experiment(
    "suites",
    wanted,
    train,
    report,
    columns=Training.columns,
    identity=("settings", "seed"),
    settings=Training.settings,
    commands={"speed": measure_speed},
)
