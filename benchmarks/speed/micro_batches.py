"""Micro-batches: the automatic size against all others."""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from stable_baselines3.common.torch_layers import NatureCNN

from benchmarks.speed.phases import N_THREADS, Section, image_model, images, policy_minibatch
from benchmarks.turns import Measure, collect, medians, ready, seconds
from sb3_ppg.optim.micro_batches import keep_freed_memory

NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "ImpalaCNN 64x64x3": ({}, (3, 64, 64)),
    "NatureCNN 84x84x4": (dict(features_extractor_class=NatureCNN), (4, 84, 84)),
}
SIZES = (16, 32, 64, 128, 256, 512, 1024)
COLUMNS = [f"n{size}" for size in SIZES]


def speeds(network: str, precision: str) -> Measure:
    """Measure samples per second through one minibatch of 1,024, for each micro-batch size; and the automatic size."""
    keep_freed_memory()
    kwargs, shape = NETWORKS[network]
    mixed_precision = "bf16" if precision == "bf16" else None
    sizes: dict[str, Any] = dict(n_steps=64, batch_size=1024, max_grad_norm=None)
    model = image_model(images(16, shape), kwargs, mixed_precision=mixed_precision, **sizes)
    ready(model)
    collect(model)
    batch = next(model.rollout_buffer.get(1024))

    def measure() -> dict[str, float]:
        found = {f"n{size}": 1024 / seconds(partial(policy_minibatch, model, batch, size)) for size in SIZES}
        return {**found, "auto": float(model.resolved_micro_batch_size() or 1024)}

    return measure


def run() -> pd.DataFrame:
    contestants = [(network, precision) for network in NETWORKS for precision in ("float32", "bf16")]
    found = medians({", ".join(one): (speeds, one) for one in contestants}, n_threads=N_THREADS)
    found["auto_over_best"] = [row[f"n{row['auto']:.0f}"] / row[COLUMNS].max() for _, row in found.iterrows()]
    return found.reset_index().round(3)


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw samples per second against the size."""
    for _, row in rows.iterrows():
        (line,) = axes.plot(SIZES, row[COLUMNS], marker=".", label=row["contestant"])
        auto = row[f"n{row['auto']:.0f}"]
        axes.plot(row["auto"], auto, marker="o", markersize=10, fillstyle="none", color=line.get_color())
    axes.set(xscale="log", xlabel="micro-batch size (circle: automatic)", ylabel="samples per second")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_title("Micro-batches")
    axes.set_ylim(0, 1.35 * rows[COLUMNS].to_numpy().max())
    axes.legend(fontsize="small", loc="upper left")


TABLE = {
    "samples/s by micro-batch size": "{contestant}",
    **{str(size): f"{{n{size}:.0f}}" for size in SIZES},
    "automatic": "{auto:.0f}",
    "of the best": "{auto_over_best:.0%}",
}
MICRO_BATCHES = Section("Micro-batches, minibatches of 1,024", run, TABLE, draw)
