"""
Learn Pong on one core: frames of 42x42, whose pixels are normalized, and a small MLP.

Needs ``pip install ".[atari]"``. The settings are those of ``sb3-ppg train --env PongNoFrameskip-v4``. For other games,
``sb3-ppg train --env BreakoutNoFrameskip-v4`` uses frames of 84x84 and "CnnPolicy", which takes longer.
"""

import ale_py
import gymnasium as gym
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize, sync_envs_normalization
from torch import nn

from sb3_ppg import PPG

GAME = "PongNoFrameskip-v4"
gym.register_envs(ale_py)


def make_env(n_envs: int, seed: int, training: bool = True) -> VecFrameStack:
    """Make environments with two stacked frames. Most pixels never change, so normalization makes moving ones stand out."""
    env = make_atari_env(GAME, n_envs, seed, wrapper_kwargs=dict(screen_size=42))
    return VecFrameStack(VecNormalize(env, training, norm_reward=False), n_stack=2)


def main(total_timesteps: int = 1_000_000, n_steps: int = 128, n_episodes: int = 10) -> None:
    """Train and play. Pong's returns are -21 to 21."""
    env = make_env(n_envs=16, seed=0)
    model = PPG(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        n_steps=n_steps,
        batch_size=512,
        n_epochs=3,
        n_policy_iterations=16,  # a phase is 16 x 128 x 16 = 32,768 steps
        n_aux_epochs=1,
        aux_batch_size=512,
        clip_range=0.2,
        ent_coef=0.01,
        policy_kwargs=dict(net_arch=[64, 64], activation_fn=nn.ReLU),
        seed=0,
        verbose=1,
    )
    model.learn(total_timesteps, log_interval=16)
    model.save("ppg_pong")
    played = make_env(n_envs=1, seed=1, training=False)
    sync_envs_normalization(env, played)
    mean, std = evaluate_policy(model, played, n_eval_episodes=n_episodes, deterministic=False)
    print(f"Return over {n_episodes} episodes: {mean:.0f} +- {std:.0f}")


if __name__ == "__main__":
    main()
