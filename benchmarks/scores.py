"""Tasks, and the scores of runs in them."""

from typing import NamedTuple

import numpy as np
from typing_extensions import override

from sb3_ppg.comparison import scores


class Improvement(scores.Estimate):
    """A probability of improvement, whose text says so if its interval does not tell the contestants apart."""

    @override
    def __format__(self, spec: str) -> str:
        is_apart = not round(self.low, 2) <= 0.5 <= round(self.high, 2)  # also if there is no interval
        return super().__format__(spec) + ("" if is_apart else ", not apart")


def improvements(own: scores.Scores, baseline: np.ndarray) -> dict[str, Improvement]:
    """Return the probability that a run has a higher score than one of the baseline's, mean over tasks; ties are halves."""
    return {name: Improvement(*estimate) for name, estimate in scores.improvements(own, baseline).items()}


class Task(NamedTuple):
    """
    An environment that is learned.

    :param env_id: its name in RL Zoo
    :param n_timesteps: length of a run
    :param low: the return whose score is 0: what random actions reach
    :param high: the return whose score is 1
    """

    env_id: str
    n_timesteps: int
    low: float
    high: float

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """Return 0 where a return is ``low``, 1 where it is ``high``."""
        return (returns - self.low) / (self.high - self.low)
