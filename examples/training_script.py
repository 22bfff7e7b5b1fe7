"""
Run a typical SB3 training script: normalization, a decaying learning rate, evaluations, checkpoints, and a model that is saved
and loaded together with VecNormalize's statistics.
"""

from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG

ENV = "Acrobot-v1"


def main(total_timesteps: int = 80_000, n_episodes: int = 20) -> None:
    """Train, evaluate, load. Random actions return -500, good ones about -80."""
    env = VecNormalize(make_vec_env(ENV, n_envs=4, seed=0))
    # Frequencies count the steps of one environment. EvalCallback copies the statistics of `env` before each evaluation
    eval_env = VecNormalize(make_vec_env(ENV, seed=1), training=False, norm_reward=False)
    callbacks = [
        EvalCallback(eval_env, n_eval_episodes=20, eval_freq=5_000, best_model_save_path="best"),
        # PhasicCheckpointCallback also keeps the rollouts of the phase, for an exact resume
        CheckpointCallback(save_freq=5_000, save_path="checkpoints", save_vecnormalize=True),
    ]
    model = PPG(
        "MlpPolicy",
        env,
        learning_rate=LinearSchedule(start=1e-3, end=0.0, end_fraction=1.0),
        n_steps=256,  # a phase is 4 x 256 x 4 = 4,096 steps
        seed=0,
    )
    model.learn(total_timesteps, callback=callbacks)
    model.save("ppg_acrobot")
    env.save("vec_normalize.pkl")

    # In another program
    env = VecNormalize.load("vec_normalize.pkl", make_vec_env(ENV, seed=2))
    env.training = env.norm_reward = False
    mean, std = evaluate_policy(PPG.load("ppg_acrobot"), env, n_eval_episodes=n_episodes)
    print(f"Return over {n_episodes} episodes: {mean:.0f} +- {std:.0f}")


if __name__ == "__main__":
    main()
