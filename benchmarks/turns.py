"""Times of several contestants, measured in turns on one machine, so that what it does meanwhile falls on all of them."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

import pandas as pd
import torch as th
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from sb3_ppg import PPG

Measure = Callable[[], dict[str, float]]
Contestants = dict[str, tuple[Callable[..., Measure], tuple]]  # by name, what makes a measurement, and its arguments

_prepared: list[Measure] = []  # the measurement of the contestant whose process this is


def _prepare(make: Callable[..., Measure], arguments: tuple, n_threads: int, warm_up: bool) -> None:
    th.set_num_threads(n_threads)
    _prepared.append(make(*arguments))
    if warm_up:
        _measure()


def _measure() -> dict[str, float]:
    return _prepared[0]()


def take_turns(contestants: Contestants, n_threads: int = 1, n_turns: int = 5, warm_up: bool = True) -> pd.DataFrame:
    """
    Measure each contestant in a process of its own.

    :param n_threads: number of torch's threads
    :param warm_up: whether each measures once in vain first; where a measurement takes a minute, the median does as well
    :return: a row per turn and contestant, with what it measured
    """
    with ExitStack() as stack:
        processes = {}
        for name, contestant in contestants.items():
            spawn = multiprocessing.get_context("spawn")
            processes[name] = stack.enter_context(ProcessPoolExecutor(1, mp_context=spawn))
            processes[name].submit(_prepare, *contestant, n_threads, warm_up).result()
        rows = []
        for turn in range(n_turns):
            for name, process in processes.items():
                rows.append({"contestant": name, "turn": turn, **process.submit(_measure).result()})
                print(rows[-1], flush=True)
    return pd.DataFrame(rows)


def medians(contestants: Contestants, **options: Any) -> pd.DataFrame:
    """Return the medians over all turns, a row per contestant; the options are those of ``take_turns``."""
    return take_turns(contestants, **options).drop(columns="turn").groupby("contestant", sort=False).median()


def seconds(function: Callable[[], Any], times: int = 1) -> float:
    """Return the median time that a call takes."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def whole_phases(model: OnPolicyAlgorithm, n_rollouts: int = 1) -> Measure:
    """
    Measure seconds of the processor per million steps.

    :param n_rollouts: number of PPO's rollouts; PPG's are those of a phase
    """
    n_steps = model.n_steps * model.n_envs * (model.n_policy_iterations if isinstance(model, PPG) else n_rollouts)

    def measure() -> dict[str, float]:
        start = time.process_time()
        model.learn(n_steps, reset_num_timesteps=False)
        return {"seconds": (time.process_time() - start) / n_steps * 1e6}

    return measure


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
