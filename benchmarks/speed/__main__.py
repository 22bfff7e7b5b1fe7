"""
The speed of PPG, and its distance from what the machine can do: ratios of medians of at least five turns, taken alternately in
one run: IMPALA on Procgen, and MlpPolicy, LSTMs and masks beside PPO.

Each contestant runs in a process of its own. Writes results/speed_<section>.csv, speed.md and speed.png. It takes about half
an hour on two cores; let nothing else run at the same time.

    python -m benchmarks.speed [impala mlp]
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
from benchmarks.speed import answered, beside_ppo, impala
from benchmarks.tables import formatted, page

MACHINE = RESULTS / "speed_machine.txt"


class Section(NamedTuple):
    """
    A section of the results.

    :param title: title of its table
    :param table: from the rows in Markdown, or a format for each column, by title
    :param run: measures; None: was measured at commit 1410dec
    :param draw: draws its panel of the picture, if it has one
    """

    title: str
    table: Callable[[pd.DataFrame], str] | dict[str, str]
    run: Callable[[], pd.DataFrame] | None = None
    draw: Callable[[Axes, pd.DataFrame], None] | None = None


SECTIONS = {
    "impala": Section("IMPALA on Procgen (CoinrunEasy, 64 environments x 256 steps)", impala.COLUMNS, impala.run, impala.draw),
    "micro_batches": Section("Micro-batches, minibatches of 1,024", answered.MICRO_BATCHES, draw=answered.draw_micro_batches),
    "mlp": Section(
        "MlpPolicy, LSTMs and masks, 8 environments, minibatches of 64",
        beside_ppo.COLUMNS,
        beside_ppo.run,
        beside_ppo.draw,
    ),
    "memory": Section("Memory, 64 environments x 256 steps of 64x64x3 images", answered.memory_table),
    "scaling": Section("Scaling, CartPole", answered.scaling_table, draw=answered.draw_scaling),
    "options": Section("Cost of options (mmap: 805 MB of 64x64x3 images)", answered.OPTIONS),
}


def report() -> str:
    """Write the page and the picture."""
    figure = Figure(figsize=(13, 8), dpi=110, layout="constrained")
    panels, paragraphs = iter(figure.subplots(2, 2).flat), []
    for name, section in SECTIONS.items():
        rows = pd.read_csv(RESULTS / f"speed_{name}.csv", dtype={"channels": str})
        paragraphs.append(f"## {section.title}")
        if section.run is None:
            paragraphs.append(f"`python -m benchmarks.speed {name}` at commit 1410dec.")
        paragraphs.append(formatted(rows, section.table) if isinstance(section.table, dict) else section.table(rows))
        if section.draw is not None:
            section.draw(next(panels), rows)
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
    measured = {name: section.run for name, section in SECTIONS.items() if section.run is not None}
    names = sys.argv[1:] or list(measured)
    for name in names if names != ["report"] else []:
        print(f"--- {name}", flush=True)
        measured[name]().to_csv(RESULTS / f"speed_{name}.csv", index=False)
        MACHINE.write_text(f"{processor()}, torch {th.__version__}\n")
    print(report())
