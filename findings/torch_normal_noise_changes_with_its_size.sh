#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: after `torch.manual_seed(0)`, the first numbers of a longer `torch.randn` are those of a shorter one, as
#   with `torch.rand` and NumPy.
# Behavior: from 16 numbers on, another method is used, and the last 16 are drawn anew where the size is no multiple of
#   16: with one more environment or action, (almost) all of the noise is another.
# Output seen: "numbers in common, 8 and 15: 8, 15 and 16: 0, 17 and 32: 1; rand, 15 and 16: 15, 17 and 32: 17; NumPy, 15
#   and 16: 15, 17 and 32: 17"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import numpy as np
import torch


def common(draw, short, long):
    return int((np.asarray(draw(short)) == np.asarray(draw(long))[:short]).sum())


def seeded(function):
    return lambda size: (torch.manual_seed(0), function(size))[1]


randn, rand, numpy = seeded(torch.randn), seeded(torch.rand), lambda size: np.random.default_rng(0).normal(size=size)
seen = [f"8 and 15: {common(randn, 8, 15)}, 15 and 16: {common(randn, 15, 16)}, 17 and 32: {common(randn, 17, 32)}"]
for name, draw in (("rand", rand), ("NumPy", numpy)):
    seen.append(f"{name}, 15 and 16: {common(draw, 15, 16)}, 17 and 32: {common(draw, 17, 32)}")
print("numbers in common, " + "; ".join(seen))
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "numbers in common, 8 and 15: 8, 15 and 16: 0, 17 and 32: 1; rand, 15 and 16: 15, 17 and 32: 17; \
NumPy, 15 and 16: 15, 17 and 32: 17" ]] || exit 1
