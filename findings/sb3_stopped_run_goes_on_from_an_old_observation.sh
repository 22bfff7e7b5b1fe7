#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: after a callback such as `StopTrainingOnMaxEpisodes` has stopped a run, `learn(reset_num_timesteps=False)` goes
#   on where it stopped, and the episode that ended is in the buffer.
# Behavior: the step that stops the run is not stored, and the observation before it stays the current one. So an episode's last
#   transition, with its reward, is lost, and the last state but one is joined to the second state of the next episode, as if
#   no episode had ended between them. PPO, too, chooses its first action for a state of the finished episode.
# Output seen: "DQN, five episodes in one call: 5 rewards, 5 ends; in five calls: 0 rewards, 0 ends, from step 9 to step 1: 4
#   times; PPO acts at step 9, which was followed by step 0, and gets step 1"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" - <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes


class TenSteps(gym.Env):
    """An observation is the number of steps in the episode; the reward comes with the tenth, which is the last."""

    observation_space, action_space = spaces.Box(0, 10, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.float32([self.steps]), float(self.steps == 10), self.steps == 10, False, {}


def found(model):
    buffer, n = model.replay_buffer, model.replay_buffer.pos
    pairs = zip(buffer.observations[:n, 0, 0], buffer.next_observations[:n, 0, 0])
    wrong = sum(pair == (9, 1) for pair in pairs)
    return int(buffer.rewards[:n].sum()), int(buffer.dones[:n].sum()), wrong


settings = dict(buffer_size=200, learning_starts=1000)
one_call = DQN("MlpPolicy", TenSteps(), **settings).learn(50)
five_calls = DQN("MlpPolicy", TenSteps(), **settings)
for _ in range(5):
    five_calls.learn(1000, callback=StopTrainingOnMaxEpisodes(1), reset_num_timesteps=False)
rewards, ends, _ = found(one_call)
print(f"DQN, five episodes in one call: {rewards} rewards, {ends} ends", end="; ")
rewards, ends, wrong = found(five_calls)
print(f"in five calls: {rewards} rewards, {ends} ends, from step 9 to step 1: {wrong} times", end="; ")

seen = []
ppo = PPO("MlpPolicy", TenSteps(), n_steps=16, batch_size=16).learn(100, callback=StopTrainingOnMaxEpisodes(1))
note = lambda found, _: seen.append([int(found[name].item()) for name in ("obs_tensor", "new_obs")]) or True
ppo.learn(1, callback=note, reset_num_timesteps=False)
print(f"PPO acts at step {seen[0][0]}, which was followed by step 0, and gets step {seen[0][1]}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
expected="DQN, five episodes in one call: 5 rewards, 5 ends; in five calls: 0 rewards, 0 ends, from step 9 to step 1: 4 times; "
[[ "$seen" == "${expected}PPO acts at step 9, which was followed by step 0, and gets step 1" ]] || exit 1
