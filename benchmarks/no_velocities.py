"""
sb3-contrib's performance test of LSTMs, with twenty seeds: CartPole without velocities, 50,000 steps, the test's settings and
otherwise all defaults. Its agents have to return 450; without memory they return about 50.

Writes results/no_velocities.csv and no_velocities.md; trainings that the CSV has, with the same defaults, are not run again.

    python -m benchmarks.no_velocities [--algo RecurrentPPG RecurrentPPO] [--jobs 2] [--plot]
"""

import argparse
import hashlib
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the processes that are started

import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.machine import end_with_parent, processor
from sb3_ppg import PPG, RecurrentPPG

ROWS = Path(__file__).parent / "results" / "no_velocities.csv"
ALGORITHMS: dict[str, Any] = {"RecurrentPPG": RecurrentPPG, "RecurrentPPO": RecurrentPPO}
SEEDS = range(1, 21)
N_TIMESTEPS = 50_000
THRESHOLD = 450
# Those of sb3-contrib's tests/test_lstm.py
SETTINGS: dict[str, Any] = dict(
    n_steps=128,
    learning_rate=0.0007,
    batch_size=256,
    n_epochs=10,
    max_grad_norm=1,
    gae_lambda=0.98,
    policy_kwargs=dict(net_arch=dict(vf=[64], pi=[]), lstm_hidden_size=64, ortho_init=False, enable_critic_lstm=True),
)


class CartPoleWithoutVelocities(CartPoleEnv):
    """Of the four numbers, position and angle are observed."""

    def __init__(self) -> None:
        super().__init__()
        high = 2 * np.array([self.x_threshold, self.theta_threshold_radians], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high)

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        return observation[::2], info

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return observation[::2], *rest


class Training(NamedTuple):
    """
    What identifies a row.

    :param algorithm: by name
    :param seed: of the agent and its environments
    :param defaults: a hash of the algorithm's, and of the settings
    """

    algorithm: str
    seed: int
    defaults: str

    @classmethod
    def of(cls, algorithm: str, seed: int) -> "Training":
        """With the present defaults."""
        classes = [one for one in reversed(ALGORITHMS[algorithm].__mro__) if one in (PPG, *ALGORITHMS.values())]
        values = {name: one.default for base in classes for name, one in signature(base).parameters.items()}
        decisive = sorted((values | SETTINGS).items())
        return cls(algorithm, seed, hashlib.sha256(repr(decisive).encode()).hexdigest()[:8])

    def run(self) -> dict[str, Any]:
        """
        :return: the row: mean returns of ten episodes, as in the test, and of a hundred further ones
        """
        th.set_num_threads(1)
        start = time.process_time()
        env = VecNormalize(make_vec_env(lambda: TimeLimit(CartPoleWithoutVelocities(), 500), 8))
        model = ALGORITHMS[self.algorithm]("MlpLstmPolicy", env, seed=self.seed, device="cpu", **SETTINGS)
        model.learn(N_TIMESTEPS)
        seconds = round(time.process_time() - start)
        tested, further = (evaluate_policy(model, env, n, warn=False)[0] for n in (10, 100))
        row = dict(tested=round(float(tested), 1), further=round(float(further), 1))  # type: ignore[arg-type]
        return {**self._asdict(), **row, "seconds": seconds, "machine": processor()}


def rows() -> pd.DataFrame:
    """Of the present defaults."""
    if not ROWS.exists():
        return pd.DataFrame(columns=Training._fields)
    table = pd.read_csv(ROWS)
    present = {(name, Training.of(name, 0).defaults) for name in ALGORITHMS}
    return table[[key in present for key in zip(table["algorithm"], table["defaults"], strict=True)]]


def markdown() -> str:
    """The table."""
    table = rows().sort_values("seed")
    lines = [
        "# CartPole without velocities",
        "",
        f"`python -m benchmarks.no_velocities`: sb3-contrib's performance test of LSTMs, which asks for {THRESHOLD} after "
        f"{N_TIMESTEPS:,} steps, with its settings and otherwise all defaults. Mean returns of ten deterministic episodes, as "
        f"in the test, and of a hundred further ones; of each seed. {' and '.join(table['machine'].unique())}.",
        "",
        "| | passes | return, 10 episodes | 100 episodes | seconds of a core |",
        "|---|---|---|---|---|",
    ]
    for name, own in table.groupby("algorithm"):
        returns = [", ".join(f"{value:.0f}" for value in own[column]) for column in ("tested", "further")]
        passed = f"{(own['tested'] >= THRESHOLD).sum()} of {len(own)}"
        lines.append(f"| {name} | {passed} | {' | '.join(returns)} | {own['seconds'].median():.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", nargs="*", default=list(ALGORITHMS), choices=list(ALGORITHMS), help="only these")
    parser.add_argument("--jobs", default=1, type=int, help="trainings at a time")
    parser.add_argument("--plot", action="store_true", help="only write the table")
    args = parser.parse_args()
    known = set(rows()[list(Training._fields)].itertuples(index=False, name=None))
    wanted = [] if args.plot else [Training.of(name, seed) for seed in SEEDS for name in args.algo]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=spawn, initializer=end_with_parent) as pool:
        for done in as_completed([pool.submit(one.run) for one in wanted if tuple(one) not in known]):
            row = done.result()
            print(row, flush=True)
            pd.DataFrame([row]).to_csv(ROWS, mode="a", index=False, header=not ROWS.exists())
    text = markdown()
    (ROWS.parent / "no_velocities.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
