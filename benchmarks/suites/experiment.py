"""The runs that are wanted, what a step costs, and the tables and pictures of their rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.episodes import curve, evaluation
from benchmarks.harness import RESULTS, Experiment, Outcome, Report, machines
from benchmarks.scores import Task, improvements
from benchmarks.suites.contestants import CONTESTANTS, LEADING, TASKS, Training, contestants_on
from sb3_ppg.comparison.report import draw_seeds, finish, page, table
from sb3_ppg.comparison.scores import MIN_SEEDS, Scores, interquartile_means

BASELINE = "PPO"
LAST_EPISODES = 100
UNEQUAL = {  # by suite, what else differs between PPG and the baseline
    "atari": "The search that chose both settings has no rows.",
    "lunarlander": f"{BASELINE} has RL Zoo's settings, PPG this project's: not a comparison of algorithms.",
    "mujoco": f"Not equal settings: {BASELINE} has RL Zoo's, in Hopper with a discount of 0.999 and two layers of 256 units; "
    "PPG this project's, in Hopper and Walker2d with 0.99 and two layers of 64.",
    "procgen": f"Not equal settings: PPG has bfloat16 unless said, and the best of seven; {BASELINE} float32, and no search.",
}
TEST_EPISODES = 2000  # StarPilot's returns scatter as much as their mean, 5: known to 0.1 (by 200 episodes to 0.35)
SPEED = "suites_speed.csv"
LONGEST = 1_000_000  # steps of all but the leading contestants


def wanted() -> list[Training]:
    """Return all runs: the leading contestants first, then the others for at most a million steps; the first seeds first."""
    runs = [
        Training(task, name, seed, task.n_timesteps if name in LEADING else min(task.n_timesteps, LONGEST))
        for name in CONTESTANTS
        for task in TASKS
        for seed in range(task.n_seeds)
        if name in contestants_on(task)
    ]
    return sorted(runs, key=lambda run: (run.contestant not in LEADING, run.seed))


def train(run: Training, folder: Path) -> Outcome:
    """Train and evaluate one agent."""
    is_tested = run.task.is_tested  # on all levels, with actions drawn as in training
    test = ["--eval-freq", str(run.n_timesteps), "--eval-episodes", str(TEST_EPISODES), "--n-eval-envs", "50"]
    done = run.trained(folder, *(test if is_tested else []))
    episodes, points = done.rows(), curve(done, LAST_EPISODES)
    steps, seconds = points[["steps", "seconds"]].iloc[-1]
    row = dict(
        train_return=round(float(episodes["return"].tail(LAST_EPISODES).mean()), 3),
        test_return=evaluation(done) if is_tested else None,
        seconds=round(seconds),
        steps_per_second=round(steps / seconds),
        test_episodes=TEST_EPISODES if is_tested else None,
    )
    return row, points


def scores_of(returns: Mapping[str, Mapping[str, np.ndarray]], tasks: Sequence[Task]) -> Scores:
    """
    Return the scores of those who were trained on all of these tasks, of the seeds that all tasks have.

    :param returns: returns by contestant and environment, in the order of seeds
    """
    found = {}
    for name, own in returns.items():
        n_seeds = min(len(own[task.env_id]) for task in tasks)
        if n_seeds > 0:
            found[name] = np.stack([task.scores(own[task.env_id][:n_seeds]) for task in tasks], axis=1)
    return found


class Comparison(NamedTuple):
    """
    All runs of a suite with the present settings and of one length.

    :param n_timesteps: their length
    :param tasks: the tasks on which somebody was trained
    :param curves: curves of the same runs as the rows
    :param speed: seconds per million steps, measured in turns; may be of other tasks, too, or of none
    """

    suite: str
    n_timesteps: int
    tasks: list[Task]
    rows: pd.DataFrame
    curves: pd.DataFrame
    speed: pd.DataFrame

    def returns(self) -> dict[str, dict[str, np.ndarray]]:
        """Return the returns of all contestants, on the test levels where there are any."""
        rows, found = self.rows.sort_values("seed"), {}
        for name in self.rows["contestant"].unique():
            own = rows[rows["contestant"] == name].set_index("task")
            columns = {task.env_id: "test_return" if task.is_tested else "train_return" for task in self.tasks}
            found[name] = {env_id: own.loc[own.index == env_id, column].to_numpy(float) for env_id, column in columns.items()}
        return found

    def scores(self) -> Scores:
        """Return the scores of those who were trained on all tasks of the suite."""
        return scores_of(self.returns(), self.tasks)

    def curves_of(self, name: str, task: Task, values: str = "return") -> pd.DataFrame:
        """Return the curves of all seeds, (n_points, n_seeds), by steps."""
        own = self.curves[(self.curves["task"] == task.env_id) & (self.curves["contestant"] == name)]
        return own.pivot(index="steps", columns="seed", values=values)

    def seconds(self, name: str, task: Task) -> "pd.Series[float]":
        """Return the seconds at each point of a curve: measured in turns, or else the mean of the runs."""
        taken = self.curves_of(name, task, "seconds").mean(axis=1)
        in_turns = self.speed[(self.speed["task"] == task.env_id) & (self.speed["contestant"] == name)]["seconds"]
        return taken if in_turns.empty else pd.Series(taken.index * in_turns.median() / 1e6, taken.index)

    def in_time_of_baseline(self) -> Scores:
        """Return the scores of the leading contestants when the baseline's runs end, by their curves."""

        def at_the_end(name: str, task: Task) -> np.ndarray:
            end, seconds = self.seconds(BASELINE, task).iloc[-1], self.seconds(name, task)
            return np.array([np.interp(end, seconds, curve) for curve in self.curves_of(name, task).T.to_numpy()])

        return scores_of({name: {task.env_id: at_the_end(name, task) for task in self.tasks} for name in LEADING}, self.tasks)

    def times(self) -> str:
        """Compare PPG's time and the baseline's, where both were trained and measured on all tasks."""
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

    def section(self) -> list[str]:
        """Return the paragraphs of the suite."""
        n_episodes = sorted(self.rows["test_episodes"].dropna().unique())
        tested = f" On all levels: means of {' or '.join(f'{n:,.0f}' for n in n_episodes)} episodes." if n_episodes else ""
        scores, returns, rows = self.scores(), self.returns(), []
        means = interquartile_means(scores)
        others = {name: own for name, own in scores.items() if name != BASELINE}
        better = improvements(others, scores[BASELINE]) if BASELINE in scores else {}
        for name in sorted(returns, key=list(CONTESTANTS).index):
            digits = [(task, 2 if task.high <= 1 else 1) for task in self.tasks]
            seeds = [", ".join(f"{value:.{n}f}" for value in returns[name][task.env_id]) for task, n in digits]
            taken = self.rows[self.rows["contestant"] == name].groupby("task")["seconds"].mean()
            speed = f"{self.n_timesteps * len(taken) / taken.sum():,.0f}"
            rows.append([name, *seeds, means.get(name, ""), better.get(name, ""), speed])
        titles = [f"{task.env_id} [{task.high:g}]" for task in self.tasks]
        return [
            f"## {self.suite}, {self.n_timesteps:,} steps",
            " ".join(filter(None, [f"{machines(self.rows)}{tested}{self.times()}", UNEQUAL.get(self.suite)])),
            table(["", *titles, "score", f"better than {BASELINE}", "steps/s"], rows),
        ]

    def mean_curves(self, name: str, tasks: Sequence[Task], as_scores: bool) -> tuple[pd.DataFrame, np.ndarray]:
        """Return a contestant's mean over tasks, (n_points, n_seeds) by steps, and the mean of the seconds at each point."""
        curves = [self.curves_of(name, task) for task in tasks]
        values = [own.apply(task.scores) if as_scores else own for task, own in zip(tasks, curves, strict=True)]
        return sum(values[1:], values[0]) / len(values), np.mean([self.seconds(name, task) for task in tasks], axis=0)

    def draw(self, axes: Sequence[Axes], tasks: Sequence[Task], title: str, ylabel: str, as_scores: bool) -> None:
        """Draw the leading contestants' means over tasks, against environment steps and against the mean of their seconds."""
        colors = {"PPO": "tab:red", "PPG": "tab:blue"}
        for name in LEADING:
            mean, seconds = self.mean_curves(name, tasks, as_scores)
            if len(mean) > 0:
                draw_seeds(axes[0], mean, name, colors[name])
                draw_seeds(axes[1], mean.set_axis(seconds), name, colors[name])
        for panel, against in zip(axes, ("environment steps", "seconds of one core"), strict=True):
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            finish(panel, title, against, ylabel, legend="upper left")

    def picture(self) -> Figure:
        """Draw the mean score of the suite's tasks in two panels, against steps and against seconds."""
        figure = Figure(figsize=(9, 3.5), dpi=100, layout="constrained")
        self.draw(figure.subplots(1, 2, sharey=True), self.tasks, "", "mean score", as_scores=True)
        figure.suptitle(", ".join(task.env_id for task in self.tasks), fontsize="medium")
        return figure

    def picture_of_tasks(self) -> Figure:
        """Draw returns, with a row of two panels for each task."""
        figure = Figure(figsize=(9, 3 * len(self.tasks)), dpi=100, layout="constrained")
        for axes, task in zip(figure.subplots(len(self.tasks), 2, sharey="row", squeeze=False), self.tasks, strict=True):
            title = task.env_id + (", with LSTMs" if task.recurrent else "")
            self.draw(axes, [task], title, "return", as_scores=False)
        return figure


