"""The answer of a comparison: a picture, a page, and a sentence that claims no more than the intervals say."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, ScalarFormatter

from sb3_ppg.comparison.runs import N_POINTS
from sb3_ppg.comparison.scores import (
    MAX_SEEDS,
    MIN_SEEDS,
    estimates,
    improvements,
    interquartile_means,
    is_told_apart,
    seeds_needed,
)

COLORS = ("tab:blue", "tab:red", "tab:green", "tab:orange", "tab:purple", "tab:brown", "tab:cyan", "tab:pink")
VIEWS = {"steps": "environment steps", "seconds": "seconds"}  # of a picture's panels and of a verdict


def page(title: str, *paragraphs: str) -> str:
    """Return a page in Markdown."""
    return "\n\n".join([f"# {title}", *paragraphs]) + "\n"


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows])


def finish(axes: Axes, title: str, xlabel: str, ylabel: str = "return", legend: Any = None) -> None:
    """
    Add titles, a grid and a legend.

    :param legend: its place; None: there is none
    """
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    if legend is not None and axes.has_data():
        axes.legend(loc=legend)


def draw_seeds(axes: Axes, values: pd.DataFrame, label: str, color: str, band: Sequence[np.ndarray] = ()) -> None:
    """
    Draw the mean of several seeds, and a band around it.

    :param values: (n_points, n_seeds), against its index
    :param band: lower and upper bounds, (n_points,); empty: the range of the seeds
    """
    low, high = band or (values.min(axis=1), values.max(axis=1))
    axes.plot(values.index, values.mean(axis=1), label=label, color=color)
    axes.fill_between(values.index, low, high, alpha=0.2, color=color)


class Comparison(NamedTuple):
    """
    The runs of contestants in one environment. The first contestant is compared with each of the others.

    :param title: name of the environment
    :param rows: a row for each run: contestant, seed, machine, and "mean", the mean return of the episodes at its end
    :param curves: points of learning curves: contestant, seed, steps, seconds, return
    :param settings: hyperparameters, by contestant
    :param target: return up to which the page counts steps and seconds. None: the lowest of the mean returns at the end
    """

    title: str
    rows: pd.DataFrame
    curves: pd.DataFrame
    settings: Mapping[str, Mapping[str, Any]]
    target: float | None = None

    def curves_of(self, name: str) -> list[pd.DataFrame]:
        """Return the curve of each seed."""
        return [own for _, own in self.curves[self.curves["contestant"] == name].groupby("seed")]

    def end(self, view: str) -> float:
        """Return the steps or seconds to which all runs have come."""
        return min(own[view].iloc[-1] for name in self.settings for own in self.curves_of(name))

    def returns(self, view: str) -> dict[str, np.ndarray]:
        """Return each contestant's returns at the last steps or seconds that all runs reach, (n_seeds, 1)."""
        end = self.end(view)
        return {
            name: np.array([[np.interp(end, own[view], own["return"])] for own in self.curves_of(name)])
            for name in self.settings
        }

    def at_target(self, name: str, view: str, target: float) -> str:
        """Return the median of the steps or seconds until a curve reaches a return, and how many seeds reach it."""
        above = [own[view][own["return"] >= target] for own in self.curves_of(name)]
        reached = [own.iloc[0] if len(own) else np.inf for own in above]
        median, n = np.median(reached), np.isfinite(reached).sum()
        return f"{_number(median) if np.isfinite(median) else 'not reached'} ({n} of {len(reached)} seeds)"

    # ---- the sentence ----

    def verdict(self) -> str:
        """Return a sentence that says whether the first contestant is ahead of each of the others."""
        first, *others = self.settings
        n_seeds = self.n_seeds()
        if n_seeds >= MIN_SEEDS:
            compared = [self._compare(view, first, other, n_seeds) for other in others for view in VIEWS]
            return f"With {n_seeds} seeds, {'; '.join(compared)}."
        means = [", ".join(f"{name} {own.mean():.1f}" for name, own in self.returns(view).items()) for view in VIEWS]
        return (
            f"With {n_seeds} seed{'s' * (n_seeds != 1)} there are no intervals, and nothing is claimed: the mean returns are "
            f"{means[0]} after the same steps, and {means[1]} after the same seconds. Use {MIN_SEEDS} seeds or more."
        )

    def n_seeds(self) -> int:
        """Return the number of seeds that all contestants have."""
        return min(len(own) for own in self.returns("steps").values())

    def _compare(self, view: str, first: str, other: str, n_seeds: int) -> str:
        returns = self.returns(view)
        better = improvements({first: returns[first]}, returns[other])[first]
        says = f"P {better.value:.2f}, {better.low:.2f} to {better.high:.2f}"
        if is_told_apart(better, returns[first][:, 0], returns[other][:, 0]):
            return f"{first} is {'ahead of' if better.value > 0.5 else 'behind'} {other} in {view} ({says})"
        needed = seeds_needed(better.value)
        more = f"more than {MAX_SEEDS}" if needed > MAX_SEEDS else f"about {needed:.0f}"
        remedy = f"{more} seeds of each would be needed, if this is the true P" if needed > n_seeds else "use more seeds"
        return f"{first} and {other} cannot be told apart in {view} ({says}: {remedy})"

    # ---- the page and the picture ----

    def page(self) -> str:
        """Return the page ``compare.md``: verdict, table and hyperparameters, in Markdown."""
        kind = "interquartile mean" if self.n_seeds() >= MIN_SEEDS else "mean"
        means = {view: interquartile_means(self.returns(view)) for view in VIEWS}
        evaluated = {name: self.rows[self.rows["contestant"] == name]["mean"].to_numpy() for name in self.settings}
        target = min(float(own.mean()) for own in self.returns("steps").values()) if self.target is None else self.target
        ends = {view: f"{_number(self.end(view))} {view}" for view in VIEWS}
        lines = []
        for name in self.settings:
            columns = [*(f"{means[view][name]:.1f}" for view in VIEWS), f"{evaluated[name].mean():.1f}"]
            columns += [self.at_target(name, view, target) for view in VIEWS]
            speed = np.mean([own["steps"].iloc[-1] / own["seconds"].iloc[-1] for own in self.curves_of(name)])
            lines.append([name, len(evaluated[name]), *columns, f"{speed:,.0f}"])
        head = ["", "seeds", *(f"return after {end}, {kind}" for end in ends.values()), "evaluation, mean"]
        head += [*(f"{view} to {target:.1f}" for view in VIEWS), "steps/s"]
        return page(
            f"{' or '.join(self.settings)} in {self.title}?",
            self.verdict(),
            "![Return against steps and against seconds](compare.png)",
            table(head, lines),
            "Returns are means of the latest 20 episodes of training. In parentheses: 95 % stratified bootstrap intervals "
            f"(rliable), from {MIN_SEEDS} seeds on; two contestants are told apart if the interval of P, the probability that "
            "a run of the first is better, is without 0.5 and the Mann-Whitney test agrees at 5 %. The evaluation is the mean "
            "return of episodes at the end of a run. Seconds are those that a run took, compiling included; runs at the same "
            f"time share the machine. {' and '.join(self.rows['machine'].unique())}.",
            f"```yaml\n{yaml.safe_dump({name: dict(one) for name, one in self.settings.items()}, sort_keys=False)}```",
        )

    def picture(self) -> Figure:
        """Draw mean returns and their intervals against steps and against seconds; diamonds are evaluations."""
        figure = Figure(figsize=(10, 4.5), dpi=110, layout="constrained")
        for axes, (view, label) in zip(figure.subplots(1, 2, sharey=True), VIEWS.items(), strict=True):
            for number, (name, color) in enumerate(zip(self.settings, COLORS * len(self.settings), strict=False), 1):
                own = _on_one_grid(self.curves_of(name), view)
                draw_seeds(axes, own, f"{name}, {own.shape[1]} seeds", color, _band(own))
                marks = self.rows[self.rows["contestant"] == name]["mean"]
                place = own.index[-1] * (1 + 0.02 * number)  # side by side
                axes.plot([place] * len(marks), marks, "D", color=color, alpha=0.6, markersize=5, clip_on=False)
            finish(axes, "", label, "return" if view == "steps" else "")
            axes.xaxis.set_major_formatter(EngFormatter(sep="") if view == "steps" else ScalarFormatter())
            axes.set_xlim(left=0)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        band = "95 % intervals" if self.n_seeds() >= MIN_SEEDS else "ranges of the seeds"
        figure.suptitle(f"{self.title}: means and {band}; diamonds: evaluation at the end", fontsize="medium")
        return figure


def _number(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1}f}"


def _on_one_grid(curves: Sequence[pd.DataFrame], view: str) -> pd.DataFrame:
    """Return returns where all curves have one, (n_points, n_seeds), by steps or by seconds."""
    start, end = max(own[view].iloc[0] for own in curves), min(own[view].iloc[-1] for own in curves)
    grid = np.linspace(min(start, end), end, N_POINTS)
    return pd.DataFrame({n: np.interp(grid, own[view], own["return"]) for n, own in enumerate(curves)}, index=grid)


def _band(values: pd.DataFrame) -> Sequence[np.ndarray]:
    """Return the bounds of the mean's interval at each point, if there are seeds enough for one."""
    if values.shape[1] < MIN_SEEDS:
        return ()
    points = {str(step): row.to_numpy()[:, None] for step, row in values.iterrows()}
    found = estimates(points, np.mean).values()
    return np.array([estimate.low for estimate in found]), np.array([estimate.high for estimate in found])
