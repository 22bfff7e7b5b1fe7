#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: arguments of `PPO.load(path, ...)` replace those that the model was made with, as n_steps and
#   learning_rate do.
# Behavior: each argument becomes the attribute of the same name. `stats_window_size` is kept as `_stats_window_size`: the
#   new value is accepted and ignored, and `rollout/ep_rew_mean` is still over the last 100 episodes. For the same reason,
#   a misspelled argument is accepted.
# Output seen: "PPO(stats_window_size=5): mean of 5 episodes, PPO.load(path, stats_window_size=5): mean of 100"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - "$folder/model.zip" <<'PY'
import sys
import warnings

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

warnings.simplefilter("error")
arguments = dict(env=make_vec_env("CartPole-v1", n_envs=1), n_steps=64)
PPO("MlpPolicy", **arguments).save(sys.argv[1])
made, loaded = PPO("MlpPolicy", stats_window_size=5, **arguments), PPO.load(sys.argv[1], stats_window_size=5, **arguments)
windows = [model.learn(64).ep_info_buffer.maxlen for model in (made, loaded)]
print(f"PPO(stats_window_size=5): mean of {windows[0]} episodes, PPO.load(path, stats_window_size=5): mean of {windows[1]}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "PPO(stats_window_size=5): mean of 5 episodes, PPO.load(path, stats_window_size=5): mean of 100" ]] || exit 1
