#!/usr/bin/env bash
# Package: torch 2.13.0 (CPU).
# Common guess: `pack_padded_sequence` saves the time that an LSTM would spend on padding, so for sequences of different
#   lengths, such as pieces of episodes, it is faster than running the padded batch.
# Behavior: on a CPU, only padded batches use oneDNN's LSTM; packed ones run step by step in torch's own code. With nearly
#   half of the steps padding, packing takes about three times as long, forward and backward together, for the same outputs.
#   Sorting sequences into groups of similar length and padding each group is the fast way.
# Output seen (AMD EPYC): "47% of the steps are padding; packing takes 3.0 times as long: slower"
# Exits 1 if that changes: if packing takes less than 1.5 times as long.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import time

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.set_num_threads(1)
torch.manual_seed(0)
lengths = torch.linspace(8, 128, 16).long().flip(0)
inputs, lstm = torch.randn(128, 16, 64), torch.nn.LSTM(64, 128)
is_real = torch.arange(128)[:, None] < lengths


def padded():
    return lstm(inputs)[0] * is_real[..., None]


def packed():
    return pad_packed_sequence(lstm(pack_padded_sequence(inputs, lengths))[0])[0]


def seconds(run):
    start = time.perf_counter()
    for _ in range(5):
        run().square().sum().backward()
    return time.perf_counter() - start


assert torch.allclose(padded(), packed(), atol=1e-5)
turns = [seconds(packed) / seconds(padded) for _ in range(8)][1:]
ratio = sorted(turns)[3]
verdict = "slower" if ratio > 1.5 else "not slower"
print(f"{1 - is_real.float().mean():.0%} of the steps are padding; packing takes {ratio:.1f} times as long: {verdict}")
PY
)
echo "torch 2.13.0: $seen"
[[ "$seen" == "47% of the steps are padding; packing takes "*" times as long: slower" ]] || exit 1
