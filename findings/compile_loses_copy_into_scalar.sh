#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: a function that torch.compile runs changes its arguments in place as it does without torch.compile.
# Behavior: `copy_` into an argument of dtype float64 and shape () is lost, with the backends "aot_eager" and "inductor" (the
#   default), without a warning. Shape (1,), float32 and integers are changed, and so are all with the backend "eager".
# Output seen: "() float64: 8.0, (1,) float64: 9.0, () float32: 9.0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.0
seen=$("$folder/env/bin/python" - <<'PY'
import torch


def increase(count):
    count.copy_(count + 1)


def outcome(shape, dtype):
    count = torch.full(shape, 8, dtype=dtype)
    torch.compile(increase, backend="aot_eager")(count)
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}: {count.item()}"


print(outcome((), torch.float64), outcome((1,), torch.float64), outcome((), torch.float32), sep=", ")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "() float64: 8.0, (1,) float64: 9.0, () float32: 9.0" ]] || exit 1
