#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, torch 2.13.0 (CPU).
# Common guess: the columns of progress.csv are in the order of recording or of the alphabet, so that two equal runs write
#   equal files.
# Behavior: the columns are in the order of a set of strings, which Python chooses anew in each process (PYTHONHASHSEED).
#   Files of two equal, seeded runs differ, and `cat` of two of them puts numbers under the wrong names.
# Output seen: "files of 5 processes: several orders of the columns"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
cat >"$folder/run.py" <<'PY'
import sys

from stable_baselines3.common.logger import configure

logger = configure(sys.argv[1], ["csv"])
for name in ("a", "b", "c"):
    logger.record(name, 1.0)
logger.dump()
PY
for seed in 1 2 3 4 5; do
    PYTHONHASHSEED=$seed "$folder/env/bin/python" "$folder/run.py" "$folder/$seed" >/dev/null
done
orders=$(cat "$folder"/[1-5]/progress.csv | grep a | sort --unique | wc --lines)
seen="files of 5 processes: $([[ $orders -gt 1 ]] && echo several orders || echo one order) of the columns"
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "files of 5 processes: several orders of the columns" ]] || exit 1
