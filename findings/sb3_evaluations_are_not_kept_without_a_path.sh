#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: after training, EvalCallback's lists `evaluations_timesteps` and `evaluations_results` have the evaluations;
#   `log_path` only decides whether they are also written to a file.
# Behavior: without `log_path`, the callback evaluates, and sets `last_mean_reward`, but the lists stay empty, so a learning
#   curve that is read from them after hours of training is empty, too. With it, they are filled.
# Output seen: "evaluations in the lists after two: 0 without log_path, 2 with it"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$(cd "$folder" && "$folder/env/bin/python" - <<'PY'
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env


kept = []
for log_path in (None, "evaluations"):
    callback = EvalCallback(make_vec_env("CartPole-v1"), n_eval_episodes=2, eval_freq=64, log_path=log_path, verbose=0)
    PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=0, device="cpu").learn(128, callback=callback)
    assert callback.last_mean_reward > 0  # it has evaluated
    kept.append(len(callback.evaluations_results))
print(f"evaluations in the lists after two: {kept[0]} without log_path, {kept[1]} with it")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "evaluations in the lists after two: 0 without log_path, 2 with it" ]] || exit 1
