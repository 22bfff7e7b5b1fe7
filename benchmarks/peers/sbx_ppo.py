"""SBX's PPO (JAX) with its defaults: ``pip install sbx-rl==0.28.0``, ``python sbx_ppo.py CartPole-v1 --seed 0``."""

import gymnasium as gym
from evaluation import Predict, main
from sbx import PPO


def train(env_id: str, seed: int, steps: int) -> tuple[Predict, int]:
    """Return the trained policy and the steps."""
    model = PPO("MlpPolicy", gym.make(env_id), seed=seed)
    model.learn(steps)
    return lambda observation: model.predict(observation, deterministic=True)[0], model.num_timesteps


if __name__ == "__main__":
    main("sbx-rl", train)
