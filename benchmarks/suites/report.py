"""What the rows say: interquartile means with intervals, probabilities of improvement, curves."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter
from rliable.library import get_interval_estimates
from rliable.metrics import aggregate_iqm, probability_of_improvement

from benchmarks.suites.contestants import (
    ABLATIONS,
    BEFORE,
    COLORS,
    CONTESTANTS,
    LEADING,
    TASKS,
    Task,
    Training,
    contestants_on,
)
from benchmarks.suites.queue import Results

BASELINE = "PPO"
BOOTSTRAPS = 1000
MIN_SEEDS = 3  # for an interval
# The ablations of two presets. From LATE on returns are averaged: less noise than the last hundred episodes have
ABLATED_IDS = ("MinAtar/Breakout-v1", "MinAtar/Asterix-v1", "StarpilotEasy-v0")
# Whose longer trainings are at END what shorter ones are, as their rates are constant
PASSING = [*LEADING, *BEFORE.values(), "PPG, paper's"]
LATE, END = 800_000, 1_000_000
Scores = dict[str, np.ndarray]  # of each contestant, (n_seeds, n_tasks)


class Estimate(NamedTuple):
    """A number and its 95 % interval, which is NaN where there are too few seeds to speak of one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if np.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})")


def estimates(scores: Mapping, statistic: Callable[..., float], n_seeds: dict[str, int]) -> dict[str, Estimate]:
    """
    :param scores: of each contestant, or pairs of contestants
    :param statistic: of scores
    :param n_seeds: of each contestant
    :return: with stratified bootstrap intervals: seeds are drawn within each task
    """
    np.random.seed(0)  # rliable draws with the global generator
    values, intervals = get_interval_estimates(scores, lambda *x: np.array([statistic(*x)]), reps=BOOTSTRAPS)
    unknown = (np.nan, np.nan)
    return {
        name: Estimate(values[name][0], *(intervals[name][:, 0] if n_seeds[name] >= MIN_SEEDS else unknown)) for name in scores
    }


def interquartile_means(scores: Scores) -> dict[str, Estimate]:
    """
    :param scores: of each contestant
    :return: the mean of the middle half of all scores
    """
    return estimates(scores, aggregate_iqm, {name: len(own) for name, own in scores.items()})


def improvements(scores: Scores, baseline: np.ndarray) -> dict[str, Estimate]:
    """
    :param scores: of each contestant
    :param baseline: of whom they are compared with
    :return: the probability that a training of theirs has a higher score than one of the baseline's, mean over tasks
    """
    pairs = {name: (own, baseline) for name, own in scores.items()}
    return estimates(pairs, probability_of_improvement, {name: min(map(len, pair)) for name, pair in pairs.items()})


