#!/usr/bin/env bash
# Packages: gymnasium 1.4.0, with jax 0.10.2 and flax 0.12.8.
# Common guess: in the vector environments of phys2d (JAX), as in Gymnasium's others, an environment that is reset leaves the
#   others alone: they take their steps.
# Behavior: in a step that resets one environment, all others stay where they were. Their actions are lost, but reward and end of
#   the episode are those of the states that they did not reach, so that some episodes end where they could go on. `make_vec(..., vectorization_mode="sync")` is not affected.
#   (Source: FunctionalJaxVectorEnv.step puts the new states into `self.state`, which is the one before the step)
# Output seen: "steps that stand still: 0 % where none is reset, 100 % of the others where one is; some end the episode: True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 jax==0.10.2 flax==0.12.8 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium
import numpy as np

envs = gymnasium.make_vec("phys2d/CartPole-v1", num_envs=8)
rng = np.random.default_rng(0)
before, is_reset = np.asarray(envs.reset(seed=0)[0]), np.zeros(8, dtype=bool)
n_steps, n_still, n_ends = np.zeros(2, dtype=int), np.zeros(2, dtype=int), 0
for _ in range(200):
    after, _, terminated, truncated, _ = envs.step(rng.integers(0, 2, 8))
    after, ends = np.asarray(after), np.asarray(terminated) | np.asarray(truncated)
    still = ~is_reset & (after == before).all(axis=1)
    kind = int(is_reset.any())
    n_steps[kind] += (~is_reset).sum()
    n_still[kind] += still.sum()
    n_ends += (still & ends).sum()
    before, is_reset = after, ends
none, one = n_still / n_steps
print(f"steps that stand still: {none:.0%} where none is reset, {one:.0%} of the others where one is", end="; ")
print("some end the episode:", bool(n_ends > 0))
PY
)
seen=${seen//%/ %}
echo "gymnasium 1.4.0: $seen"
wanted="steps that stand still: 0 % where none is reset, 100 % of the others where one is; some end the episode: True"
[[ "$seen" == "$wanted" ]] || exit 1
