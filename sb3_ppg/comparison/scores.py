"""Scores of runs: interquartile means, probabilities of improvement, and what these can tell apart."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from rliable.library import get_interval_estimates
from rliable.metrics import aggregate_iqm
from scipy.stats import mannwhitneyu, norm
from typing_extensions import override

from sb3_ppg.saving.training_state import generators_kept

BOOTSTRAPS = 1000
MIN_SEEDS = 4  # for an interval: of three runs, the interquartile mean is the mean
MAX_SEEDS = 100  # above, the number of seeds that would be enough is not given
Scores = dict[str, np.ndarray]  # by contestant, (n_seeds, n_tasks)


class Estimate(NamedTuple):
    """A number and its 95 % interval, which is NaN where there are too few seeds for one."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @override
    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        interval = "" if math.isnan(self.low) else f" ({self.low:{spec}} to {self.high:{spec}})"
        return f"{self.value:{spec}}{interval}"

    @override
    def __str__(self) -> str:
        return format(self)


def estimates(scores: Mapping[str, Any], statistic: Callable, min_seeds: int = MIN_SEEDS) -> dict[str, Estimate]:
    """
    Estimate a statistic with 95 % stratified bootstrap intervals: seeds are drawn within each task.

    :param scores: each contestant's scores, or pairs of scores
    :param min_seeds: seeds from which on there is an interval
    """
    with generators_kept():  # rliable draws with the global one
        np.random.seed(0)
        values, intervals = get_interval_estimates(scores, lambda *x: np.array([statistic(*x)]), reps=BOOTSTRAPS)
    n_seeds = {name: min(map(len, own)) if isinstance(own, tuple) else len(own) for name, own in scores.items()}
    return {name: Estimate(values[name][0], *(intervals[name][:, 0] if n_seeds[name] >= min_seeds else ())) for name in scores}


def interquartile_means(scores: Scores, min_seeds: int = MIN_SEEDS) -> dict[str, Estimate]:
    """Return the mean of the middle half of each contestant's scores."""
    return estimates(scores, aggregate_iqm, min_seeds)


def improvements(scores: Scores, baseline: np.ndarray, min_seeds: int = MIN_SEEDS) -> dict[str, Estimate]:
    """Return the probability that a run has a higher score than one of the baseline's, mean over tasks; ties are halves."""
    pairs = {name: (own, baseline) for name, own in scores.items()}
    # rliable's function is slow, as it computes p-values, too
    return estimates(pairs, lambda own, other: (np.sign(own[:, None] - other).mean() + 1) / 2, min_seeds)


def is_told_apart(estimate: Estimate, own: np.ndarray, other: np.ndarray) -> bool:
    """
    Return whether runs of two contestants are different, on which two criteria must agree: the interval of the probability of
    improvement excludes 1/2, and the test of Mann and Whitney is significant at 5 %. If equal contestants have four to seven
    seeds, the interval alone excludes 1/2 in 8 or 9 of 100 comparisons.

    :param own: scores of one contestant's runs
    :param other: scores of the other contestant's runs
    """
    is_apart = estimate.low > 0.5 or estimate.high < 0.5  # False if there is no interval
    return is_apart and bool(mannwhitneyu(own, other).pvalue < 0.05)


def seeds_needed(probability: float) -> float:
    """
    Return the number of seeds of each contestant with which a test at 5 % tells them apart in 80 of 100 comparisons (Noether
    1987, for equally many seeds).

    :param probability: the true probability of improvement
    """
    quantiles = norm.ppf(0.975) + norm.ppf(0.8)
    return math.inf if probability == 0.5 else math.ceil(quantiles**2 / (6 * (probability - 0.5) ** 2))
