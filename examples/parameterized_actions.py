"""
Train with parameterized actions: a ship accelerates with some power, turns by some angle, or brakes.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import PPG

ACCELERATE, TURN, BRAKE = range(3)


class Docking(gym.Env):
    """
    A ship must stop within a circle. The reward of a step is the distance by which the ship comes nearer, minus 0.01.
    Stopping in the circle gives 1 more, leaving the field 1 less; both end the episode.
    """

    observation_space = spaces.Box(-3, 3, (6,))  # place, speed, how far the circle is ahead, to the left, and in all
    action_space = spaces.Dict(
        choice=spaces.Discrete(3),
        power=spaces.Box(0, 1, (1,)),  # of ACCELERATE
        angle=spaces.Box(-1, 1, (1,)),  # of TURN, in half turns
    )
    radius, friction, max_steps = 0.1, 0.02, 100

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place, self.center = self.np_random.uniform(-1, 1, (2, 2))
        self.heading, self.speed, self.steps = self.np_random.uniform(-np.pi, np.pi), 0.0, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        ahead = np.array([np.cos(self.heading), np.sin(self.heading)])
        way = self.center - self.place
        seen = [ahead @ way, ahead[0] * way[1] - ahead[1] * way[0], np.linalg.norm(way)]
        return np.array([*self.place, 10 * self.speed, *seen], dtype=np.float32)

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict]:
        choice, before = action["choice"], np.linalg.norm(self.center - self.place)
        if choice == ACCELERATE:
            self.speed = min(self.speed + 0.1 * float(action["power"][0]), 0.2)
        elif choice == TURN:
            self.heading += np.pi * float(action["angle"][0])
        else:
            self.speed = max(self.speed - 0.1, 0.0)
        self.speed *= 1 - self.friction
        self.place = self.place + self.speed * np.array([np.cos(self.heading), np.sin(self.heading)])
        self.steps += 1
        distance = np.linalg.norm(self.center - self.place)
        has_docked = bool(distance < self.radius and self.speed < 0.005)
        is_lost = bool((np.abs(self.place) > 1.2).any())
        reward = float(before - distance - 0.01 + has_docked - is_lost)
        return self.observe(), reward, has_docked or is_lost, self.steps == self.max_steps, {"is_success": has_docked}


def main(total_timesteps: int = 100_000, n_episodes: int = 100) -> None:
    """Train and evaluate. The action space needs no argument and no wrapper."""
    model = PPG("MlpPolicy", make_vec_env(Docking, n_envs=8, seed=0), n_steps=256, ent_coef=0.01, seed=0, verbose=1)
    model.learn(total_timesteps, log_interval=4)
    mean, _ = evaluate_policy(model, make_vec_env(Docking, seed=1), n_eval_episodes=n_episodes)
    print(f"It docks with a return of {mean:.2f}")

    ship = Docking()
    observation, _ = ship.reset(seed=0)
    action, _ = model.predict(observation, deterministic=True)
    print(f"It begins with {action}")


if __name__ == "__main__":
    main()
