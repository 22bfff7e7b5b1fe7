"""What a step costs the presets, in turns on one machine: trainings that are compared may be of several."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks.machine import processor
from benchmarks.speed import Measure, take_turns
from benchmarks.suites.contestants import LEADING, Task, Training
from benchmarks.suites.training import make_model
from sb3_ppg import PPG


def whole_phases(task: Task, name: str) -> Measure:
    """Seconds of the processor per million steps, over a phase of PPG, a rollout of PPO."""
    th.set_num_threads(1)
    with TemporaryDirectory() as folder:
        _, model = make_model(Training(task, name, 0, task.n_timesteps), Path(folder))
    assert isinstance(model, OnPolicyAlgorithm)
    n_steps = model.n_steps * model.n_envs * (model.n_policy_iterations if isinstance(model, PPG) else 1)

    def measure() -> dict[str, float]:
        start = time.process_time()
        model.learn(n_steps, reset_num_timesteps=False)
        return {"seconds": (time.process_time() - start) / n_steps * 1e6}

    return measure


def measured(tasks: list[Task]) -> pd.DataFrame:
    """
    :param tasks: each of which takes about seven phases of PPG
    :return: seconds per million steps, a row per task, contestant and turn
    """
    tables = []
    for task in tasks:
        table = take_turns({name: (whole_phases, (task, name)) for name in LEADING})
        tables.append(table.assign(task=task.env_id, machine=processor()))
    return pd.concat(tables)
