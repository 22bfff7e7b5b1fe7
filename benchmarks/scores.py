"""Scores of trainings: interquartile means with intervals, probabilities of improvement."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from rliable.library import get_interval_estimates
from rliable.metrics import aggregate_iqm, probability_of_improvement

from benchmarks.tables import COLORS, finish, listed, table

BOOTSTRAPS = 1000
MIN_SEEDS = 3  # for an interval
Scores = dict[str, np.ndarray]  # by contestant, (n_seeds, n_tasks)
Returns = Mapping[str, Mapping[str, np.ndarray]]  # by contestant and environment, in the order of seeds


class Task(NamedTuple):
    """
    An environment that is learned.

    :param env_id: its name in RL Zoo
    :param n_timesteps: of a training
    :param low: the return whose score is 0: what random actions reach
    :param high: the return whose score is 1
    :param suite: the tasks whose scores are put together
    :param n_seeds: trainings have seeds 0, 1, ...
    :param env_kwargs: of the training's environments
    :param changes: to the hyperparameters of all contestants
    :param ppg: to the hyperparameters of PPG and its relatives
    :param is_tested: whether the agent is then evaluated on all levels
    :param recurrent: whether the networks have memory
    """

    env_id: str
    n_timesteps: int
    low: float
    high: float
    suite: str = ""
    n_seeds: int = 3
    env_kwargs: dict[str, Any] | None = None
    changes: Mapping[str, Any] = {}
    ppg: Mapping[str, Any] = {}
    is_tested: bool = False
    recurrent: bool = False

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """Return 0 where a return is ``low``, 1 where it is ``high``."""
        return (returns - self.low) / (self.high - self.low)


class Estimate(NamedTuple):
    """A number and its 95 % interval, which is NaN where there are too few seeds for one."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if np.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})")


def estimates(scores: Mapping, statistic: Callable[..., float], n_seeds: dict[str, int]) -> dict[str, Estimate]:
    """
    Estimate a statistic with stratified bootstrap intervals: seeds are drawn within each task.

    :param scores: of each contestant, or pairs of scores
    :param n_seeds: of each contestant
    """
    np.random.seed(0)  # rliable draws with the global generator
    values, intervals = get_interval_estimates(scores, lambda *x: np.array([statistic(*x)]), reps=BOOTSTRAPS)
    unknown = (np.nan, np.nan)
    return {
        name: Estimate(values[name][0], *(intervals[name][:, 0] if n_seeds[name] >= MIN_SEEDS else unknown)) for name in scores
    }


def interquartile_means(scores: Scores) -> dict[str, Estimate]:
    """Return the mean of the middle half of each contestant's scores."""
    return estimates(scores, aggregate_iqm, {name: len(own) for name, own in scores.items()})


def improvements(scores: Scores, baseline: np.ndarray) -> dict[str, Estimate]:
    """Return the probability that a training has a higher score than one of the baseline's, mean over tasks."""
    pairs = {name: (own, baseline) for name, own in scores.items()}
    return estimates(pairs, probability_of_improvement, {name: min(map(len, pair)) for name, pair in pairs.items()})


def scores_of(returns: Returns, tasks: Sequence[Task]) -> Scores:
    """Return the scores of those who were trained on all of these tasks, of the seeds that all tasks have."""
    found = {}
    for name, own in returns.items():
        n_seeds = min((len(own[task.env_id]) for task in tasks), default=0)
        if n_seeds > 0:
            found[name] = np.stack([task.scores(own[task.env_id][:n_seeds]) for task in tasks], axis=1)
    return found


def score_table(
    returns: Returns,
    tasks: Mapping[str, Task],
    scores: Scores,
    baseline: str,
    further: Mapping[str, Callable[[str], str]],
) -> str:
    """
    Return a table of returns and scores.

    :param tasks: by the titles of their columns
    :param baseline: the contestant with whom the others are compared
    :param further: columns, by title, from a contestant's name
    """
    means = interquartile_means(scores)
    others = {name: own for name, own in scores.items() if name != baseline}
    better = improvements(others, scores[baseline]) if baseline in scores else {}
    rows = []
    for name, own in returns.items():
        seeds = [listed(own[task.env_id], 2 if task.high <= 1 else 1) for task in tasks.values()]
        rows.append([name, *seeds, means.get(name, ""), better.get(name, ""), *(cell(name) for cell in further.values())])
    return table(["", *tasks, "score", f"better than {baseline}", *further], rows)


def draw_scores(axes: Axes, scores: Scores) -> None:
    """Draw interquartile means, with their intervals where there are enough seeds for them; the best on top."""
    means = sorted(interquartile_means(scores).items(), key=lambda item: item[1].value)
    for position, (name, estimate) in enumerate(means):
        axes.plot([estimate.low, estimate.high], [position] * 2, color="tab:gray")
        axes.plot(estimate.value, position, "o", color=COLORS.get(name, "tab:gray"))
    axes.set_yticks(range(len(means)), [name for name, _ in means])
    finish(axes, "", "score: interquartile mean, 95 % interval", "")
