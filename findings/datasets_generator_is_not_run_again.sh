#!/usr/bin/env bash
# Packages: datasets 5.2.0, gymnasium 1.4.0.
# Common guess: `Dataset.from_generator(record)` runs `record`, so that a second call, or a second run of the script, records
#   other episodes.
# Behavior: the result is cached under a hash of the function. A second call returns the first recording without running the
#   generator, also where it draws random numbers or reads a policy from a file that has changed. Something that differs in
#   `gen_kwargs`, such as a seed, records again. (The docstring says that the data are cached under a
#   hash of the function and its arguments, not that the next call runs nothing.)
# Output seen: "calls 3, recordings 2; second equal to the first: True, with a seed of its own: False"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet datasets==5.2.0 gymnasium==1.4.0 numpy==2.4.6
seen=$(HF_HOME="$folder/cache" "$folder/env/bin/python" - "$folder/log" 2> /dev/null <<'PY'
import sys

import datasets
import gymnasium as gym


def record(log, seed=None):
    with open(log, "a") as file:
        file.write("recorded\n")
    env = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=seed)
    for _ in range(5):
        yield {"observation": observation}
        observation, *_ = env.step(0)


def recording(**options):
    return datasets.Dataset.from_generator(record, gen_kwargs={"log": sys.argv[1], **options})["observation"][:]


first, second, third = recording(), recording(), recording(seed=1)
with open(sys.argv[1]) as file:
    n_recordings = len(file.readlines())
print(f"calls 3, recordings {n_recordings}; second equal to the first: {second == first},", end=" ")
print(f"with a seed of its own: {third == first}")
PY
)
echo "datasets 5.2.0: $seen"
[[ "$seen" == "calls 3, recordings 2; second equal to the first: True, with a seed of its own: False" ]] || exit 1
