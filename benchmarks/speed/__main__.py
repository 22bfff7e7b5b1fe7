"""
The speed of PPG, and its distance from what the machine can do: ratios of medians of at least five turns, taken alternately in
one run. Each section is a file of this folder: IMPALA on Procgen (on a GPU, too, where there is one), micro-batches, MlpPolicy
and PPO, memory, scaling, and the cost of options.

Each contestant runs in a process of its own. Writes results/speed_<section>.csv, speed.md and speed.png. It takes about half
an hour on two cores; let nothing else run at the same time.

    python -m benchmarks.speed [run] [--section impala micro_batches mlp memory scaling options impala_cuda]
    python -m benchmarks.speed report
"""

import argparse
from pathlib import Path

import pandas as pd
import torch as th
from matplotlib.figure import Figure

from benchmarks.harness import RESULTS
from benchmarks.machine import processor
from benchmarks.speed import beside_ppo, impala, memory, micro_batches, options, scaling
from benchmarks.tables import formatted, page

SECTIONS = {
    "impala": impala.CPU,
    "micro_batches": micro_batches.MICRO_BATCHES,
    "impala_cuda": impala.CUDA,
    "mlp": beside_ppo.MLP,
    "memory": memory.MEMORY,
    "scaling": scaling.SCALING,
    "options": options.OPTIONS,
}


def report(results: Path) -> str:
    """Write the page and, where all of its panels were measured, the picture."""
    files = {name: results / f"speed_{name}.csv" for name in SECTIONS}
    tables = {name: pd.read_csv(file, dtype={"channels": str}) for name, file in files.items() if file.exists()}
    sections = []
    for name, rows in tables.items():
        title, _, table, _ = SECTIONS[name]
        sections += [f"## {title}", formatted(rows, table) if isinstance(table, dict) else table(rows)]
    text = page(
        "Speed",
        "Written by `python -m benchmarks.speed`. Medians of at least 5 turns, taken alternately.",
        f"Machine: {(results / 'speed_machine.txt').read_text().strip()}.",
        *sections,
    )
    (results / "speed.md").write_text(text)
    panels = {name: draw for name, (_, _, _, draw) in SECTIONS.items() if draw is not None}
    if panels.keys() <= tables.keys():
        figure = Figure(figsize=(13, 8), dpi=110, layout="constrained")
        for axes, (name, draw) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
            draw(axes, tables[name])
        figure.savefig(results / "speed.png")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="run", choices=["run", "report"])
    parser.add_argument("--section", nargs="*", choices=SECTIONS, help="only these")
    parser.add_argument("--results", default=RESULTS, type=Path, help="folder of rows, tables and the picture")
    args = parser.parse_args()
    everything = [name for name in SECTIONS if name != "impala_cuda" or th.cuda.is_available()]
    for name in (args.section or everything) if args.command == "run" else []:
        print(f"--- {name}", flush=True)
        SECTIONS[name].run().to_csv(args.results / f"speed_{name}.csv", index=False)
        (args.results / "speed_machine.txt").write_text(f"{processor()}, torch {th.__version__}\n")
    print(report(args.results))


if __name__ == "__main__":
    main()
