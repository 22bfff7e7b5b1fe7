#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: with gSDE, as without it, `predict(observation, deterministic=False)` draws an action at each call, row by
#   row.
# Behavior: `predict` never draws new noise, so that equal observations get equal actions: all episodes of a stochastic
#   evaluation have the noise of the last rollout. A batch of as many observations as the training had environments uses
#   one noise matrix for each row, any other batch one for all.
# Output seen: "4 calls: 1 action, batch of 4: 4 actions, batch of 3: 1 action; without gSDE: 4, 4, 3"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def different_actions(use_sde):
    env = make_vec_env("Pendulum-v1", n_envs=4)
    model = PPO("MlpPolicy", env, n_steps=16, use_sde=use_sde, policy_kwargs=dict(log_std_init=-1.0), seed=0).learn(64)
    observations = np.full((4, 3), 0.3, dtype=np.float32)
    calls = [model.predict(observations[0])[0] for _ in range(4)]
    batches = [model.predict(observations)[0], model.predict(observations[:3])[0]]
    return [len(np.unique(np.round(actions, 5))) for actions in (calls, *batches)]


calls, four, three = different_actions(use_sde=True)
print(f"4 calls: {calls} action, batch of 4: {four} actions, batch of 3: {three} action", end="; ")
print("without gSDE:", ", ".join(map(str, different_actions(use_sde=False))))
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "4 calls: 1 action, batch of 4: 4 actions, batch of 3: 1 action; without gSDE: 4, 4, 3" ]] || exit 1
