"""Times of the parts of a training."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pandas as pd
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppg.comparison.workers import Measure, take_turns


def measured(contestants: dict[str, tuple[Callable[..., Measure], tuple]], **options: Any) -> pd.DataFrame:
    """Return what all turns but the first measured; the options are those of ``take_turns``."""
    turns = take_turns(contestants, **options)
    return turns[turns["turn"] > 0].dropna(axis="columns", how="all")


def medians(contestants: dict[str, tuple[Callable[..., Measure], tuple]], **options: Any) -> pd.DataFrame:
    """Return the medians over all turns, a row per contestant."""
    return measured(contestants, **options).drop(columns="turn").groupby("contestant", sort=False).median()


def seconds(function: Callable[[], Any], times: int = 1) -> float:
    """Return the median time that a call takes."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def collect(model: OnPolicyAlgorithm) -> None:
    """Collect one rollout."""
    assert model.env is not None
    callback = CallbackList([])
    callback.init_callback(model)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)


def ready(model: OnPolicyAlgorithm) -> OnPolicyAlgorithm:
    """Return the model as ``learn`` leaves it before the first rollout, without a log."""
    model.set_logger(Logger(folder=None, output_formats=[]))
    model._setup_learn(10**9)
    return model
