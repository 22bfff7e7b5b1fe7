"""Tasks, and the scores of runs in them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

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
