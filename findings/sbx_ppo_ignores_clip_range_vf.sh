#!/usr/bin/env bash
# Packages: sbx-rl 0.28.0, stable-baselines3 2.9.2, jax 0.10.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: the arguments that SBX's PPO shares with SB3's, in name and in docstring, do what they do there:
#   `clip_range_vf` clips the value loss, and values that are not positive are refused.
# Behavior: SBX keeps `clip_range_vf` in an attribute that nothing reads. Training is the same without it, with 0.0001,
#   and with -1, and there is no warning.
# Output seen: "SB3's PPO: clip_range_vf=0.0001 changes the weights; SBX's PPO: same weights with None, 0.0001 and -1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet sbx-rl==0.28.0 stable-baselines3==2.9.2 jax==0.10.2 flax==0.12.8 \
    tfp-nightly==0.26.0.dev20261027 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$(JAX_PLATFORMS=cpu "$folder/env/bin/python" - <<'PY'
import warnings

import jax
import numpy as np
import sbx
import stable_baselines3

warnings.simplefilter("error", UserWarning)


def weights(package, clip_range_vf):
    """Return all weights after two rollouts."""
    model = package.PPO("MlpPolicy", "CartPole-v1", n_steps=256, clip_range_vf=clip_range_vf, seed=0, device="cpu").learn(512)
    policy = model.policy
    if package is sbx:
        arrays = jax.tree.leaves((policy.actor_state.params, policy.vf_state.params))
    else:
        arrays = [parameter.detach().numpy() for parameter in policy.parameters()]
    return np.concatenate([np.ravel(array) for array in arrays])


without, clipped = (weights(stable_baselines3, value) for value in (None, 0.0001))
changes = "keeps" if np.array_equal(without, clipped) else "changes"
without, clipped, invalid = (weights(sbx, value) for value in (None, 0.0001, -1))
same = "same" if np.array_equal(without, clipped) and np.array_equal(without, invalid) else "other"
print(f"SB3's PPO: clip_range_vf=0.0001 {changes} the weights; SBX's PPO: {same} weights with None, 0.0001 and -1")
PY
)
echo "sbx-rl 0.28.0: $seen"
[[ "$seen" == "SB3's PPO: clip_range_vf=0.0001 changes the weights; SBX's PPO: same weights with None, 0.0001 and -1" ]] || exit 1
