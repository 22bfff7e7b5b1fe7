#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: a training loop inside one `torch.autocast("cpu", torch.bfloat16)` uses the weights that the optimizer has
#   just set.
# Behavior: autocast keeps its copies of the weights until its outermost block ends, and does not see that they were
#   changed in place: all steps of the loop compute with the first weights, without a warning. With the block around the
#   forward pass, or cache_enabled=False, it learns.
# Output seen: "around the loop: 6.8 6.8 6.8 6.8, around the forward pass: 6.8 1.7 0.4 0.1, around the loop, without the
#   cache: 6.8 1.7 0.4 0.1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
from contextlib import nullcontext

import torch


def losses(loop, forward):
    network = torch.nn.Linear(4, 1)
    with torch.no_grad():
        network.weight.fill_(0.1)
        network.bias.zero_()
    optimizer, inputs, seen = torch.optim.SGD(network.parameters(), lr=0.05), torch.ones(8, 4), []
    with loop():
        for _ in range(4):
            with forward():
                loss = (network(inputs).float() - 3).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(f"{loss.item():.1f}")
    return " ".join(seen)


def autocast(cache_enabled=True):
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=cache_enabled)


around_loop, around_forward = losses(autocast, nullcontext), losses(nullcontext, autocast)
without_cache = losses(lambda: autocast(cache_enabled=False), nullcontext)
print(f"around the loop: {around_loop}, around the forward pass: {around_forward}", end=", ")
print(f"around the loop, without the cache: {without_cache}")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "around the loop: 6.8 6.8 6.8 6.8, around the forward pass: 6.8 1.7 0.4 0.1, around the loop, \
without the cache: 6.8 1.7 0.4 0.1" ]] || exit 1
