"""MlpPolicy, LSTMs and masks: the policy phase's update and the rollouts against PPO, RecurrentPPO and MaskablePPO."""

import statistics
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks.turns import Measure, collect, medians, ready, seconds
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG

HUNDRED_ACTIONS = partial(InvalidActionEnvDiscrete, dim=100, n_invalid_actions=80)
CONTESTS: dict[str, tuple[Any, type[OnPolicyAlgorithm], type[PPG], str]] = {
    "CartPole-v1": ("CartPole-v1", PPO, PPG, "MlpPolicy"),
    "Pendulum-v1": ("Pendulum-v1", PPO, PPG, "MlpPolicy"),
    "CartPole-v1, LSTMs": ("CartPole-v1", RecurrentPPO, RecurrentPPG, "MlpLstmPolicy"),
    "100 actions, masks": (HUNDRED_ACTIONS, MaskablePPO, MaskablePPG, "MlpPolicy"),
}


def rollouts_and_updates(algorithm: str, contest: str) -> Measure:
    """Measure with the same network, rollouts, minibatches of 64 and epochs; one thread."""
    settings: dict[str, Any] = dict(n_steps=256, batch_size=64, n_epochs=4, max_grad_norm=0.5, ent_coef=0.01, seed=0)
    env, ppo, ppg, policy = CONTESTS[contest]
    cls: Any = {"PPO": ppo, "PPG": ppg}[algorithm]
    model = ready(cls(policy, make_vec_env(env, 8, seed=0), device="cpu", **settings))
    update = model.policy_phase if isinstance(model, PPG) else model.train

    def measure() -> dict[str, float]:
        rollouts, updates = [], []
        for _ in range(5):
            rollouts.append(seconds(lambda: collect(model)))
            updates.append(seconds(update))
        return dict(rollout=statistics.median(rollouts), update=statistics.median(updates))

    return measure


def run() -> pd.DataFrame:
    """Measure each contest."""
    rows = []
    for contest in CONTESTS:
        found = medians({algorithm: (rollouts_and_updates, (algorithm, contest)) for algorithm in ("PPO", "PPG")})
        row: dict[str, Any] = dict(env=contest)
        for part, n_samples in (("update", 8192), ("rollout", 2048)):
            row |= {f"{part}_{name.lower()}": n_samples / found.loc[name, part] for name in ("PPO", "PPG")}
            row[f"{part}_over_ppo"] = found.loc["PPO", part] / found.loc["PPG", part]
        rows.append(row)
    return pd.DataFrame(rows).round(3)


COLUMNS = {
    "environment": "{env}",
    "update, samples/s: PPO": "{update_ppo:,.0f}",
    "update: PPG": "{update_ppg:,.0f}",
    "update: ratio": "{update_over_ppo:.2f}",
    "rollout, steps/s: PPO": "{rollout_ppo:,.0f}",
    "rollout: PPG": "{rollout_ppg:,.0f}",
    "rollout: ratio": "{rollout_over_ppo:.2f}",
}


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw both ratios of each contest."""
    positions = np.arange(len(rows))
    axes.bar(positions - 0.2, rows["update_over_ppo"], 0.4, label="update")
    axes.bar(positions + 0.2, rows["rollout_over_ppo"], 0.4, label="rollout")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(positions, [name.replace(", ", "\n") for name in rows["env"]])
    axes.set(ylabel="PPG over PPO, samples per second", title="MlpPolicy, LSTMs, masks")
    axes.legend()
