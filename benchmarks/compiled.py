"""
Whole runs of SB3's PPO, SBX's PPO (JAX) and PPG, eager and compiled, on one thread and on two.

1. Steps per second after the first phase, and the seconds that compiling adds to the first phase: three turns, alternating.
2. Return against seconds on two of the tasks, one thread, five seeds.

All have the same environments, networks and hyperparameters. A run with one thread has one core to itself, so that JAX
and EnvPool take no other. SBX is installed, with the versions of ``sbx.txt``, where only its own processes see it.

    python -m benchmarks.compiled run --part speed     # an hour and a half
    python -m benchmarks.compiled run --part curves    # an hour and a half

``--jobs`` must be 1, and nothing else should run.
"""

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch as th
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks import venvs
from benchmarks.harness import Experiment, Report
from sb3_ppg import PPG
from sb3_ppg.comparison.report import draw_seeds, finish, page, table
from sb3_ppg.comparison.runs import Outcome, machine
from sb3_ppg.comparison.study import short_hash
from sb3_ppg.comparison.training import Episodes, curve
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.policies.extractors import MinAtarCNN
from sb3_ppg.zoo import register

N_TURNS, N_SEEDS = 3, 5
CACHES = Path("logs/benchmarks/compiled")


class Task(NamedTuple):
    """
    Environments and the hyperparameters for them.

    :param make_env: from a seed and the number of EnvPool's threads
    :param arguments: arguments of all contestants
    :param ppg: further arguments of PPG
    :param n_phases: phases of a run whose speed is measured, the first one included
    :param curve_steps: steps of a run whose learning curve is drawn; 0: none is
    """

    make_env: Callable[[int, int], VecEnv]
    arguments: dict[str, Any]
    ppg: Mapping[str, Any] = {}
    n_phases: int = 5
    curve_steps: int = 0


def gymnasium(env_id: str, n_envs: int = 8, **normalized: Any) -> Callable[[int, int], VecEnv]:
    def make(seed: int, n_threads: int) -> VecEnv:
        register()  # MinAtar's environments, in the process of the run
        env = make_vec_env(env_id, n_envs, seed=seed)
        return VecNormalize(env, **normalized) if normalized else env

    return make


def envpool(env_id: str) -> Callable[[int, int], VecEnv]:
    return lambda seed, n_threads: VecNormalize(EnvPoolVecEnv(env_id, 8, seed=seed, num_threads=n_threads))


MLP: dict[str, Any] = dict(policy="MlpPolicy", n_steps=256, batch_size=64, n_epochs=10, clip_range=0.2)
LUNAR_LANDER = MLP | dict(gamma=0.999, gae_lambda=0.98, ent_coef=0.01)  # as RL Zoo's
# As the entry in hyperparams/ppg.yml, and PPO's best in seconds.py
CNN: dict[str, Any] = dict(policy="CnnPolicy", n_steps=128, batch_size=512, n_epochs=2, clip_range=0.2, ent_coef=0.01)
CNN |= dict(learning_rate=2e-3, policy_kwargs=dict(features_extractor_class=MinAtarCNN, net_arch=[]))
CNN_PPG: dict[str, Any] = dict(n_policy_iterations=16, n_aux_epochs=1, aux_batch_size=512)
CNN_PPG |= dict(policy_kwargs=dict(architecture="detached", **CNN["policy_kwargs"]))
TASKS = {
    "CartPole-v1": Task(gymnasium("CartPole-v1"), MLP),
    "Pendulum-v1": Task(gymnasium("Pendulum-v1"), MLP),
    "LunarLander-v3": Task(gymnasium("LunarLander-v3"), LUNAR_LANDER, curve_steps=507_904),
    "HalfCheetah-v5": Task(gymnasium("HalfCheetah-v5", gamma=0.99), MLP),
    "HalfCheetah-v5, EnvPool": Task(envpool("HalfCheetah-v5"), MLP, curve_steps=1_007_616),
    "Asterix, MinAtar": Task(gymnasium("MinAtar/Asterix-v1", 32, norm_obs=False), CNN, CNN_PPG, n_phases=2),
}
SBX = "SBX PPO"
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {  # colors in the picture, further arguments
    "SB3 PPO": ("tab:red", {}),
    SBX: ("tab:orange", {}),
    "PPG": ("tab:cyan", {}),
    "PPG, compiled": ("tab:blue", dict(compile_updates=True)),
    "PPG, no auxiliary phase": ("", dict(n_aux_epochs=0)),
    "PPG, no auxiliary phase, compiled": ("", dict(n_aux_epochs=0, compile_updates=True)),
}

