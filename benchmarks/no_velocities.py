"""
sb3-contrib's performance test of LSTMs, with twenty seeds: CartPole without velocities, 50,000 steps, the test's settings and
otherwise all defaults. Its agents have to return 450; without memory they return about 50.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import ObservationWrapper, spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness import Experiment, defaults_of, short_hash
from benchmarks.tables import listed, machines, page, table
from sb3_ppg import PPG, RecurrentPPG

ALGORITHMS: dict[str, Any] = {"RecurrentPPG": RecurrentPPG, "RecurrentPPO": RecurrentPPO}
SEEDS = range(1, 21)
N_TIMESTEPS = 50_000
THRESHOLD = 450
# The settings of sb3-contrib's tests/test_lstm.py
SETTINGS: dict[str, Any] = dict(
    n_steps=128,
    learning_rate=0.0007,
    batch_size=256,
    n_epochs=10,
    max_grad_norm=1,
    gae_lambda=0.98,
    policy_kwargs=dict(net_arch=dict(vf=[64], pi=[]), lstm_hidden_size=64, ortho_init=False, enable_critic_lstm=True),
)


class WithoutVelocities(ObservationWrapper):
    """CartPole whose observations are the position and the angle."""

    def __init__(self) -> None:
        super().__init__(TimeLimit(CartPoleEnv(), 500))
        cart_pole: Any = self.unwrapped
        high = 2 * np.array([cart_pole.x_threshold, cart_pole.theta_threshold_radians], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


def defaults(algorithm: str) -> str:
    """Return a hash of the algorithm's arguments."""
    classes = [one for one in reversed(ALGORITHMS[algorithm].__mro__) if one in (PPG, *ALGORITHMS.values())]
    values = {name: default for base in classes for name, default in defaults_of(base).items()}
    return short_hash(repr(sorted((values | SETTINGS).items())))


def wanted() -> list[dict[str, Any]]:
    hashes = {name: defaults(name) for name in ALGORITHMS}
    return [dict(algorithm=name, seed=seed, defaults=hashes[name]) for seed in SEEDS for name in ALGORITHMS]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], None]:
    """Train an agent; its mean returns of ten episodes, as in the test, and of a hundred further ones."""
    start = time.process_time()
    env = VecNormalize(make_vec_env(WithoutVelocities, 8))
    model = ALGORITHMS[training["algorithm"]]("MlpLstmPolicy", env, seed=training["seed"], device="cpu", **SETTINGS)
    model.learn(N_TIMESTEPS)
    seconds = round(time.process_time() - start)
    tested, further = (round(float(evaluate_policy(model, env, n, warn=False)[0]), 1) for n in (10, 100))  # type: ignore[arg-type]
    return dict(tested=tested, further=further, seconds=seconds), None


def report(experiment: Experiment) -> str:
    rows, lines = experiment.rows().sort_values("seed"), []
    for name, own in rows.groupby("algorithm"):
        passes = f"{(own['tested'] >= THRESHOLD).sum()} of {len(own)}"
        returns = [listed(own["tested"], 0), listed(own["further"], 0)]
        lines.append([name, passes, *returns, f"{own['seconds'].median():.0f}"])
    return page(
        "CartPole without velocities",
        f"`python -m benchmarks.no_velocities`: sb3-contrib's performance test of LSTMs, which asks for {THRESHOLD} after "
        f"{N_TIMESTEPS:,} steps, with its settings and otherwise all defaults. For each seed the mean return of ten "
        f"deterministic episodes, as in the test, and of a hundred further ones. {machines(rows)}",
        table(["", "passes", "return, 10 episodes", "100 episodes", "seconds of a core"], lines),
    )


NO_VELOCITIES = Experiment("no_velocities", wanted, train, report)

if __name__ == "__main__":
    NO_VELOCITIES.main()
