"""For the own tests of Stable-Baselines3 and sb3-contrib, see ``make sb3-suite``: ours in PPO's place, under PPO's names."""

from typing import Any

import sb3_contrib
import stable_baselines3
import torch

from sb3_ppg import PPG, MaskablePPG, RecurrentPPG

torch.set_num_threads(1)


class PPO(PPG):
    """PPG with the name that the tests expect in messages and folders, and with PPO's defaults, which they expect in files."""

    def __init__(self, policy: Any, env: Any, *args: Any, **kwargs: Any):
        # `learning_rate` and `n_steps` come first
        defaults = {} if len(args) > 1 else dict(n_steps=2048)
        super().__init__(policy, env, *args, **{**defaults, "clip_range": 0.2, **kwargs})


class RecurrentPPO(RecurrentPPG):
    """RecurrentPPG under this name."""


class MaskablePPO(MaskablePPG):
    """MaskablePPG with MaskablePPO's defaults: one test asks for a return after few steps."""

    def __init__(self, *args: Any, **kwargs: Any):
        defaults = dict(n_steps=2048, learning_rate=3e-4, n_epochs=10, gamma=0.99, ent_coef=0.0, max_grad_norm=0.5)
        super().__init__(*args, **{**defaults, **kwargs})


vars(stable_baselines3)["PPO"] = PPO
vars(sb3_contrib).update(RecurrentPPO=RecurrentPPO, MaskablePPO=MaskablePPO)
