#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: torch.compile changes the function that it is given, and nothing else in the process.
# Behavior: the first call of torch.compile, before anything is compiled, switches off the validation of arguments of all
#   torch.distributions for the rest of the process. A wrong parameter that raised a ValueError before is accepted afterwards.
# Output seen: "before: refused, after torch.compile: accepted"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.0
seen=$("$folder/env/bin/python" - <<'PY'
import torch


def outcome():
    try:
        torch.distributions.Bernoulli(probs=torch.tensor(2.0))
    except ValueError:
        return "refused"
    return "accepted"


before = outcome()
torch.compile(lambda x: x + 1)  # not called
print(f"before: {before}, after torch.compile: {outcome()}")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "before: refused, after torch.compile: accepted" ]] || exit 1
