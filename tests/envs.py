"""Environments for the tests."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class RandomEnv(gym.Env):
    """Random observations of any space, reproducible from the seed; the reward is the first number of the observation."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, episode_length: int = 20):
        self.observation_space = observation_space
        self.action_space = action_space
        self.episode_length = episode_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        obs = self.observation_space.sample()
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return obs, float(np.ravel(first)[0]), False, self.steps == self.episode_length, {}


def image_space(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)
