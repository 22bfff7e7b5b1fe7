#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: `clip_grad_norm_` with one infinite gradient makes all gradients NaN, or cuts the infinite one and keeps
#   the others' direction.
# Behavior: the infinite gradient becomes NaN, and all finite ones become 0, without a warning: one parameter is destroyed
#   by the step, and the rest of the network stands still.
# Output seen: "before: 1.0 inf -2.0, after: 0.0 nan -0.0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import torch

parameter = torch.nn.Parameter(torch.zeros(3))
parameter.grad = torch.tensor([1.0, torch.inf, -2.0])
before = parameter.grad.tolist()
torch.nn.utils.clip_grad_norm_(parameter, max_norm=0.5)
print(f"before: {' '.join(map(str, before))}, after: {' '.join(map(str, parameter.grad.tolist()))}")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "before: 1.0 inf -2.0, after: 0.0 nan -0.0" ]] || exit 1
