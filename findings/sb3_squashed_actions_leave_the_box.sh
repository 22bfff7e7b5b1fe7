#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: the actions of SAC and TD3, and those of PPO with gSDE and `squash_output=True`, are inside the action space,
#   because tanh bounds them, and the result is scaled to the bounds.
# Behavior: the scaling is rounded in float32, so that the largest action can be above the upper bound. Of boxes whose bounds
#   are random numbers with two decimals, one in six is like that; of symmetric ones, none. `action_space.contains` is False
#   once the policy is sure of itself, and an environment that asserts it ends the training.
# Output seen: "in Box(0.77, 9.05): SAC False, TD3 False, PPO with gSDE False; above in 1648 of 10000 boxes"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO, SAC, TD3


class Machine(gym.Env):
    observation_space = spaces.Box(-1, 1, (3,))
    action_space = spaces.Box(0.77, 9.05, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}


def is_inside(model, layer):
    torch.nn.init.constant_(layer.bias, 20.0)  # a policy that is sure of itself
    action, _ = model.predict(np.zeros(3, np.float32), deterministic=True)
    return Machine.action_space.contains(action)


sac, td3 = (algorithm("MlpPolicy", Machine(), buffer_size=100) for algorithm in (SAC, TD3))
ppo = PPO("MlpPolicy", Machine(), use_sde=True, policy_kwargs=dict(squash_output=True))
print(f"in Box(0.77, 9.05): SAC {is_inside(sac, sac.actor.mu)}, TD3 {is_inside(td3, td3.actor.mu[-2])}", end=", ")
print(f"PPO with gSDE {is_inside(ppo, ppo.policy.action_net)}", end="; ")
low, high = np.sort(np.random.default_rng(0).uniform(-10, 10, (10_000, 2)).round(2).astype(np.float32)).T
boxes = spaces.Box(low, high)
sac.policy.action_space = boxes
print("above in", np.sum(sac.policy.unscale_action(np.ones_like(low)) > high), "of 10000 boxes")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" == "in Box(0.77, 9.05): SAC False, TD3 False, PPO with gSDE False; above in 1648 of 10000 boxes" ]] || exit 1
