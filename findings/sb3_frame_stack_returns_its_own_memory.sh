#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: an observation that a vector environment returned belongs to the caller, as DummyVecEnv's do.
# Behavior: VecFrameStack returns its own stack. `reset` overwrites the observation that the last `step` returned, and
#   what the caller changes in place, such as `observation /= 255`, is in the older frames of the next one.
# Output seen: "DummyVecEnv: kept by reset True, older frame right True; VecFrameStack: kept by reset False, older frame
#   right False"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

action, seen = np.zeros(1, dtype=int), []
for n_stack in (1, 2):
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    if n_stack > 1:
        env = VecFrameStack(env, n_stack)
    env.reset()
    last = env.step(action)[0]
    copy = last.copy()
    first = env.reset()
    kept = np.array_equal(last, copy)
    expected = first[0, -4:].copy()
    first *= 0.5
    older = env.step(action)[0][0, :4] if n_stack > 1 else expected
    seen.append(f"{type(env).__name__}: kept by reset {kept}, older frame right {np.array_equal(older, expected)}")
print("; ".join(seen))
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "DummyVecEnv: kept by reset True, older frame right True; VecFrameStack: kept by reset False, \
older frame right False" ]] || exit 1
