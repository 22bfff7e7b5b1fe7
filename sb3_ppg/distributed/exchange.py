"""What several processes tell each other after a rollout, for all to go on alike: counters, episodes, statistics."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.distributed.collectives import n_processes
from sb3_ppg.environments.watched import normalizers, statistics

Moments = tuple[np.ndarray, np.ndarray, float]  # mean, variance and count


class Report(NamedTuple):
    """
    Of one process, after a rollout.

    :param goes_on: whether its callbacks want to
    :param num_timesteps: how many it has counted
    :param episodes: that have ended, as ``Monitor`` describes them
    :param successes: of those whose environment says so
    :param moments: of what each statistics of ``VecNormalize`` has seen
    """

    goes_on: bool
    num_timesteps: int
    episodes: list[dict[str, Any]]
    successes: list[bool]
    moments: list[Moments]


class Collecting(Protocol):
    """What is asked of an algorithm that collects rollouts."""

    num_timesteps: int
    ep_info_buffer: Any
    ep_success_buffer: Any
    _stats_window_size: int

    def get_env(self) -> VecEnv | None: ...


class RolloutExchange:
    """
    Of the rollouts of a training. (A single process has nobody to tell: all stays as it is.)

    :param model: before its environments are reset, with the same statistics in all processes
    """

    def __init__(self, model: Collecting):
        self.model = model
        several = n_processes() > 1
        self.running = [rms for one in normalizers(model.get_env()) for rms in statistics(one).values()] if several else []
        self.merged = [_moments(rms) for rms in self.running]
        self.is_open = False

    def begin(self) -> None:
        """A rollout begins."""
        model = self.model
        self.is_open, self.n_timesteps_before = True, model.num_timesteps
        self.before = [list(buffer) for buffer in (model.ep_info_buffer, model.ep_success_buffer)]
        if n_processes() > 1:  # for a while without a limit, to know what is new
            model.ep_info_buffer, model.ep_success_buffer = map(deque, self.before)

    def report(self, goes_on: bool) -> Report:
        """
        :param goes_on: whether this process's callbacks want to
        """
        model = self.model
        buffers = (model.ep_info_buffer, model.ep_success_buffer)
        episodes, successes = (list(buffer)[len(old) :] for buffer, old in zip(buffers, self.before, strict=True))
        moments = [without(_moments(rms), old) for rms, old in zip(self.running, self.merged, strict=True)]
        return Report(goes_on, model.num_timesteps, episodes, successes, moments)

    def hear(self, reports: Sequence[Report]) -> bool:
        """
        :param reports: of all processes, in their order
        :return: whether all want to go on
        """
        model = self.model
        model.num_timesteps = max(report.num_timesteps for report in reports)  # one that stops has taken fewer steps
        if len(reports) > 1:
            episodes, successes = self.before
            episodes += [episode for report in reports for episode in report.episodes]
            successes += [success for report in reports for success in report.successes]
            self._set_recent_episodes(episodes, successes)
            self._merge([report.moments for report in reports])
        self.is_open = False
        return all(report.goes_on for report in reports)

    def forget(self) -> None:
        """A process has failed in a rollout: all are where they were before, with what belongs to all."""
        if self.is_open and n_processes() > 1:
            self.model.num_timesteps = self.n_timesteps_before
            self._set_recent_episodes(*self.before)
            self._merge([])

    def _set_recent_episodes(self, episodes: list[dict[str, Any]], successes: list[bool]) -> None:
        window = self.model._stats_window_size
        self.model.ep_info_buffer, self.model.ep_success_buffer = deque(episodes, window), deque(successes, window)

    def _merge(self, everyones: Sequence[list[Moments]]) -> None:
        """``VecNormalize`` has been updated by each process with its own samples: from here on with those of all."""
        for index, (rms, before) in enumerate(zip(self.running, self.merged, strict=True)):
            rms.mean, rms.var, rms.count = before
            for moments in everyones:
                mean, var, count = moments[index]
                if count > 0:
                    rms.update_from_moments(mean, var, count)
        self.merged = [_moments(rms) for rms in self.running]


def _moments(rms: RunningMeanStd) -> Moments:
    return rms.mean, rms.var, rms.count  # an update replaces them


def without(whole: Moments, part: Moments) -> Moments:
    """
    :param whole: moments of some samples
    :param part: of those that came first
    :return: of the others; the inverse of ``RunningMeanStd.update_from_moments``
    """
    (mean, var, count), (first_mean, first_var, first_count) = whole, part
    n = count - first_count
    if n <= 0:
        return mean, var, 0
    rest = mean + (mean - first_mean) * (first_count / n)
    squares = var * count - first_var * first_count - np.square(rest - first_mean) * (first_count * n / count)
    return rest, np.maximum(squares / n, 0.0), n
