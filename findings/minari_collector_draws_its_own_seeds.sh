#!/usr/bin/env bash
# Packages: minari 0.5.4, gymnasium 1.4.0.
# Common guess: an environment that was reset with a seed once goes on from this seed at later resets, under a
#   DataCollector as without it.
# Behavior: each `reset()` without a seed gets a random one from the operating system. After `reset(seed=0)` only the
#   first episode of a data set is repeatable, and training through the collector gives other results in each run.
# Output seen: "first episode equal: True, second: True; with DataCollector: True, second: False"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet minari[hdf5]==0.5.4 pillow==11.3.0 gymnasium==1.4.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import minari
import numpy as np


def starts(wrapper):
    env = wrapper(gym.make("CartPole-v1"))
    return env.reset(seed=0)[0], env.reset()[0]


seen = []
for wrapper in (lambda env: env, minari.DataCollector):
    first, second = (np.array_equal(one, other) for one, other in zip(starts(wrapper), starts(wrapper), strict=True))
    seen += [first, second]
print(f"first episode equal: {seen[0]}, second: {seen[1]}; with DataCollector: {seen[2]}, second: {seen[3]}")
PY
)
echo "minari 0.5.4: $seen"
[[ "$seen" == "first episode equal: True, second: True; with DataCollector: True, second: False" ]] || exit 1
