"""
Train with action masks: a game in which a player cannot take more matches than are left.
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import MaskablePPG

MAX_MATCHES = 5  # per move


class Nim(gym.Env):
    """
    Two players take 1 to 5 matches in turn; whoever takes the last one wins.

    A player wins by leaving a multiple of six after each move. The opponent does so whenever it can, so one wrong move loses.
    The agent begins with a number from which it can win.
    """

    observation_space = spaces.MultiDiscrete([31])
    action_space = spaces.Discrete(MAX_MATCHES)  # number of matches to take, minus one

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.matches = int(6 * self.np_random.integers(0, 5) + self.np_random.integers(1, 6))
        return np.array([self.matches]), {}

    def action_masks(self) -> np.ndarray:
        """Return whether each action is possible. MaskablePPG calls this method."""
        return np.arange(1, MAX_MATCHES + 1) <= self.matches

    def step(self, action: int):
        assert action < self.matches, "an invalid action"
        self.matches -= int(action) + 1
        has_won = self.matches == 0
        if not has_won:
            self.matches -= self.matches % 6 or int(self.np_random.integers(1, MAX_MATCHES + 1))
        return np.array([self.matches]), float(has_won), self.matches == 0, False, {}


def main(total_timesteps: int = 50_000) -> None:
    """Train and play. Perfect moves win every game."""
    env = make_vec_env(Nim, n_envs=8, seed=0)
    model = MaskablePPG("MlpPolicy", env, n_steps=64, n_policy_iterations=8, batch_size=128, n_epochs=4, seed=0, verbose=1)
    model.learn(total_timesteps, log_interval=8)
    mean, _ = evaluate_policy(model, make_vec_env(Nim, seed=1), n_eval_episodes=200, warn=False)
    print(f"It wins {mean:.0%} of its games")

    game = Nim()
    observation, _ = game.reset(seed=0)
    action, _ = model.predict(observation, action_masks=game.action_masks(), deterministic=True)
    print(f"With {observation[0]} matches left it takes {int(action) + 1}")


if __name__ == "__main__":
    main()
