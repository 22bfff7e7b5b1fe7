"""
PPG of this project with its defaults: ``pip install sb3-ppg``, ``python our_ppg.py CartPole-v1 --seed 0``. With ``--n_envs 8
--batch_size 256``, more environments and larger minibatches, which take less time per step.
"""

from inspect import signature
from typing import Any

from evaluation import Predict, main
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import PPG

DEFAULTS = {name: signature(PPG).parameters[name].default for name in ("n_steps", "batch_size")}


def train(env_id: str, seed: int, steps: int, n_envs: int, **arguments: Any) -> tuple[Predict, int]:
    """Return the trained policy and the steps."""
    env = make_vec_env(env_id, n_envs, env_kwargs=dict(render_mode=None))  # without pictures, for which LunarLander is slower
    model = PPG("MlpPolicy", env, seed=seed, device="cpu", **arguments)
    model.learn(steps)
    return lambda observation: model.predict(observation, deterministic=True)[0], model.num_timesteps


if __name__ == "__main__":
    main("sb3-ppg", train, n_envs=1, **DEFAULTS)
