#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `b.set_parameters(a.get_parameters())` makes two independent models, and a deep copy of `get_parameters()` is a
#   snapshot to which a run can be set back as often as one likes.
# Behavior: weights are copied, but Adam keeps the tensors of its moments and step counts that it is given, so that both models
#   change the same ones: training `b` changes what `a` learns next. A snapshot goes on training with the model after the
#   first time that it is set back, so that the second time it has old weights with newer moments.
# Output seen: "steps of a's Adam, and of the snapshot: 80 120; after b was trained, or the model that was set back: 240 280"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import copy

from stable_baselines3 import PPO


def steps(parameters):
    return int(parameters["policy.optimizer"]["state"][0]["step"])


def make():
    return PPO("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=32, n_epochs=10)


a, b, model = make().learn(256), make(), make().learn(384)
snapshot = copy.deepcopy(model.get_parameters())
print("steps of a's Adam, and of the snapshot:", steps(a.get_parameters()), steps(snapshot), end="; ")
b.set_parameters(a.get_parameters())
b.learn(512)
model.set_parameters(snapshot)
model.learn(512)
print("after b was trained, or the model that was set back:", steps(a.get_parameters()), steps(snapshot))
PY
)
echo "stable-baselines3 2.9.2: $seen"
expected="steps of a's Adam, and of the snapshot: 80 120; after b was trained, or the model that was set back: 240 280"
[[ "$seen" == "$expected" ]] || exit 1
