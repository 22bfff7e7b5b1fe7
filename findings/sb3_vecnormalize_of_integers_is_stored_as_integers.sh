#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: PPO in a `VecNormalize` learns from the normalized observations that it has acted on, whatever the type of the
#   environment's numbers.
# Behavior: if these are integers, and no image, such as Atari's RAM or MiniGrid's FlatObsWrapper (RL Zoo's entries of PPO for
#   MiniGrid normalize these), PPO acts on the normalized numbers and stores them as integers: 0.9 becomes 0, and negative numbers
#   become large ones in uint8, without a warning (`check_env` has none, either). It does not learn a task that it solves with
#   float32. A2C and sb3-contrib's PPOs have the same buffers. DQN and SAC store what the environment gave, and are not affected. Let the environment return float32, in a space of float32. (Source: VecNormalize keeps the dtype of
#   the space, and RolloutBuffer.reset makes its arrays of it)
# Output seen: "float32: largest observation stored 1.7, learns True; uint8: 255.0, False"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


class LargeOrSmall(gymnasium.Env):
    """Shows eight numbers from 0 to 255, and rewards the agent that says whether the first one is above 127."""

    action_space = spaces.Discrete(2)

    def __init__(self, dtype):
        self.observation_space = spaces.Box(0, 255, (8,), dtype)

    def _shown(self):
        self.numbers = self.np_random.integers(0, 256, 8)
        return self.numbers.astype(self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._shown(), {}

    def step(self, action):
        reward = float(action == (self.numbers[0] > 127))
        self.steps += 1
        return self._shown(), reward, False, self.steps == 20, {}


def trained(dtype):
    """Return the largest observation in the last rollout, and whether the last episodes are much better than by chance."""
    check_env(LargeOrSmall(dtype))
    env = VecNormalize(make_vec_env(lambda: LargeOrSmall(dtype), n_envs=4, seed=0), norm_reward=False)
    model = PPO("MlpPolicy", env, n_steps=256, seed=0).learn(10_240)
    mean_return = np.mean([episode["r"] for episode in model.ep_info_buffer])
    return f"{np.abs(model.rollout_buffer.observations).max():.1f}", bool(mean_return > 15)


(largest, learns), (largest_integer, learns_integers) = trained(np.float32), trained(np.uint8)
print(f"float32: largest observation stored {largest}, learns {learns}; uint8: {largest_integer}, {learns_integers}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
[[ "$seen" =~ ^"float32: largest observation stored "[0-9]"."[0-9]", learns True; uint8: 255.0, False"$ ]] || exit 1
