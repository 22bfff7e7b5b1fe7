#!/usr/bin/env bash
# Package: gymnasium 1.4.0.
# Common guess: `DictInfoToList` copies what a vector environment says of all environments together (a mean, counts, a name)
#   into the info of each of them, or leaves it out.
# Behavior: a number ends the step with an AssertionError that has no text. An array is dealt out, one entry to each
#   environment, if it happens to be as long as there are environments: three bins of a histogram become numbers of three
#   environments, and the same class with four environments fails. Give each environment a row, or leave such entries out in
#   a wrapper within. (Source: DictInfoToList._convert_info_to_list)
# Output seen: "3 environments: 5, 7, 9; 4 environments: AssertionError; a mean: AssertionError"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import DictInfoToList


class Counted(VectorEnv):
    single_observation_space, single_action_space = gym.spaces.Box(0, 1, shape=(1,)), gym.spaces.Discrete(2)

    def __init__(self, num_envs, infos):
        self.num_envs, self.infos = num_envs, infos

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 1), dtype=np.float32), self.infos


seen = []
histogram = {"lengths": np.array([5, 7, 9])}
for name, n, infos in (("3 environments", 3, histogram), ("4 environments", 4, histogram), ("a mean", 3, {"mean": 0.5})):
    try:
        _, found = DictInfoToList(Counted(n, infos)).reset()
        seen.append(f"{name}: {', '.join(str(info['lengths']) for info in found)}")
    except Exception as error:
        seen.append(f"{name}: {type(error).__name__}")
print("; ".join(seen))
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "3 environments: 5, 7, 9; 4 environments: AssertionError; a mean: AssertionError" ]] || exit 1
