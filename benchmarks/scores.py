"""Scores of runs: interquartile means with intervals, probabilities of improvement."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from rliable.library import get_interval_estimates
from rliable.metrics import aggregate_iqm, probability_of_improvement

BOOTSTRAPS = 1000
MIN_SEEDS = 3  # for an interval
Scores = dict[str, np.ndarray]  # by contestant, (n_seeds, n_tasks)


class Task(NamedTuple):
    """
    An environment that is learned.

    :param env_id: its name in RL Zoo
    :param n_timesteps: length of a run
    :param low: the return whose score is 0: what random actions reach
    :param high: the return whose score is 1
    :param suite: name of the tasks whose scores are put together
    :param n_seeds: runs have seeds 0, 1, ...
    :param env_kwargs: arguments of the environments in which an agent is trained
    :param changes: changes to the hyperparameters of all contestants
    :param ppg: changes to the hyperparameters of PPG and its relatives
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

    :param scores: each contestant's scores, or pairs of scores
    :param n_seeds: each contestant's number of seeds
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
    """Return the probability that a run has a higher score than one of the baseline's, mean over tasks."""
    pairs = {name: (own, baseline) for name, own in scores.items()}
    return estimates(pairs, probability_of_improvement, {name: min(map(len, pair)) for name, pair in pairs.items()})