COMPILING = (SBX, "PPG, compiled")


def wanted() -> list[dict[str, Any]]:
    """Return the runs of both parts, in turns. Seconds are those of one processor, and another one has its own rows."""
    turns = itertools.product(range(N_TURNS), (1, 2), TASKS, CONTESTANTS)
    speed = [
        dict(part="speed", processor=machine(), task=task, threads=threads, contestant=contestant, seed=seed)
        for seed, threads, task, contestant in turns
    ]
    curves = [
        dict(part="curves", processor=machine(), task=name, threads=1, contestant=contestant, seed=seed)
        for seed in range(N_SEEDS)
        for name, task in TASKS.items()
        for contestant, (color, _) in CONTESTANTS.items()
        if task.curve_steps > 0 and color
    ]
    return speed + curves


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """
    Train an agent on as many cores as threads.

    :return: steps per second after the first phase, seconds by which the first phase was slower, seconds of the whole;
        the learning curve
    """
    task, n_threads, seed = TASKS[run["task"]], run["threads"], run["seed"]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-n_threads:])
    th.set_num_threads(n_threads)
    # Empty for the first seed, as JAX's is for all
    of_all_seeds = short_hash(repr({**run, "seed": None}))
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str((CACHES / f"torchinductor_{of_all_seeds}").absolute())
    model = make_model(run["contestant"], task, task.make_env(seed, n_threads), seed)
    n_rollouts = task.ppg.get("n_policy_iterations", 4)
    phase = n_rollouts * model.n_envs * task.arguments["n_steps"]
    n_timesteps = task.curve_steps if run["part"] == "curves" else task.n_phases * phase
    episodes = Episodes()
    model.learn(n_timesteps, callback=episodes)
    (_, start), (first_steps, first), (steps, end) = (episodes.times[i] for i in (0, n_rollouts, -1))
    speed = (steps - first_steps) / (end - first)
    row = dict(steps=steps, speed=round(speed), compiling=round(first - start - first_steps / speed, 2))
    points = curve(episodes.table(), n_timesteps) if run["part"] == "curves" else None
    return {**row, "seconds": round(end - start, 1)}, points


def make_model(name: str, task: Task, env: VecEnv, seed: int) -> BaseAlgorithm:
    """Make a contestant."""
    arguments = task.arguments | dict(env=env, seed=seed, device="cpu")
    if name == "SB3 PPO":
        return PPO(**arguments)
    if name != SBX:
        return PPG(**(arguments | dict(task.ppg, compile_updates=False) | CONTESTANTS[name][1]))
    sys.path.append(str(venvs.installed("sbx", venvs.SBX)[1]))
    os.environ["JAX_PLATFORMS"] = "cpu"
    if task.arguments["policy"] == "CnnPolicy":
        # SBX's own shares weights by the names of NatureCNN's layers
        arguments |= dict(policy="MlpPolicy", policy_kwargs=dict(net_arch=[], **flax_minatar_cnn()))
    return importlib.import_module("sbx").PPO(**arguments)


