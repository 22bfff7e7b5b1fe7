"""Phasic Policy Gradient for Stable-Baselines3."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sb3_ppg.buffers.rollout_buffers import NormalizedRewardDictRolloutBuffer, NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.callbacks import PhasicCallback
from sb3_ppg.checking import check
from sb3_ppg.distributed import process_group
from sb3_ppg.environments.vector_rewards import DrawnWeights, VectorRewards
from sb3_ppg.errors import ArgumentError, ModelFormatError, NonFiniteLossError
from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.play import Player
from sb3_ppg.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_ppg.policies.extractors import ImpalaCNN, MinAtarCNN
from sb3_ppg.ppg import PPG
from sb3_ppg.recurrent import RecurrentPPG
from sb3_ppg.saving.checkpoints import PhasicCheckpointCallback, aux_buffer_path, latest_checkpoint

__version__ = version("sb3-ppg")

__all__ = [
    "PPG",
    "ArgumentError",
    "CnnPolicy",
    "DrawnWeights",
    "ImpalaCNN",
    "MaskablePPG",
    "MinAtarCNN",
    "MlpPolicy",
    "ModelFormatError",
    "MultiInputPolicy",
    "NonFiniteLossError",
    "NormalizedRewardDictRolloutBuffer",
    "NormalizedRewardRolloutBuffer",
    "PhasicCallback",
    "PhasicCheckpointCallback",
    "Player",
    "RecurrentPPG",
    "RewardNormalizer",
    "VectorRewards",
    "__version__",
    "aux_buffer_path",
    "check",
    "latest_checkpoint",
    "process_group",
]


if not TYPE_CHECKING:  # to a type checker, it would have every name

    def __getattr__(name: str) -> Any:
        """Raise an error for an unknown name; if the name ends in "Policy", the error lists the policy classes."""
        if name.endswith("Policy"):
            classes = [cls for algorithm in (PPG, RecurrentPPG, MaskablePPG) for cls in algorithm.policy_aliases.values()]
            there = ", ".join(f"{cls.__module__}.{cls.__name__}" for cls in classes)
            raise ImportError(
                f"sb3_ppg has no {name}: `policy` takes a name, such as 'MlpPolicy', or a class derived from {there}"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
