"""
Train an LSTM policy on CartPole without velocities, which a policy without memory cannot balance for long.
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import RecurrentPPG


class PositionsOnly(gym.ObservationWrapper):
    """Show positions only: of CartPole's four numbers, the two that a photograph shows."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        box = env.observation_space
        assert isinstance(box, spaces.Box)
        self.observation_space = spaces.Box(box.low[::2], box.high[::2])

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


def main(total_timesteps: int = 150_000) -> None:
    """Train and play."""
    env = make_vec_env("CartPole-v1", n_envs=8, seed=0, wrapper_class=PositionsOnly)
    model = RecurrentPPG(
        "MlpLstmPolicy",
        env,
        n_steps=128,
        batch_size=256,  # two sequences of 128 steps
        n_policy_iterations=4,
        n_epochs=4,
        gamma=0.99,
        policy_kwargs=dict(lstm_hidden_size=64),
        seed=0,
        verbose=1,
    )
    model.learn(total_timesteps, log_interval=16)
    test_env = make_vec_env("CartPole-v1", seed=1, wrapper_class=PositionsOnly)
    mean, std = evaluate_policy(model, test_env, n_eval_episodes=20)  # passes the states along
    print(f"Return over 20 episodes: {mean:.0f} +- {std:.0f}")

    # By hand: pass the states that `predict` returns together with the next observation
    observation, states, episode_start = test_env.reset(), None, np.ones(1, dtype=bool)
    for _ in range(100):
        action, states = model.predict(observation, states, episode_start, deterministic=True)
        observation, _, episode_start, _ = test_env.step(action)


if __name__ == "__main__":
    main()
