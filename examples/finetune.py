"""
Fine-tune the LunarLander agent of this repository for an environment with wind. A KL penalty, whose weight falls to zero,
keeps the policy near the agent's.

Needs ``pip install ".[box2d,hub]"``.
"""

from pathlib import Path

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import PPG, hub

AGENT = Path(__file__).parent.parent / "pretrained" / "ppg" / "LunarLander-v3"


def make_env(n_envs: int, seed: int) -> VecEnv:
    return make_vec_env("LunarLander-v3", n_envs, seed, env_kwargs=dict(enable_wind=True, wind_power=20.0))


def mean_return(model: PPG, n_episodes: int) -> str:
    mean, std = evaluate_policy(model, make_env(8, seed=1), n_episodes)
    return f"{mean:.0f} +- {std:.0f}"


def main(total_timesteps: int = 200_000, n_episodes: int = 100) -> None:
    """Evaluate, fine-tune, evaluate."""
    # hub.load("USER/NAME", env=...) fetches an agent from the Hub; docs/guides/fine_tuning.md starts from a PPO
    model = hub.from_pretrained(AGENT, env=make_env(8, seed=0))
    print(f"Return with wind, before: {mean_return(model, n_episodes)}")
    model.set_prior("self", LinearSchedule(start=0.2, end=0.0, end_fraction=1.0))
    model.n_value_warmup = 2  # the value function first learns what the policy is worth here
    model.learn(total_timesteps)
    print(f"Return with wind, after: {mean_return(model, n_episodes)}")


if __name__ == "__main__":
    main()
