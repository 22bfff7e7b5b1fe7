"""
The speed of PPG, and its distance from what the machine can do: ratios of medians of at least five turns, taken alternately in
one run: IMPALA on Procgen, and MlpPolicy, LSTMs and masks beside PPO.

Each contestant runs in a process of its own. Writes results/speed_<section>.csv, speed.md and speed.png. It takes about half
an hour on two cores; let nothing else run at the same time.

    python -m benchmarks.speed [impala mlp]
    python -m benchmarks.speed report
"""

import sys

import pandas as pd
import torch as th
from matplotlib.figure import Figure

from benchmarks.harness import RESULTS
from benchmarks.speed import beside_ppo, impala
from benchmarks.tables import formatted
from sb3_ppg.comparison.report import page
from sb3_ppg.comparison.runs import machine

MACHINE = RESULTS / "speed_machine.txt"
# Titles, and modules that measure, write and draw
SECTIONS = {
    "impala": ("IMPALA on Procgen (CoinrunEasy, 64 environments x 256 steps)", impala),
    "mlp": ("MlpPolicy, LSTMs and masks, 8 environments, minibatches of 64", beside_ppo),
}


def report() -> str:
    """Write the page and the picture."""
    figure = Figure(figsize=(13, 4), dpi=110, layout="constrained")
    paragraphs = []
    for axes, (name, (title, module)) in zip(figure.subplots(1, 2), SECTIONS.items(), strict=True):
        rows = pd.read_csv(RESULTS / f"speed_{name}.csv")
        paragraphs += [f"## {title}", formatted(rows, module.COLUMNS)]
        module.draw(axes, rows)
    figure.savefig(RESULTS / "speed.png")
    text = page(
        "Speed",
        "Written by `python -m benchmarks.speed`. Medians of at least 5 turns, taken alternately.",
        f"Machine: {MACHINE.read_text().strip()}.",
        *paragraphs,
    )
    (RESULTS / "speed.md").write_text(text)
    return text


if __name__ == "__main__":
    names = sys.argv[1:] or list(SECTIONS)
    for name in names if names != ["report"] else []:
        print(f"--- {name}", flush=True)
        SECTIONS[name][1].run().to_csv(RESULTS / f"speed_{name}.csv", index=False)
        MACHINE.write_text(f"{machine()}, torch {th.__version__}\n")
    print(report())
