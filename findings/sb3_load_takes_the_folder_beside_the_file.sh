#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `load("X")` reads what `save("X")` wrote, X.zip, whatever else lies there.
# Behavior: if there is a folder X beside X.zip, `load("X")` fails with an IsADirectoryError, while `save("X")` goes on to
#   write X.zip. RL Zoo lays its runs out so (CartPole-v1.zip beside CartPole-v1/, for the statistics), so the name without
#   ".zip" loads none of its last models, but "best_model" loads. (Source: `open_path_pathlib`
#   adds the suffix after a FileNotFoundError, and a folder raises another error)
# Output seen: "alone: loaded, beside a folder: IsADirectoryError, with .zip: loaded"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 pandas==2.3.3
cd "$folder"
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
from pathlib import Path

from stable_baselines3 import PPO

model = PPO("MlpPolicy", "CartPole-v1", device="cpu")


def outcome(name):
    try:
        return type(PPO.load(name)).__name__.replace("PPO", "loaded")
    except OSError as error:
        return type(error).__name__


model.save("run/CartPole-v1")
alone = outcome("run/CartPole-v1")
Path("run/CartPole-v1").mkdir()
model.save("run/CartPole-v1")
print(f"alone: {alone}, beside a folder: {outcome('run/CartPole-v1')}, with .zip: {outcome('run/CartPole-v1.zip')}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "alone: loaded, beside a folder: IsADirectoryError, with .zip: loaded" ]] || exit 1
