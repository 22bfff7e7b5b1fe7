"""
Measure how fast several processes train, and where the time goes.

1. Two processes with one thread each, compared with one process with one thread and with two: with half of the environments
   each, or with all environments each; also the share of an update that averaging takes.
2. The rollout's share of a training, and the gain from more threads for EnvPool, from SubprocVecEnv and from a second process.

The settings take turns in one run. Writes results/processes.csv and processes.md in a quarter of an hour on two cores, on
which nothing else should run.

    python -m benchmarks.processes [--report]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import pandas as pd
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from benchmarks.machine import processor
from sb3_ppg import PPG, ImpalaCNN
from sb3_ppg.distributed.collectives import rank
from sb3_ppg.distributed.group import process_group
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.optim import epoch as optimization

RESULTS = Path(__file__).parent / "results"
N_TURNS = 3


class Task(NamedTuple):
    """A training in one process."""

    make_env: Callable[[int, int], VecEnv]  # from the number of environments and of EnvPool's threads
    n_envs: int
    n_steps: int
    arguments: dict[str, Any]  # of PPG


def envpool(env_id: str) -> Callable[[int, int], VecEnv]:
    return lambda n_envs, n_threads: EnvPoolVecEnv(env_id, n_envs, num_threads=n_threads)


def gymnasium(env_id: str, **options: Any) -> Callable[[int, int], VecEnv]:
    return lambda n_envs, n_threads: make_vec_env(env_id, n_envs, **options)


MLP = dict(policy="MlpPolicy", n_epochs=4)
NATURE = dict(policy="CnnPolicy", n_epochs=1, policy_kwargs=dict(architecture="detached"))
HALF = dict(features_extractor_class=ImpalaCNN, features_extractor_kwargs=dict(channels=(8, 16, 16)))
IMPALA = dict(policy="CnnPolicy", n_epochs=1, policy_kwargs=dict(architecture="detached", **HALF))
TASKS = {
    "MLP, CartPole in EnvPool": Task(envpool("CartPole-v1"), 64, 256, MLP),
    "NatureCNN, Pong in EnvPool": Task(envpool("Pong-v5"), 16, 16, NATURE),
    "ImpalaCNN of half width, StarPilot in EnvPool": Task(envpool("StarpilotEasy-v0"), 16, 16, IMPALA),
    "MLP, CartPole": Task(gymnasium("CartPole-v1"), 8, 256, MLP),
    "MLP, CartPole, SubprocVecEnv": Task(gymnasium("CartPole-v1", vec_env_cls=SubprocVecEnv), 8, 256, MLP),
    "MLP, HalfCheetah": Task(gymnasium("HalfCheetah-v5"), 8, 256, MLP),
    "MLP, HalfCheetah, SubprocVecEnv": Task(gymnasium("HalfCheetah-v5", vec_env_cls=SubprocVecEnv), 8, 256, MLP),
    "MLP, HalfCheetah in EnvPool": Task(envpool("HalfCheetah-v4"), 8, 256, MLP),
}


class Setting(NamedTuple):
    """The processes that train together."""

    n_processes: int
    n_threads: int  # of torch and of EnvPool, in each process
    share: float  # of the task's environments, in each process


SETTINGS = {
    "1 process, 1 thread": Setting(1, 1, 1),
    "1 process, 2 threads": Setting(1, 2, 1),
    "2 processes, half each": Setting(2, 1, 0.5),
    "2 processes, all each": Setting(2, 1, 1),
}


def train(task: Task, setting: Setting, file: str) -> None:
    """
    Train two phases in this process, and measure the second one.

    :param file: in which process 0 writes the seconds of the phase and of its parts
    """
    th.set_num_threads(setting.n_threads)
    n_envs = int(task.n_envs * setting.share)
    n_samples = n_envs * task.n_steps
    arguments: dict[str, Any] = dict(n_steps=task.n_steps, batch_size=n_samples // 4, n_policy_iterations=4)
    arguments |= dict(aux_batch_size=n_samples // 4, n_aux_epochs=2, seed=0, device="cpu")
    arguments |= dict(gamma=0.999, ent_coef=0.01, learning_rate=5e-4, max_grad_norm=None, **task.arguments)
    seconds = dict.fromkeys(("rollouts", "updates", "averaging"), 0.0)

    def timed(function: Callable, part: str) -> Callable:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            seconds[part] += time.perf_counter() - start
            return result

        return call

    class Timed(PPG):
        collect_rollouts = timed(PPG.collect_rollouts, "rollouts")
        train = timed(PPG.train, "updates")

    optimization.average_gradients = timed(optimization.average_gradients, "averaging")
    with process_group():
        env: Any = task.make_env(n_envs, setting.n_threads)
        model = Timed(env=env, **arguments)
        model.set_logger(Logger(folder=None, output_formats=[]))
        phase = 4 * n_samples * setting.n_processes
        model.learn(phase)
        seconds.update(dict.fromkeys(seconds, 0.0))
        start = time.perf_counter()
        model.learn(phase, reset_num_timesteps=False)
        row = {**seconds, "seconds": time.perf_counter() - start, "steps": phase}
        if rank() == 0:
            n_weights = sum(weight.numel() for weight in model.policy.parameters())
            Path(file).write_text(json.dumps({**row, "weights": n_weights}))
        env.close()


def measure(task: str, setting: str) -> dict[str, float]:
    """Train in new processes, started by ``torchrun`` if there are several."""
    n_processes, n_threads, _ = SETTINGS[setting]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)] if n_processes > 1 else []
    with NamedTemporaryFile() as file:
        command = [sys.executable, *launcher, "-m", "benchmarks.processes", "--measure", task, setting, file.name]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(n_threads)})
        return json.loads(Path(file.name).read_text())


def run() -> None:
    """Measure all turns."""
    few = ["1 process, 1 thread", "2 processes, half each"]
    rows = []
    for turn in range(N_TURNS):
        for task in TASKS:
            for name in SETTINGS if "EnvPool" in task else few:
                rows.append({"task": task, "setting": name, "turn": turn, **measure(task, name), "machine": processor()})
                print(rows[-1], flush=True)
    pd.DataFrame(rows).round(4).to_csv(RESULTS / "processes.csv", index=False)


def report() -> str:
    """Return the table of medians."""
    rows = pd.read_csv(RESULTS / "processes.csv")
    rows["speed"] = rows["steps"] / rows["seconds"]
    rows["rollouts, %"] = 100 * rows["rollouts"] / rows["seconds"]
    rows["averaging, % of updates"] = 100 * rows["averaging"] / rows["updates"]
    numeric = ["speed", "rollouts, %", "averaging, % of updates", "weights"]
    medians = rows.groupby(["task", "setting"], sort=False)[numeric].median()
    lines = [
        "# Several processes: speed",
        "",
        f"`python -m benchmarks.processes`. {rows['machine'][0]}; medians of {rows['turn'].nunique()} turns. Steps per second "
        "are those of all processes together, also relative to one process with one thread. A phase has four rollouts, "
        "minibatches of a quarter of a rollout per process, and two auxiliary epochs.",
        "",
        "| task | weights | setting | steps/s | relative to one thread | rollouts, % of the time | averaging, % of updates |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, setting), row in medians.iterrows():
        base = medians.loc[(task, "1 process, 1 thread"), "speed"]
        averaging = f"{row['averaging, % of updates']:.0f}" if setting.startswith("2 processes") else ""
        numbers = (f"{row['speed']:,.0f}", f"{row['speed'] / base:.2f}", f"{row['rollouts, %']:.0f}")
        cells = [task, f"{row['weights']:,.0f}", setting, *numbers]
        lines.append(f"| {' | '.join([*cells, averaging])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, unless asked only for the report, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only write the table again")
    parser.add_argument(
        "--measure", nargs=3, metavar=("TASK", "SETTING", "FILE"), help="what one process does; for internal use"
    )
    args = parser.parse_args()
    if args.measure:
        task, setting, file = args.measure
        train(TASKS[task], SETTINGS[setting], file)
        return
    if not args.report:
        run()
    text = report()
    (RESULTS / "processes.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
