#!/usr/bin/env bash
# Package: brax 0.14.2, with jax 0.10.2.
# Common guess: `envs.create(..., auto_reset=True)`, the default, begins each episode with a new random state, as the automatic
#   resets of Gymnasium's vector environments do. (The docstring says "auto reset the environment after an episode is done".)
# Behavior: each reset restores the state and the observation of the last call of `reset`. An agent trains in no more starts
#   than there are environments, and 100 episodes of one environment evaluate a single start. `reset` with a new key draws new
#   ones. (Source: AutoResetWrapper in brax/envs/wrappers/training.py)
# Output seen: "2 environments, 4 episodes each: 2 different starts; after reset with another key: 4"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet brax==0.14.2 jax==0.10.2 numpy==2.4.6
seen=$(JAX_PLATFORMS=cpu "$folder/env/bin/python" - 2> /dev/null <<'PY' | tail -n 1
import jax
import numpy as np
from brax import envs

env = envs.create("inverted_pendulum", episode_length=5, batch_size=2)
reset, step = jax.jit(env.reset), jax.jit(env.step)
state = reset(jax.random.PRNGKey(0))
starts = [np.asarray(state.obs)]
while len(starts) < 4:
    state = step(state, np.zeros((2, env.action_size)))
    if state.done.all():
        starts.append(np.asarray(state.obs))
one_key = np.concatenate(starts)
two_keys = np.concatenate([one_key, np.asarray(reset(jax.random.PRNGKey(1)).obs)])
n_starts = [len(np.unique(observations, axis=0)) for observations in (one_key, two_keys)]
print(f"2 environments, 4 episodes each: {n_starts[0]} different starts; after reset with another key: {n_starts[1]}")
PY
)
echo "brax 0.14.2: $seen"
[[ "$seen" == "2 environments, 4 episodes each: 2 different starts; after reset with another key: 4" ]] || exit 1
