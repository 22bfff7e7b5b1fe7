"""
``MlpPolicy``, LSTMs and masks: the policy phase's update and the rollouts against PPO, RecurrentPPO and MaskablePPO. Ratios of
medians of five turns, taken alternately in one run, each contestant in a process of its own.

    python -m benchmarks.speed    # nothing else should run
"""

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import torch as th
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks.harness import RESULTS, take_turns
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from sb3_ppg.comparison.report import page, table
from sb3_ppg.comparison.runs import machine

HUNDRED_ACTIONS = partial(InvalidActionEnvDiscrete, dim=100, n_invalid_actions=80)
CONTESTS: dict[str, tuple[Any, type[OnPolicyAlgorithm], type[PPG], str]] = {
    "CartPole-v1": ("CartPole-v1", PPO, PPG, "MlpPolicy"),
    "Pendulum-v1": ("Pendulum-v1", PPO, PPG, "MlpPolicy"),
    "CartPole-v1, LSTMs": ("CartPole-v1", RecurrentPPO, RecurrentPPG, "MlpLstmPolicy"),
    "100 actions, masks": (HUNDRED_ACTIONS, MaskablePPO, MaskablePPG, "MlpPolicy"),
}
COLUMNS = {
    "environment": "{env}",
    "update, samples/s: PPO": "{update_ppo:,.0f}",
    "update: PPG": "{update_ppg:,.0f}",
    "update: ratio": "{update_over_ppo:.2f}",
    "rollout, steps/s: PPO": "{rollout_ppo:,.0f}",
    "rollout: PPG": "{rollout_ppg:,.0f}",
    "rollout: ratio": "{rollout_over_ppo:.2f}",
}


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the time that a call takes."""
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def rollouts_and_updates(algorithm: str, contest: str) -> Callable[[], dict[str, float]]:
    """Measure with the same network, rollouts, minibatches of 64 and epochs; one thread."""
    settings: dict[str, Any] = dict(n_steps=256, batch_size=64, n_epochs=4, max_grad_norm=0.5, ent_coef=0.01, seed=0)
    env, ppo, ppg, policy = CONTESTS[contest]
    cls: Any = {"PPO": ppo, "PPG": ppg}[algorithm]
    model = cls(policy, make_vec_env(env, 8, seed=0), device="cpu", **settings)
    # As `learn` leaves it before the first rollout, without a log
    model.set_logger(Logger(folder=None, output_formats=[]))
    model._setup_learn(10**9)
    callback = CallbackList([])
    callback.init_callback(model)
    update = model.policy_phase if isinstance(model, PPG) else model.train

    def measure() -> dict[str, float]:
        rollouts, updates = [], []
        for _ in range(5):
            rollouts.append(seconds(model.collect_rollouts, model.env, callback, model.rollout_buffer, model.n_steps))
            updates.append(seconds(update))
        return dict(rollout=statistics.median(rollouts), update=statistics.median(updates))

    return measure


def run() -> pd.DataFrame:
    """Measure each contest."""
    rows = []
    for contest in CONTESTS:
        turns = take_turns({algorithm: (rollouts_and_updates, algorithm, contest) for algorithm in ("PPO", "PPG")})
        found = turns.groupby("contestant").median()
        row: dict[str, Any] = dict(env=contest)
        for part, n_samples in (("update", 8192), ("rollout", 2048)):
            row |= {f"{part}_{name.lower()}": n_samples / found.loc[name, part] for name in ("PPO", "PPG")}
            row[f"{part}_over_ppo"] = found.loc["PPO", part] / found.loc["PPG", part]
        rows.append(row)
    return pd.DataFrame(rows).round(3)


def report(rows: pd.DataFrame, where: str) -> str:
    """Return the page."""
    return page(
        "Speed: MlpPolicy, LSTMs and masks",
        f"`python -m benchmarks.speed`. Medians of 5 turns, taken alternately. 8 environments, minibatches of 64. {where}.",
        table(list(COLUMNS), ([text.format(**row) for text in COLUMNS.values()] for row in rows.to_dict("records"))),
    )


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    rows = run()
    rows.to_csv(RESULTS / "speed_mlp.csv", index=False)
    (RESULTS / "speed.md").write_text(report(rows, f"{machine()}, torch {th.__version__}"))
