"""Policies with an auxiliary value head, and the networks that they are made of."""

from sb3_ppg.policies.mlp import (
    ARCHITECTURES,
    AuxiliaryEvaluation,
    CnnPolicy,
    MixedPrecision,
    MlpPolicy,
    MultiInputPhasicActorCriticPolicy,
    MultiInputPolicy,
    PhasicActorCriticCnnPolicy,
    PhasicActorCriticPolicy,
    SharedTrunk,
    ValueHead,
)

__all__ = [
    "ARCHITECTURES",
    "AuxiliaryEvaluation",
    "CnnPolicy",
    "MixedPrecision",
    "MlpPolicy",
    "MultiInputPhasicActorCriticPolicy",
    "MultiInputPolicy",
    "PhasicActorCriticCnnPolicy",
    "PhasicActorCriticPolicy",
    "SharedTrunk",
    "ValueHead",
]
