"""The curves of the auxiliary phase that docs/guides/tracking.md shows: LunarLander-v3 with all defaults. A few minutes."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from benchmarks.harness import Experiment, Report
from benchmarks.logs import log_of
from benchmarks.tables import finish
from sb3_ppg import PPG

N_TIMESTEPS = 200_000
# Panels, with the scale of the axis and the lines
PANELS = {
    "return": ("linear", {"rollout/ep_rew_mean": "tab:blue"}),
    "KL(π_old, π), nats": ("log", {"aux/final_kl": "tab:blue"}),
    "value losses": ("log", {"aux/value_loss": "tab:gray", "aux/aux_value_loss": "tab:blue"}),
    "explained variances": ("linear", {"aux/explained_variance": "tab:gray", "aux/aux_explained_variance": "tab:blue"}),
}
DRAWN = [value for _, lines in PANELS.values() for value in lines]


def wanted() -> list[dict[str, Any]]:
    return [dict(env="LunarLander-v3", seed=0)]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, float], pd.DataFrame]:
    """Train a model; the last return, and the drawn values after each auxiliary phase."""
    model = PPG("MlpPolicy", training["env"], seed=training["seed"], device="cpu")
    curves = log_of(model, N_TIMESTEPS, folder)[["steps", *DRAWN]].dropna()
    curves[DRAWN] = curves[DRAWN].map(lambda value: float(f"{value:.4g}"))
    return {"return": curves["rollout/ep_rew_mean"].iloc[-1]}, curves


def report(experiment: Experiment) -> Report:
    """Return the picture."""
    curves = experiment.curves()
    figure = Figure(figsize=(9, 5.5), dpi=90, layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    for axes, (title, (scale, lines)) in zip(panels.flat, PANELS.items(), strict=True):
        for value, color in lines.items():
            axes.plot(curves["steps"], curves[value], color=color, label=value)
        axes.set_yscale(scale)
        finish(axes, title, "environment steps" if axes in panels[1] else "", "", legend="best")
    return {"tracking.png": figure}


TRACKING = Experiment("tracking", wanted, train, report)

if __name__ == "__main__":
    TRACKING.main()
