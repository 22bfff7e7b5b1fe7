#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: the mode of a Bernoulli with a probability of 0.5 is 0 or 1, as that of a Categorical with equal
#   probabilities is its first action.
# Behavior: it is NaN. The deterministic action of an untrained policy whose last layer is zero is no action.
# Output seen: "Bernoulli: nan, Categorical: 0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import torch
from torch.distributions import Bernoulli, Categorical

bernoulli, categorical = Bernoulli(logits=torch.zeros(())), Categorical(logits=torch.zeros(2))
print(f"Bernoulli: {bernoulli.mode.item()}, Categorical: {categorical.mode.item()}")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "Bernoulli: nan, Categorical: 0" ]] || exit 1
