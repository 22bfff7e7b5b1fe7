#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU), compiled by g++.
# Common guess: in a compiled step of Adam, the bias corrections 1 - beta**t, which are the same for all parameters, are computed
#   once per step.
# Behavior: torch.compile puts both powers, in double precision, into the loop over the parameters, where they are computed anew
#   for each vector of parameters. With 9,000 parameters of a small network, computing them before the loop made whole updates
#   a fifth faster on an AMD EPYC.
# Output seen: "powers in the loop over the parameters: 2"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.0
seen=$("$folder/env/bin/python" - <<'PY'
import torch
from torch._inductor.utils import run_and_get_code

parameter = torch.nn.Parameter(torch.zeros(4096))
parameter.grad = torch.ones(4096)
optimizer = torch.optim.Adam([parameter])
optimizer.step()
_, codes = run_and_get_code(torch.compile(optimizer.step))
loop = "".join(codes).split("for(int64_t x0", 1)[1].split("store(", 1)[0]
print("powers in the loop over the parameters:", loop.count("std::pow"))
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "powers in the loop over the parameters: 2" ]] || exit 1
