"""
Whole runs of SB3's PPO, SBX's PPO (JAX) and PPG, eager and compiled, on one thread and on two: a table of speeds, and returns
against seconds. The runs were those of this module at commit 76f21b7.

    python -m benchmarks.compiled report    # tables and pictures from the rows
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import Experiment, Report
from sb3_ppg.comparison.report import draw_seeds, finish, page, table

RUN = dict(part="curves", processor="", task="LunarLander-v3", threads=1, contestant="PPG", seed=0)  # its columns
SBX = "SBX PPO"
COLORS = {  # in the picture; none: there are no curves
    "SB3 PPO": "tab:red",
    SBX: "tab:orange",
    "PPG": "tab:cyan",
    "PPG, compiled": "tab:blue",
    "PPG, no auxiliary phase": "",
    "PPG, no auxiliary phase, compiled": "",
}
COMPILING = (SBX, "PPG, compiled")
CURVES = {"LunarLander-v3": 507_904, "HalfCheetah-v5, EnvPool": 1_007_616}  # steps


def draw_curves(axes: Axes, curves: pd.DataFrame, task: str) -> None:
    """Draw all contestants on one task against seconds, means over seeds, on the processor with the most seeds."""
    curves = curves[curves["task"] == task]
    curves = curves[curves["processor"] == curves.groupby("processor")["seed"].nunique().idxmax()]
    for name, color in COLORS.items():
        points = curves[curves["contestant"] == name]
        if len(points):
            seeds = points.pivot(index="steps", columns="seed", values=["seconds", "return"]).dropna()
            draw_seeds(axes, seeds["return"].set_axis(seeds["seconds"].mean(axis=1)), name, color)


def report(experiment: Experiment) -> Report:
    """Return the table of medians, and the picture."""
    rows, curves, lines = experiment.rows(present=False), experiment.curves(), []
    groups = rows[rows["part"] == "speed"].groupby(["processor", "threads", "task"], sort=False)
    for (processor, threads, task), own in groups:
        medians = own.groupby("contestant")["speed"].median().reindex(list(COLORS))
        ratios = medians["PPG, compiled"] / medians[["PPG", SBX]]
        line = [processor, threads, task, *(f"{median:,.0f}" for median in medians), *(f"{ratio:.2f}" for ratio in ratios)]
        line = ["" if cell == "nan" else cell for cell in line]
        for name in COMPILING:
            seconds = own[own["contestant"] == name].sort_values("seed")["compiling"]
            line.append(", ".join(f"{part.median():.1f}" for part in (seconds.head(1), seconds.iloc[1:]) if len(part)))
        lines.append(line)
    head = ["processor", "threads", "task", *COLORS, "compiled / PPG", f"compiled / {SBX}"]
    figure = Figure(figsize=(5 * len(CURVES), 4), dpi=120, layout="constrained")
    for axes, (name, n_timesteps) in zip(figure.subplots(1, len(CURVES)), CURVES.items(), strict=True):
        draw_curves(axes, curves, name)
        title, xlabel = f"{name}, {n_timesteps:,} steps", "seconds, compiling included"
        finish(axes, title, xlabel, "return of the latest 100 episodes", legend="best")
    text = page(
        "Compiled updates: whole trainings",
        "`python -m benchmarks.compiled` at commit 76f21b7. Steps per second after the first phase, medians of up to "
        "3 turns; auxiliary phases are included except where the column says otherwise. Compiling: seconds by which "
        "the first phase is slower than the others, with an empty cache and in later trainings (JAX keeps none). 8 "
        "environments x 256 steps, minibatches of 64, ten epochs; MinAtar: 32 x 128, 512, two, where SBX has two CNNs and "
        "the others have one. With one thread a training has one core, environments included. AMD: an earlier build, commit "
        "a3b195f.",
        table([*head, *(f"compiling, s: {name}" for name in COMPILING)], lines),
        f"Learning curves: up to {curves['seed'].nunique()} seeds, mean and range; one core for each training, while other "
        "programs used the other one.",
        "![return against seconds](compiled.png)",
    )
    return {"compiled.md": text, "compiled.png": figure}


COMPILED = Experiment("compiled", lambda: [RUN], None, report)

if __name__ == "__main__":
    COMPILED.main()
