#!/usr/bin/env bash
# Packages: rl_zoo3 2.9.2, stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `benchmark` evaluates the latest agents of a log folder each time, and its table has their returns.
# Behavior: where `--benchmark-dir` has episodes of an algorithm in an environment, whichever run, seed or number of steps they
#   are from, it skips the evaluation, of which it prints a line, and the table has the old agent's return beside the new
#   agent's number of training steps. (Source: `skip_eval` in rl_zoo3/benchmark.py)
# Output seen: "an agent of 256 steps: 10, then one of 20480 steps: 10, after removal of the old episodes: 500"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet "rl_zoo3[plots]==2.9.2" stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 \
    numpy==2.4.6 pandas==2.3.3 requests
cd "$folder"
export PATH="$folder/env/bin:$PATH" OMP_NUM_THREADS=1
printf 'from rl_zoo3.enjoy import enjoy\n\nenjoy()\n' > enjoy.py  # as in the Zoo's repository, where `benchmark` expects it
train() {  # number of steps
    python -m rl_zoo3.train --algo ppo --env CartPole-v1 -n "$1" --eval-freq -1 --num-threads 1 --verbose 0 --seed 1 -f logs \
        --device cpu -params n_envs:4 n_steps:64 batch_size:64 n_epochs:10 learning_rate:0.001 > train.log 2>&1
}
score() {
    python -m rl_zoo3.benchmark --no-hub --log-dir logs --benchmark-dir logs/benchmark -n 600 --num-threads 1 > log 2>&1
    awk -F '|' '/CartPole/ { printf "%.0f", $4 }' benchmark.md
}
train 256
seen="an agent of 256 steps: $(score), "
train 20480
seen+="then one of 20480 steps: $(score), "
rm -r logs/benchmark
seen+="after removal of the old episodes: $(score)"
echo "rl_zoo3 2.9.2: $seen"
pattern="256 steps: ([0-9]+), then one of 20480 steps: ([0-9]+), after removal of the old episodes: ([0-9]+)$"
[[ "$seen" =~ $pattern ]]
((BASH_REMATCH[1] == BASH_REMATCH[2] && BASH_REMATCH[3] > 2 * BASH_REMATCH[2])) || exit 1