class Comparison(NamedTuple):
    """
    All trainings of a suite with the present settings and of one length.

    :param suite: its name
    :param n_timesteps: the length
    :param rows: of results
    :param curves: of the same trainings
    :param speed: what a step costs, measured in turns; may be of other tasks, too, or of none
    """

    suite: str
    n_timesteps: int
    rows: pd.DataFrame
    curves: pd.DataFrame
    speed: pd.DataFrame

    @property
    def tasks(self) -> list[Task]:
        """Those on which somebody was trained."""
        return [task for task in TASKS if task.suite == self.suite and (self.rows["task"] == task.env_id).any()]

    def returns(self, name: str, task: Task) -> np.ndarray:
        """On the test levels, where there are any; in the order of seeds."""
        rows = self.rows[(self.rows["contestant"] == name) & (self.rows["task"] == task.env_id)].sort_values("seed")
        return rows["test_return" if task.is_tested else "train_return"].to_numpy(float)

    def tested(self) -> str:
        """A sentence on the episodes of the tests; nothing where there were none."""
        n_episodes = sorted(self.rows["test_episodes"].dropna().unique())
        return f" On all levels: means of {' or '.join(f'{n:,.0f}' for n in n_episodes)} episodes." if n_episodes else ""

    def curves_of(self, name: str, task: Task) -> pd.DataFrame:
        """Of all seeds."""
        return self.curves[(self.curves["task"] == task.env_id) & (self.curves["contestant"] == name)]

    def returns_by_step(self, name: str, task: Task) -> pd.DataFrame:
        """Along its curves, (n_points, n_seeds)."""
        return self.curves_of(name, task).pivot(index="steps", columns="seed", values="return")

    def seconds(self, name: str, task: Task) -> "pd.Series[float]":
        """At each point of its curve: as measured in turns, or, where this was not done, the mean of the trainings."""
        taken = self.curves_of(name, task).groupby("steps")["seconds"].mean()
        in_turns = self.speed[(self.speed["task"] == task.env_id) & (self.speed["contestant"] == name)]["seconds"]
        return taken if in_turns.empty else pd.Series(taken.index * in_turns.median() / 1e6, taken.index)

    def in_time_of_baseline(self) -> Scores:
        """The scores of the leading when the baseline's trainings end, by their curves."""
        scores = {}
        for name in LEADING:
            columns = []
            for task in self.tasks:
                end, seconds = self.seconds(BASELINE, task).iloc[-1], self.seconds(name, task)
                curves = self.returns_by_step(name, task).T.to_numpy()
                columns.append(task.scores(np.array([np.interp(end, seconds, curve) for curve in curves])))
            scores[name] = np.stack(columns, axis=1)
        return scores

    def times(self) -> str:
        """On PPG's time and that of the baseline, where both were trained and measured on all tasks; else nothing."""
        own = self.speed[self.speed["task"].isin([task.env_id for task in self.tasks])]
        if own["task"].nunique() < len(self.tasks) or not LEADING.keys() <= self.scores().keys():
            return ""
        sums = own.groupby(["contestant", "task"])["seconds"].median().groupby("contestant").sum()
        scores = self.in_time_of_baseline()
        means, better = interquartile_means(scores), improvements(scores, scores[BASELINE])
        return (
            f" PPG takes {sums['PPG'] / sums[BASELINE]:.2f} times {BASELINE}'s time, in turns on {own['machine'].iloc[0]}. "
            f"When {BASELINE}'s trainings end, PPG's score by the curves is {means['PPG']}, {BASELINE}'s {means[BASELINE]}; "
            f"the former is higher with probability {better['PPG']}."
        )

    def steps_per_second(self, name: str) -> float:
        """Of the trainings, over as many steps of each task."""
        seconds = self.rows[self.rows["contestant"] == name].groupby("task")["seconds"].mean()
        return self.n_timesteps * len(seconds) / seconds.sum()

    def scores(self) -> Scores:
        """Of those who were trained on all tasks of the suite; of the seeds that all of these have."""
        scores = {}
        for name in self.rows["contestant"].unique():
            columns = [task.scores(self.returns(name, task)) for task in self.tasks]
            n_seeds = min(map(len, columns))
            if n_seeds > 0:
                scores[name] = np.stack([column[:n_seeds] for column in columns], axis=1)
        return scores


def names_of(settings: Iterable[str], n_timesteps: int) -> dict[str, str]:
    """
    :param settings: hashes of rows
    :param n_timesteps: of their trainings
    :return: hashes with the contestants that have these settings now; where several have the same, the first
    """
    wanted = set(settings)
    present = [(Training(task, name, 0, n_timesteps).hash(), name) for task in TASKS for name in contestants_on(task)]
    return {key: name for key, name in reversed(present) if key in wanted}


def comparisons(results: Results) -> list[Comparison]:
    """Of what was run with the settings that the contestants have now, by suite and length."""
    all_rows, all_curves = results.rows(), results.curves()
    found = []
    for (suite, n_timesteps), rows in all_rows.groupby(["suite", "steps"]):
        names = pd.DataFrame(names_of(rows["settings"], int(n_timesteps)).items(), columns=["settings", "contestant"])
        rows = rows.drop(columns="contestant").merge(names, on="settings")
        curves = all_curves.merge(rows[["settings", "seed", "task", "contestant"]], on=["settings", "seed"])
        if len(rows) > 0:
            found.append(Comparison(suite, n_timesteps, rows, curves, results.speed()))
    return found


