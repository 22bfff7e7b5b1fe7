#!/usr/bin/env bash
# Packages: torch 2.13.0 (CPU), with a C++ compiler.
# Common guess: compiled code is kept in TORCHINDUCTOR_CACHE_DIR, so that the next process does not compile it again.
# Behavior: code with `torch._higher_order_ops.while_loop` bypasses this cache, in every process, without a word. With the
#   option unsafe_marked_cacheable_functions={"torch.ops.higher_order.while_loop": "1"} of torch._inductor.config it is
#   kept.
# Output seen: "second process, plain: hit, while_loop: bypass, while_loop with the option: hit"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat >"$folder/run.py" <<'PY'
import sys

import torch
from torch._higher_order_ops import while_loop


def plain(values):
    return values.sin() + 1


def loop(values):
    start = torch.zeros((), dtype=torch.int64), values
    return while_loop(lambda step, _: step < 3, lambda step, values: (step + 1, values.sin() + 1), start)[1]


if sys.argv[1] == "option":
    torch._inductor.config.unsafe_marked_cacheable_functions = {"torch.ops.higher_order.while_loop": "1"}
torch.compile(plain if sys.argv[1] == "plain" else loop)(torch.zeros(4))
counts = torch._dynamo.utils.counters["inductor"]
print("".join(outcome for outcome in ("hit", "miss", "bypass") if counts[f"fxgraph_cache_{outcome}"]))
PY
second() {
    for _ in 1 2; do
        outcome=$(TORCHINDUCTOR_CACHE_DIR="$folder/cache_$1" "$folder/env/bin/python" "$folder/run.py" "$1")
    done
    echo "$outcome"
}
seen="second process, plain: $(second plain), while_loop: $(second loop), while_loop with the option: $(second option)"
echo "torch 2.13.0: $seen"
[[ "$seen" == "second process, plain: hit, while_loop: bypass, while_loop with the option: hit" ]] || exit 1
