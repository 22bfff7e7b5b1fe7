"""A callback that benchmarks share."""

import time

import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback


class MeanReturns(BaseCallback):
    """
    Notes steps, seconds and the mean return of the latest episodes after each rollout; NaN before the first has ended.

    :param seconds: that the training has taken before
    """

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.points: list[dict[str, float]] = []
        self.start = time.perf_counter() - seconds

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        seconds = round(time.perf_counter() - self.start, 1)
        self.points.append(
            {"steps": self.num_timesteps, "seconds": seconds, "return": float(np.mean(returns)) if returns else np.nan}
        )

    def curve(self) -> pd.DataFrame:
        """Return the points that are known."""
        return pd.DataFrame(self.points).dropna()
