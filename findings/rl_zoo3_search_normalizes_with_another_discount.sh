#!/usr/bin/env bash
# Packages: rl_zoo3 2.9.2, stable-baselines3 2.9.2, optuna 5.0.0, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `--trial-id` trains what the search has scored: in both, VecNormalize discounts rewards with the trial's gamma,
#   as "Use the same discount factor as for the algorithm" in the Zoo's source says.
# Behavior: with `normalize`, all trials of a search have the file's gamma there (0.99 where it has none), because it is copied
#   once, before a trial draws its own. To train a trial afterwards has the trial's. So rewards are on another scale than in
#   the search, because VecNormalize divides them by the standard deviation of discounted returns: the best trial was the best
#   with rewards that it does not get again. In a search, leave rewards as they are: normalize: "dict(norm_reward=False)".
#   (Source: `_preprocess_normalization` runs before `objective`. Issue 91 of rl-baselines-zoo, the predecessor, asks about it)
# Output seen: "gamma of the trials 0.9999, 0.9994, of their VecNormalize 0.9, 0.9; trained again 0.9994, its VecNormalize
#   0.9994"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet rl_zoo3==2.9.2 stable-baselines3==2.9.2 sb3_contrib==2.9.2 optuna==5.0.0 \
    gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6 pandas==2.3.3
cd "$folder"
cat > mine.yml <<'YML'
CartPole-v1:
  policy: MlpPolicy
  n_timesteps: 64
  normalize: true
  gamma: 0.9
YML
cat > train.py <<'PY'
import sys

from rl_zoo3.train import train
from stable_baselines3 import PPO


def learn(model, *_, learn=PPO.learn, **options):
    found = model.gamma, model.get_vec_normalize_env().gamma
    print(*(f"{gamma:.4g}" for gamma in found), file=sys.stderr)
    return learn(model, 64, callback=options.get("callback"))


PPO.learn = learn
train()
PY
run=(env/bin/python -W ignore train.py --algo ppo --env CartPole-v1 -conf mine.yml -n 64 --eval-freq -1 --num-threads 1 --seed 1)
run+=(--storage study.log --study-name mine)
gammas() { "$@" 2>&1 > /dev/null | grep -E '^[01]\.[0-9]+ [01]\.[0-9]+$' | tr '\n' ' '; }
read -r one its two their <<< "$(gammas "${run[@]}" -optimize --n-trials 2 --eval-episodes 1 --no-optim-plots)"
read -r again own <<< "$(gammas "${run[@]}" --trial-id 1)"
seen="gamma of the trials $one, $two, of their VecNormalize $its, $their; trained again $again, its VecNormalize $own"
echo "rl_zoo3 2.9.2: $seen"
expected="gamma of the trials 0.9999, 0.9994, of their VecNormalize 0.9, 0.9; trained again 0.9994, its VecNormalize 0.9994"
[[ "$seen" == "$expected" ]] || exit 1
