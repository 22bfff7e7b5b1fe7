"""
Ranges of each logged value in trainings that end well and in one that does not: medians, and the range of nine rows in ten.
Prints the table of docs/logs.md. Four minutes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness import Experiment, Report
from benchmarks.suites.contestants import constructor_arguments, entry
from benchmarks.tables import finish, table
from sb3_ppg import PPG
from sb3_ppg.family import PAPERS_VALUES

N_TIMESTEPS = 100_000
GROUPS = ("train/", "aux/", "rollout/ep_rew")


PENDULUM = entry("ppg", "Pendulum-v1")


def cart_pole(**arguments: Any) -> PPG:
    return PPG("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **arguments)


def pendulum() -> PPG:
    env = VecNormalize(make_vec_env("Pendulum-v1", PENDULUM["n_envs"], seed=0), norm_obs=False, gamma=PENDULUM["gamma"])
    return PPG("MlpPolicy", env, seed=0, device="cpu", **constructor_arguments(PENDULUM))


MODELS: dict[str, Callable[[], PPG]] = {
    "defaults": cart_pole,
    "paper": partial(cart_pole, **PAPERS_VALUES),
    "Pendulum": pendulum,
    "sick": partial(cart_pole, normalize_value_targets=False, **PAPERS_VALUES),  # the paper's losses with raw rewards
}
DRAWN = {"paper": "tab:blue", "sick": "tab:red"}  # a good and a sick run of the same task
# Values in the picture, with the scale of the axis
PICTURE = {
    "rollout/ep_rew_mean": "linear",
    "train/grad_norm": "log",
    "train/value_loss": "log",
    "aux/final_kl": "log",
    "aux/explained_variance": "linear",
    "aux/aux_explained_variance": "linear",
}


def wanted() -> list[dict[str, Any]]:
    return [dict(run=name) for name in MODELS]


def log_of(model: PPG, n_timesteps: int, folder: Path) -> pd.DataFrame:
    """Train a model, and return the rows of its log, with a column "steps"."""
    model.set_logger(configure(str(folder), ["csv"]))
    model.learn(n_timesteps)
    return pd.read_csv(folder / "progress.csv").rename(columns={"time/total_timesteps": "steps"})


def train(training: dict[str, Any], folder: Path) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Train a model; a row for each logged value, and the values of the picture."""
    logged = log_of(MODELS[training["run"]](), N_TIMESTEPS, folder)
    numbers = logged[[column for column in logged if column.startswith(GROUPS)]]
    quantiles = numbers.quantile([0.05, 0.5, 0.95]).T.set_axis(["low", "median", "high"], axis=1)
    rows = quantiles.map(lambda value: float(f"{value:.3g}")).rename_axis("value").reset_index()
    return rows, logged[["steps", *PICTURE]] if training["run"] in DRAWN else None


def cell(rows: pd.DataFrame) -> str:
    """Return the median and the range with two digits; nothing where there is no such value."""
    if rows.empty or rows["median"].isna().all():
        return ""
    shown = [np.format_float_positional(float(f"{rows[name].iloc[0]:.2g}"), trim="-") for name in ("median", "low", "high")]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def report(experiment: Experiment) -> Report:
    """Print the table and return the picture."""
    rows, curves = experiment.rows(), experiment.curves()
    figure = Figure(figsize=(12, 6), dpi=90, layout="constrained")
    panels = figure.subplots(2, 3, sharex=True)
    for axes, (value, scale) in zip(panels.flat, PICTURE.items(), strict=True):
        for name, color in DRAWN.items() if len(curves) else ():
            shown = curves.loc[curves["run"] == name, ["steps", value]].dropna()
            axes.plot(shown["steps"], shown[value], color=color, label=name)
        finish(axes, value, "environment steps" if axes in panels[1] else "", "")
        axes.set_yscale(scale)
        if value.endswith("explained_variance"):
            axes.set_ylim(-1, 1)
    panels[0, 0].legend()
    lines = [[f"`{value}`", *(cell(own[own["run"] == name]) for name in MODELS)] for value, own in rows.groupby("value")]
    print(table(["value", *MODELS], lines))
    return {"logs.png": figure}


LOGS = Experiment("logs", wanted, train, report)

if __name__ == "__main__":
    LOGS.main()
