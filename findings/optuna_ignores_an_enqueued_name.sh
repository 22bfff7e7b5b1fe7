#!/usr/bin/env bash
# Package: optuna 5.0.0.
# Common guess: `enqueue_trial` with the defaults makes the first trial try them; a name that the search does not know raises
#   an error, as a value outside of its range gives a warning.
# Behavior: a misspelled, renamed or conditional name is ignored without a warning, and the sampler draws that
#   hyperparameter. The "default" to which all trials are compared is another one, and the trial's record still holds what
#   was enqueued.
# Output seen: "lr: used 0.0003, warnings 0; learning_rate: drawn, warnings 0; lr out of range: warnings 1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet optuna==5.0.0
seen=$("$folder/env/bin/python" - <<'PY'
import warnings

import optuna

optuna.logging.disable_default_handler()


def first(enqueued):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(enqueued)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study.optimize(lambda trial: trial.suggest_float("lr", 1e-5, 1e-2, log=True), n_trials=1)
    return study.trials[0].params["lr"], len(caught)


right, misspelled, outside = first({"lr": 3e-4}), first({"learning_rate": 3e-4}), first({"lr": 0.5})
print(f"lr: used {right[0]}, warnings {right[1]}; learning_rate:", "used" if misspelled[0] == 3e-4 else "drawn", end=", ")
print(f"warnings {misspelled[1]}; lr out of range: warnings {outside[1]}")
PY
)
echo "optuna 5.0.0: $seen"
[[ "$seen" == "lr: used 0.0003, warnings 0; learning_rate: drawn, warnings 0; lr out of range: warnings 1" ]] || exit 1
