"""
Learning curves and final returns of PPG and PPO with the same number of steps.

- CartPole-v1 in Python with all defaults, seeds 0 to 4: ``PPG("MlpPolicy", "CartPole-v1", seed=s).learn(100_000)``.
- Through RL Zoo, with ``hyperparams/ppg.yml`` and with RL Zoo's own tuned PPO, seeds 0 to 2: the environments for which
  ``ppg.yml`` claims to be tuned.

Each agent is evaluated on 100 episodes, deterministically. Writes results/learning.csv, learning_curves.csv, learning.md and
learning.png.

    python -m benchmarks.learning [run] [--algo ppg] [--env CartPole-v1] [--jobs 2]
    python -m benchmarks.learning report
"""

import subprocess
import sys
import time
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import rl_zoo3
import yaml
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import load_results

from benchmarks.harness import Experiment, Report, short_hash
from benchmarks.tables import COLORS, by_seed, draw_seeds, finish, listed, machines, mean_and_error, page, table
from sb3_ppg import PPG
from sb3_ppg.zoo import register
from sb3_ppg.zoo.hyperparameters import hyperparameter_file
from sb3_ppg.zoo.report import evaluate, load_agent

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
    """The columns that identify a row."""

    env: str
    setting: str  # "defaults" or "RL Zoo"
    algo: str  # "ppg" or "ppo"
    seed: int
    hyperparameters: str  # a hash of the file's entry, or of the defaults


def wanted() -> list[Training]:
    """Return all trainings."""
    return [
        Training(env_id, setting, algo, seed, hyperparameters(env_id, algo) if setting == "RL Zoo" else defaults(algo))
        for env_id, setting, seeds in EXPERIMENTS
        for algo in ("ppg", "ppo")
        for seed in seeds
    ]


def hyperparameters(env_id: str, algo: str) -> str:
    """Return a hash of an environment's entry."""
    file = hyperparameter_file(algo) if algo == "ppg" else Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algo}.yml"
    return short_hash(repr(sorted(yaml.safe_load(file.read_text())[env_id].items())))


def defaults(algo: str) -> str:
    """Return a hash of an algorithm's defaults."""
    parameters = signature({"ppg": PPG, "ppo": PPO}[algo]).parameters
    return short_hash(repr([(name, parameter.default) for name, parameter in parameters.items()]))


def train(training: Training, folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train and evaluate one agent."""
    start = time.time()
    run = train_in_python if training.setting == "defaults" else train_with_the_zoo
    returns, monitor = run(training.env, training.algo, training.seed, folder)
    row = dict(steps=int(monitor["l"].sum()), mean=round(np.mean(returns), 2), std=round(np.std(returns), 2))
    return {**row, "seconds": round(time.time() - start)}, curve(monitor)


def train_in_python(env_id: str, algo: str, seed: int, folder: Path) -> tuple[list[float], pd.DataFrame]:
    """Train with all defaults for 100,000 steps."""
    env = make_vec_env(env_id, 1, monitor_dir=str(folder))
    model = {"ppg": PPG, "ppo": PPO}[algo]("MlpPolicy", env, seed=seed, device="cpu").learn(100_000)
    evaluation = make_vec_env(env_id, 1, seed=1000 + seed)
    returns, _ = evaluate_policy(model, evaluation, n_eval_episodes=N_EPISODES, return_episode_rewards=True)
    assert isinstance(returns, list)
    return returns, load_results(str(folder))


def train_with_the_zoo(env_id: str, algo: str, seed: int, folder: Path) -> tuple[list[float], pd.DataFrame]:
    """Train as a user does on the command line."""
    command = ["train", "--algo", algo, "--env", env_id, "--seed", str(seed), "-f", str(folder), "--eval-freq", "-1"]
    subprocess.run([sys.executable, "-m", "sb3_ppg", *command, "--num-threads", "1"], check=True, stdout=subprocess.DEVNULL)
    register()
    path = folder / algo / f"{env_id}_1"
    returns = evaluate(load_agent(algo, env_id, path / f"{env_id}.zip", path / env_id, seed=1000 + seed), N_EPISODES)
    return returns, load_results(str(path))


def curve(monitor: pd.DataFrame) -> pd.DataFrame:
    """Return the mean return of the last 20 episodes, at evenly spaced steps."""
    steps, smooth = monitor["l"].cumsum(), monitor["r"].rolling(20, min_periods=1).mean()
    grid = np.linspace(0, steps.iloc[-1], CURVE_POINTS + 1)[1:]
    return pd.DataFrame({"steps": grid.astype(int), "return": np.interp(grid, steps, smooth).round(2)})


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per environment and setting."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    figure = Figure(figsize=(12, 6.2), dpi=130, layout="constrained")  # small, so that its letters are large enough on a page
    panels = list(figure.subplots(2, 4).flat)
    for axes, (env_id, setting, _) in zip(panels, EXPERIMENTS, strict=False):
        for algo in ("ppg", "ppo"):
            query = "env == @env_id and setting == @setting and algo == @algo"
            own, name = rows.query(query).sort_values("seed"), algo.upper()
            if len(own) > 0:
                steps = f"{own['steps'].max() / 1000:.0f}k"
                lines.append([env_id, setting, name, steps, listed(own["mean"]), mean_and_error(own["mean"])])
                draw_seeds(axes, by_seed(curves.query(query)), name, COLORS[name])
        finish(axes, f"{env_id}\n{setting}", "environment steps", "return in training", legend="lower right")
    for axes in panels[len(EXPERIMENTS) :]:
        axes.set_axis_off()
    text = page(
        "Final returns",
        f"`python -m benchmarks.learning`, one thread per training. {machines(rows)} Mean of {N_EPISODES} deterministic "
        "episodes after training, per seed; ± is the standard error of the mean over seeds.",
        table(["environment", "setting", "algorithm", "steps", "return per seed", "mean"], lines),
    )
    return {"learning.md": text, "learning.png": figure}


LEARNING = Experiment("learning", wanted, train, report)

if __name__ == "__main__":
    LEARNING.main()
