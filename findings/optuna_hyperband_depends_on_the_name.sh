#!/usr/bin/env bash
# Package: optuna 5.0.0.
# Common guess: a study with a seeded sampler, HyperbandPruner and a deterministic objective gives the same trials each
#   time.
# Behavior: the pruner chooses a trial's bracket by a hash of the study's name, which is random if it is not given. Which
#   trials are pruned, and what the sampler learns from them, differs from run to run. With a name it is repeatable, and
#   another name gives other trials.
# Output seen: "no name: different, one name: equal, two names: different"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet optuna==5.0.0
seen=$("$folder/env/bin/python" - <<'PY'
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)


def objective(trial):
    rate = trial.suggest_float("rate", 0.0, 1.0)
    for step in range(1, 10):
        trial.report(rate * step, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return rate * 9


def trials(name):
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9, reduction_factor=3)
    study = optuna.create_study(study_name=name, sampler=optuna.samplers.TPESampler(seed=0), pruner=pruner)
    study.optimize(objective, n_trials=60)
    return [(trial.state, trial.params["rate"]) for trial in study.trials]


def compare(one, other):
    return "equal" if trials(one) == trials(other) else "different"


print(f"no name: {compare(None, None)}, one name: {compare('a', 'a')}, two names: {compare('a', 'b')}")
PY
)
echo "optuna 5.0.0: $seen"
[[ "$seen" == "no name: different, one name: equal, two names: different" ]] || exit 1
