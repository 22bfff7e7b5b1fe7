"""
Images: PPG's architectures, and auxiliary phases that use less of the phase, beside PPO with the same network and rewards.

    python -m benchmarks.images run --jobs 2    # MinAtar's five games
    python -m benchmarks.images report
    python -m benchmarks.images time    # twenty minutes on an idle core
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from typing_extensions import override

from benchmarks.evaluations import in_own_process, learned
from benchmarks.harness import Experiment, Outcome, Report, machines
from sb3_ppg import PPG, MinAtarCNN
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.comparison.report import page, table
from sb3_ppg.zoo import register

SEEDS, STEPS = range(5), 1_000_000
GAMES = [f"MinAtar/{name}-v1" for name in ("Asterix", "Breakout", "SpaceInvaders", "Freeway", "Seaquest")]
LONGEST = 10_000  # steps of an episode that is evaluated
# The entry `minatar` of hyperparams/ppg.yml, except the auxiliary epochs
SHARED: dict[str, Any] = dict(n_steps=128, batch_size=512, n_epochs=2, gamma=0.99, gae_lambda=0.95, clip_range=0.2)
SHARED |= dict(learning_rate=2e-3, max_grad_norm=0.5, ent_coef=0.01)
N_ENVS, PHASE = 32, dict(n_policy_iterations=16, aux_batch_size=512)
# By name: architecture, auxiliary epochs, and the part of the phase that each of them uses
ARMS: dict[str, tuple[str, int, float]] = {
    "PPO": ("", 0, 0.0),
    "PPG, dual": ("dual", 6, 1.0),
    "PPG, detached": ("detached", 6, 1.0),
    "PPG, detached, half of the phase": ("detached", 6, 0.5),
    "PPG, detached, 3 epochs": ("detached", 3, 1.0),
    "PPG, detached, 1 epoch": ("detached", 1, 1.0),
}


class HalfBuffer(AuxBuffer):
    """An auxiliary buffer, each epoch of which uses a random half of the sequences."""

    @override
    def minibatches(self, n_sequences: int) -> Iterator[Any]:
        order = np.random.permutation(self.n_sequences)[: self.n_sequences // 2]
        for _, batch in self.batches(order, n_sequences):
            yield batch


def wanted() -> list[dict[str, Any]]:
    return [dict(arm=arm, env_id=env_id, seed=seed) for seed in SEEDS for env_id in GAMES for arm in ARMS]


def make_game(env_id: str, longest: int | None = None) -> gym.Env:
    """Make a game of MinAtar, which has no time limit."""
    env = gym.make(env_id)
    return Monitor(env if longest is None else TimeLimit(env, longest))


def train(run: dict[str, Any], folder: Path) -> Outcome:
    return in_own_process(_train, **run)


def _train(arm: str, env_id: str, seed: int) -> Outcome:
    register()  # the games
    th.set_num_threads(1)
    architecture, n_aux_epochs, part = ARMS[arm]
    env = VecNormalize(DummyVecEnv([partial(make_game, env_id)] * N_ENVS), norm_obs=False)
    networks = dict(features_extractor_class=MinAtarCNN, net_arch=[])
    if arm == "PPO":
        model: Any = PPO("CnnPolicy", env, seed=seed, device="cpu", policy_kwargs=networks, **SHARED)
    else:
        arguments = SHARED | PHASE | dict(n_aux_epochs=n_aux_epochs)
        arguments["policy_kwargs"] = networks | dict(architecture=architecture)
        model = PPG("CnnPolicy", env, seed=seed, device="cpu", **arguments)
        if part == 0.5:
            model.aux_buffer.__class__ = HalfBuffer
    return learned(model, partial(make_game, env_id, LONGEST), STEPS)


def report(experiment: Experiment) -> Report:
    """Return the table of the arms so far."""
    rows = experiment.rows()
    means = rows.groupby(["arm", "env_id"])[["curve_mean", "last_three"]].mean().unstack()
    counts, lines = rows.groupby("arm").size(), []
    for arm in [name for name in ARMS if name in counts]:
        cells = [f"{means.loc[arm, ('curve_mean', game)]:.1f}, {means.loc[arm, ('last_three', game)]:.1f}" for game in GAMES]
        lines.append([arm, counts[arm], *cells, f"{rows[rows['arm'] == arm]['seconds'].mean():.0f}"])
    text = page(
        "Images: architectures and auxiliary phases",
        f"`python -m benchmarks.images`. {machines(rows)}",
        table(["", "runs", *GAMES, "seconds"], lines),
    )
    return {"images_minatar.md": text}


IMAGES = Experiment("images_minatar", wanted, train, report)

if __name__ == "__main__":
    IMAGES.main()
