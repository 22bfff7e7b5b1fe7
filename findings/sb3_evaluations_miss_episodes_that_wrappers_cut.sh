#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: with a time limit as `wrapper_class` of `make_vec_env` (`env_wrapper` in RL Zoo's files), `evaluate_policy` and
#   `ep_rew_mean` count the episodes that the limit cuts off, as they count those that Gymnasium's own limit cuts off.
# Behavior: the wrapper is around the `Monitor`, which does not see the end, and only episodes that the Monitor reports count.
#   So the mean is that of the episodes that failed before the limit, and the better an agent is, the fewer episodes are left;
#   for one that always reaches the limit, the evaluation does not end. A limit that is inside the Monitor is counted.
# Output seen: "wrapper_class: mean of 20 episodes 35.4, longest 49; inside the Monitor: 49.2, longest 50"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy


class Balances:
    """Keeps the pole up most of the time."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def predict(self, observations, state=None, episode_start=None, deterministic=True):
        towards_the_pole = (observations[:, 2] + observations[:, 3] > 0).astype(int)
        is_random = self.generator.random(len(observations)) < 0.5
        return np.where(is_random, self.generator.integers(2, size=len(observations)), towards_the_pole), None


def found(*args, **kwargs):
    env = make_vec_env(*args, n_envs=1, seed=0, **kwargs)
    returns, lengths = evaluate_policy(Balances(), env, 20, return_episode_rewards=True)
    return f"{np.mean(returns):.1f}, longest {max(lengths)}"


outside = found("CartPole-v1", wrapper_class=TimeLimit, wrapper_kwargs=dict(max_episode_steps=50))
inside = found(lambda **kwargs: TimeLimit(gym.make("CartPole-v1", **kwargs), 50))
print(f"wrapper_class: mean of 20 episodes {outside}; inside the Monitor: {inside}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "wrapper_class: mean of 20 episodes 35.4, longest 49; inside the Monitor: 49.2, longest 50" ]] || exit 1
