"""
What several processes bring, and where the time goes: ratios of medians of turns, taken alternately in one run.

1. Scaling on two cores: two processes of one thread against one process of one thread and of two, with half of the
   environments each (strong) or all of them each (weak); the share of an update that averaging takes.
2. The rollout's share of a training, and what more threads for EnvPool, SubprocVecEnv or a second process do about it.

Writes results/processes.csv and processes.md; a quarter of an hour on two cores, let nothing else run beside it.

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
    """
    :param make_env: from a number of environments and of EnvPool's threads
    :param n_envs: of one process
    :param n_steps: of a rollout
    :param arguments: of PPG
    """

    make_env: Callable[[int, int], VecEnv]
    n_envs: int
    n_steps: int
    arguments: dict[str, Any]


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
    """
    :param n_processes: that train together
    :param n_threads: of torch and of EnvPool, of each
    :param share: of the task's environments that each has
    """

    n_processes: int
    n_threads: int
    share: float


SETTINGS = {
    "1 process, 1 thread": Setting(1, 1, 1),
    "1 process, 2 threads": Setting(1, 2, 1),
    "2 processes, half each": Setting(2, 1, 0.5),
    "2 processes, all each": Setting(2, 1, 1),
}


def train(task: Task, setting: Setting, file: str) -> None:
    """
    In each process.

    :param file: for what the first one measures: seconds of a phase
    """
    th.set_num_threads(setting.n_threads)
    n_envs = int(task.n_envs * setting.share)
    with process_group():
        n_samples = n_envs * task.n_steps
        sizes: Any = dict(batch_size=n_samples // 4, n_policy_iterations=4, aux_batch_size=n_samples // 4, n_aux_epochs=2)
        sizes |= dict(gamma=0.999, ent_coef=0.01, learning_rate=5e-4, max_grad_norm=None)
        env: Any = task.make_env(n_envs, setting.n_threads)
        model = PPG(env=env, n_steps=task.n_steps, seed=0, device="cpu", **sizes, **task.arguments)
        model.set_logger(Logger(folder=None, output_formats=[]))
        taken = dict.fromkeys(("rollouts", "updates", "averaging"), 0.0)
        vars(model).update(collect_rollouts=timed(model.collect_rollouts, taken, "rollouts"))
        vars(model).update(train=timed(model.train, taken, "updates"))
        optimization.average_gradients = timed(optimization.average_gradients, taken, "averaging")
        phase = 4 * n_samples * setting.n_processes
        model.learn(phase)
        taken.update(dict.fromkeys(taken, 0.0))
        start = time.perf_counter()
        model.learn(phase, reset_num_timesteps=False)
        seconds = time.perf_counter() - start
        if rank() == 0:
            n_weights = sum(weight.numel() for weight in model.policy.parameters())
            Path(file).write_text(json.dumps({**taken, "seconds": seconds, "steps": phase, "weights": n_weights}))
        env.close()


def timed(function: Callable, taken: dict[str, float], name: str) -> Callable:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = function(*args, **kwargs)
        taken[name] += time.perf_counter() - start
        return result

    return call


def measure(task: str, setting: str) -> dict[str, float]:
    """In processes of their own, by ``torchrun`` where there are several."""
    n_processes, n_threads, _ = SETTINGS[setting]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_processes)] if n_processes > 1 else []
    with NamedTemporaryFile() as file:
        command = [sys.executable, *launcher, "-m", "benchmarks.processes", "--measure", task, setting, file.name]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": str(n_threads)})
        return json.loads(Path(file.name).read_text())


def run() -> None:
    """All turns."""
    others = ["1 process, 1 thread", "2 processes, half each"]
    chosen = [(task, name) for task in TASKS for name in (SETTINGS if "EnvPool" in task else others)]
    rows = []
    for turn in range(N_TURNS):
        for task, name in chosen:
            rows.append({"task": task, "setting": name, "turn": turn, **measure(task, name), "machine": processor()})
            print(rows[-1], flush=True)
    pd.DataFrame(rows).round(4).to_csv(RESULTS / "processes.csv", index=False)


def report() -> str:
    """The tables."""
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
        "are of all processes together, over those of one process with one thread. A phase is four rollouts, with minibatches "
        "of a quarter of a rollout per process and two auxiliary epochs.",
        "",
        "| task | weights | setting | steps/s | over one thread | rollouts, % of the time | averaging, % of updates |",
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
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", action="store_true", help="only write the tables again")
    parser.add_argument("--measure", nargs=3, metavar=("TASK", "SETTING", "FILE"), help="in one process; for itself")
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
