"""
Steps per second of whole trainings: PPG, eager and compiled, auxiliary phases included, and the PPO of SB3, SBX (JAX) and rlox
(Rust), or sb3-contrib's RecurrentPPO and MaskablePPO, with the same environments, networks, rollouts of 2,048 steps,
minibatches of 64 and ten epochs.

Turns of four rollouts, taken alternately in one run, each contestant in a process of its own, on one core; the first turn, in
which PPG and SBX compile, does not count. SBX and rlox are installed where only their own processes see them.

    python -m benchmarks.speed [CONTEST ...]    # without names all of them, in 45 minutes; nothing else should run
"""

import importlib
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import pandas as pd
import torch as th
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from benchmarks import venvs
from benchmarks.harness import RESULTS, commit, take_turns
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from sb3_ppg.comparison.report import page, table
from sb3_ppg.comparison.runs import machine

TURN = 8192  # steps, a phase
ROWS = RESULTS / "speed_training.csv"
SBX, RLOX = "SBX PPO", "rlox PPO"
CONTESTANTS = ("PPO", SBX, RLOX, "PPG", "PPG, compiled")
HUNDRED_ACTIONS = partial(InvalidActionEnvDiscrete, dim=100, n_invalid_actions=80)


class Contest(NamedTuple):
    """
    Environments, and the algorithms that train in them.

    :param policy: name of the policy
    :param classes: PPO of SB3 or sb3-contrib, and PPG
    :param contestants: names, see ``CONTESTANTS``
    """

    env: Any
    n_envs: int
    policy: str = "MlpPolicy"
    classes: tuple[Any, Any] = (PPO, PPG)
    contestants: tuple[str, ...] = CONTESTANTS


CONTESTS = {
    "CartPole-v1, 1 environment": Contest("CartPole-v1", 1),
    "Pendulum-v1, 1 environment": Contest("Pendulum-v1", 1),
    "CartPole-v1": Contest("CartPole-v1", 8),
    "Pendulum-v1": Contest("Pendulum-v1", 8),
    "LunarLander-v3": Contest("LunarLander-v3", 8),
    "HalfCheetah-v5": Contest("HalfCheetah-v5", 8),
    "CartPole-v1, LSTMs, 1 environment": Contest(
        "CartPole-v1", 1, "MlpLstmPolicy", (RecurrentPPO, RecurrentPPG), ("PPO", "PPG")
    ),
    "100 actions, masks, 1 environment": Contest(
        HUNDRED_ACTIONS, 1, "MlpPolicy", (MaskablePPO, MaskablePPG), ("PPO", "PPG", "PPG, compiled")
    ),
}
ABOUT = ("processor", "commit", "python", "torch", "stable_baselines3")  # columns


def training(name: str, contest: Contest) -> Callable[[], dict[str, float]]:
    """Return a function that trains for a turn and measures the steps per second."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # as JAX takes all that it may
    th.set_num_threads(1)
    n_steps = 2048 // contest.n_envs
    shared: dict[str, Any] = dict(n_steps=n_steps, batch_size=64, n_epochs=10, seed=0)
    if name == RLOX:
        sys.path.append(str(venvs.installed("rlox", "--no-deps rlox==1.2.0")[1]))
        make = importlib.import_module("rlox.algorithms.ppo").PPO
        options: dict[str, Any] = dict(learning_rate=3e-4, ent_coef=0.0, clip_vloss=False, anneal_lr=False)
        train = make(contest.env, n_envs=contest.n_envs, **shared, **options).train
    else:
        cls, more = contest.classes[name.startswith("PPG")], {}
        if name == SBX:
            sys.path.append(str(venvs.installed("sbx", venvs.SBX)[1]))
            os.environ["JAX_PLATFORMS"] = "cpu"
            cls = importlib.import_module("sbx").PPO
        elif name.startswith("PPG"):
            more = dict(compile_updates=name == "PPG, compiled")
        # By default SB3 asks for pictures, for which LunarLander computes the smoke of its engines in each step
        options = {"render_mode": None} if isinstance(contest.env, str) else {}
        env = make_vec_env(contest.env, contest.n_envs, seed=0, env_kwargs=options)
        model = cls(contest.policy, env, device="cpu", **shared, **more)
        train = partial(model.learn, reset_num_timesteps=False)

    def measure() -> dict[str, float]:
        start = time.perf_counter()
        train(TURN)
        return {"speed": TURN / (time.perf_counter() - start)}

    return measure


def run(titles: list[str]) -> pd.DataFrame:
    """Measure contests: a row for each turn."""
    about = (machine(), commit(), platform.python_version(), th.__version__, version("stable_baselines3"))
    found = []
    for title in titles:
        contest = CONTESTS[title]
        turns = take_turns({name: (training, name, contest) for name in contest.contestants})
        found.append(turns.assign(environments=title, **dict(zip(ABOUT, about, strict=True))).round(1))
    return pd.concat(found)


def report(rows: pd.DataFrame) -> str:
    """Return the page."""
    medians = (
        rows.groupby(["environments", "contestant"], sort=False)["speed"].median().unstack().reindex(columns=list(CONTESTANTS))
    )
    lines = []
    for title, row in medians.reindex([title for title in CONTESTS if title in medians.index]).iterrows():
        ratios = [row["PPG"] / row["PPO"], *(row["PPG, compiled"] / row[["PPO", SBX, RLOX]])]
        line = [title, *(f"{speed:,.0f}" for speed in row), *(f"{ratio:.2f}" for ratio in ratios)]
        lines.append(["" if cell == "nan" else cell for cell in line])
    texts = {name: ", ".join(rows[name].astype(str).unique()) for name in ABOUT}
    return page(
        "Speed: whole trainings",
        f"`python -m benchmarks.speed` at commit {texts['commit']}. Steps per second on one core, medians of 5 turns of "
        f"{TURN:,} steps, auxiliary phases included, compiling not. 8 environments x 256 steps or 1 x 2,048, minibatches "
        "of 64, ten epochs. PPO: sb3-contrib's with LSTMs and masks, else SB3's. "
        f"{texts['processor']}, Python {texts['python']}, torch {texts['torch']}, stable-baselines3 "
        f"{texts['stable_baselines3']}, sbx-rl 0.28.0, rlox 1.2.0 (with CartPole in Rust).",
        table(["environments", *CONTESTANTS, "PPG / PPO", *(f"compiled / {name}" for name in CONTESTANTS[:3])], lines),
    )


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes
    titles = sys.argv[1:] or list(CONTESTS)
    latest = run(titles)
    earlier = pd.read_csv(ROWS) if ROWS.exists() else latest.head(0)
    rows = pd.concat([earlier[~earlier["environments"].isin(titles)], latest])
    rows.to_csv(ROWS, index=False)
    (RESULTS / "speed.md").write_text(report(rows))
