#!/usr/bin/env bash
# Packages: rl_zoo3 2.9.2, stable-baselines3 2.9.2, optuna 5.0.0, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: every trial of a search (`-optimize`) can be trained again with `--trial-id`.
# Behavior: of the three kinds of noise that are sampled for TD3 and DDPG, one is None, no noise. Such a trial runs in the
#   search, with the noise of the file if that has some, but trained again it ends in a TypeError, because `noise_type` and
#   `noise_std` then go to the constructor.
#   (Source: `convert_offpolicy_params` leaves them, `_preprocess_action_noise` removes them only if there is noise)
# Output seen: "the search ends with 0, training its trial with 1: unexpected keyword argument 'noise_type'"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet rl_zoo3==2.9.2 stable-baselines3==2.9.2 sb3_contrib==2.9.2 optuna==5.0.0 \
    gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 pandas==2.3.3
cd "$folder"
env/bin/python -W ignore - 2> /dev/null <<'PY'
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

study = optuna.create_study(study_name="mine", storage=JournalStorage(JournalFileBackend("study.log")))
for _ in range(2):  # trial 0 cannot be named
    study.enqueue_trial({"noise_type": None})
PY
run=(env/bin/python -W ignore -m rl_zoo3.train --algo td3 --env Pendulum-v1 -n 64 --eval-freq -1 --num-threads 1 --seed 1)
run+=(--storage study.log --study-name mine)
status=0
"${run[@]}" -optimize --n-trials 2 --n-evaluations 1 --eval-episodes 1 --no-optim-plots > search.txt 2>&1 || status=$?
again=0
"${run[@]}" --trial-id 1 > again.txt 2>&1 || again=$?
error=$(grep -o "unexpected keyword argument 'noise_[a-z]*'" again.txt | head -1 || true)
seen="the search ends with $status, training its trial with $again: $error"
echo "rl_zoo3 2.9.2: $seen"
[[ "$seen" == "the search ends with 0, training its trial with 1: unexpected keyword argument 'noise_type'" ]] || exit 1