def comparisons(experiment: Experiment) -> list[Comparison]:
    """
    Return the runs with the settings that the contestants have now, by suite and length. Where several contestants have the
    same settings, the first gives its name.
    """
    all_curves, found = experiment.curves(), []
    for (suite, n_timesteps), rows in experiment.rows(present=False).groupby(["suite", "steps"]):
        present = [(Training(task, name, 0, int(n_timesteps)), name) for task in TASKS for name in contestants_on(task)]
        names = pd.DataFrame({"settings": [run.hash() for run, _ in present], "contestant": [name for _, name in present]})
        rows = rows.drop(columns="contestant").merge(names.drop_duplicates("settings"), on="settings")
        curves = all_curves.merge(rows[["settings", "seed", "task", "contestant"]], on=["settings", "seed"])
        if len(rows) > 0:
            tasks = [task for task in TASKS if task.suite == suite and (rows["task"] == task.env_id).any()]
            found.append(Comparison(suite, n_timesteps, tasks, rows, curves, pd.read_csv(RESULTS / SPEED)))
    return found


def report(experiment: Experiment) -> Report:
    found = comparisons(experiment)
    text = page(
        "PPG and PPO",
        "`python -m benchmarks.suites run`, then `report`. One thread per training; seconds are those of the processor. Where "
        "a suite was trained on several machines, compare its times only as measured in turns (`speed`). Returns are, for "
        "each seed, the mean of the last 100 episodes of the training or, where it had some levels only, of episodes on all "
        "levels. A score is 0 at the return of random actions and 1 at the return in brackets. The table has the "
        "interquartile mean over the seeds that all tasks have and over tasks, and the probability that a training is "
        f"better than one of {BASELINE}, with 95 % stratified bootstrap intervals (rliable) from {MIN_SEEDS} seeds on. "
        "All settings: suites_settings.yml.",
        *(paragraph for comparison in found for paragraph in comparison.section()),
    )
    known = yaml.safe_load((RESULTS / "suites_settings.yml").read_text())
    settings = {run.hash(): run.settings() for run in wanted()}
    settings = {key: settings[key] for key in experiment.rows()["settings"]} | known
    return {"suites_settings.yml": yaml.safe_dump(settings), "suites.md": text}


SUITES = Experiment("suites", wanted, train, report, columns=Training.columns, identity=("settings", "seed"))
