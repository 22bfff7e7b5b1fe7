"""
The speed of PPG, and its distance from what the machine can do: ratios of medians of at least five turns, taken alternately in
one run. Each section is a file of this folder: IMPALA on Procgen (on a GPU, too, where there is one), micro-batches, MlpPolicy
and PPO, memory, scaling, and the cost of options.

Each contestant runs in a process of its own. Writes results/speed_<section>.csv, speed.md and speed.png. It takes about half
an hour on two cores; let nothing else run at the same time.

    python -m benchmarks.speed [impala micro_batches mlp memory scaling options impala_cuda]
    python -m benchmarks.speed report
"""

import sys

import pandas as pd
import torch as th
from matplotlib.figure import Figure

from benchmarks.harness import RESULTS
from benchmarks.machine import processor
from benchmarks.speed import beside_ppo, impala, memory, micro_batches, options, scaling
from benchmarks.tables import formatted, page

MACHINE = RESULTS / "speed_machine.txt"
SECTIONS = {
    "impala": impala.CPU,
    "micro_batches": micro_batches.MICRO_BATCHES,
    "impala_cuda": impala.CUDA,
    "mlp": beside_ppo.MLP,
    "memory": memory.MEMORY,
    "scaling": scaling.SCALING,
    "options": options.OPTIONS,
}


def report() -> str:
    """Write the page and, where all of its panels were measured, the picture."""
    files = {name: RESULTS / f"speed_{name}.csv" for name in SECTIONS}
    tables = {name: pd.read_csv(file, dtype={"channels": str}) for name, file in files.items() if file.exists()}
    sections = []
    for name, rows in tables.items():
        title, _, table, _ = SECTIONS[name]
        sections += [f"## {title}", formatted(rows, table) if isinstance(table, dict) else table(rows)]
    text = page(
        "Speed",
        "Written by `python -m benchmarks.speed`. Medians of at least 5 turns, taken alternately.",
        f"Machine: {MACHINE.read_text().strip()}.",
        *sections,
    )
    (RESULTS / "speed.md").write_text(text)
    panels = {name: section.draw for name, section in SECTIONS.items() if section.draw is not None}
    if panels.keys() <= tables.keys():
        figure = Figure(figsize=(13, 8), dpi=110, layout="constrained")
        for axes, (name, draw) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
            draw(axes, tables[name])
        figure.savefig(RESULTS / "speed.png")
    return text


def main() -> None:
    names = sys.argv[1:] or [name for name in SECTIONS if name != "impala_cuda" or th.cuda.is_available()]
    for name in names if names != ["report"] else []:
        print(f"--- {name}", flush=True)
        SECTIONS[name].run().to_csv(RESULTS / f"speed_{name}.csv", index=False)
        MACHINE.write_text(f"{processor()}, torch {th.__version__}\n")
    print(report())


if __name__ == "__main__":
    main()
