"""Sections of the results whose question is answered: ``python -m benchmarks.speed`` measured them at commit 1410dec."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from benchmarks.tables import formatted, listed, table

SIZES = {f"n{size}": size for size in (16, 32, 64, 128, 256, 512, 1024)}  # of micro-batches, by columns
MICRO_BATCHES = {
    "samples/s by micro-batch size": "{contestant}",
    **{str(size): f"{{{name}:.0f}}" for name, size in SIZES.items()},
    "automatic": "{auto:.0f}",
    "of the best": "{auto_over_best:.0%}",
}
OPTIONS = {"with": "{option}", "seconds without": "{without:.2f}", "ratio": "{ratio:.2f}"}


def draw_micro_batches(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw samples per second against the size."""
    for _, row in rows.iterrows():
        (line,) = axes.plot(list(SIZES.values()), row[list(SIZES)], marker=".", label=row["contestant"])
        auto = row[f"n{row['auto']:.0f}"]
        axes.plot(row["auto"], auto, marker="o", markersize=10, fillstyle="none", color=line.get_color())
    axes.set(xscale="log", xlabel="micro-batch size (circle: automatic)", ylabel="samples per second", title="Micro-batches")
    axes.set_xticks(list(SIZES.values()), [str(size) for size in SIZES.values()])
    axes.set_ylim(0, 1.35 * rows[list(SIZES)].to_numpy().max())
    axes.legend(fontsize="small", loc="upper left")


def memory_table(rows: pd.DataFrame) -> str:
    """Return the table, and a sentence on the growth."""
    small = rows[rows["channels"] == "4"]
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


def scaling_table(rows: pd.DataFrame) -> str:
    """Return a line for each quantity."""
    lines = []
    for quantity, own in rows.groupby("quantity", sort=False):
        costs = own["microseconds_per_step"].tolist()
        lines.append([quantity, listed(own["value"], 0), listed(costs), f"{costs[-1] / costs[0]:.2f}"])
    return table(["quantity", "values", "microseconds per environment step", "last over first"], lines)


def draw_scaling(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the cost of each quantity."""
    for quantity, own in rows.groupby("quantity", sort=False):
        axes.plot(own["value"] / own["value"].iloc[0], own["microseconds_per_step"], marker=".", label=quantity)
    axes.set(xlabel="times the first value", ylabel="microseconds per environment step", ylim=0, title="Scaling, CartPole")
    axes.legend()
