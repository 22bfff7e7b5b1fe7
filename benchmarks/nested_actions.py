"""
A choice with parameters, ``examples/parameterized_actions.py``, as a Dict action space, and flattened as users do without
one: everything in one Box, with thresholds for the choice, or everything discretized.
"""

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
from gymnasium import spaces
from matplotlib.figure import Figure
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.harness import Experiment, Report
from benchmarks.suites.training import Episodes, curve
from benchmarks.tables import draw_seeds, finish, machines, page, table
from examples.parameterized_actions import ACCELERATE, BRAKE, TURN, Docking
from sb3_ppg import PPG

N_SEEDS, N_TIMESTEPS, N_EPISODES = 5, 100_000, 200
THRESHOLD = 1.4  # mean return of 100 episodes
POWERS, ANGLES = (0.2, 0.4, 0.6, 0.8, 1.0), (-1, -0.5, -0.25, -0.1, 0.1, 0.25, 0.5)


class OneBox(gym.ActionWrapper):
    """The choice is the third of [-1, 1] in which the first number lies."""

    action_space: Any = spaces.Box(-1, 1, (3,))

    def action(self, action: np.ndarray) -> dict[str, Any]:
        choice = min(int((action[0] + 1) * 1.5), BRAKE)
        return dict(choice=choice, power=(action[1:2] + 1) / 2, angle=action[2:])


class Discretized(gym.ActionWrapper):
    """A choice among powers, angles, and braking."""

    action_space: Any = spaces.Discrete(len(POWERS) + len(ANGLES) + 1)

    def action(self, action: int) -> dict[str, Any]:
        if action < len(POWERS):
            return dict(choice=ACCELERATE, power=[POWERS[action]])
        if action < len(POWERS) + len(ANGLES):
            return dict(choice=TURN, angle=[ANGLES[action - len(POWERS)]])
        return dict(choice=BRAKE)


CONTESTANTS: dict[str, tuple[Any, Any, str]] = {  # algorithm, environment, color
    "PPG, Dict": (PPG, Docking, "tab:blue"),
    "PPG, one Box": (PPG, lambda: OneBox(Docking()), "tab:cyan"),
    "PPG, discretized": (PPG, lambda: Discretized(Docking()), "tab:green"),
    "PPO, one Box": (PPO, lambda: OneBox(Docking()), "tab:red"),
    "PPO, discretized": (PPO, lambda: Discretized(Docking()), "tab:orange"),
}


def wanted() -> list[dict[str, Any]]:
    return [dict(contestant=name, seed=seed) for seed in range(N_SEEDS) for name in CONTESTANTS]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train an agent, and evaluate it in deterministic episodes."""
    algorithm, env, _ = CONTESTANTS[training["contestant"]]
    start, seed = time.process_time(), training["seed"]
    kwargs = dict(n_steps=256, ent_coef=0.01, clip_range=0.2, seed=seed, device="cpu")
    model = algorithm("MlpPolicy", make_vec_env(env, 8, seed=seed), **kwargs)
    episodes = Episodes(folder / "episodes.csv")
    model.learn(N_TIMESTEPS, callback=episodes)
    seconds = round(time.process_time() - start)
    successes: list[bool] = []

    def note(local: dict[str, Any], _: Any) -> None:
        if local["done"]:
            successes.append(local["info"]["is_success"])

    mean, _ = evaluate_policy(model, make_vec_env(env, seed=1000 + seed), N_EPISODES, callback=note)
    outcome = {"return": round(float(mean), 3), "docked": np.mean(successes), "seconds": seconds}  # type: ignore[arg-type]
    return outcome, curve(episodes.read(N_TIMESTEPS), N_TIMESTEPS)


def report(experiment: Experiment) -> Report:
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for name, (_, _, color) in CONTESTANTS.items():
        own, points = rows[rows["contestant"] == name], curves[curves["contestant"] == name]
        if len(own) == 0:
            continue
        seeds = points.pivot(index="steps", columns="seed", values="return")
        draw_seeds(axes, seeds, name, color)
        reached = [column.index[column >= THRESHOLD].min() for _, column in seeds.items()]
        n_reached = np.isfinite(reached).sum()
        steps = f"{np.median(reached):,.0f}" if n_reached == len(own) else f"{n_reached} of {len(own)} seeds"
        docked, returns = own["docked"], own["return"]
        spread = [
            f"{one.mean():{form}} ({one.min():{form}} to {one.max():{form}})"
            for one, form in ((docked, ".1%"), (returns, ".2f"))
        ]
        lines.append([name, *spread, steps, f"{own['seconds'].median():.0f}"])
    finish(axes, "Docking: a choice with parameters", "steps", "return of the latest 100 episodes", legend="lower right")
    text = page(
        "A choice with parameters",
        f"`python -m benchmarks.nested_actions`: `examples/parameterized_actions.py` as a Dict action space, in one Box with "
        f"thresholds for the choice, and discretized; {N_TIMESTEPS:,} steps, {N_SEEDS} seeds, the same settings for all. "
        f"{N_EPISODES} deterministic episodes after the training: mean, and range of the seeds. {machines(rows)}",
        table(["", "docked", "return", f"steps to a return of {THRESHOLD}, median", "seconds of a core"], lines),
        "![learning curves](nested_actions.png)",
    )
    return {"nested_actions.md": text, "nested_actions.png": figure}


NESTED_ACTIONS = Experiment("nested_actions", wanted, train, report)

if __name__ == "__main__":
    NESTED_ACTIONS.main()
