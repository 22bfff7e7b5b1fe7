"""Stable-Baselines3's PPO with its defaults: ``pip install stable-baselines3``, ``python sb3_ppo.py CartPole-v1 --seed 0``."""

import gymnasium as gym
from evaluation import Predict, main
from stable_baselines3 import PPO


def train(env_id: str, seed: int, steps: int) -> tuple[Predict, int]:
    """Return the trained policy and the steps."""
    model = PPO("MlpPolicy", gym.make(env_id), seed=seed, device="cpu")
    model.learn(steps)
    return lambda observation: model.predict(observation, deterministic=True)[0], model.num_timesteps


if __name__ == "__main__":
    main("stable-baselines3", train)
