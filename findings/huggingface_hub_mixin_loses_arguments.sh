#!/usr/bin/env bash
# Packages: huggingface_hub 2.4.0, torch 2.13.0 (CPU).
# Common guess: a network with PyTorchModelHubMixin that `save_pretrained` has written comes back from `from_pretrained` as
#   it was, or saving fails.
# Behavior: arguments that JSON cannot hold, such as `activation_fn=nn.ReLU` in the style of SB3, are left out without a
#   warning, and loading takes their defaults. All weights fit, and the policy's actions are others. (The docstring
#   shows `coders` for such arguments, and does not say what happens without.)
# Output seen: "saved with ReLU, loaded with Tanh, weights equal: True, outputs equal: False, warnings: 0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet huggingface_hub==2.4.0 safetensors==0.8.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - "$folder/saved" 2> /dev/null <<'PY' | tail -n 1
import sys
import warnings

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn


class Actor(nn.Module, PyTorchModelHubMixin):
    def __init__(self, n_inputs=4, n_actions=2, activation_fn=nn.Tanh):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(n_inputs, 8), activation_fn(), nn.Linear(8, n_actions))

    def forward(self, observations):
        return self.network(observations)


torch.manual_seed(0)
saved = Actor(n_inputs=3, activation_fn=nn.ReLU)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    saved.save_pretrained(sys.argv[1])
    loaded = Actor.from_pretrained(sys.argv[1])
same = all(map(torch.equal, saved.parameters(), loaded.parameters()))
observations = torch.ones(1, 3)
print(f"saved with {type(saved.network[1]).__name__}, loaded with {type(loaded.network[1]).__name__},", end=" ")
print(f"weights equal: {same}, outputs equal: {torch.equal(saved(observations), loaded(observations))},", end=" ")
print(f"warnings: {len(caught)}")
PY
)
echo "huggingface_hub 2.4.0: $seen"
[[ "$seen" == "saved with ReLU, loaded with Tanh, weights equal: True, outputs equal: False, warnings: 0" ]] || exit 1
