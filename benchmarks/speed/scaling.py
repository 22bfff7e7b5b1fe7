"""Scaling: cost per step over a factor of eight in environments, N_π and E_aux."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.speed.phases import Section, iterations
from benchmarks.tables import listed
from benchmarks.tables import table as markdown_table
from benchmarks.turns import Measure, medians, ready, seconds
from sb3_ppg import PPG

SCALES = dict(n_envs=(4, 8, 16, 32), n_policy_iterations=(4, 8, 16, 32), n_aux_epochs=(1, 2, 4, 8))


def phase(quantity: str, value: int) -> Measure:
    """Measure a whole phase on CartPole, per environment step."""
    settings: dict[str, Any] = dict(n_envs=8, n_policy_iterations=4, n_aux_epochs=1) | {quantity: value}
    n_envs = settings.pop("n_envs")
    sizes: dict[str, Any] = dict(n_steps=128, n_epochs=1, batch_size=256, aux_batch_size=256, max_grad_norm=None)
    model = PPG("MlpPolicy", make_vec_env("CartPole-v1", n_envs, seed=0), seed=0, device="cpu", **sizes, **settings)
    ready(model)
    n_samples = n_envs * 128 * model.n_policy_iterations
    return lambda: dict(seconds=seconds(lambda: iterations(model), 3) / n_samples)


def run() -> pd.DataFrame:
    rows = []
    for quantity, values in SCALES.items():
        found = medians({str(value): (phase, (quantity, value)) for value in values})["seconds"]
        for value in values:
            rows.append(dict(quantity=quantity, value=value, microseconds_per_step=1e6 * found[str(value)]))
    return pd.DataFrame(rows).round(2)


def table(rows: pd.DataFrame) -> str:
    lines = []
    for quantity, own in rows.groupby("quantity", sort=False):
        costs = own["microseconds_per_step"].tolist()
        lines.append([quantity, listed(own["value"], 0), listed(costs), f"{costs[-1] / costs[0]:.2f}"])
    return markdown_table(["quantity", "values", "microseconds per environment step", "last over first"], lines)


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    for quantity, own in rows.groupby("quantity", sort=False):
        axes.plot(own["value"] / own["value"].iloc[0], own["microseconds_per_step"], marker=".", label=quantity)
    axes.set(xlabel="times the first value", ylabel="microseconds per environment step", ylim=0, title="Scaling, CartPole")
    axes.legend()


SCALING = Section("Scaling, CartPole", run, table, draw)
