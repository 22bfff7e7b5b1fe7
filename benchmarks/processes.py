"""
Measure how fast several processes train, and where the time goes.

1. Two processes with one thread each, compared with one process with one thread and with two: with half of the environments
   each, or with all environments each; also the share of an update that averaging takes.
2. The rollout's share of a training, and the gain from more threads for EnvPool, from SubprocVecEnv and from a second process.

The settings take turns in one run: a quarter of an hour on two cores, on which nothing else should run.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from benchmarks.harness import Experiment, in_processes
from benchmarks.tables import formatted, machines, page
from sb3_ppg import PPG, ImpalaCNN
from sb3_ppg.distributed.group import process_group
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.optim import epoch as optimization

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


# Processes, threads of torch and of EnvPool in each, share of the task's environments in each
SETTINGS = {
    "1 process, 1 thread": (1, 1, 1.0),
    "1 process, 2 threads": (1, 2, 1.0),
    "2 processes, half each": (2, 1, 0.5),
    "2 processes, all each": (2, 1, 1.0),
}
FEW = ["1 process, 1 thread", "2 processes, half each"]  # of the tasks without EnvPool


def wanted() -> list[dict[str, Any]]:
    return [
        dict(task=task, setting=setting, turn=turn)
        for turn in range(N_TURNS)
        for task in TASKS
        for setting in (SETTINGS if "EnvPool" in task else FEW)
    ]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], None]:
    """Train in new processes."""
    row = in_processes(SETTINGS[training["setting"]][0], phase, training["task"], training["setting"])
    return {name: round(value, 4) for name, value in row.items()}, None


def phase(task_name: str, setting_name: str) -> dict[str, float]:
    """Train two phases in this process, and return the seconds of the second one and of its parts."""
    task, (n_processes, n_threads, share) = TASKS[task_name], SETTINGS[setting_name]
    th.set_num_threads(n_threads)
    n_envs = int(task.n_envs * share)
    n_samples = n_envs * task.n_steps
    arguments: dict[str, Any] = dict(n_steps=task.n_steps, batch_size=n_samples // 4, n_policy_iterations=4)
    arguments |= dict(aux_batch_size=n_samples // 4, n_aux_epochs=2, seed=0, device="cpu")
    arguments |= dict(gamma=0.999, ent_coef=0.01, learning_rate=5e-4, max_grad_norm=None, **task.arguments)
    seconds = dict(rollouts=0.0, updates=0.0, averaging=0.0)

    def measure(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            seconds[part] += time.perf_counter() - start
            return result

        setattr(owner, name, timed)

    with process_group():
        env: Any = task.make_env(n_envs, n_threads)
        model = PPG(env=env, **arguments)
        model.set_logger(Logger(folder=None, output_formats=[]))
        n_steps = 4 * n_samples * n_processes
        model.learn(n_steps)
        measure(model, "collect_rollouts", "rollouts")
        measure(model, "train", "updates")
        measure(optimization, "average_gradients", "averaging")
        start = time.perf_counter()
        model.learn(n_steps, reset_num_timesteps=False)
        whole = time.perf_counter() - start
        env.close()
    return {**seconds, "seconds": whole, "steps": n_steps, "weights": sum(one.numel() for one in model.policy.parameters())}


def report(experiment: Experiment) -> str:
    """Return the table of medians."""
    rows = experiment.rows()
    rows["speed"] = rows["steps"] / rows["seconds"]
    rows["collecting"], rows["averaging"] = rows["rollouts"] / rows["seconds"], rows["averaging"] / rows["updates"]
    medians = rows.groupby(["task", "setting"], sort=False).median(numeric_only=True).reset_index()
    medians["ratio"] = medians["speed"] / medians.groupby("task")["speed"].transform("first")
    several = medians["setting"].str.startswith("2 processes")
    medians["averaging"] = medians["averaging"].map("{:.0%}".format).where(several, "")
    return page(
        "Several processes: speed",
        f"`python -m benchmarks.processes`. {machines(rows)} Medians of {N_TURNS} turns. Steps per second are those of all "
        "processes together, also relative to one process with one thread. A phase has four rollouts, minibatches of a "
        "quarter of a rollout per process, and two auxiliary epochs.",
        formatted(
            medians,
            {
                "task": "{task}",
                "weights": "{weights:,.0f}",
                "setting": "{setting}",
                "steps/s": "{speed:,.0f}",
                "relative to one thread": "{ratio:.2f}",
                "rollouts, of the time": "{collecting:.0%}",
                "averaging, of updates": "{averaging}",
            },
        ),
    )


PROCESSES = Experiment("processes", wanted, train, report)

if __name__ == "__main__":
    PROCESSES.main()