def flax_minatar_cnn() -> dict[str, Any]:
    """Return the arguments that give SBX's policy and value function a ``MinAtarCNN`` each."""
    nn = importlib.import_module("flax.linen")

    def network(features_dim: int, activation_fn: Callable) -> Callable:
        layers = [
            lambda x: x.astype("float32"),
            nn.Conv(16, kernel_size=(3, 3), padding="VALID"),
            activation_fn,
            lambda x: x.reshape(len(x), -1),
            nn.Dense(features_dim),
            activation_fn,
        ]
        return nn.Sequential(layers)

    kwargs = dict(features_dim=128)
    return dict(features_extractor_class=network, features_extractor_kwargs=kwargs, activation_fn=nn.relu)


def draw_curves(axes: Axes, curves: pd.DataFrame, task: str) -> None:
    """Draw all contestants on one task against seconds, means over seeds, on the processor with the most seeds."""
    curves = curves[curves["task"] == task]
    curves = curves[curves["processor"] == curves.groupby("processor")["seed"].nunique().idxmax()]
    for name, (color, _) in CONTESTANTS.items():
        points = curves[curves["contestant"] == name]
        if len(points):
            seeds = points.pivot(index="steps", columns="seed", values=["seconds", "return"]).dropna()
            draw_seeds(axes, seeds["return"].set_axis(seeds["seconds"].mean(axis=1)), name, color)


def report(experiment: Experiment) -> Report:
    """Return the table of medians, and the picture."""
    rows, curves, lines = experiment.rows(present=False), experiment.curves(), []
    groups = rows[rows["part"] == "speed"].groupby(["processor", "threads", "task"], sort=False)
    for (processor, threads, task), own in groups:
        medians = own.groupby("contestant")["speed"].median().reindex(list(CONTESTANTS))
        ratios = medians["PPG, compiled"] / medians[["PPG", SBX]]
        line = [processor, threads, task, *(f"{median:,.0f}" for median in medians), *(f"{ratio:.2f}" for ratio in ratios)]
        line = ["" if cell == "nan" else cell for cell in line]
        for name in COMPILING:
            seconds = own[own["contestant"] == name].sort_values("seed")["compiling"]
            line.append(", ".join(f"{some.median():.1f}" for some in (seconds.head(1), seconds.iloc[1:]) if len(some)))
        lines.append(line)
    head = ["processor", "threads", "task", *CONTESTANTS, "compiled / PPG", f"compiled / {SBX}"]
    tasks = {name: task for name, task in TASKS.items() if task.curve_steps > 0}
    figure = Figure(figsize=(5 * len(tasks), 4), dpi=120, layout="constrained")
    for axes, (name, task) in zip(figure.subplots(1, len(tasks)), tasks.items(), strict=True):
        draw_curves(axes, curves, name)
        title, xlabel = f"{name}, {task.curve_steps:,} steps", "seconds, compiling included"
        finish(axes, title, xlabel, "return of the latest 100 episodes", legend="best")
    text = page(
        "Compiled updates: whole trainings",
        f"`python -m benchmarks.compiled`. Steps per second after the first phase, medians of up to "
        f"{N_TURNS} turns; auxiliary phases are included except where the column says otherwise. Compiling: seconds by which "
        "the first phase is slower than the others, with an empty cache and in later trainings (JAX keeps none). 8 "
        "environments x 256 steps, minibatches of 64, ten epochs; MinAtar: 32 x 128, 512, two, where SBX has two CNNs and "
        "the others have one. With one thread a training has one core, environments included. AMD: an earlier build, commit "
        "a3b195f.",
        table([*head, *(f"compiling, s: {name}" for name in COMPILING)], lines),
        f"Learning curves: up to {curves['seed'].nunique()} seeds, mean and range; one core for each training, while other "
        "programs used the other one.",
        "![return against seconds](compiled.png)",
    )
    return {"compiled.md": text, "compiled.png": figure}


COMPILED = Experiment("compiled", wanted, train, report)

if __name__ == "__main__":
    COMPILED.main()
