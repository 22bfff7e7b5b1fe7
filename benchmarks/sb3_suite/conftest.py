"""For Stable-Baselines3's own tests, see ``make sb3-suite``: PPG in PPO's place, under PPO's name."""

from typing import Any

import stable_baselines3
import torch

from sb3_ppg import PPG

torch.set_num_threads(1)


class PPO(PPG):
    """PPG, with the names that the tests expect in messages and folders."""

    def learn(self, *args: Any, tb_log_name: str = "PPO", **kwargs: Any) -> "PPO":
        return super().learn(*args, tb_log_name=tb_log_name, **kwargs)


stable_baselines3.PPO = PPO  # type: ignore[misc]
