#!/usr/bin/env bash
# Package: gymnasium 1.4.0.
# Common guess: `reset(options={"reset_mask": mask})` starts the marked environments again, and RecordEpisodeStatistics
#   sets back their counts only.
# Behavior: SyncVectorEnv removes the mask from the caller's dictionary before the wrapper reads it there. The wrapper
#   sets back the counts of all: an episode of three steps that was under way is reported with one. The dictionary is
#   empty, so that using it again resets all environments.
# Output seen: "episode of 3 steps: length 1, return 1.0, options left: {}"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics


class Counter(gym.Env):
    """An episode of ``length`` steps with a reward of 1 for each."""

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
        return np.full(1, self.time, dtype=np.float32), 1.0, self.time == self.length, False, {}


env = RecordEpisodeStatistics(SyncVectorEnv([lambda: Counter(2), lambda: Counter(3)], autoreset_mode=AutoresetMode.DISABLED))
env.reset()
actions = np.zeros(2, dtype=int)
env.step(actions)
_, _, terminations, _, _ = env.step(actions)  # the end of the first environment's episode
options = {"reset_mask": terminations}
env.reset(options=options)
_, _, terminations, _, infos = env.step(actions)  # the end of the second one's
assert terminations.tolist() == [False, True]
print(f"episode of 3 steps: length {infos['episode']['l'][1]}, return {infos['episode']['r'][1]}, options left: {options}")
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "episode of 3 steps: length 1, return 1.0, options left: {}" ]] || exit 1
