#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: an environment that nobody renders costs the same in each step, however it was made and whoever plays.
# Behavior: SB3's make_vec_env, and an algorithm that gets an environment's name, make it with render_mode="rgb_array" unless
#   told otherwise. LunarLander then computes the smoke of its engines as bodies of the physics engine, in each step and without
#   any effect on the lander. A random player's steps take two to three times as long; an agent that has learned to hover
#   fires in each step, and they take up to fourteen times as long, most of a training's time. So a better agent looks like
#   slower code. env_kwargs=dict(render_mode=None) avoids it. (RL Zoo's own way to make environments has no render mode.)
# Output seen: "rgb_array: 67 bodies of smoke on average, None: 0; equal rewards: True; twice as long: True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 "gymnasium[box2d]==1.4.0" torch==2.13.0
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
import time

from stable_baselines3.common.env_util import make_vec_env

found = {}
for kwargs in ({}, {"render_mode": None}):
    env = make_vec_env("LunarLander-v3", 1, seed=0, env_kwargs=kwargs)
    lander = env.envs[0].unwrapped
    observations, rewards, smoke, seconds = env.reset(), 0.0, 0, 0.0
    for step in range(3000):
        falling = observations[0][3] < -0.1
        start = time.process_time()
        observations, reward, _, _ = env.step([2 if falling else 1 + 2 * (step % 2)])  # the main engine, or one at a side
        seconds += time.process_time() - start
        rewards += reward[0]
        smoke += len(lander.particles)
    found[lander.render_mode] = (rewards, smoke / 3000, seconds)
(rewards, smoke, seconds), (same, none, fewer) = found["rgb_array"], found[None]
print(f"rgb_array: {smoke:.0f} bodies of smoke on average, None: {none:.0f};", end=" ")
print(f"equal rewards: {rewards == same}; twice as long: {seconds > 2 * fewer}")
PY
)
echo "$seen"
[[ "$seen" == "rgb_array: 67 bodies of smoke on average, None: 0; equal rewards: True; twice as long: True" ]] || exit 1
