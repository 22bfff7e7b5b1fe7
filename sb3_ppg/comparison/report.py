"""The answer of a comparison: a picture, a page, and a table that claims no more than its runs can tell."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, ScalarFormatter

from sb3_ppg.comparison.evaluations import N_POINTS
from sb3_ppg.comparison.scores import (
    BOOTSTRAPS,
    MAX_SEEDS,
    MIN_SEEDS,
    Estimate,
    corrected_p_values,
    error_of,
    improvements,
    interquartile_means,
    seeds_needed,
    too_few_seeds,
)

COLORS = ("tab:blue", "tab:red", "tab:green", "tab:orange", "tab:purple", "tab:brown", "tab:cyan", "tab:pink")
VIEWS = ("steps", "seconds")  # contestants are compared after equal numbers of these
N_LAST = 3  # points of a curve whose mean is the return at the end


def page(title: str, *paragraphs: str) -> str:
    """Return a page in Markdown."""
    return "\n\n".join([f"# {title}", *paragraphs]) + "\n"


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows])


class Comparison(NamedTuple):
    """The runs of contestants in one environment. The first contestant is compared with each of the others."""

    title: str  # name of the environment
    points: pd.DataFrame  # rows of `Evaluations` with the contestant and the seed
    settings: Mapping[str, Mapping[str, Any]]  # hyperparameters, by contestant
    look: int = 1  # number of verdicts on these contestants, with this one
    clock: str = "processor"  # what seconds are, see `Evaluations`
    machine: str = ""  # where the runs were carried out

    def curves(self, view: str) -> dict[str, pd.DataFrame]:
        """
        Return each contestant's returns, (N_POINTS + 1, n_seeds), at evenly spaced steps or seconds from 0 to those that all
        runs reach, interpolated between evaluations.
        """
        runs = {key: run for key, run in self.points.groupby(["contestant", "seed"])}
        grid = np.linspace(0, min(run[view].iloc[-1] for run in runs.values()), N_POINTS + 1)
        returns = {key: np.interp(grid, run[view], run["return"]) for key, run in runs.items()}
        return {
            name: pd.DataFrame({seed: own for (other, seed), own in returns.items() if other == name}, index=grid)
            for name in self.settings
        }

    def returns(self, view: str) -> dict[str, np.ndarray]:
        """Return the returns of each contestant's runs at the end, which are means of three points, (n_seeds,)."""
        return {name: curves.iloc[-N_LAST:].mean().to_numpy() for name, curves in self.curves(view).items()}

    def alone(self, *names: str) -> "Comparison":
        """Return a comparison of these contestants alone, whose results do not depend on the others."""
        points = self.points[self.points["contestant"].isin(names)]
        return self._replace(points=points, settings={name: self.settings[name] for name in names})

    def n_seeds(self) -> int:
        """Return the number of runs of each contestant."""
        return self.points["seed"].nunique()

    # ---- the verdict ----

    def verdict(self) -> list[list[str]]:
        """Return a table, head first, that says whether the first contestant is ahead of each of the others."""
        first, *others = self.settings
        pairs = {(other, view): self.alone(first, other) for view in VIEWS for other in others}
        returns = {key: [*pair.returns(key[1]).values()] for key, pair in pairs.items()}
        rows = [[f"{first} against", "after", first, "the other", "P", "p", "verdict"]]
        for ((other, view), (own, their)), p in zip(returns.items(), corrected_p_values(returns.values()), strict=True):
            end = pairs[other, view].points.groupby(["contestant", "seed"])[view].last().min()
            better = improvements({first: own[:, None]}, their[:, None])[first]
            if p <= error_of(self.look):
                says = "ahead" if better.value > 0.5 else "behind"
            else:
                says = f"not apart{self._seeds_needed(better, len(pairs))}"
            means = (f"{found.mean():.1f}" for found in (own, their))
            rows.append([other, f"{end:,.{0 if end >= 10 else 1}f} {view}", *means, str(better), f"{p:.2g}", says])
        return rows

    def _seeds_needed(self, better: Estimate, n_comparisons: int) -> str:
        """Return a text: how many seeds could tell contestants apart if the truth were at either end of the interval."""
        if np.isnan(better.low):
            return ""
        error = error_of(self.look + 1) / n_comparisons  # of the next verdict, with more seeds
        fewest, most = sorted(seeds_needed(end, error) for end in (better.low, better.high))
        most = np.inf if better.low <= 0.5 <= better.high else most
        fewest = max(fewest, self.n_seeds() + 1)
        if fewest > MAX_SEEDS:
            return f": more than {MAX_SEEDS} seeds"
        return f": {fewest:.0f} to {f'more than {MAX_SEEDS}' if most > MAX_SEEDS else f'{max(most, fewest):.0f}'} seeds"

    def rule(self) -> str:
        """Return the sentences that say when the verdict tells contestants apart."""
        n_comparisons, error = len(VIEWS) * (len(self.settings) - 1), error_of(self.look)
        too_few = too_few_seeds(self.n_seeds(), n_comparisons, self.look)
        return (
            f"Told apart if p <= {error:.4f}, which is {error / 0.05:.4g} of 5 %: this is verdict {self.look} on these "
            f"contestants, and later ones with more seeds share the rest. p is that of the Mann-Whitney test with Holm's "
            f"correction for {n_comparisons} comparisons. {too_few}".rstrip()
        )

    # ---- the page and the picture ----

    def runs(self) -> pd.DataFrame:
        """Return a row for each run: its returns and seconds."""
        found = self.points.groupby(["contestant", "seed"], sort=False)
        columns = ["steps", "seconds", "compile_seconds", "training_return"]
        last = found.tail(1).set_index(["contestant", "seed"])[columns]
        at_end = found["return"].apply(lambda own: own.iloc[-N_LAST:].mean())
        curve = found["return"].apply(lambda own: own.iloc[1:].mean())
        return last.assign(return_at_end=at_end, return_of_curve=curve, machine=self.machine).reset_index()

    def page(self, verdict: list[list[str]]) -> str:
        """Return the page ``compare.md``: verdict, table and hyperparameters, in Markdown."""
        lines = []
        curves = {view: self.curves(view) for view in VIEWS}
        returns = {view: {name: own[:, None] for name, own in self.returns(view).items()} for view in VIEWS}
        at_end = {view: interquartile_means(returns[view]) for view in VIEWS}
        for name, own in self.runs().groupby("contestant").mean(numeric_only=True).loc[[*self.settings]].iterrows():
            means = ((at_end[view][name], curves[view][name].iloc[1:].mean().mean()) for view in VIEWS)
            cells = [f"{mean:.1f}" for pair in means for mean in pair]
            seconds = (own["seconds"], own["compile_seconds"], own["steps"] / own["seconds"])
            lines.append([name, *cells, f"{own['training_return']:.1f}", *(f"{value:,.0f}" for value in seconds)])
        ends = [f"{next(iter(curves[view].values())).index[-1]:,.0f} {view}" for view in VIEWS]
        head = ["", *(cell for end in ends for cell in (f"return after {end}", "mean of the curve")), "in training"]
        return page(
            f"{' or '.join(self.settings)} in {self.title}?",
            table(verdict[0], verdict[1:]),
            self.rule(),
            "![Return against steps and against seconds](compare.png)",
            table([*head, f"{self.clock} seconds", "of which torch compiled", "steps/s"], lines),
            f"{self.n_seeds()} seeds each. Returns are those of the same episodes at {N_POINTS} points of each run, with "
            "deterministic actions except where RL Zoo evaluates with random ones; at the end, the mean of the last "
            f"{N_LAST} points. A verdict is taken when the fastest run of its two contestants ends, the second table when the "
            "fastest run of all ends. In parentheses: 95 % stratified bootstrap intervals (rliable), from "
            f"{MIN_SEEDS} seeds on; here around interquartile means. P is the probability that a run of the first contestant "
            "is better. Returns in training are those of the last tenth of a run. Seconds are without evaluations. "
            f"{self.machine}.",
            f"```yaml\n{yaml.dump({**self.settings}, sort_keys=False, width=np.inf)}```",
        )

    def picture(self) -> Figure:
        """Draw mean returns and their intervals against steps and against seconds."""
        n_columns = max(1, 110 // (12 + max(map(len, self.settings))))  # of the legend
        n_rows = -(-len(self.settings) // n_columns)
        figure = Figure(figsize=(10, 4.2 + 0.25 * n_rows), dpi=110, layout="constrained")
        for axes, view in zip(figure.subplots(1, 2, sharey=True), VIEWS, strict=True):
            for (name, returns), color in zip(self.curves(view).items(), COLORS * len(self.settings), strict=False):
                label = f"{textwrap.shorten(name, 100)}, {returns.shape[1]} seeds"
                axes.plot(returns.index, returns.mean(axis=1), label=label, color=color)
                axes.fill_between(returns.index, *_band(returns), alpha=0.2, color=color)
            xlabel, ylabel = ("steps", "return") if view == "steps" else (f"{self.clock} seconds", "")
            axes.set(xlabel=xlabel, ylabel=ylabel)
            axes.grid(alpha=0.3)
            axes.xaxis.set_major_formatter(EngFormatter(sep="") if view == "steps" else ScalarFormatter())
            axes.set_xlim(left=0)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=n_columns)
        band = "95 % intervals" if self.n_seeds() >= MIN_SEEDS else "ranges of the seeds"
        figure.suptitle(f"{self.title}: means and {band}", fontsize="medium")
        return figure


def _band(returns: pd.DataFrame) -> tuple[Any, Any]:
    """Return the bounds of the mean's bootstrap interval at each point or, with too few seeds for it, the extreme returns."""
    n_seeds = returns.shape[1]
    if n_seeds < MIN_SEEDS:
        return returns.min(axis=1), returns.max(axis=1)
    drawn = np.random.default_rng(0).integers(n_seeds, size=(BOOTSTRAPS, n_seeds))
    low, high = np.quantile(returns.to_numpy()[:, drawn].mean(axis=2), [0.025, 0.975], axis=1)
    return low, high
