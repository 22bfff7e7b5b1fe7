"""
Share a model as plain data, without pickle, and load it.

Needs ``pip install ".[hub]"``. To use a repository on the Hugging Face Hub instead of a folder, call
``hub.push(model, "your_name/ppg-cartpole")`` and ``hub.load("your_name/ppg-cartpole")``.
"""

from pathlib import Path

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, hub


def main(total_timesteps: int = 50_000) -> None:
    """Train, share, load, evaluate."""
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=8, seed=0))
    model = PPG("MlpPolicy", env, n_steps=32, n_policy_iterations=16, batch_size=256, n_epochs=4, seed=0, verbose=1)
    model.learn(total_timesteps, log_interval=16)
    hub.save_pretrained(model, "shared")
    for path in sorted(Path("shared").iterdir()):
        print(f"{path.name:24} {path.stat().st_size:9,} bytes")

    # In somebody else's program. VecNormalize's statistics are included; freeze them for the evaluation
    loaded = hub.from_pretrained("shared", env=make_vec_env("CartPole-v1", seed=1))
    assert isinstance(loaded.env, VecNormalize)
    loaded.env.training = loaded.env.norm_reward = False
    mean, std = evaluate_policy(loaded, loaded.env, n_eval_episodes=20)
    print(f"Return over 20 episodes: {mean:.0f} +- {std:.0f}")


if __name__ == "__main__":
    main()
