"""Memory: the process's peak over the bytes of the stored observations."""

from pathlib import Path

import numpy as np
import pandas as pd
from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.speed.phases import N_STEPS, N_THREADS, Frames, Section
from benchmarks.tables import formatted
from benchmarks.turns import Measure, take_turns
from sb3_ppg import PPG, ImpalaCNN

N_ENVS = 64


def peak_bytes(reset: bool = False) -> int:
    """
    Return the most memory that this process had, by Linux's count (``getrusage`` counts what the parent had, too).

    :param reset: start again from the present memory
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def one_phase(n_policy_iterations: int, channels: tuple[int, ...]) -> Measure:
    """Measure one phase of 64 environments x 256 steps of 64x64x3 images."""

    def measure() -> dict[str, float]:
        model = PPG(
            "CnnPolicy",
            DummyVecEnv([lambda: Frames((3, 64, 64))] * N_ENVS),
            n_steps=N_STEPS,
            n_epochs=1,
            batch_size=2048,
            n_policy_iterations=n_policy_iterations,
            n_aux_epochs=1,
            aux_batch_size=1024,
            policy_kwargs=dict(
                architecture="detached",
                features_extractor_class=ImpalaCNN,
                features_extractor_kwargs=dict(channels=channels, n_blocks=2 if len(channels) > 1 else 0),
            ),
            device="cpu",
        )
        start = peak_bytes(reset=True)
        model.learn(N_ENVS * N_STEPS * n_policy_iterations)
        stored = N_ENVS * N_STEPS * n_policy_iterations * 3 * 64 * 64
        return dict(stored=stored / 1e6, start=start / 1e6, peak=peak_bytes() / 1e6)

    return measure


def run() -> pd.DataFrame:
    """Measure phases of several lengths, one after the other."""
    rows = []
    for sizes in ((4, (4,)), (8, (4,)), (16, (4,)), (2, (16, 32, 32))):
        turn = take_turns({"": (one_phase, sizes)}, n_threads=N_THREADS, n_turns=1, warm_up=False)
        rows.append(turn.assign(n_policy_iterations=sizes[0], channels="-".join(map(str, sizes[1]))))
    table = pd.concat(rows)[["n_policy_iterations", "channels", "stored", "start", "peak"]]
    return table.assign(constant=table["peak"] - 1.15 * table["stored"]).round(1)


def table(rows: pd.DataFrame) -> str:
    """Return the table, and a sentence on the growth."""
    small = rows[rows["channels"].astype(str) == "4"]
    slope = np.polyfit(small["stored"], small["peak"], 1)[0]
    columns = {
        "N_π": "{n_policy_iterations}",
        "channels": "{channels}",
        "stored observations, MB": "{stored:.0f}",
        "peak of the process": "{peak:.0f}",
        "before training": "{start:.0f}",
        "peak - 1.15 stored": "{constant:.0f}",
    }
    return f"{formatted(rows, columns)}\n\nGrowth of the peak per stored byte (N_π = 4 to 16): {slope:.3f}."


MEMORY = Section("Memory, 64 environments x 256 steps of 64x64x3 images", run, table)
