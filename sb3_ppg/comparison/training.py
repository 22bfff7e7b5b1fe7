"""One training: the model and its environment, the episodes that it records, its curve, its row, and its speed."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked_policy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, sync_envs_normalization

from sb3_ppg.comparison.workers import Measure, tell
from sb3_ppg.errors import ArgumentError
from sb3_ppg.maskable import MaskablePPG

N_POINTS = 50  # of a curve


class Made(NamedTuple):
    """
    A model that is to be trained.

    :param make_evaluation_env: makes other environments of the same kind, by default one
    :param deterministic: whether it is evaluated with the most likely actions
    """

    model: BaseAlgorithm
    make_evaluation_env: Callable[..., VecEnv]
    deterministic: bool = True


Make = Callable[[int, Path], Made]  # from a seed and a folder for files
Contestant = tuple[Make, Mapping[str, Any]]  # with everything that decides what is learned, except the seed


@dataclass(frozen=True)
class FromClass:
    """Makes a model of a class: see ``compare``."""

    algorithm: type[BaseAlgorithm]
    env: Callable[[], Any]
    arguments: Mapping[str, Any]
    n_envs: int

    def __call__(self, seed: int, _: Path) -> Made:
        model = self.algorithm(**{"policy": "MlpPolicy", "seed": seed, **self.arguments, "env": self.make_env(seed)})
        return Made(model, lambda: self.make_env(seed + 1000, is_evaluation=True))

    def make_env(self, seed: int, is_evaluation: bool = False) -> VecEnv:
        made = self.env()
        if not isinstance(made, VecEnv):
            made.close()
            return make_vec_env(self.env, 1 if is_evaluation else self.n_envs, seed=seed)
        made.seed(seed)
        if is_evaluation and isinstance(made, VecNormalize):
            made.training = made.norm_reward = False
        return made


def described(value: Any) -> Any:
    """Return a value as text, numbers and dictionaries that are the same in every process."""
    if isinstance(value, Mapping):
        return {str(key): described(one) for key, one in value.items()}
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return value if isinstance(value, int | float | str | None) else re.sub(r" at 0x\w+", "", repr(value))


class Episodes(BaseCallback):
    """
    Records steps, seconds and return of each episode; in ``times``, steps and seconds at each rollout's start and at the end.

    :param clock: seconds
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.clock = clock
        self.rows: list[tuple[int, float, float]] = []
        self.times: list[tuple[int, float]] = []

    def table(self) -> pd.DataFrame:
        """Return one row per episode."""
        return pd.DataFrame(self.rows, columns=["steps", "seconds", "return"])

    def _on_rollout_start(self) -> None:
        self.times.append((self.num_timesteps, self.clock()))
        tell(self.num_timesteps / self.model._total_timesteps)

    def _on_step(self) -> bool:
        ends = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.rows += [(self.num_timesteps, self.clock() - self.times[0][1], float(one)) for one in ends]
        return True

    def _on_training_end(self) -> None:
        self._on_rollout_start()


def curve(episodes: pd.DataFrame, n_timesteps: int, n_points: int = N_POINTS, n_latest: int = 100) -> pd.DataFrame:
    """
    Return the mean return of the latest episodes, and seconds, at evenly spaced steps.

    :param episodes: a run's episodes
    :param n_timesteps: its length
    """
    grid = np.linspace(0, n_timesteps, n_points + 1)[1:].astype(int)
    smooth = episodes.assign(**{"return": episodes["return"].rolling(n_latest, min_periods=1).mean()})
    n_over = np.searchsorted(episodes["steps"], grid, side="right")  # episodes that were over then
    points = smooth.iloc[np.maximum(n_over, 1) - 1][["seconds", "return"]].round(2).reset_index(drop=True)
    return points.assign(steps=grid)[n_over > 0]


class EndlessEpisode(Exception):
    """Raised in an evaluation that would not end."""


def evaluate(made: Made, n_episodes: int, max_length: float = np.inf) -> tuple[float, float]:
    """
    Return mean and standard deviation of the return of some episodes; NaN if one of them is longer than ``max_length`` steps,
    because in some environments, such as the game 2048, an agent may repeat an action without effect forever.
    """
    env, model = made.make_evaluation_env(), made.model
    assert model.env is not None
    sync_envs_normalization(model.env, env)
    is_masked = isinstance(model, MaskablePPG | MaskablePPO)
    play: Callable[..., Any] = evaluate_masked_policy if is_masked else evaluate_policy

    def check_length(played: dict[str, Any], _: Any) -> None:
        if played["current_lengths"][played["i"]] > max_length:
            raise EndlessEpisode

    returns, options = [np.nan], dict(deterministic=made.deterministic, callback=check_length, return_episode_rewards=True)
    with suppress(EndlessEpisode):
        returns, _ = play(model, env, n_episodes, **options)
    env.close()
    return round(float(np.mean(returns)), 2), round(float(np.std(returns)), 2)


def train(
    make: Make, seed: int, n_timesteps: int, folder: Path, n_episodes: int, n_latest: int = 20
) -> tuple[dict[str, Any], pd.DataFrame]:
    """
    Train a model and evaluate it.

    :param n_episodes: number of episodes after the training
    :return: the steps, mean and standard deviation of the return of these episodes (NaN if one of them takes more steps than
        the training), and seconds of the training; its curve
    :raises ArgumentError: if no episode has ended
    """
    made, episodes, start = make(seed, folder), Episodes(), time.perf_counter()
    made.model.learn(n_timesteps, callback=episodes)
    seconds = round(time.perf_counter() - start, 1)
    if not any(steps <= n_timesteps for steps, *_ in episodes.rows):
        raise ArgumentError(f"no episode has ended within {n_timesteps} steps: use more, or a Monitor around the environment")
    mean, std = evaluate(made, n_episodes, n_timesteps) if n_episodes > 0 else (np.nan, np.nan)
    row = dict(steps=made.model.num_timesteps, mean=mean, std=std, seconds=seconds)
    return row, curve(episodes.table(), n_timesteps, n_latest=n_latest)


def speed(
    model: Any,
    n_timesteps: float = 1e9,
    clock: Callable[[], float] = time.process_time,
    minimum: float = 0.0,
    n_rollouts: int = 1,
) -> Measure:
    """
    Return a measurement of the seconds that a million steps take, in whole phases of PPG or rollouts of another algorithm. The
    first measurement, which includes compiling, returns its own seconds ("first"), and whether updates are compiled.

    :param n_timesteps: length of the training of which this is a part, by which PPG decides whether to compile
    :param minimum: seconds that a measurement takes at least
    :param n_rollouts: number of PPO's rollouts; PPG's are those of a phase
    """
    n_steps = getattr(model, "n_steps", 0) * getattr(model, "n_policy_iterations", n_rollouts) * model.n_envs
    unit = int(min(n_steps or getattr(model, "learning_starts", 0) + 1000, n_timesteps))

    def measure() -> dict[str, float]:
        before, start = model.num_timesteps, clock()
        if before == 0:  # in the first step after these, when they have been learned
            model.learn(int(n_timesteps), callback=ConvertCallback(lambda *_: model.num_timesteps <= unit))
            return {
                "first": clock() - start,
                "steps": model.num_timesteps,
                "compiled": bool(getattr(model, "_compiles_updates", False)),
            }
        while model.num_timesteps == before or clock() - start < minimum:
            model.learn(unit, reset_num_timesteps=False)
        return {"seconds": (clock() - start) / (model.num_timesteps - before) * 1e6}

    return measure
