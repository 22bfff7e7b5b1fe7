#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: the dtype of a log-probability is that of its inputs, however its gradient is taken.
# Behavior: `binary_cross_entropy_with_logits`, and with it `Bernoulli.log_prob`, of float64 logits and float32 actions is
#   float32 in eager mode, and float64 under `torch.func.grad`: a loss written both ways has two precisions.
# Output seen: "eager: float32 -1.9331899881, torch.func.grad_and_value: float64 -1.9331899802"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import torch
from torch.distributions import Bernoulli

actions = torch.ones(3)


def log_probability(logits):
    return Bernoulli(logits=logits).log_prob(actions).sum()


logits = torch.full((3,), 0.1, dtype=torch.float64)
eager, functional = log_probability(logits), torch.func.grad_and_value(log_probability)(logits)[1]
for name, value in (("eager", eager), (", torch.func.grad_and_value", functional)):
    print(f"{name}: {str(value.dtype).removeprefix('torch.')} {value.item():.10f}", end="")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "eager: float32 -1.9331899881, torch.func.grad_and_value: float64 -1.9331899802" ]] || exit 1
