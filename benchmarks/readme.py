"""
The README's picture: returns against steps and against seconds, from rows of other benchmarks.

    python -m benchmarks.readme    # writes results/readme.png
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.compiled import COMPILED, draw_curves
from benchmarks.harness import COLORS, RESULTS
from benchmarks.learning import EVALUATED, LEARNING, draw_contestant
from benchmarks.seconds import comparison
from benchmarks.suites.contestants import TASKS
from benchmarks.suites.experiment import SUITES, Comparison, comparisons
from sb3_ppg.comparison.report import draw_seeds, finish


def draw_suite(axes: Axes, found: list[Comparison], env_id: str, title: str) -> None:
    task = next(task for task in TASKS if task.env_id == env_id)
    comparison = max((each for each in found if task in each.tasks), key=lambda each: each.n_timesteps)
    for name, color in COLORS.items():
        draw_seeds(axes, comparison.curves_of(name, task), name, color)
    finish(axes, title, "environment steps", legend="upper left")


def draw_compiled(axes: Axes, task: str, title: str) -> None:
    draw_curves(axes, COMPILED.curves(), task)
    finish(axes, title, "seconds of one core", legend="lower right")


def draw_minatar(axes: Axes) -> None:
    """Draw the mean scores of the best setting of each algorithm."""
    games = comparison()
    for name, color in COLORS.items():
        mean, seconds = games.mean_curves(name, games.tasks, as_scores=True)
        draw_seeds(axes, mean.set_axis(seconds), name, color)
    title = f"MinAtar, {len(games.tasks)} games, best of a search"
    finish(axes, title, "seconds of one core", "mean score", legend="upper left")


def picture() -> Figure:
    """Draw a row of panels against steps, and one against seconds."""
    figure = Figure(figsize=(11, 6.5), dpi=110, layout="constrained")
    (lunar_lander, hopper, starpilot), (compiled, cheetah, minatar) = figure.subplots(2, 3)
    found = comparisons(SUITES)
    for name in COLORS:
        draw_contestant(lunar_lander, LEARNING.rows(), LEARNING.curves(), EVALUATED, name)
    finish(lunar_lander, "LunarLander, deterministic", "environment steps", legend="lower right")
    draw_suite(hopper, found, "Hopper-v5", "Hopper")
    draw_suite(starpilot, found, "StarpilotEasy-v0", "StarPilot, 200 levels")
    draw_compiled(compiled, "LunarLander-v3", "LunarLander, same settings")
    draw_compiled(cheetah, "HalfCheetah-v5, EnvPool", "HalfCheetah, same settings")
    draw_minatar(minatar)
    for axes in (lunar_lander, hopper, starpilot):
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


if __name__ == "__main__":
    picture().savefig(RESULTS / "readme.png")
