"""
Whether bfloat16 learns as well as float32: StarPilot (Procgen, easy, all levels), 512,000 steps, 3 seeds each.

CPU-sized: one network of half the paper's channels, 32 environments x 128 steps, N_π = 16, E_aux = 3; else the paper's
setting. One thread each. Each agent then plays 200 episodes, stochastically, on levels drawn with another seed. Writes
results/mixed_precision.csv, mixed_precision_curves.csv, mixed_precision.md and mixed_precision.png; trainings that the CSV
has are not run again.

    python -m benchmarks.mixed_precision [--precision float32|bf16] [--seed 0] [--plot]
"""

import argparse
import fcntl
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from benchmarks.machine import processor
from sb3_ppg import PPG
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.policies.extractors import ImpalaCNN

RESULTS = Path(__file__).parent / "results"
GAME = "StarpilotEasy-v0"
PRECISIONS = ("float32", "bf16")
SEEDS = range(3)
N_STEPS = 512_000
N_EPISODES = 200


class LearningCurve(BaseCallback):
    """The mean return of the latest 100 episodes, at each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.model.ep_info_buffer:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            self.points.append({"steps": self.num_timesteps, "return": round(float(np.mean(returns)), 3)})


def train(precision: str, seed: int) -> tuple[dict, pd.DataFrame]:
    """
    :param precision: one of ``PRECISIONS``
    :param seed: of the agent and its environments
    :return: a row of results; the learning curve
    """
    th.set_num_threads(1)
    env = VecNormalize(VecMonitor(EnvPoolVecEnv(GAME, num_envs=32, seed=seed)), norm_obs=False, gamma=0.999)
    model = PPG(
        "CnnPolicy",
        env,
        **{**PAPERS_VALUES, "n_steps": 128, "n_policy_iterations": 16},
        batch_size=512,
        n_aux_epochs=3,
        aux_batch_size=1024,
        normalize_value_targets=False,
        mixed_precision=None if precision == "float32" else "bf16",
        policy_kwargs=dict(
            architecture="detached",
            features_extractor_class=ImpalaCNN,
            features_extractor_kwargs=dict(channels=(8, 16, 16)),
        ),
        seed=seed,
        device="cpu",
    )
    curve = LearningCurve()
    start = time.perf_counter()
    model.learn(N_STEPS, callback=curve)
    seconds = time.perf_counter() - start
    test_env = VecMonitor(EnvPoolVecEnv(GAME, num_envs=20, seed=1000 + seed))
    returns, _ = evaluate_policy(model, test_env, N_EPISODES, deterministic=False, return_episode_rewards=True)
    row = dict(precision=precision, seed=seed, steps=model.num_timesteps, mean=round(float(np.mean(returns)), 2))
    row |= dict(std=round(float(np.std(returns)), 2), seconds=round(seconds), machine=processor())
    return row, pd.DataFrame(curve.points).assign(precision=precision, seed=seed)


def report(results: pd.DataFrame, curves: pd.DataFrame) -> None:
    """
    :param results: a row per training
    :param curves: of all trainings
    """
    lines = [
        "# float32 and bfloat16",
        "",
        f"{GAME}, {N_STEPS:,} steps: mean return of {N_EPISODES} episodes on fresh levels.",
        f"Written by `python -m benchmarks.mixed_precision`. {' and '.join(results['machine'].unique())}.",
        "",
        "| precision | seeds | returns | mean |",
        "| --- | --- | --- | --- |",
    ]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for precision, color in zip(PRECISIONS, ("tab:blue", "tab:orange"), strict=True):
        rows = results[results["precision"] == precision].sort_values("seed")
        returns = ", ".join(f"{value:.2f}" for value in rows["mean"])
        lines.append(f"| {precision} | {', '.join(map(str, rows['seed']))} | {returns} | {rows['mean'].mean():.2f} |")
        for seed, curve in curves[curves["precision"] == precision].groupby("seed"):
            axes.plot(curve["steps"], curve["return"], color=color, alpha=0.8, label=precision if seed == 0 else None)
    (RESULTS / "mixed_precision.md").write_text("\n".join(lines) + "\n")
    axes.set(xlabel="environment steps", ylabel="return of the latest 100 episodes", title=f"{GAME}, 3 seeds each")
    axes.legend()
    figure.savefig(RESULTS / "mixed_precision.png", dpi=120)


def add(path: Path, table: pd.DataFrame) -> None:
    """Append to a CSV file, in turn with whoever else does."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table.to_csv(file, index=False, header=path.stat().st_size == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=PRECISIONS, help="these trainings only")
    parser.add_argument("--seed", type=int, help="these trainings only")
    parser.add_argument("--plot", action="store_true", help="from the CSV files alone")
    args = parser.parse_args()
    path, curves_path = RESULTS / "mixed_precision.csv", RESULTS / "mixed_precision_curves.csv"
    for seed in SEEDS if args.seed is None else [args.seed]:
        for precision in PRECISIONS if args.precision is None else [args.precision]:
            done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["precision", "seed"])
            if args.plot or ((done["precision"] == precision) & (done["seed"] == seed)).any():
                continue
            row, curve = train(precision, seed)
            print(row, flush=True)
            add(curves_path, curve)
            add(path, pd.DataFrame([row]))
    report(pd.read_csv(path), pd.read_csv(curves_path))


if __name__ == "__main__":
    main()
