#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: a training that continues with `Monitor(override_existing=False)` adds its episodes after those of the
#   first one, and `load_results` returns them in this order.
# Behavior: the times of the second run start at 0 again, but the file keeps the first run's start. `load_results` sorts
#   by time, so that the two runs are shuffled into each other, and a learning curve over them has early and late episodes
#   side by side.
# Output seen: "file: 3 3 3 4 4 4, load_results: 3 4 3 4 3 4"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 pandas==2.3.3
seen=$("$folder/env/bin/python" - "$folder" <<'PY'
import sys
import time

import gymnasium as gym
import pandas as pd
from stable_baselines3.common.monitor import Monitor, load_results

folder = sys.argv[1]
for run, length in enumerate((3, 4)):  # episodes of three steps in the first run, of four in the second
    env = Monitor(gym.make("CartPole-v1", max_episode_steps=length), folder, override_existing=run == 0)
    time.sleep(0.4 * run)
    for _ in range(3):
        env.reset(seed=0)
        for _ in range(length):
            env.step(env.action_space.sample())
        time.sleep(0.8)
    env.close()
file, loaded = pd.read_csv(f"{folder}/monitor.csv", skiprows=1), load_results(folder)
print(f"file: {' '.join(map(str, file['l']))}, load_results: {' '.join(map(str, loaded['l']))}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "file: 3 3 3 4 4 4, load_results: 3 4 3 4 3 4" ]] || exit 1
