#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: the KL divergence of two Categoricals whose forbidden actions have a logit of -inf is as differentiable as
#   their log-probabilities and entropies are.
# Behavior: its value is right, and its gradient is NaN for all logits of the first distribution, also those of allowed
#   actions. With -1e8 for -inf it is right.
# Output seen: "-inf: KL 0.462, gradients nan nan 0.0; -1e8: KL 0.462, gradients -0.393 0.393 0.0; entropy with -inf:
#   0.197 -0.197 0.0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import torch
from torch.distributions import Categorical, kl_divergence

forbidden = torch.tensor([False, False, True])


def gradients(of, logits):
    return " ".join(str(round(value, 3)) for value in torch.autograd.grad(of, logits)[0].tolist())


seen = []
for masked in (-torch.inf, -1e8):
    logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    distribution = Categorical(logits=logits.masked_fill(forbidden, masked))
    other = Categorical(logits=torch.tensor([1.0, 0.0, 0.0]).masked_fill(forbidden, masked))
    kl = kl_divergence(distribution, other)
    seen.append(f"{'-inf' if masked == -torch.inf else '-1e8'}: KL {kl.item():.3f}, gradients {gradients(kl, logits)}")
logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
entropy = Categorical(logits=logits.masked_fill(forbidden, -torch.inf)).entropy()
print("; ".join([*seen, f"entropy with -inf: {gradients(entropy, logits)}"]))
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "-inf: KL 0.462, gradients nan nan 0.0; -1e8: KL 0.462, gradients -0.393 0.393 0.0; entropy with \
-inf: 0.197 -0.197 0.0" ]] || exit 1
