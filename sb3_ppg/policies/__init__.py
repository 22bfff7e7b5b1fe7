"""Policies with an auxiliary value head, and the networks that they are made of."""

from sb3_ppg.policies.extractors import SharedTrunk
from sb3_ppg.policies.heads import ValueHead, VectorValueHead, head_loss
from sb3_ppg.policies.mlp import (
    CnnPolicy,
    Evaluation,
    MixedPrecision,
    MlpPolicy,
    MultiInputPhasicActorCriticPolicy,
    MultiInputPolicy,
    PhasicActorCriticCnnPolicy,
    PhasicActorCriticPolicy,
)

__all__ = [
    "CnnPolicy",
    "Evaluation",
    "MixedPrecision",
    "MlpPolicy",
    "MultiInputPhasicActorCriticPolicy",
    "MultiInputPolicy",
    "PhasicActorCriticCnnPolicy",
    "PhasicActorCriticPolicy",
    "SharedTrunk",
    "ValueHead",
    "VectorValueHead",
    "head_loss",
]
