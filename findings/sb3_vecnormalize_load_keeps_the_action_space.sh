#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `VecNormalize.load(path, venv)` takes the statistics from the file and the spaces from `venv`; other
#   spaces raise an error.
# Behavior: the action space is the file's, and only the shape of observations is compared. A new model for an environment
#   with more actions is built for the old ones: the new actions are never tried.
# Output seen: "environment: Discrete(4), loaded VecNormalize: Discrete(2), logits of a new policy: 2"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - "$folder/statistics.pkl" <<'PY'
import sys

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


class Environment(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, shape=(2,))

    def __init__(self, n_actions):
        self.action_space = gym.spaces.Discrete(n_actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action):
        return np.zeros(2, dtype=np.float32), 0.0, False, False, {}


VecNormalize(DummyVecEnv([lambda: Environment(2)])).save(sys.argv[1])
env = VecNormalize.load(sys.argv[1], DummyVecEnv([lambda: Environment(4)]))
logits = PPO("MlpPolicy", env).policy.action_net.out_features
print(f"environment: {env.venv.action_space}, loaded VecNormalize: {env.action_space}, logits of a new policy: {logits}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "environment: Discrete(4), loaded VecNormalize: Discrete(2), logits of a new policy: 2" ]] || exit 1
