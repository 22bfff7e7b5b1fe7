"""Memory: the process's peak over the bytes of the stored observations."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.speed.phases import N_STEPS, N_THREADS, Section, image_model, images
from benchmarks.tables import formatted
from benchmarks.turns import Measure, take_turns

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
        network = dict(channels=channels, n_blocks=2 if len(channels) > 1 else 0)
        sizes: dict[str, Any] = dict(n_steps=N_STEPS, n_epochs=1, batch_size=2048, n_aux_epochs=1, aux_batch_size=1024)
        sizes |= dict(n_policy_iterations=n_policy_iterations)
        model = image_model(images(N_ENVS), dict(features_extractor_kwargs=network), **sizes)
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
