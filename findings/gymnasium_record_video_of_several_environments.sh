#!/usr/bin/env bash
# Package: gymnasium 1.4.0, with moviepy 2.2.1.
# Common guess: RecordVideo among the wrappers of `make_vec`, or of SB3's make_vec_env, records each of the environments.
# Behavior: all of them write files of the same name, so that each overwrites the other's. What is left is the video of the
#   environment that wrote last, and nothing tells which one that is. Wrap one environment only, or give each its own
#   `name_prefix`.
# Output seen: "3 environments with one episode recorded in each: 1 file, 3 with prefixes of their own: 3 files"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "gymnasium[classic-control]==1.4.0" moviepy==2.2.1 numpy==2.4.6
seen=$(SDL_VIDEODRIVER=dummy "$folder/env/bin/python" - "$folder" 2> /dev/null <<'PY' | tail -n 1
import itertools
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordVideo


def files(name, prefix):
    folder = Path(sys.argv[1], name)

    def record(env):
        return RecordVideo(env, str(folder), episode_trigger=lambda episode: episode == 0, name_prefix=prefix())

    envs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync", render_mode="rgb_array", wrappers=[record])
    envs.reset(seed=0)
    for _ in range(30):
        envs.step(np.zeros(3, dtype=int))
    envs.close()
    return len(list(folder.glob("*.mp4")))


numbers = itertools.count()
one, own = files("one", lambda: "video"), files("own", lambda: f"video-{next(numbers)}")
print(f"3 environments with one episode recorded in each: {one} file, 3 with prefixes of their own: {own} files")
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "3 environments with one episode recorded in each: 1 file, 3 with prefixes of their own: 3 files" ]] || exit 1
