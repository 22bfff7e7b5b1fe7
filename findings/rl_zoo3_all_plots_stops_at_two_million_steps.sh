#!/usr/bin/env bash
# Packages: rl_zoo3 2.9.2, stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: the table of `all_plots` has the results at the end of the runs, with their standard errors; `-max` ("max
#   number of timesteps to display") is about the picture.
# Behavior: `-max` is 2,000,000 unless it is given, which --help does not say, and the table has the results at that step. With
#   one episode in each evaluation, the error is 0 whatever the runs did.
# Output seen: "4M steps, two runs that end at 800 and 830: 415 +/- 11; with -max 10000000: 815 +/- 11; with one episode: 815
#   +/- 0"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "rl_zoo3[plots]==2.9.2" stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 \
    numpy==2.4.6 pandas==2.3.3
cd "$folder"
"$folder/env/bin/python" - <<'PY'
from pathlib import Path

import numpy as np

for n_episodes in (1, 5):
    for number, further in enumerate((0, 30), 1):
        run = Path(f"{n_episodes}/ppo/CartPole-v1_{number}")
        run.mkdir(parents=True)
        returns = np.arange(1, 9) * 100.0 + further
        timesteps, lengths = np.arange(1, 9) * 500_000, np.ones((8, n_episodes), dtype=int)
        results = np.repeat(returns[:, None], n_episodes, axis=1)
        np.savez(run / "evaluations.npz", timesteps=timesteps, results=results, ep_lengths=lengths)
PY
score() {  # folder, further options
    "$folder/env/bin/python" -m rl_zoo3.plots.all_plots -a ppo -e CartPole-v1 --no-display -f "$@" 2> /dev/null |
        grep -oE "[0-9.]+ \+/- [0-9.]+" | head -1
}
seen="4M steps, two runs that end at 800 and 830: $(score 5); with -max 10000000: $(score 5 -max 10000000); with one episode: "
seen+=$(score 1 -max 10000000)
echo "rl_zoo3 2.9.2: $seen"
expected="4M steps, two runs that end at 800 and 830: 415 +/- 11; with -max 10000000: 815 +/- 11; with one episode: 815 +/- 0"
[[ "$seen" == "$expected" ]] || exit 1