def markdown(found: list[Comparison]) -> str:
    """The tables."""
    lines = [
        "# PPG beside PPO",
        "",
        "`python -m benchmarks.suites run`, then `report`; one thread per training, whose seconds are those of the processor; "
        "where a suite was trained on several machines, compare them only as measured in turns (`speed`). "
        "Per seed the mean return of the last 100 episodes of the training, or, where it was on some levels only, of episodes "
        "on all levels. Scores are 0 at what random actions return and 1 at the return in brackets, of as many "
        "seeds as each task has; their interquartile mean over seeds and tasks and the probability that a training is better "
        f"than one of {BASELINE}, with 95 % stratified bootstrap intervals (rliable) from {MIN_SEEDS} seeds on. All settings: "
        "suites_settings.yml.",
    ]
    for comparison in found:
        tasks, scores = comparison.tasks, comparison.scores()
        means = interquartile_means(scores)
        others = {name: own for name, own in scores.items() if name != BASELINE}
        better = improvements(others, scores[BASELINE]) if BASELINE in scores else {}
        titles = [f"{task.env_id} [{task.high:g}]" for task in tasks]
        lines += ["", f"## {comparison.suite}, {comparison.n_timesteps:,} steps", ""]
        lines += [f"{' and '.join(comparison.rows['machine'].unique())}.{comparison.tested()}{comparison.times()}", ""]
        lines += [f"| | {' | '.join(titles)} | score | better than {BASELINE} | steps/s |", "|---" * (len(tasks) + 4) + "|"]
        for name in sorted(comparison.rows["contestant"].unique(), key=list(CONTESTANTS).index):
            returns = [", ".join(task.shown(value) for value in comparison.returns(name, task)) for task in tasks]
            summary = [str(table.get(name, "")) for table in (means, better)]
            lines.append(f"| {' | '.join([name, *returns, *summary, f'{comparison.steps_per_second(name):,.0f}'])} |")
    return "\n".join(lines) + "\n"


def draw_seeds(axes: Axes, values: pd.DataFrame, label: str, color: str) -> None:
    """
    The mean of a contestant's seeds, and their range.

    :param axes: where
    :param values: (n_points, n_seeds), against its index
    :param label: the contestant's name
    :param color: its color
    """
    axes.plot(values.index, values.mean(axis=1), label=label, color=color)
    axes.fill_between(values.index, values.min(axis=1), values.max(axis=1), alpha=0.2, color=color)


def draw_scores(axes: Axes, scores: Scores) -> None:
    """Interquartile means, with their intervals where there are enough seeds for them; the best on top."""
    means = sorted(interquartile_means(scores).items(), key=lambda item: item[1].value)
    for position, (name, estimate) in enumerate(means):
        axes.plot([estimate.low, estimate.high], [position] * 2, color="tab:gray")
        axes.plot(estimate.value, position, "o", color=COLORS.get(name, "tab:gray"))
    axes.set_yticks(range(len(means)), [name for name, _ in means])
    axes.set(xlabel="score: interquartile mean, 95 % interval")
    axes.grid(alpha=0.3)


