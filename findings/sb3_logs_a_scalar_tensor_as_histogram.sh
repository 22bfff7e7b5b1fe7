#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, torch 2.13.0 (CPU), tensorboard 2.21.0.
# Common guess: `logger.record("train/loss", loss)` with a tensor of shape () logs a number, as `loss.item()` does, or is
#   refused.
# Behavior: TensorBoard gets a histogram and no scalar, so that the curve is missing there, progress.csv gets the text
#   "tensor(0.5000)", which turns the column into text, and progress.json a number.
# Output seen: "TensorBoard: histogram, progress.csv: tensor(0.5000), progress.json: 0.5"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 tensorboard==2.21.0
seen=$("$folder/env/bin/python" - "$folder" <<'PY' | tail -n 1
import csv
import json
import sys

import torch
from stable_baselines3.common.logger import configure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

folder = sys.argv[1]
logger = configure(folder, ["csv", "json", "tensorboard"])
logger.record("train/loss", torch.tensor(0.5))
logger.dump(step=1)
tags = EventAccumulator(folder).Reload().Tags()
kind = [kind for kind, names in (("scalar", tags["scalars"]), ("histogram", tags["histograms"])) if "train/loss" in names]
with open(f"{folder}/progress.csv") as csv_file, open(f"{folder}/progress.json") as json_file:
    text, number = next(csv.DictReader(csv_file))["train/loss"], json.load(json_file)["train/loss"]
print(f"TensorBoard: {' '.join(kind)}, progress.csv: {text}, progress.json: {number}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "TensorBoard: histogram, progress.csv: tensor(0.5000), progress.json: 0.5" ]] || exit 1
