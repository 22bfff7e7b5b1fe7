"""
Learning curves and final returns of PPG, beside PPO with the same number of steps.

- CartPole-v1 in Python with all defaults, seeds 0 to 4: ``PPG("MlpPolicy", "CartPole-v1", seed=s).learn(100_000)``.
- Through RL Zoo, with ``hyperparams/ppg.yml`` and with RL Zoo's own tuned PPO, seeds 0 to 2: the environments for which
  ``ppg.yml`` claims to be tuned.

Each agent is evaluated on 100 episodes, deterministically. Writes results/learning.csv, learning_curves.csv, learning.md and
learning.png after each training; those that learning.csv has, with the same hyperparameters, are not run again.

    python -m benchmarks.learning [--plot] [--algo ppg] [--env CartPole-v1]
"""

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from inspect import signature
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rl_zoo3
import torch as th
import yaml
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import load_results

from benchmarks.suites.contestants import COLORS
from benchmarks.suites.report import draw_seeds
from sb3_ppg import PPG
from sb3_ppg.zoo import register
from sb3_ppg.zoo.hyperparameters import hyperparameter_file
from sb3_ppg.zoo.report import evaluate, load_agent

RESULTS = Path(__file__).parent / "results"
N_EPISODES = 100
CURVE_POINTS = 50
ZOO_ENVS = [
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
]
EXPERIMENTS = [("CartPole-v1", "defaults", range(5)), *((env_id, "RL Zoo", range(3)) for env_id in ZOO_ENVS)]


class Training(NamedTuple):
    """What identifies a row of results."""

    env: str
    setting: str  # "defaults" or "RL Zoo"
    algo: str  # "ppg" or "ppo"
    seed: int
    hyperparameters: str  # a hash of the file's entry, or of the defaults

    def run(self) -> tuple[dict, pd.DataFrame]:
        """
        Train and evaluate one agent.

        :return: a row of results; the learning curve
        """
        th.set_num_threads(1)
        start = time.time()
        with tempfile.TemporaryDirectory() as folder:
            train = train_in_python if self.setting == "defaults" else train_with_the_zoo
            returns, monitor = train(self.env, self.algo, self.seed, folder)
        row = dict(steps=int(monitor["l"].sum()), mean=round(np.mean(returns), 2), std=round(np.std(returns), 2))
        return {**self._asdict(), **row, "seconds": round(time.time() - start)}, curve(monitor).assign(**self._asdict())


def all_trainings() -> list[Training]:
    """What the table is made of."""
    return [
        Training(env_id, setting, algo, seed, hyperparameters(env_id, algo) if setting == "RL Zoo" else defaults(algo))
        for env_id, setting, seeds in EXPERIMENTS
        for algo in ("ppg", "ppo")
        for seed in seeds
    ]


def hyperparameters(env_id: str, algo: str) -> str:
    """A short hash of an environment's entry, which changes when the entry does."""
    file = hyperparameter_file(algo) if algo == "ppg" else Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algo}.yml"
    entry = yaml.safe_load(file.read_text())[env_id]
    return hashlib.sha256(repr(sorted(entry.items())).encode()).hexdigest()[:8]


def defaults(algo: str) -> str:
    """A short hash of an algorithm's own, likewise."""
    parameters = signature({"ppg": PPG, "ppo": PPO}[algo]).parameters
    return hashlib.sha256(repr([(name, parameter.default) for name, parameter in parameters.items()]).encode()).hexdigest()[:8]


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
    command = ["train", "--algo", algo, "--env", env_id, "--seed", str(seed), "-f", folder, "--eval-freq", "-1"]
    subprocess.run([sys.executable, "-m", "sb3_ppg", *command, "--num-threads", "1"], check=True, stdout=subprocess.DEVNULL)
    register()
    path = Path(folder) / algo / f"{env_id}_1"
    returns = evaluate(load_agent(algo, env_id, path / f"{env_id}.zip", path / env_id, seed=1000 + seed), N_EPISODES)
    return returns, load_results(str(path))


def curve(monitor: pd.DataFrame) -> pd.DataFrame:
    """Mean return of the last 20 episodes, at evenly spaced steps."""
    steps, smooth = monitor["l"].cumsum(), monitor["r"].rolling(20, min_periods=1).mean()
    grid = np.linspace(0, steps.iloc[-1], CURVE_POINTS + 1)[1:]
    return pd.DataFrame(dict(step=grid.astype(int), episode_return=np.interp(grid, steps, smooth).round(2)))