def plot(comparison: Comparison, picture: Path) -> None:
    """Curves of the leading contestants against steps and against seconds, and the scores of all."""
    tasks = comparison.tasks
    figure = plt.figure(figsize=(4 * len(tasks) + 6, 8), layout="constrained")
    grid = figure.add_gridspec(2, len(tasks) + 1, width_ratios=[4] * len(tasks) + [6])
    for row, against in enumerate(("steps", "seconds")):
        for column, task in enumerate(tasks):
            axes = figure.add_subplot(grid[row, column])
            for name in LEADING:
                values = comparison.returns_by_step(name, task)
                if len(values) > 0:
                    if against == "seconds":
                        values = values.set_axis(comparison.seconds(name, task))
                    draw_seeds(axes, values, name, COLORS[name])
            axes.set(title=task.env_id + (", with LSTMs" if task.recurrent else ""), ylabel="return")
            axes.set(xlabel="environment steps" if against == "steps" else "seconds of one core")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.grid(alpha=0.3)
            if axes.has_data():
                axes.legend(loc="upper left")
    draw_scores(figure.add_subplot(grid[:, len(tasks)]), comparison.scores())
    figure.savefig(picture, dpi=90)
    plt.close(figure)


def late_returns(found: list[Comparison]) -> pd.DataFrame:
    """
    :param found: of all suites
    :return: mean return of the last fifth of the first million steps, by contestant, task and seed; of several trainings of
        one seed, which are the same until the shortest ends, that of the shortest
    """
    parts = []
    for comparison in found:
        names = [*LEADING, *ABLATIONS] if comparison.n_timesteps == END else PASSING
        if comparison.n_timesteps >= END:
            own = comparison.curves[comparison.curves["contestant"].isin(names)]
            parts.append(own.assign(length=comparison.n_timesteps))
    columns = ["contestant", "task", "seed"]
    curves = pd.concat(parts) if parts else pd.DataFrame(columns=[*columns, "length", "steps", "return"])
    late = curves[(curves["steps"] > LATE) & (curves["steps"] <= END) & curves["task"].isin(ABLATED_IDS)]
    means = late.groupby([*columns, "length"], as_index=False)["return"].mean()  # by length, too: the shortest comes first
    return means.drop_duplicates(columns).drop(columns="length")


def plot_ablation(returns: pd.DataFrame, picture: Path) -> None:
    """
    One point per seed; the ranges of the seeds of what is changed are shaded.

    :param returns: of all who were trained
    :param picture: to write
    """
    known = set(returns["contestant"])
    names = [name for name in LEADING | ABLATIONS if name in known][::-1]
    figure, panels = plt.subplots(
        1, len(ABLATED_IDS), figsize=(12, 1.2 + 0.22 * len(names)), sharey=True, layout="constrained"
    )
    for axes, env_id in zip(panels, ABLATED_IDS, strict=True):
        table = returns[returns["task"] == env_id]
        for name, color in COLORS.items():
            changed = BEFORE[name] if (table["contestant"] == BEFORE[name]).any() else name
            seeds = table.loc[table["contestant"] == changed, "return"]
            axes.axvspan(seeds.min(), seeds.max(), color=color, alpha=0.1)
            axes.axvline(seeds.mean(), color=color, alpha=0.5)
        for position, name in enumerate(names):
            seeds = table.loc[table["contestant"] == name, "return"]
            axes.plot(seeds, [position] * len(seeds), "o", markersize=4, color=COLORS[name[:3]])
        axes.set(
            title=env_id, xlabel="return, 0.8M to 1M steps", yticks=range(len(names)), yticklabels=names, ylim=(-1, len(names))
        )
        axes.grid(alpha=0.3)
    title = f"A point per seed. Shaded: the seeds of what is changed, on MinAtar {', '.join(BEFORE.values())}; their means"
    figure.suptitle(title, fontsize="medium")
    figure.savefig(picture, dpi=100)
    plt.close(figure)


def report(results: Results) -> str:
    """
    Write the tables and the pictures.

    :param results: of which
    :return: the tables
    """
    found = comparisons(results)
    text = markdown(found)
    (results.folder / "suites.md").write_text(text)
    for comparison in found:
        if LEADING.keys() <= set(comparison.curves["contestant"]):
            plot(comparison, results.folder / f"suites_{comparison.suite}_{comparison.n_timesteps // 1000}k.png")
    returns = late_returns(found)
    if len(returns) > 0:
        plot_ablation(returns, results.folder / "suites_ablation.png")
    return text
