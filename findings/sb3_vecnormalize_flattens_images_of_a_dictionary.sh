#!/usr/bin/env bash
# Packages: stable-baselines3 2.9.2, gymnasium 1.4.0, torch 2.13.0 (CPU).
# Common guess: `VecNormalize` around observations of several parts, which `MultiInputPolicy` takes, scales the numbers and
#   leaves images to the policy's CNN. If it did not, it would say so, as `CnnPolicy` does where images are all there is.
# Behavior: it normalizes all parts, and makes a Box of floats of each, which the policy no longer takes for an image: pixels
#   are flattened into the layers of vectors, without a warning. The space is changed in place, so that the environment inside,
#   and whatever else holds the same object, say from then on that their images are floats from -10 to 10. Name the other parts:
#   `norm_obs_keys=["speed"]`, in RL Zoo `normalize: "dict(norm_obs_keys=['speed'])"`.
#   (Source: VecNormalize.__init__ writes into `observation_space.spaces`; CombinedExtractor asks `is_image_space` of each)
# Output seen: "alone: NatureCNN, space fits True; normalized: Flatten, space fits False; parts named: NatureCNN, space fits True"
# Exits 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet stable-baselines3==2.9.2 gymnasium==1.4.0 torch==2.13.0 numpy==2.4.6
seen=$("$folder/env/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


class Robot(gymnasium.Env):
    """Has a camera and a speed."""

    def __init__(self):
        camera = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.observation_space = spaces.Dict(camera=camera, speed=spaces.Box(-np.inf, np.inf, (2,), np.float32))
        self.action_space = spaces.Discrete(2)

    def _seen(self):
        camera = self.np_random.integers(0, 256, (36, 36, 1), dtype=np.uint8)
        return {"camera": camera, "speed": self.np_random.normal(size=2).astype(np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), 0.0, False, False, {}


def told(wrapped):
    """Return the layers that receive the camera, and whether the environment's observations are in its own space."""
    robot = Robot()
    extractor = PPO("MultiInputPolicy", wrapped(DummyVecEnv([lambda: robot]))).policy.features_extractor
    return f"{type(extractor.extractors['camera']).__name__}, space fits {robot.observation_space.contains(robot.reset()[0])}"


alone, normalized = told(lambda env: env), told(VecNormalize)
named = told(lambda env: VecNormalize(env, norm_obs_keys=["speed"]))
print(f"alone: {alone}; normalized: {normalized}; parts named: {named}")
PY
)
echo "stable-baselines3 2.9.2: $seen"
expected="alone: NatureCNN, space fits True; normalized: Flatten, space fits False; parts named: NatureCNN, space fits True"
[[ "$seen" == "$expected" ]] || exit 1
