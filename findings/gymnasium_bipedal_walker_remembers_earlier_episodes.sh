#!/usr/bin/env bash
# Package: gymnasium 1.4.0, with Box2D 2.3.10.
# Common guess: after `reset(seed=s)`, the same actions give the same episode, whatever was played before; `check_env` has
#   found no fault.
# Behavior: BipedalWalker (Hardcore, too) keeps the physics engine's world over `reset`, and some episodes differ from the
#   first step after it on, in their lengths and returns, too, from those of a new environment. LunarLander makes a new
#   world at each reset. Episodes to compare agents need a new environment each. (Source: `reset` of both environments)
# Output seen: "12 seeds, episodes equal to those of a new environment: LunarLander all, BipedalWalker not all"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "gymnasium[box2d]==1.4.0" Box2D==2.3.10 numpy==2.4.6
seen=$("$folder/env/bin/python" - 2> /dev/null <<'PY'
import gymnasium as gym
import numpy as np


def episode(env, seed):
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(0)
    observations, ended = [observation], False
    while not ended and len(observations) < 600:
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(observation)
        ended = terminated or truncated
    return np.array(observations)


seen = []
for name in ("LunarLander", "BipedalWalker"):
    used = gym.make(f"{name}-v3")
    equal = [np.array_equal(episode(used, seed), episode(gym.make(f"{name}-v3"), seed)) for seed in range(12)]
    assert equal[0]  # the first episode of `used`
    seen.append(f"{name} {'all' if all(equal) else 'not all'}")
print(f"12 seeds, episodes equal to those of a new environment: {', '.join(seen)}")
PY
)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "12 seeds, episodes equal to those of a new environment: LunarLander all, BipedalWalker not all" ]] || exit 1