class Results:
    """The committed tables: rows and learning curves of trainings."""

    def __init__(self) -> None:
        self.rows = self._read("learning.csv")
        self.curves = self._read("learning_curves.csv")

    @staticmethod
    def _read(name: str) -> pd.DataFrame:
        file = RESULTS / name
        return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=list(Training._fields))

    def missing(self, trainings: Iterable[Training]) -> list[Training]:
        """Those that were not run with these hyperparameters."""
        done = set(self.rows[list(Training._fields)].itertuples(index=False, name=None))
        return [training for training in trainings if tuple(training) not in done]

    def add(self, row: dict, points: pd.DataFrame) -> None:
        """In place of a row with other hyperparameters, if there is one."""
        self.rows = pd.concat([self._without(self.rows, row), pd.DataFrame([row])])
        self.curves = pd.concat([self._without(self.curves, row), points])

    @staticmethod
    def _without(table: pd.DataFrame, row: dict) -> pd.DataFrame:
        key = ["env", "setting", "algo", "seed"]
        return table[~(table[key] == [row[name] for name in key]).all(axis=1)]

    def write(self) -> None:
        """Tables, Markdown and picture; of what is there."""
        RESULTS.mkdir(exist_ok=True)
        key = ["setting", "env", "algo", "seed"]
        self.rows.sort_values(key).to_csv(RESULTS / "learning.csv", index=False)
        self.curves.sort_values([*key, "step"]).to_csv(RESULTS / "learning_curves.csv", index=False)
        (RESULTS / "learning.md").write_text(markdown(self.rows))
        plot(self.curves, RESULTS / "learning.png")


def markdown(rows: pd.DataFrame) -> str:
    """The table."""
    lines = [
        "# Final returns",
        "",
        f"`python -m benchmarks.learning`, {platform.machine()}, {os.cpu_count()} cores, one thread per training, torch "
        f"{th.__version__}. Mean of {N_EPISODES} deterministic episodes after training, per seed; ± is the standard error of "
        "the mean over seeds.",
        "",
        "| environment | setting | algorithm | steps | return per seed | mean |",
        "|---|---|---|---|---|---|",
    ]
    for env_id, setting, _ in EXPERIMENTS:
        for algo in ("ppg", "ppo"):
            part = rows[(rows.env == env_id) & (rows.setting == setting) & (rows.algo == algo)].sort_values("seed")
            if len(part) > 0:
                per_seed = ", ".join(f"{value:.1f}" for value in part["mean"])
                mean = f"{part['mean'].mean():.1f} ± {part['mean'].sem():.1f}"
                steps = f"{part.steps.max() / 1000:.0f}k"
                lines.append(f"| {env_id} | {setting} | {algo.upper()} | {steps} | {per_seed} | {mean} |")
    return "\n".join(lines) + "\n"


def of_seeds(curves: pd.DataFrame) -> pd.DataFrame:
    """The returns of one contestant, (n_points, n_seeds), at the steps of the first seed: others differ by little."""
    parts = [part for _, part in curves.groupby("seed")]
    return pd.DataFrame(np.stack([part.episode_return for part in parts], axis=1), index=parts[0].step)


def plot(curves: pd.DataFrame, picture: Path) -> None:
    """One panel per experiment: mean over seeds, and their range."""
    figure, panels = plt.subplots(2, 4, figsize=(12, 6.2))  # small, so that its letters are large enough on a page
    for axes in panels.flat[len(EXPERIMENTS) :]:
        axes.set_axis_off()
    for axes, (env_id, setting, _) in zip(panels.flat, EXPERIMENTS, strict=False):
        for algo in ("ppg", "ppo"):
            part = curves[(curves.env == env_id) & (curves.setting == setting) & (curves.algo == algo)]
            draw_seeds(axes, of_seeds(part), algo.upper(), COLORS[algo.upper()])
        axes.set(title=f"{env_id}\n{setting}", xlabel="environment steps", ylabel="return in training")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def main() -> None:
    """Run what is missing, or only draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="only write table and picture, from the results that are there")
    parser.add_argument("--algo", nargs="*", default=["ppg", "ppo"], help="only these")
    parser.add_argument("--env", nargs="*", default=[env_id for env_id, *_ in EXPERIMENTS], help="only these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time")
    args = parser.parse_args()
    results = Results()
    if not args.plot:
        chosen = [training for training in all_trainings() if training.algo in args.algo and training.env in args.env]
        with ProcessPoolExecutor(args.jobs) as pool:
            for done in as_completed([pool.submit(training.run) for training in results.missing(chosen)]):
                row, points = done.result()
                print(row, flush=True)
                results.add(row, points)
                results.write()
    results.write()
    print(markdown(results.rows))


if __name__ == "__main__":
    main()
