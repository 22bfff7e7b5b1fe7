"""
DI-engine's PPG: its program for CartPole, on CartPole-v1, without its evaluations and the return at which they stop it:
``pip install DI-engine==0.5.3``, ``python di_engine_ppg.py CartPole-v1 --seed 0``. ``--aux_bc_weight 0`` leaves out the term
that should keep the policy. Writes logs in the current folder.
"""

import math
from copy import deepcopy

import gym
import numpy as np
import torch as th
from ding.envs import DingEnvWrapper
from ding.model import PPG
from ding.utils import set_pkg_seed
from dizoo.classic_control.cartpole.config.cartpole_ppg_config import cartpole_ppg_config
from dizoo.classic_control.cartpole.entry import cartpole_ppg_main as program
from evaluation import Predict, main


def train(env_id: str, seed: int, steps: int, aux_bc_weight: float) -> tuple[Predict, int]:
    """Return the trained policy and the steps."""
    settings = deepcopy(cartpole_ppg_config)
    settings.env.stop_value = math.inf
    settings.policy.eval.evaluator.eval_freq = 10**9
    settings.policy.learn.aux_bc_weight = aux_bc_weight
    set_pkg_seed(seed, use_cuda=False)
    model = PPG(**settings.policy.model)
    program.PPG = lambda **_: model
    program.wrapped_cartpole_env = lambda: DingEnvWrapper(gym.make(env_id), dict(env_wrapper="default"))
    program.main(settings, seed, max_env_step=steps)

    def predict(observation: np.ndarray) -> int:
        return model.compute_actor(th.as_tensor(observation))["logit"].argmax().item()

    return predict, steps


if __name__ == "__main__":
    main("DI-engine", train, aux_bc_weight=1.0)
