#!/usr/bin/env bash
# Packages: xuance 1.4.4, gymnasium 1.2.3, torch 2.13.0 (CPU).
# Common guess: `runner.run(mode="test")` tests the model of the runner's seed, or at least the latest one.
# Behavior: it loads the folder whose name comes last in alphabetical order. Names begin with "seed_" and the seed, so that
#   after seeds 1 to 3 all tests play the model of seed 3, however old it is, and seed 9 comes after seed 10. `model_path`
#   of `run` chooses the folder.
# Output seen: "trained with seeds 2 and then 1, tested with seed 1: the model of seed 2"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet xuance==1.4.4 gymnasium==1.2.3 numpy==1.26.4 torch==2.13.0
cd "$folder"
"$folder/env/bin/python" - >log 2>&1 <<'PY'
from argparse import Namespace

import torch as th
from xuance import get_runner


def runner(seed):
    changes = Namespace(seed=seed, running_steps=10, render=False)
    return get_runner("ppg", "classic_control", "CartPole-v1", parser_args=changes)


def weights(agent):
    return th.cat([parameter.detach().flatten() for parameter in agent.policy.parameters()])


trained = {}
for seed in (2, 1):
    trained[seed] = runner(seed)
    trained[seed].run(mode="train")
tested = runner(1)
tested.run(mode="test", render=False, render_mode="rgb_array")
(seen,) = [seed for seed, one in trained.items() if th.equal(weights(one.agent), weights(tested.agent))]
with open("seen", "w") as file:
    file.write(f"trained with seeds 2 and then 1, tested with seed 1: the model of seed {seen}")
PY
seen=$(cat seen)
echo "xuance 1.4.4: $seen"
[[ "$seen" == "trained with seeds 2 and then 1, tested with seed 1: the model of seed 2" ]] || exit 1
