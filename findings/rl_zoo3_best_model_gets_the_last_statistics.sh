#!/usr/bin/env bash
# Packages: rl_zoo3 2.9.2, stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: RL Zoo's `train` saves `VecNormalize` with each new best model, so that `enjoy --load-best` plays the best
#   model with the statistics that it was evaluated with.
# Behavior: the callback of a new best model and the end of the run write the same file, ENV/vecnormalize.pkl. What stays
#   are the statistics of the end, with which `--load-best` then plays. (Source: `SaveVecNormalizeCallback` and
#   `save_trained_model` have the same folder)
# Output seen: "best model after 400 steps of 1600, statistics of 400: False, of the end: True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet rl_zoo3==2.9.2 stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 \
    pandas==2.3.3
cd "$folder"
# With a learning rate of 0, each evaluation returns -200, and the first stays the best
"$folder/env/bin/python" -m rl_zoo3.train --algo ppo --env MountainCar-v0 -n 1600 --eval-freq 400 --eval-episodes 1 \
    --verbose 0 --seed 0 -f logs -params normalize:True n_envs:1 n_steps:200 batch_size:50 learning_rate:0.0 > /dev/null 2>&1
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
import pickle
from pathlib import Path

from stable_baselines3 import PPO

run = Path("logs/ppo/MountainCar-v0_1")
best, last = (PPO.load(run / name).num_timesteps for name in ("best_model.zip", "MountainCar-v0.zip"))
with (run / "MountainCar-v0" / "vecnormalize.pkl").open("rb") as file:
    count = round(pickle.load(file).obs_rms.count)  # one more for each reset
print(f"best model after {best} steps of {last}, statistics of {best}: {abs(count - best) < 100}, ", end="")
print(f"of the end: {abs(count - last) < 100}")
PY
)
echo "rl_zoo3 2.9.2: $seen"
[[ "$seen" == "best model after 400 steps of 1600, statistics of 400: False, of the end: True" ]] || exit 1
