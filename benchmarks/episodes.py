"""Returns of training, which the benchmarks measure whose rows are older than ``sb3_ppg.comparison.evaluations``."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback
from typing_extensions import override

from sb3_ppg.comparison.runs import Run


class Episodes(BaseCallback):
    """
    Writes the steps, seconds and return of each episode to a file. A run that goes on keeps those until its checkpoint.

    :param file: name of a CSV file
    :param n_timesteps: length of the run, which is not used
    :param clock: function of ``time`` that measures seconds
    """

    def __init__(self, file: str, n_timesteps: int = 0, clock: str = "perf_counter") -> None:
        super().__init__()
        self.file, self.clock = Path(file), getattr(time, clock)

    @override
    def _on_training_start(self) -> None:
        known = pd.read_csv(self.file) if self.file.exists() else pd.DataFrame(columns=["steps", "seconds", "return"])
        known = known[known["steps"] <= self.num_timesteps]
        known.to_csv(self.file, index=False)
        self.start = self.clock() - known["seconds"].max() if len(known) else self.clock()
        self.stream = self.file.open("a", buffering=1)

    @override
    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.stream.write(f"{self.num_timesteps},{self.clock() - self.start:.3f},{info['episode']['r']}\n")
        return True


RECORDED: dict[str, Any] = dict(recorder=Episodes, clock="process_time")  # arguments of ``Run``


def curve(run: Run, n_latest: int = 20, n_points: int = 50) -> pd.DataFrame:
    """Return the mean return of the latest episodes, and seconds, at evenly spaced steps after the first episode."""
    episodes, grid = run.rows(), np.linspace(0, run.n_timesteps, n_points + 1)[1:].astype(int)
    smooth = episodes.assign(**{"return": episodes["return"].rolling(n_latest, min_periods=1).mean()})
    n_over = np.searchsorted(episodes["steps"], grid, side="right")  # episodes that were over then
    points = smooth.iloc[n_over[n_over > 0] - 1][["seconds", "return"]].round(2)
    return points.assign(steps=grid[n_over > 0]).reset_index(drop=True)


def evaluation(run: Run) -> float:
    """Return the mean of the returns in RL Zoo's latest evaluation."""
    with np.load(run.folder / "evaluations.npz") as evaluations:
        return round(float(evaluations["results"][-1].mean()), 2)
