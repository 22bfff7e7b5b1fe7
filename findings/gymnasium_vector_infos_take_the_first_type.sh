#!/usr/bin/env bash
# Package: gymnasium 1.4.0.
# Common guess: `infos["score"][i]` of a vector environment is the number that environment i returned as `info["score"]`.
# Behavior: the array gets the type of the first environment that returns the name in this step. Where this is an int, such
#   as a score that is still 0, the floats of all others are cut off without a warning, and True turns numbers into True.
#   Numbers change with the order of the environments. Return the same type at each step. (Source: VectorEnv._add_info)
# Output seen: "0 and 0.75: 0 0, 0.75 and 0: 0.75 0.0, True and 3: True True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv


class Scored(gym.Env):
    observation_space = gym.spaces.Box(0, 1, shape=(1,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, score):
        self.score = score

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {"score": self.score}


seen = []
for scores in ((0, 0.75), (0.75, 0), (True, 3)):
    env = SyncVectorEnv([lambda score=score: Scored(score) for score in scores])
    env.reset()
    first, second = env.step(np.zeros(2, dtype=int))[-1]["score"]
    seen.append(f"{scores[0]} and {scores[1]}: {first} {second}")
print(", ".join(seen))
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "0 and 0.75: 0 0, 0.75 and 0: 0.75 0.0, True and 3: True True" ]] || exit 1
