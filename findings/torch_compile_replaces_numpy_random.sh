#!/usr/bin/env bash
# Packages: torch 2.13.0 (CPU), numpy 2.4.6.
# Common guess: a compiled function that draws with `np.random.normal(size=2)` draws what `np.random.seed` determines, as
#   a call of `np.random.rand()` in it does.
# Behavior: an array drawn in compiled code comes from torch's generator, a single number from NumPy's. Only
#   `torch.manual_seed` repeats the array.
# Output seen: "one number: NumPy's seed repeats it True, torch's False; array: NumPy's seed repeats it False, torch's
#   True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import numpy as np
import torch


def add_number(values):
    return values + np.random.rand()


def add_array(values):
    return values + torch.from_numpy(np.random.normal(size=2))


def repeats(function, set_seed):
    results = []
    for _ in range(2):
        set_seed(0)
        results.append(function(torch.zeros(2)))
    return torch.equal(*results)


seen = []
for name, function in (("one number", add_number), ("array", add_array)):
    compiled = torch.compile(function, backend="aot_eager")
    by_numpy, by_torch = repeats(compiled, np.random.seed), repeats(compiled, torch.manual_seed)
    seen.append(f"{name}: NumPy's seed repeats it {by_numpy}, torch's {by_torch}")
print("; ".join(seen))
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "one number: NumPy's seed repeats it True, torch's False; array: NumPy's seed repeats it False, \
torch's True" ]] || exit 1
