"""
Train on Atari with SB3's usual setup: eight environments, four stacked frames, "CnnPolicy".

Needs ``pip install ".[atari]"``. The settings are those of ``sb3-ppg train --env PongNoFrameskip-v4``. They have only been run
for two phases on Breakout (benchmarks/results/starts.md), so the final return is unknown.
"""

import ale_py
import gymnasium as gym
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_ppg import PPG

GAME = "PongNoFrameskip-v4"
gym.register_envs(ale_py)


def main(total_timesteps: int = 10_000_000, n_steps: int = 128, n_episodes: int = 10) -> None:
    """Train and play. Pong's returns are -21 to 21. Takes seven minutes for 65,536 steps on one core."""
    model = PPG(
        "CnnPolicy",
        VecFrameStack(make_atari_env(GAME, n_envs=8, seed=0), n_stack=4),
        learning_rate=LinearSchedule(2.5e-4, 0.0, 1.0),
        n_steps=n_steps,
        batch_size=256,
        n_epochs=3,
        n_policy_iterations=32,  # a phase is 8 x 128 x 32 = 32,768 steps
        aux_batch_size=2048,
        clip_range=LinearSchedule(0.1, 0.0, 1.0),
        ent_coef=0.01,
        policy_kwargs=dict(architecture="detached"),  # one convolutional network for policy and value function
        seed=0,
        verbose=1,
    )
    model.learn(total_timesteps, log_interval=32)
    model.save("ppg_pong")
    env = VecFrameStack(make_atari_env(GAME, seed=1), n_stack=4)
    mean, std = evaluate_policy(model, env, n_eval_episodes=n_episodes, deterministic=False)
    print(f"Return over {n_episodes} episodes: {mean:.0f} +- {std:.0f}")


if __name__ == "__main__":
    main()
