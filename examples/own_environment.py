"""
Train on a custom environment whose observations are a dictionary with a small image and a vector.
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import PPG

SIZE, CELL = 36, 6  # pixels; SB3's network for images accepts no smaller ones
MOVES = CELL * np.array([(0, -1), (0, 1), (-1, 0), (1, 0)])


class Compass(gym.Env):
    """The image shows the agent, the vector holds the position of the goal. A step toward it earns 1, a step away -1."""

    observation_space = spaces.Dict(
        {"map": spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8), "goal": spaces.Box(0, 1, (2,), np.float32)}
    )
    action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.agent, self.goal = self.np_random.integers(0, SIZE // CELL, (2, 2)) * CELL
        self.n_steps = 0
        return self.observation(), {}

    def step(self, action: int):
        before = self.distance()
        self.agent = np.clip(self.agent + MOVES[action], 0, SIZE - CELL)
        self.n_steps += 1
        return self.observation(), before - self.distance(), self.distance() == 0, self.n_steps >= 30, {}

    def distance(self) -> float:
        return float(np.abs(self.agent - self.goal).sum() / CELL)

    def observation(self) -> dict[str, np.ndarray]:
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        x, y = self.agent
        picture[y : y + CELL, x : x + CELL] = 255
        return {"map": picture, "goal": (self.goal / SIZE).astype(np.float32)}


def main(total_timesteps: int = 50_000, n_episodes: int = 100) -> None:
    """Train and evaluate. Perfect moves give a return of 4, the mean distance."""
    check_env(Compass())
    env = make_vec_env(Compass, n_envs=8, seed=0)
    model = PPG(
        "MultiInputPolicy", env, n_steps=64, n_policy_iterations=8, batch_size=128, n_epochs=4, gamma=0.95, seed=0, verbose=1
    )
    model.learn(total_timesteps, log_interval=8)
    mean, std = evaluate_policy(model, make_vec_env(Compass, seed=1), n_eval_episodes=n_episodes)
    print(f"Return over {n_episodes} episodes: {mean:.1f} +- {std:.1f}")


if __name__ == "__main__":
    main()
