#!/usr/bin/env bash
# Packages: rl_zoo3 2.9.2, stable-baselines3 2.9.2, optuna 5.0.0, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: a search (`-optimize`) starts from the hyperparameters of the file, and changes those that it samples.
# Behavior: `policy_kwargs` of the file, or of `-params`, are replaced as a whole by the sampled ones (net_arch, activation_fn,
#   ortho_init), without a word. So trials do not have the file's features extractor, its arguments or `log_std_init`, nor has
#   the model that is trained afterwards with `--trial-id`, whose config.yml shows it. Where images need an own extractor, all
#   trials fail. Put what must stay into a policy class of your own, whose constructor sets it.
#   (Source: `kwargs.update(sampled_hyperparams)` in `objective`, `hyperparams.update(study_hyperparams)` in
#   `read_hyperparameters`)
# Output seen: "log_std_init -2.0 in the run, 0.0 and 0.0 in two trials, 0.0 in a run with --trial-id 1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet rl_zoo3==2.9.2 stable-baselines3==2.9.2 sb3_contrib==2.9.2 optuna==5.0.0 \
    gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 pandas==2.3.3
cd "$folder"
cat > mine.yml <<'YML'
Pendulum-v1:
  policy: MlpPolicy
  n_timesteps: 64
  policy_kwargs: "dict(log_std_init=-2.0)"
YML
cat > train.py <<'PY'
import sys

from rl_zoo3.train import train
from stable_baselines3 import PPO


def learn(model, *_, learn=PPO.learn, **options):
    print(f"started with {model.policy.log_std.mean().item():.1f}", file=sys.stderr)
    return learn(model, 64, callback=options.get("callback"))


PPO.learn = learn
train()
PY
run=(env/bin/python -W ignore train.py --algo ppo --env Pendulum-v1 -conf mine.yml -n 64 --eval-freq -1 --num-threads 1 --seed 1)
starts() { "$@" 2>&1 > /dev/null | sed -n 's/^started with //p' | tr '\n' ' '; }
read -r plain <<< "$(starts "${run[@]}")"
run+=(--storage study.log --study-name mine)
read -r one two <<< "$(starts "${run[@]}" -optimize --n-trials 2 --eval-episodes 1 --no-optim-plots)"
read -r again <<< "$(starts "${run[@]}" --trial-id 1)"
seen="log_std_init $plain in the run, $one and $two in two trials, $again in a run with --trial-id 1"
echo "rl_zoo3 2.9.2: $seen"
[[ "$seen" == "log_std_init -2.0 in the run, 0.0 and 0.0 in two trials, 0.0 in a run with --trial-id 1" ]] || exit 1
