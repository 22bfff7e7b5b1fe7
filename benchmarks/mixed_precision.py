"""
Learning with bfloat16 and with float32: StarPilot (Procgen, easy, all levels), 512,000 steps, 3 seeds each.

The size fits a CPU: one network of half the paper's channels, 32 environments x 128 steps, N_π = 16, E_aux = 3; otherwise the
paper's setting. Each agent then plays 200 episodes, stochastically, on levels drawn with another seed.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from benchmarks.harness import Experiment, Report
from benchmarks.suites.training import Episodes, curve, learn
from benchmarks.tables import listed, machines, page, table
from sb3_ppg import PPG
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.policies.extractors import ImpalaCNN

GAME = "StarpilotEasy-v0"
N_STEPS = 512_000
N_EPISODES = 200
PRECISIONS = {"float32": "tab:blue", "bf16": "tab:orange"}  # colors


def wanted() -> list[dict[str, Any]]:
    return [dict(precision=precision, seed=seed) for seed in range(3) for precision in PRECISIONS]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    env = VecNormalize(VecMonitor(EnvPoolVecEnv(GAME, num_envs=32, seed=training["seed"])), norm_obs=False, gamma=0.999)
    model = PPG(
        "CnnPolicy",
        env,
        **{**PAPERS_VALUES, "n_steps": 128, "n_policy_iterations": 16},
        batch_size=512,
        n_aux_epochs=3,
        aux_batch_size=1024,
        normalize_value_targets=False,
        mixed_precision=None if training["precision"] == "float32" else "bf16",
        policy_kwargs=dict(
            architecture="detached",
            features_extractor_class=ImpalaCNN,
            features_extractor_kwargs=dict(channels=(8, 16, 16)),
        ),
        seed=training["seed"],
        device="cpu",
    )
    start = time.perf_counter()
    _, episodes = learn(model, N_STEPS, Episodes(folder / "episodes.csv"))
    seconds = time.perf_counter() - start
    test_env = VecMonitor(EnvPoolVecEnv(GAME, num_envs=20, seed=1000 + training["seed"]))
    returns, _ = evaluate_policy(model, test_env, N_EPISODES, deterministic=False, return_episode_rewards=True)
    row = dict(steps=model.num_timesteps, mean=round(float(np.mean(returns)), 2), std=round(float(np.std(returns)), 2))
    return row | dict(seconds=round(seconds)), curve(episodes, N_STEPS)


def report(experiment: Experiment) -> Report:
    rows, curves, lines = experiment.rows().sort_values("seed"), experiment.curves(), []
    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for precision, color in PRECISIONS.items():
        own = rows[rows["precision"] == precision]
        lines.append([precision, listed(own["seed"], 0), listed(own["mean"], 2), f"{own['mean'].mean():.2f}"])
        for seed, own in curves[curves["precision"] == precision].groupby("seed"):
            axes.plot(own["steps"], own["return"], color=color, alpha=0.8, label=precision if seed == 0 else None)
    axes.set(xlabel="environment steps", ylabel="return of the latest 100 episodes", title=f"{GAME}, 3 seeds each")
    axes.legend()
    text = page(
        "float32 and bfloat16",
        f"`python -m benchmarks.mixed_precision`: {GAME}, {N_STEPS:,} steps; mean return of {N_EPISODES} episodes on fresh "
        f"levels. {machines(rows)}",
        table(["precision", "seeds", "returns", "mean"], lines),
    )
    return {"mixed_precision.md": text, "mixed_precision.png": figure}


MIXED_PRECISION = Experiment("mixed_precision", wanted, train, report)

if __name__ == "__main__":
    MIXED_PRECISION.main()
