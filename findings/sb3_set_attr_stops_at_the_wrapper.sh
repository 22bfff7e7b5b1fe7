#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `set_attr` of a vector environment changes the attribute that `get_attr` reads, as Gymnasium's vector
#   environments do.
# Behavior: SB3's `set_attr` creates an attribute of the outermost wrapper (`make_vec_env` has at least Monitor).
#   `get_attr` then returns the new value, and the environment goes on with the old one.
# Output seen: "SB3: get_attr 20.0, environment 10.0; Gymnasium: get_attr 20.0, environment 20.0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
from stable_baselines3.common.env_util import make_vec_env

vec_envs = {
    "SB3": make_vec_env("Pendulum-v1", n_envs=1),
    "Gymnasium": gym.make_vec("Pendulum-v1", num_envs=1, vectorization_mode="sync"),
}
seen = []
for name, vec_env in vec_envs.items():
    vec_env.set_attr("g", 20.0)  # gravity
    seen.append(f"{name}: get_attr {vec_env.get_attr('g')[0]}, environment {vec_env.envs[0].unwrapped.g}")
print("; ".join(seen))
PY
)
echo "stable-baselines3 2.9.2, gymnasium 1.4.0: $seen"
[[ "$seen" == "SB3: get_attr 20.0, environment 10.0; Gymnasium: get_attr 20.0, environment 20.0" ]] || exit 1
