"""
The README's picture: returns against steps and against seconds, from rows of other benchmarks.

    python -m benchmarks.readme    # writes results/readme.png
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.compiled import COMPILED, CONTESTANTS
from benchmarks.harness import RESULTS
from benchmarks.learning import LEARNING
from benchmarks.seconds import SECONDS, SHORT, scored
from benchmarks.suites.contestants import TASKS
from benchmarks.suites.experiment import SUITES
from benchmarks.suites.report import Comparison, comparisons
from benchmarks.tables import COLORS, draw_seeds, finish


def draw_suite(axes: Axes, found: list[Comparison], env_id: str, title: str) -> None:
    task = next(one for one in TASKS if one.env_id == env_id)
    comparison = max((one for one in found if task in one.tasks), key=lambda one: one.n_timesteps)
    for name, color in COLORS.items():
        draw_seeds(axes, comparison.curves_of(name, task), name, color)
    finish(axes, title, "environment steps", legend="upper left")


def draw_lunar_lander(axes: Axes) -> None:
    curves = LEARNING.curves()
    for name, color in COLORS.items():
        own = curves[(curves["task"] == "LunarLander-v3, RL Zoo") & (curves["contestant"] == name)]
        seeds = {seed: points["return"].to_numpy() for seed, points in own.groupby("seed")}
        draw_seeds(axes, pd.DataFrame(seeds, index=own.loc[own["seed"] == 0, "steps"]), name, color)
    finish(axes, "LunarLander", "environment steps", legend="lower right")


def draw_compiled(axes: Axes, task: str, title: str) -> None:
    curves = COMPILED.curves()
    for name, (color, _) in CONTESTANTS.items():
        points = curves[(curves["task"] == task) & (curves["contestant"] == name)]
        if len(points) > 0:
            seeds = points.pivot(index="steps", columns="seed", values=["seconds", "return"]).dropna()
            draw_seeds(axes, seeds["return"].set_axis(seeds["seconds"].mean(axis=1)), name, color)
    finish(axes, title, "seconds of one core", legend="lower right")


def draw_minatar(axes: Axes, game: str, title: str) -> None:
    """Draw the best trial of each algorithm by the mean score of all games."""
    rows, curves = SECONDS.rows(), SECONDS.curves()
    for name, color in COLORS.items():
        own = scored(rows[(rows["algorithm"] == name.lower()) & (rows["limit"] == SHORT)])
        best = own.groupby("trial")["score"].mean().idxmax()
        points = curves[(curves["algorithm"] == name.lower()) & (curves["trial"] == best) & (curves["game"] == game)]
        points = points[points["limit"] == SHORT]
        axes.plot(points["seconds"], points["return"], label=name, color=color)
    finish(axes, title, "seconds of one core", legend="upper left")


def picture() -> Figure:
    """Draw a row of panels against steps, and one against seconds."""
    figure = Figure(figsize=(11, 6.5), dpi=110, layout="constrained")
    (lunar_lander, hopper, starpilot), (compiled, cheetah, asterix) = figure.subplots(2, 3)
    found = comparisons(SUITES)
    draw_lunar_lander(lunar_lander)
    draw_suite(hopper, found, "Hopper-v5", "Hopper")
    draw_suite(starpilot, found, "StarpilotEasy-v0", "StarPilot, 200 levels")
    draw_compiled(compiled, "LunarLander-v3", "LunarLander, same settings")
    draw_compiled(cheetah, "HalfCheetah-v5, EnvPool", "HalfCheetah, same settings")
    draw_minatar(asterix, "MinAtar/Asterix-v1", "Asterix (MinAtar), best of a search")
    for axes in (lunar_lander, hopper, starpilot):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


if __name__ == "__main__":
    picture().savefig(RESULTS / "readme.png")
