#!/usr/bin/env bash
# Package: optuna 5.0.0.
# Common guess: a study in a storage that is loaded again with the same seeded sampler goes on with other hyperparameters
#   than those that it has tried; so do processes that share the storage.
# Behavior: the state of the sampler is not in the storage. Until TPESampler has enough trials (10), and always with
#   RandomSampler, a search that goes on tries exactly its first hyperparameters again. RL Zoo passes `--seed` on to the
#   sampler. `sampler.reseed_rng()`, or another seed, avoids it.
# Output seen: "4 trials, then 4 more of the same study: 4 different ones; with reseed_rng: 8"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet optuna==5.0.0
seen=$("$folder/env/bin/python" - "$folder/journal.log" <<'PY'
import sys

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

optuna.logging.disable_default_handler()


def search(name, reseed):
    sampler = optuna.samplers.TPESampler(seed=0)
    if reseed:
        sampler.reseed_rng()
    storage = JournalStorage(JournalFileBackend(sys.argv[1]))
    study = optuna.create_study(study_name=name, storage=storage, sampler=sampler, load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True), n_trials=4)
    return len({trial.params["learning_rate"] for trial in study.trials})


search("same seed", False)
search("other seed", False)
print(f"4 trials, then 4 more of the same study: {search('same seed', False)} different ones;", end=" ")
print(f"with reseed_rng: {search('other seed', True)}")
PY
)
echo "optuna 5.0.0: $seen"
[[ "$seen" == "4 trials, then 4 more of the same study: 4 different ones; with reseed_rng: 8" ]] || exit 1
