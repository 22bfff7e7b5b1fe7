"""For Stable-Baselines3's own tests, see ``make sb3-suite``: PPG in PPO's place, under PPO's name."""

from typing import Any

import stable_baselines3
import torch

from sb3_ppg import PPG

torch.set_num_threads(1)


class PPO(PPG):
    """PPG, with the names that the tests expect in messages and folders."""

    def learn(self, *args: Any, **kwargs: Any) -> "PPO":
        kwargs.setdefault("tb_log_name", "PPO")
        return super().learn(*args, **kwargs)


vars(stable_baselines3)["PPO"] = PPO
