#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU), tensorboard 2.21.0.
# Common guess: `learn(reset_num_timesteps=False)` continues the curve of this model in the TensorBoard folder that its
#   first `learn` used.
# Behavior: the folder is the one with the highest number of this name, whoever wrote it. Of two models (or processes)
#   that share a log folder, the first one continues in the second one's curve.
# Output seen: "first learn: PPO_1 PPO_2, continued: PPO_2 PPO_2"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 tensorboard==2.21.0
seen=$("$folder/env/bin/python" - "$folder/logs" <<'PY'
import os
import sys

from stable_baselines3 import PPO

arguments = dict(n_steps=16, batch_size=16, n_epochs=1, tensorboard_log=sys.argv[1])
models = [PPO("MlpPolicy", "CartPole-v1", seed=seed, **arguments) for seed in (0, 1)]
seen = []
for reset_num_timesteps in (True, False):
    folders = [os.path.basename(model.learn(16, reset_num_timesteps=reset_num_timesteps).logger.dir) for model in models]
    seen.append(" ".join(folders))
print(f"first learn: {seen[0]}, continued: {seen[1]}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "first learn: PPO_1 PPO_2, continued: PPO_2 PPO_2" ]] || exit 1
