"""Phasic Policy Gradient for Stable-Baselines3."""

from importlib.metadata import version

from sb3_ppg.errors import ArgumentError, NonFiniteLossError
from sb3_ppg.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_ppg.ppg import PPG
from sb3_ppg.reward_normalizer import (
    NormalizedRewardDictRolloutBuffer,
    NormalizedRewardRolloutBuffer,
    RewardNormalizer,
)
from sb3_ppg.torch_layers import ImpalaCNN

__version__ = version("sb3-ppg")

__all__ = [
    "PPG",
    "ArgumentError",
    "CnnPolicy",
    "ImpalaCNN",
    "MlpPolicy",
    "MultiInputPolicy",
    "NonFiniteLossError",
    "NormalizedRewardDictRolloutBuffer",
    "NormalizedRewardRolloutBuffer",
    "RewardNormalizer",
    "__version__",
]
