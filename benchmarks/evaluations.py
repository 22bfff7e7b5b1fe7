"""The measure of benchmarks: deterministic episodes at ten points of a run, the same ones for all runs."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch._dynamo.utils import calculate_time_spent
from typing_extensions import override

from benchmarks.harness import Outcome, commit
from sb3_ppg.comparison.evaluations import FIRST_SEED, N_EPISODES, N_POINTS, processor_seconds

LOGGED = ("train/approx_kl", "train/clip_fraction")  # whose means are in a row


def play(model: BaseAlgorithm, envs: list[gym.Env]) -> np.ndarray:
    """Return the returns of a deterministic episode in each environment; the first has seed ``FIRST_SEED``, and so on."""
    returns, playing = np.zeros(len(envs)), [*range(len(envs))]
    observations = [env.reset(seed=FIRST_SEED + number)[0] for number, env in enumerate(envs)]
    while playing:
        actions, _ = model.predict(np.stack([observations[number] for number in playing]), deterministic=True)
        for number, action in zip([*playing], actions, strict=True):
            observations[number], reward, terminated, truncated, _ = envs[number].step(action)
            returns[number] += float(reward)
            if terminated or truncated:
                playing.remove(number)
    return returns


class Evaluations(BaseCallback):
    """
    Evaluates a policy at ``N_POINTS`` evenly spaced points of a run, and ends the run at the last. It also collects the
    returns of the training's episodes and what the updates log.

    :param make: makes an environment as the agent sees it
    :param n_timesteps: length of the run
    """

    def __init__(self, make: Callable[[], gym.Env], n_timesteps: int) -> None:
        super().__init__()
        self.n_timesteps = n_timesteps
        self.envs = [make() for _ in range(N_EPISODES)]
        self.points: list[dict[str, float]] = []
        self.episodes: list[tuple[int, float]] = []  # steps and return
        self.logged: dict[str, list[float]] = {name: [] for name in LOGGED}
        self._seconds = -processor_seconds()  # of the run, when an evaluation begins, without earlier ones

    @override
    def _on_rollout_start(self) -> None:
        for name, values in self.logged.items():
            if name in self.logger.name_to_value:
                values.append(float(self.logger.name_to_value[name]))

    @override
    def _on_step(self) -> bool:
        self.episodes += [(self.num_timesteps, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        if self.num_timesteps * N_POINTS >= self.n_timesteps * (len(self.points) + 1):
            seconds = self._seconds + processor_seconds()
            mean = float(play(self.model, self.envs).mean())
            self.points.append({"steps": self.num_timesteps, "seconds": round(seconds, 1), "return": round(mean, 2)})
            self._seconds = seconds - processor_seconds()
        return len(self.points) < N_POINTS

    def curve(self) -> pd.DataFrame:
        """Return the points, and beside them the mean return of the training's episodes that ended since the one before."""
        points, episodes = pd.DataFrame(self.points), pd.DataFrame(self.episodes, columns=["steps", "return"])
        ended = pd.cut(episodes["steps"], [0, *points["steps"]], labels=points["steps"])
        means = episodes.groupby(ended, observed=False)["return"].mean().round(2)
        return points.assign(training_return=points["steps"].map(means).astype(float))


def learned(model: BaseAlgorithm, make: Callable[[], gym.Env], n_timesteps: int) -> Outcome:
    """Train a model; return its row and its learning curve. ``make`` makes an environment as the agent sees it."""
    evaluations = Evaluations(make, n_timesteps)
    model.learn(n_timesteps, callback=evaluations)
    curve = evaluations.curve()
    row = {
        "curve_mean": round(curve["return"].mean(), 2),
        "last_three": round(curve["return"].iloc[-3:].mean(), 2),
        "training_return": curve["training_return"].iloc[-1],
        "seconds": curve["seconds"].iloc[-1],
        "compile_seconds": round(calculate_time_spent()["total_wall_time"], 1),
        **{name.split("/")[1]: round(float(np.mean(values)), 5) for name, values in evaluations.logged.items()},
        "commit": commit(),
    }
    return row, curve


def in_own_process(train: Callable[..., Outcome], *run: Any) -> Outcome:
    """Train in a process of its own, which also compiles, so that its seconds are all."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(train, *run).result()
