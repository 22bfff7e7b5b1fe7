"""
The speed of PPG, and its distance from what the machine can do: ratios of medians of at least five turns, taken alternately in
one run: IMPALA on Procgen, micro-batches, MlpPolicy and PPO, memory, scaling, and the cost of options.

Each contestant runs in a process of its own. Writes results/speed_<section>.csv, speed.md and speed.png. It takes about half
an hour on two cores; let nothing else run at the same time.

    python -m benchmarks.speed [impala micro_batches mlp memory scaling options]
    python -m benchmarks.speed report
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
import torch as th
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import RESULTS, processor
from benchmarks.speed import images, vectors
from benchmarks.tables import formatted, page

MACHINE = RESULTS / "speed_machine.txt"


class Section(NamedTuple):
    """
    A section of the results.

    :param title: title of its table
    :param run: measures
    :param table: from the rows in Markdown, or a format for each column, by title
    :param draw: draws its panel of the picture, if it has one
    """

    title: str
    run: Callable[[], pd.DataFrame]
    table: Callable[[pd.DataFrame], str] | dict[str, str]
    draw: Callable[[Axes, pd.DataFrame], None] | None = None


SECTIONS = {
    "impala": Section(
        "IMPALA on Procgen (CoinrunEasy, 64 environments x 256 steps)", images.run_impala, images.IMPALA, images.draw_impala
    ),
    "micro_batches": Section(
        "Micro-batches, minibatches of 1,024", images.run_micro_batches, images.MICRO_BATCHES, images.draw_micro_batches
    ),
    "mlp": Section(
        "MlpPolicy, LSTMs and masks, 8 environments, minibatches of 64",
        vectors.run_beside_ppo,
        vectors.BESIDE_PPO,
        vectors.draw_beside_ppo,
    ),
    "memory": Section("Memory, 64 environments x 256 steps of 64x64x3 images", images.run_memory, images.memory_table),
    "scaling": Section("Scaling, CartPole", vectors.run_scaling, vectors.scaling_table, vectors.draw_scaling),
    "options": Section("Cost of options (mmap: 805 MB of 64x64x3 images)", images.run_options, images.OPTIONS),
}


def report() -> str:
    """Write the page and the picture."""
    figure = Figure(figsize=(13, 8), dpi=110, layout="constrained")
    panels, sections = iter(figure.subplots(2, 2).flat), []
    for name, (title, _, table, draw) in SECTIONS.items():
        rows = pd.read_csv(RESULTS / f"speed_{name}.csv", dtype={"channels": str})
        sections += [f"## {title}", formatted(rows, table) if isinstance(table, dict) else table(rows)]
        if draw is not None:
            draw(next(panels), rows)
    figure.savefig(RESULTS / "speed.png")
    text = page(
        "Speed",
        "Written by `python -m benchmarks.speed`. Medians of at least 5 turns, taken alternately.",
        f"Machine: {MACHINE.read_text().strip()}.",
        *sections,
    )
    (RESULTS / "speed.md").write_text(text)
    return text


if __name__ == "__main__":
    names = sys.argv[1:] or list(SECTIONS)
    for name in names if names != ["report"] else []:
        print(f"--- {name}", flush=True)
        SECTIONS[name].run().to_csv(RESULTS / f"speed_{name}.csv", index=False)
        MACHINE.write_text(f"{processor()}, torch {th.__version__}\n")
    print(report())
