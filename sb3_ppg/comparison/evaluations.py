"""The measure of comparisons: the same episodes at evenly spaced points of every run, while the run's clock stands still."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from inspect import signature
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization
from typing_extensions import override

from sb3_ppg.ppg import PPG
from sb3_ppg.saving.training_state import generators_kept

N_POINTS = 10  # evenly spaced; there is one more before the first step
N_EPISODES = 20
FIRST_SEED = 1_000_000  # of the episodes; seeds of training are small numbers
MAX_STEPS = 10_000  # of an episode, unless a tenth of the run is longer: in some environments an agent may get stuck forever


class ProcessorClock:
    """The processor time of this process and of those that it has started, such as workers and compilers, in seconds."""

    own = 0.0  # what it has taken to look at the processes of the machine, which does not count

    def __call__(self) -> float:
        """Return the time."""
        began = time.process_time()
        # With those of its children that have ended, which psutil does not have on macOS. `os.times` counts in hundredths
        seconds = began + sum(os.times()[2:4])
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended in the meantime
                seconds += sum(process.cpu_times()[:4])
        seconds -= self.own
        self.own += time.process_time() - began
        return seconds


processor_seconds = ProcessorClock()
CLOCKS: dict[str, Callable[[], float]] = {"processor": processor_seconds, "wall": time.perf_counter}


class Evaluations(BaseCallback):
    """
    Evaluates an agent before the first step of a run and at ``N_POINTS`` evenly spaced points, and writes a row for each to a
    file: steps; seconds, without those of evaluations; seconds in which torch compiled; mean return; mean return of the
    training's episodes since the row before. An evaluated episode is the first one of a new environment with its own seed and
    random numbers, so it depends on nothing except the agent. A run that continues keeps the rows until its checkpoint.
    RL Zoo's manager sets the attributes.

    :param file: name of a CSV file
    :param n_timesteps: length of the run
    :param clock: "processor", which includes worker processes, or "wall"
    """

    make_envs: Callable[[int, int], VecEnv]  # makes a number of environments with a seed, each in a `Monitor`
    n_episodes = n_envs = N_EPISODES  # in all, and at the same time
    deterministic = True

    def __init__(self, file: str, n_timesteps: int, clock: str = "processor") -> None:
        super().__init__()
        self.file, self.n_timesteps, self.clock = Path(file), n_timesteps, CLOCKS[clock]

    @override
    def _on_training_start(self) -> None:
        known = pd.read_csv(self.file) if self.file.exists() else pd.DataFrame({"steps": []})
        known = known[known["steps"] <= self.num_timesteps]
        self.training_returns: list[float] = []
        self.n_rows = len(known) if self.num_timesteps > 0 else 0  # a run without checkpoints starts again
        self.start, self.compiled_before = self.clock(), 0.0
        if self.n_rows > 0:
            known.to_csv(self.file, index=False)
            seconds, self.compiled_before = vars(self.model)["_taken"]
            self.start -= seconds
        else:
            self.file.unlink(missing_ok=True)
            self._add_row()

    @override
    def _on_rollout_start(self) -> None:
        """Store the seconds so far in the model, for the next checkpoint, which only our algorithms have."""
        if isinstance(self.model, PPG):
            vars(self.model)["_taken"] = self.clock() - self.start, self._compile_seconds()

    _on_training_end = _on_rollout_start

    @override
    def _on_step(self) -> bool:
        self.training_returns += [info["episode"]["r"] for info in self.locals.get("infos", ()) if "episode" in info]
        while self.n_rows <= N_POINTS and self.num_timesteps * N_POINTS >= self.n_timesteps * self.n_rows:
            self._add_row()
        return True

    def _add_row(self) -> None:
        stopped = self.clock()
        row = {
            "steps": self.num_timesteps,
            "seconds": round(stopped - self.start, 3),
            "compile_seconds": round(self._compile_seconds(), 3),
            "return": round(float(self.returns().mean()), 4),
            "training_return": round(float(np.mean(self.training_returns)), 4) if self.training_returns else np.nan,
        }
        pd.DataFrame([row]).to_csv(self.file, mode="a", index=False, header=self.n_rows == 0)
        self.n_rows, self.training_returns = self.n_rows + 1, []
        self.start += self.clock() - stopped

    def _compile_seconds(self) -> float:
        dynamo = sys.modules.get("torch._dynamo.utils")
        return self.compiled_before + (dynamo.calculate_time_spent()["total_wall_time"] if dynamo else 0.0)

    def returns(self) -> np.ndarray:
        """Return the return of each episode, (n_episodes,)."""
        found = []
        for first in range(0, self.n_episodes, self.n_envs):
            with generators_kept():
                set_random_seed(FIRST_SEED + first)
                with closing(self.make_envs(min(self.n_envs, self.n_episodes - first), FIRST_SEED + first)) as env:
                    found.append(self._play(env))
        return np.concatenate(found)

    def _play(self, env: VecEnv) -> np.ndarray:
        if self.model.get_vec_normalize_env() is not None:
            sync_envs_normalization(self.training_env, env)
        is_masked = "action_masks" in signature(self.model.predict).parameters and is_masking_supported(env)
        returns, is_over = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=bool)
        observations, states, dones = env.reset(), None, np.ones(env.num_envs, dtype=bool)
        for _ in range(max(MAX_STEPS, self.n_timesteps // N_POINTS)):
            masks = {"action_masks": get_action_masks(env)} if is_masked else {}
            actions, states = self.model.predict(observations, states, dones, self.deterministic, **masks)  # type: ignore[arg-type]
            observations, rewards, dones, infos = env.step(actions)
            returns[~is_over] += rewards[~is_over]
            for place in np.flatnonzero(~is_over):
                if "episode" in infos[place]:  # not at the end of a life
                    returns[place], is_over[place] = infos[place]["episode"]["r"], True
            if is_over.all():
                break
        return returns
