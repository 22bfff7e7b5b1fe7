#!/usr/bin/env bash
# Packages: gymnasium 1.4.0, ale-py 0.12.1.
# Common guess: AtariPreprocessing(terminal_on_life_loss=True) ends an episode with each life and goes on with the next
#   life, as the wrapper of Baselines and of SB3 (EpisodicLifeEnv) does.
# Behavior: `reset` after a lost life starts a new game. An agent trained with it never plays with fewer than all lives, nor
#   the later levels that it reaches with them, and is then evaluated in whole games. (The documentation says only that
#   `step` returns terminated=True.)
# Output seen: "lives at the start of 3 episodes: 5 5 5, frames played before: 0 0 0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 ale-py==0.12.1 opencv-python-headless==5.0.0.93 numpy==2.4.6
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
import ale_py
import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing

gym.register_envs(ale_py)
env = AtariPreprocessing(gym.make("ALE/Breakout-v5", frameskip=1), noop_max=0, terminal_on_life_loss=True)
env.action_space.seed(0)
lives, frames = [], []
for _ in range(3):
    _, info = env.reset(seed=None if lives else 0)
    lives.append(info["lives"])
    frames.append(info["episode_frame_number"])
    terminated = truncated = False
    while not (terminated or truncated):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
    assert info["lives"] == lives[-1] - 1
print(f"lives at the start of 3 episodes: {' '.join(map(str, lives))}, frames played before: {' '.join(map(str, frames))}")
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "lives at the start of 3 episodes: 5 5 5, frames played before: 0 0 0" ]] || exit 1
