#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: DummyVecEnv and SubprocVecEnv return the same arrays, only computed in one process or in several.
# Behavior: DummyVecEnv casts observations to the dtype of their space and rewards to float32, SubprocVecEnv passes on
#   what the environment returns. With integers in a space of float32, which Gymnasium allows, arithmetic wraps around in
#   one of them only.
# Output seen: "DummyVecEnv: float32, twice 200 is 400, rewards float32; SubprocVecEnv: uint8, twice 200 is 144, rewards
#   float64"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
cat >"$folder/run.py" <<'PY'
import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


class Environment(gym.Env):
    observation_space = gym.spaces.Box(0, 255, shape=(1,), dtype=np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, 200, dtype=np.uint8), {}

    def step(self, action):
        observation = np.full(1, 200, dtype=np.uint8)
        assert self.observation_space.contains(observation)
        return observation, 1 / 3, False, False, {}


def describe(vec_env_class):
    env = vec_env_class([Environment])
    env.reset()
    observations, rewards, _, _ = env.step(np.zeros(1, dtype=int))
    env.close()
    twice = int((observations * 2)[0, 0])
    return f"{vec_env_class.__name__}: {observations.dtype}, twice 200 is {twice}, rewards {rewards.dtype}"


if __name__ == "__main__":
    print(f"{describe(DummyVecEnv)}; {describe(SubprocVecEnv)}")
PY
seen=$("$folder/env/bin/python" "$folder/run.py")
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "DummyVecEnv: float32, twice 200 is 400, rewards float32; SubprocVecEnv: uint8, twice 200 is \
144, rewards float64" ]] || exit 1
