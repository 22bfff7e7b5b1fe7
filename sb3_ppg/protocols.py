"""The type of the algorithm for the hints of its parts, which do not import the algorithm at run time."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sb3_ppg.phasic_algorithm import PhasicAlgorithm

# Attributes that count how far a run has come
COUNTERS = ("num_timesteps", "_n_updates", "_n_rollouts", "_n_aux_phases")
PhasicModel: TypeAlias = "PhasicAlgorithm"
