"""Scores of runs: interquartile means, probabilities of improvement, and what these can tell apart."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rliable.library import get_interval_estimates
from scipy.stats import norm
from typing_extensions import override

from sb3_ppg.saving.training_state import generators_kept

BOOTSTRAPS = 1000
MIN_SEEDS = 5  # for an interval: fewer runs have too few different resamples
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


def estimates(scores: Mapping[str, Any], statistic: Callable) -> dict[str, Estimate]:
    """
    Estimate a statistic with 95 % stratified bootstrap intervals: seeds are drawn within each task.

    :param scores: each contestant's scores, (n_seeds, n_tasks), or pairs of scores
    """
    with generators_kept():  # rliable draws with the global one
        np.random.seed(0)
        values, intervals = get_interval_estimates(scores, lambda *x: np.array([statistic(*x)]), reps=BOOTSTRAPS)
    n_seeds = {name: min(map(len, own)) if isinstance(own, tuple) else len(own) for name, own in scores.items()}
    return {name: Estimate(values[name][0], *(intervals[name][:, 0] if n_seeds[name] >= MIN_SEEDS else ())) for name in scores}


def interquartile_means(scores: Scores) -> dict[str, Estimate]:
    """Return the mean of the middle half of each contestant's scores."""

    def interquartile_mean(own: np.ndarray) -> np.floating:  # rliable's is slow
        cut, end = own.size // 4, own.size - own.size // 4
        return np.partition(own, (cut, end - 1), axis=None)[cut:end].mean()

    return estimates(scores, interquartile_mean)


def improvements(scores: Scores, baseline: np.ndarray) -> dict[str, Estimate]:
    """Return the probability that a run has a higher score than one of the baseline's, mean over tasks; ties are halves."""
    pairs = {name: (own, baseline) for name, own in scores.items()}
    # rliable's function is slow, as it computes p-values, too
    return estimates(pairs, lambda own, other: (np.sign(own[:, None] - other).mean() + 1) / 2)


def rank_test(own: np.ndarray, other: np.ndarray) -> float:
    """
    Return the two-sided p-value of Mann and Whitney's test, which is exact, also where returns are equal.

    :param own: returns of one contestant's runs, (n_seeds,)
    :param other: returns of another contestant's runs, (n_others,)
    """
    both = np.concatenate([own, other])
    ranks = (both[:, None] > both).sum(axis=1) + (both[:, None] >= both).sum(axis=1)  # twice the ranks, which may be halves
    ways = np.zeros((len(own) + 1, ranks.sum() + 1))  # to choose so many runs with this sum of ranks
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    distances = np.abs(np.arange(ways.shape[1]) - len(own) * ranks.mean())  # from the mean of that sum
    return float(ways[-1, distances >= distances[ranks[: len(own)].sum()] - 1e-6].sum() / ways[-1].sum())


def corrected_p_values(pairs: Iterable[Sequence[np.ndarray]]) -> list[float]:
    """
    Return the p-value of each comparison, after Holm's correction for the number of comparisons.

    :param pairs: returns of both contestants' runs, (n_seeds,)
    """
    p_values = [rank_test(own, other) for own, other in pairs]
    corrected, highest = [*p_values], 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        corrected[place] = highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
    return corrected


def error_of(look: int) -> float:
    """
    Return the p-value up to which a verdict tells contestants apart: 2.5 % for the first verdict, and half of the value before
    for each later one, with more seeds. So all verdicts together are wrong in at most 5 % of comparisons of equals.

    :param look: number of the verdict, from 1
    """
    return 0.05 / 2**look


def enough_seeds(n_comparisons: int, look: int = 1) -> int:
    """Return the smallest number of seeds, 5 or more, of which a verdict can tell all contestants apart if no runs overlap."""
    return next(n for n in itertools.count(MIN_SEEDS) if 2 / math.comb(2 * n, n) * n_comparisons <= error_of(look))


def too_few_seeds(n_seeds: int, n_comparisons: int, look: int) -> str:
    """Return a warning, with the number of seeds that would do, if so few cannot tell anything apart; else an empty text."""
    if n_seeds >= (enough := enough_seeds(n_comparisons, look)):
        return ""
    smallest, allowed = 2 / math.comb(2 * n_seeds, n_seeds), error_of(look) / n_comparisons
    return (
        f"With --seeds {n_seeds} nothing can be told apart: the smallest p of a rank test is {smallest:.3f}, and "
        f"{n_comparisons} comparisons ask for {allowed:.4f}; --seeds {enough} would do."
    )


def seeds_needed(probability: float, error: float = 0.05) -> float:
    """
    Return the number of seeds of each contestant with which a test tells them apart in 80 of 100 comparisons (Noether 1987,
    for equally many seeds).

    :param probability: the true probability of improvement
    :param error: p-value up to which the test tells apart
    """
    quantiles = norm.ppf(1 - error / 2) + norm.ppf(0.8)
    return math.inf if probability == 0.5 else math.ceil(quantiles**2 / (6 * (probability - 0.5) ** 2))
