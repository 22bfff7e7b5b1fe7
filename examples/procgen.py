"""
Train PPG on some levels of a Procgen game, and test it on all levels, on a laptop.

Needs ``pip install ".[procgen]"``. A network of half the paper's width makes this feasible without a GPU.
"""

from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import PPG, ImpalaCNN, NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.environments import EnvPoolVecEnv

GAME, N_LEVELS = "CoinrunEasy-v0", 200


def main(total_timesteps: int = 500_000, n_envs: int = 32, n_steps: int = 128, n_episodes: int = 100) -> None:
    """Train and test. Coinrun's returns are 0 or 10."""
    model = PPG(
        "CnnPolicy",
        EnvPoolVecEnv(GAME, num_envs=n_envs, num_levels=N_LEVELS, seed=0),
        n_steps=n_steps,
        batch_size=n_envs * n_steps // 4,
        n_epochs=1,
        gamma=0.999,
        ent_coef=0.01,
        learning_rate=5e-4,
        max_grad_norm=None,
        n_policy_iterations=8,  # a phase is 32 x 128 x 8 = 32,768 steps
        aux_batch_size=n_envs * n_steps // 4,
        rollout_buffer_class=NormalizedRewardRolloutBuffer,  # the authors' normalizer; their γ for it is 0.99
        rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(gamma=0.999)),
        policy_kwargs=dict(features_extractor_class=ImpalaCNN, features_extractor_kwargs=dict(channels=(8, 16, 16))),
        mixed_precision=None,  # "bf16" is faster where the processor multiplies bfloat16: docs/guides/speed.md
        seed=0,
        verbose=1,
    )
    model.learn(total_timesteps, log_interval=4)
    for name, n_levels in (("the training levels", N_LEVELS), ("all levels", 0)):
        env = EnvPoolVecEnv(GAME, num_envs=8, num_levels=n_levels, seed=1)
        mean, _ = evaluate_policy(model, env, n_eval_episodes=n_episodes, deterministic=False, warn=False)
        print(f"Mean return on {name}: {mean:.1f}")


if __name__ == "__main__":
    main()
