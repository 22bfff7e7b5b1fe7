"""
Train PPG on CartPole, evaluate the model, save it, load it and continue training.
"""

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import PPG


def main(total_timesteps: int = 100_000, more_timesteps: int = 4096) -> None:
    """Train, save, load, continue. The maximum return is 500."""
    env = make_vec_env("CartPole-v1", n_envs=8, seed=0)
    # A phase is 8 x 32 x 16 = 4,096 steps; train for ten phases or more
    model = PPG("MlpPolicy", env, n_steps=32, n_policy_iterations=16, batch_size=256, n_epochs=4, seed=0, verbose=1)
    model.learn(total_timesteps, log_interval=32)
    mean, std = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1), n_eval_episodes=20)
    print(f"Return over 20 episodes: {mean:.0f} +- {std:.0f}")

    model.save("ppg_cartpole")
    model.save_aux_buffer("ppg_cartpole_phase")  # the rollouts of the current phase, to continue exactly
    model = PPG.load("ppg_cartpole", env=env)
    model.load_aux_buffer("ppg_cartpole_phase")
    model.learn(more_timesteps, reset_num_timesteps=False, log_interval=16)
    print(f"Trained for {model.num_timesteps} steps")


if __name__ == "__main__":
    main()
