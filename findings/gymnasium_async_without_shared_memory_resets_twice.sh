#!/usr/bin/env bash
# Packages: gymnasium 1.4.0.
# Common guess: `shared_memory=False` of AsyncVectorEnv only changes how observations travel, so `reset` with a `reset_mask`,
#   which Gymnasium's pages give for resetting chosen environments, works as with shared memory and as in SyncVectorEnv.
# Behavior: in next-step mode, a worker without shared memory does not notice that it has been reset. Its next step ignores the
#   action and resets once more, with reward 0 and no end. So the first transition of every episode leads into another
#   episode, and episodes are one step too long. Use shared memory, or AutoresetMode.SAME_STEP.
#   (Source: in `_async_worker`, `autoreset = False` stands inside `if shared_memory:`)
# Output seen: "steps after a reset that reset again: with shared memory 0 of 5, without 5 of 5"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet gymnasium==1.4.0 numpy==2.4.6
cd "$folder"
cat > run.py <<'PY'
import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv


class Counts(gym.Env):
    """Observes the number of resets; each episode has three steps."""

    observation_space = gym.spaces.Box(0, 1000, (1,))
    action_space = gym.spaces.Discrete(2)
    n_resets = n_steps = 0

    def seen(self):
        return np.array([self.n_resets], np.float32)

    def reset(self, *, seed=None, options=None):
        self.n_resets, self.n_steps = self.n_resets + 1, 0
        return self.seen(), {}

    def step(self, action):
        self.n_steps += 1
        return self.seen(), 1.0, self.n_steps == 3, False, {}


def again(shared_memory):
    env = AsyncVectorEnv([Counts], shared_memory=shared_memory)
    env.reset()
    n_again = n_ends = 0
    while n_ends < 5:
        _, _, terminated, _, _ = env.step(np.array([0]))
        if terminated[0]:
            n_ends += 1
            first, _ = env.reset(options={"reset_mask": terminated.copy()})
            before = first.copy()
            after, _, terminated, _, _ = env.step(np.array([0]))
            n_again += int(after[0, 0] != before[0, 0])
    env.close()
    return f"{n_again} of {n_ends}"


if __name__ == "__main__":
    print(f"steps after a reset that reset again: with shared memory {again(True)}, without {again(False)}")
PY
seen=$(env/bin/python run.py)
echo "gymnasium 1.4.0: $seen"
[[ "$seen" == "steps after a reset that reset again: with shared memory 0 of 5, without 5 of 5" ]] || exit 1
