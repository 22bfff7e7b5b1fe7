"""
Learning curves and final returns of PPG, beside PPO with the same number of steps.

- CartPole-v1 in Python with all defaults, seeds 0 to 4: ``PPG("MlpPolicy", "CartPole-v1", seed=s).learn(100_000)``.
- Pendulum-v1 through RL Zoo with ``hyperparams/ppg.yml``, and with RL Zoo's own tuned PPO, seeds 0 to 2.

Each agent is evaluated on 20 episodes, deterministically. Writes results/learning.csv, learning_curves.csv, learning.md and
learning.png; ``--plot`` draws the picture again from the committed results.

    python -m benchmarks.learning [--plot]
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import load_results

from sb3_ppg import PPG

RESULTS = Path(__file__).parent / "results"
N_EPISODES = 20
CURVE_POINTS = 50
EXPERIMENTS = [("CartPole-v1", "defaults", range(5), 450.0), ("Pendulum-v1", "RL Zoo", range(3), -250.0)]


def run(task: tuple[str, str, str, int]) -> tuple[dict, pd.DataFrame]:
    """
    Train and evaluate one agent.

    :param task: environment, setting, algorithm ("ppg" or "ppo"), seed
    :return: a row of results; the learning curve
    """
    env_id, setting, algo, seed = task
    th.set_num_threads(1)
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        train = train_in_python if setting == "defaults" else train_with_the_zoo
        returns, monitor = train(env_id, algo, seed, folder)
    row = dict(env=env_id, setting=setting, algo=algo, seed=seed, steps=int(monitor["l"].sum()))
    row |= dict(mean=np.mean(returns), std=np.std(returns), seconds=round(time.time() - start))
    print(row, flush=True)
    return row, curve(monitor).assign(env=env_id, setting=setting, algo=algo, seed=seed)


def train_in_python(env_id: str, algo: str, seed: int, folder: str) -> tuple[list[float], pd.DataFrame]:
    """With all defaults, 100,000 steps."""
    env = make_vec_env(env_id, 1, monitor_dir=folder)
    model = {"ppg": PPG, "ppo": PPO}[algo]("MlpPolicy", env, seed=seed, device="cpu").learn(100_000)
    evaluation = make_vec_env(env_id, 1, seed=1000 + seed)
    returns, _ = evaluate_policy(model, evaluation, n_eval_episodes=N_EPISODES, return_episode_rewards=True)
    assert isinstance(returns, list)
    return returns, load_results(folder)


def train_with_the_zoo(env_id: str, algo: str, seed: int, folder: str) -> tuple[list[float], pd.DataFrame]:
    """As a user does on the command line."""
    from sb3_ppg.zoo import register
    from sb3_ppg.zoo.report import evaluate

    command = ["train", "--algo", algo, "--env", env_id, "--seed", str(seed), "-f", folder, "--eval-freq", "-1"]
    subprocess.run([sys.executable, "-m", "sb3_ppg", *command, "--num-threads", "1"], check=True, stdout=subprocess.DEVNULL)
    register()
    path = Path(folder) / algo / f"{env_id}_1"
    returns = evaluate(algo, env_id, str(path / f"{env_id}.zip"), path / env_id, N_EPISODES, seed=1000 + seed)
    return returns, load_results(str(path))


def curve(monitor: pd.DataFrame) -> pd.DataFrame:
    """Mean return of the last 20 episodes, at evenly spaced steps."""
    steps, smooth = monitor["l"].cumsum(), monitor["r"].rolling(20, min_periods=1).mean()
    grid = np.linspace(0, steps.iloc[-1], CURVE_POINTS + 1)[1:]
    return pd.DataFrame(dict(step=grid.astype(int), episode_return=np.interp(grid, steps, smooth).round(2)))


def table(rows: pd.DataFrame) -> str:
    """Markdown."""
    lines = [
        "# Final returns",
        "",
        f"`python -m benchmarks.learning`, {platform.machine()}, {os.cpu_count()} cores, one thread per training, torch "
        f"{th.__version__}. Mean of {N_EPISODES} deterministic episodes after training.",
        "",
        "| environment | setting | algorithm | steps | return per seed | mean | lowest | asked for |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for env_id, setting, _, wanted in EXPERIMENTS:
        for algo in ("ppg", "ppo"):
            part = rows[(rows.env == env_id) & (rows.algo == algo)].sort_values("seed")
            per_seed = ", ".join(f"{value:.0f}" for value in part["mean"])
            steps = f"{part.steps.max() / 1000:.0f}k"
            numbers = f"{part['mean'].mean():.0f} | {part['mean'].min():.0f} | {f'>= {wanted:.0f}' if algo == 'ppg' else ''}"
            lines.append(f"| {env_id} | {setting} | {algo.upper()} | {steps} | {per_seed} | {numbers} |")
    return "\n".join(lines) + "\n"


def plot(curves: pd.DataFrame, picture: Path) -> None:
    """One panel per environment: mean over seeds, and their range."""
    figure, panels = plt.subplots(1, len(EXPERIMENTS), figsize=(5 * len(EXPERIMENTS), 4))
    for axes, (env_id, setting, seeds, _) in zip(panels, EXPERIMENTS, strict=True):
        for algo in ("ppg", "ppo"):
            part = curves[(curves.env == env_id) & (curves.algo == algo)]
            values = np.stack([part[part.seed == seed].episode_return.to_numpy() for seed in seeds])
            steps = part[part.seed == 0].step.to_numpy()
            axes.plot(steps, values.mean(axis=0), label=algo.upper())
            axes.fill_between(steps, values.min(axis=0), values.max(axis=0), alpha=0.2)
        axes.set(title=f"{env_id}, {setting}, {len(seeds)} seeds", xlabel="environment steps", ylabel="return in training")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Run everything, or only draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="only draw, from the results that are there")
    if not parser.parse_args().plot:
        tasks = [(env, setting, algo, s) for env, setting, seeds, _ in EXPERIMENTS for algo in ("ppg", "ppo") for s in seeds]
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(run, tasks))
        RESULTS.mkdir(exist_ok=True)
        rows = pd.DataFrame([row for row, _ in results])
        rows.round(2).to_csv(RESULTS / "learning.csv", index=False)
        pd.concat([points for _, points in results]).to_csv(RESULTS / "learning_curves.csv", index=False)
        (RESULTS / "learning.md").write_text(table(rows))
        print(table(rows))
    plot(pd.read_csv(RESULTS / "learning_curves.csv"), RESULTS / "learning.png")


if __name__ == "__main__":
    main()
