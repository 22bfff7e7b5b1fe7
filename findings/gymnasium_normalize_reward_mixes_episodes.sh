#!/usr/bin/env bash
# Package: gymnasium 1.4.0.
# Common guess: NormalizeReward divides by the spread of discounted returns, each of which begins with its episode.
# Behavior: for a single environment, the sum goes on over a time limit. A step that terminates drops the episode's earlier
#   rewards from the sum, and its own reward is in that of the next episode.
# Output seen: "truncated: 1 2 3 4 5 6, terminated: 1 2 1 2 3 1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import NormalizeReward


class Three(gym.Env):
    """Episodes of three steps, each with a reward of 1, which a time limit ends or not."""

    observation_space = gym.spaces.Box(0, 10, shape=(1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, is_limit):
        self.is_limit = is_limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.time += 1
        is_over = self.time == 3
        return np.zeros(1, dtype=np.float32), 1.0, is_over and not self.is_limit, is_over and self.is_limit, {}


def sums(is_limit):
    env, found = NormalizeReward(Three(is_limit), gamma=1.0), []
    env.reset()
    for _ in range(6):
        *_, terminated, truncated, _ = env.step(0)
        found.append(f"{float(env.discounted_reward[0]):g}")
        if terminated or truncated:
            env.reset()
    return " ".join(found)


print(f"truncated: {sums(True)}, terminated: {sums(False)}")
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "truncated: 1 2 3 4 5 6, terminated: 1 2 1 2 3 1" ]] || exit 1
