#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: gymnasium.make(env.spec) makes another environment like this one, wrappers included: that is what a specification
#   is for, and data sets store it to recover their environment.
# Behavior: SB3 wraps each environment in Monitor, whose constructor's arguments Gymnasium does not record. The specification of
#   every environment of make_vec_env, or of an algorithm that got a name, can be written as JSON and read again, but make
#   refuses it: the wrapper cannot be created again. It also holds render_mode="rgb_array", which nobody asked for. Leave
#   Monitor out of additional_wrappers, and the render mode out of kwargs, before you store a specification.
# Output seen: "render_mode: rgb_array, wrappers: Monitor; made again: ValueError; without Monitor: True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
from dataclasses import replace

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.env_util import make_vec_env

spec = EnvSpec.from_json(make_vec_env("CartPole-v1", 1).get_attr("spec")[0].to_json())
print(f"render_mode: {spec.kwargs['render_mode']}, wrappers: {spec.additional_wrappers[-1].name};", end=" ")
try:
    gym.make(spec)
    made = "yes"
except ValueError as error:
    made = type(error).__name__ if "cannot be recreated" in str(error) else str(error)
bare = gym.make(replace(spec, additional_wrappers=spec.additional_wrappers[:-1]))
print(f"made again: {made}; without Monitor: {bare.spec.id == spec.id}")
PY
)
echo "$seen"
[[ "$seen" == "render_mode: rgb_array, wrappers: Monitor; made again: ValueError; without Monitor: True" ]] || exit 1
