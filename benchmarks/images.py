"""
The cost of PPG's architectures, and of auxiliary phases that use less of the phase, with images, beside PPO with the same
network.

    python -m benchmarks.images    # about twenty minutes on an idle core
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch as th

from benchmarks.entries import made, zoo_entry
from benchmarks.harness import RESULTS, commit, machines, take_turns
from benchmarks.matches import MINATAR, architectures
from sb3_ppg.comparison.evaluations import processor_seconds
from sb3_ppg.comparison.report import page, table
from sb3_ppg.comparison.runs import machine

ATARI = {**zoo_entry("ppo", "atari"), "n_policy_iterations": 2, "normalize": False}
# By environment: steps of a turn, a phase, and the contestants
PLACES = {
    "MinAtar/Breakout-v1": (65_536, architectures({**MINATAR[0], "compile_updates": True}, MINATAR[1])),
    "PongNoFrameskip-v4": (2048, architectures(ATARI, "")),
}


def turn(env_id: str, contestant: str) -> Callable[[], dict[str, float]]:
    """Return a function that trains for a phase and measures the seconds of the processor."""
    th.set_num_threads(1)
    n_timesteps, contestants = PLACES[env_id]
    algorithm, settings = contestants[contestant]
    with tempfile.TemporaryDirectory() as folder:
        model = made(algorithm, env_id, {**settings, "n_timesteps": n_timesteps}, 0, Path(folder))

    def measure() -> dict[str, float]:
        start = processor_seconds()
        model.learn(n_timesteps, reset_num_timesteps=False)
        return {"seconds": processor_seconds() - start}

    return measure


def main() -> None:
    """Measure the time of a phase of each contestant, in turns, and write rows and page."""
    turns, lines = [], []
    for env_id, (_, contestants) in PLACES.items():
        found = take_turns({name: (turn, env_id, name) for name in contestants})
        turns.append(found.assign(env_id=env_id, machine=machine(), commit=commit()).round(2))
    rows = pd.concat(turns)
    rows.to_csv(RESULTS / "images_time.csv", index=False)
    medians = rows.groupby(["contestant", "env_id"], sort=False)["seconds"].median().unstack()
    for name, own in medians.iterrows():
        ratios = own / medians.loc["PPO"]
        lines.append([name, *(f"{own[env_id]:.1f}, {ratios[env_id]:.2f}" for env_id in PLACES)])
    text = page(
        "Images: cost of architectures and auxiliary phases",
        f"`python -m benchmarks.images`. {machines(rows)} Commit {', '.join(rows['commit'].unique())}. Seconds of the "
        "processor for a phase, one thread, medians of five turns without the first, and their ratio to PPO's. PPG's "
        "architecture is `detached` where none is named, and it has six auxiliary epochs. MinAtar: the settings of "
        "`hyperparams/ppg.yml`, 16 rollouts of 128 steps in 32 environments, updates compiled. Pong: NatureCNN, RL Zoo's "
        "settings for Atari, two rollouts of 128 steps in 8 environments, not compiled.",
        table(["", *PLACES], lines),
    )
    (RESULTS / "images.md").write_text(text)
    print(text)


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1")  # of the processes
    main()
