#!/usr/bin/env bash
# Package: gymnasium 1.4.0.
# Common guess: the last observation of an episode under MaxAndSkipObservation shows the environment's last frame.
# Behavior: an episode that ends before the last two frames of a skip returns the observation of the step before, or zeros
#   in the first step: its value is bootstrapped from a wrong observation after a time limit. (SB3's MaxAndSkipEnv does
#   the same.)
# Output seen: "frames: 6 5 1, last observations: 4 4 0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import MaxAndSkipObservation


class Counter(gym.Env):
    """An episode of ``length`` steps whose observation is the number of the frame, from 1."""

    observation_space = gym.spaces.Box(0, 10, shape=(1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, dtype=np.float32), 1.0, False, self.time == self.length, {}


lengths, last = (6, 5, 1), []
for length in lengths:
    env = MaxAndSkipObservation(Counter(length), skip=4)
    env.reset()
    truncated = False
    while not truncated:
        observation, _, _, truncated, _ = env.step(0)
    last.append(int(observation[0]))
print(f"frames: {' '.join(map(str, lengths))}, last observations: {' '.join(map(str, last))}")
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "frames: 6 5 1, last observations: 4 4 0" ]] || exit 1
