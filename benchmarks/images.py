"""
Images: PPG's architectures, and auxiliary phases that use less of the phase, beside PPO with the same network and rewards.

    python -m benchmarks.images run --jobs 2    # MinAtar's five games
    python -m benchmarks.images report
    python -m benchmarks.images time    # about forty minutes on an idle core
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecNormalize
from typing_extensions import override

from benchmarks.evaluations import commit, in_own_process, learned
from benchmarks.harness import RESULTS, Experiment, Outcome, Report, machines, take_turns
from sb3_ppg import PPG, MinAtarCNN
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.comparison.evaluations import processor_seconds
from sb3_ppg.comparison.report import page, table
from sb3_ppg.comparison.runs import machine
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
    return in_own_process(_train, run["arm"], run["env_id"], run["seed"])


def _train(arm: str, env_id: str, seed: int) -> Outcome:
    return learned(game(arm, env_id, seed), partial(make_game, env_id, LONGEST), STEPS)


def game(arm: str, env_id: str, seed: int, compile_updates: Any = "auto") -> Any:
    """Make the model of an arm in a game of MinAtar."""
    register()  # the games
    th.set_num_threads(1)
    env = VecNormalize(DummyVecEnv([partial(make_game, env_id)] * N_ENVS), norm_obs=False)
    phase = dict(PHASE, compile_updates=compile_updates)
    return made(arm, env, SHARED, phase, dict(features_extractor_class=MinAtarCNN, net_arch=[]), seed)


def made(arm: str, env: VecEnv, shared: dict[str, Any], phase: dict[str, Any], networks: dict[str, Any], seed: int) -> Any:
    """Make the model of an arm: PPO with the shared arguments, or PPG also with those of its phase."""
    architecture, n_aux_epochs, part = ARMS[arm]
    if arm == "PPO":
        return PPO("CnnPolicy", env, seed=seed, device="cpu", policy_kwargs=networks, **shared)
    arguments = shared | phase | dict(n_aux_epochs=n_aux_epochs)
    arguments["policy_kwargs"] = networks | dict(architecture=architecture)
    model = PPG("CnnPolicy", env, seed=seed, device="cpu", **arguments)
    if part == 0.5:
        model.aux_buffer.__class__ = HalfBuffer
    return model


# ---- time ----

# As in RL Zoo's entry for Atari
ATARI = dict(n_steps=128, batch_size=256, n_epochs=4, learning_rate=2.5e-4, clip_range=0.1, ent_coef=0.01)
PLACES = {"MinAtar's Breakout": 65_536, "Pong, NatureCNN": 4096}  # steps of a turn: a phase


def turn(place: str, arm: str) -> Callable[[], dict[str, float]]:
    """Return a function that trains for a phase and measures the seconds of the processor."""
    th.set_num_threads(1)
    if place.startswith("Pong"):
        env: VecEnv = VecFrameStack(make_atari_env("PongNoFrameskip-v4", 8, seed=0), 4)
        model = made(arm, env, ATARI, dict(n_policy_iterations=4), {}, 0)
    else:
        model = game(arm, "MinAtar/Breakout-v1", 0, compile_updates=True)

    def measure() -> dict[str, float]:
        start = processor_seconds()
        model.learn(PLACES[place], reset_num_timesteps=False)
        return {"seconds": processor_seconds() - start}

    return measure


def measure_time() -> None:
    """Measure the time of a phase of each arm, in turns, and write rows and page."""
    turns = []
    for place in PLACES:
        found = take_turns({arm: (turn, place, arm) for arm in ARMS})
        turns.append(found.assign(place=place, machine=machine(), commit=commit()).round(2))
    rows = pd.concat(turns)
    rows.to_csv(RESULTS / "images_time.csv", index=False)
    medians = rows.groupby(["contestant", "place"])["seconds"].median().unstack().loc[list(ARMS), list(PLACES)]
    ratios = medians / medians.loc["PPO"]
    lines = [[arm, *(f"{medians.loc[arm, place]:.1f}, {ratios.loc[arm, place]:.2f}" for place in PLACES)] for arm in ARMS]
    text = page(
        "Images: cost of architectures and auxiliary phases",
        f"`python -m benchmarks.images time`. {machines(rows)} Commit {', '.join(rows['commit'].unique())}. Seconds of the "
        "processor for a phase, one thread, medians of five turns without the first, and their ratio to PPO's. MinAtar: the "
        "settings of `hyperparams/ppg.yml`, 32 environments, 16 rollouts of 128 steps, updates compiled. Pong: 8 "
        "environments, four rollouts of 128 steps, RL Zoo's settings for Atari, not compiled.",
        table(["", *PLACES], lines),
    )
    (RESULTS / "images.md").write_text(text)
    print(text)


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
    if sys.argv[1:] == ["time"]:
        os.environ.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")  # of the processes
        measure_time()
    else:
        IMAGES.main()
