"""The algorithm, as the type hints of its parts name it: none of them imports it when it runs."""

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sb3_ppg.phasic_algorithm import PhasicAlgorithm

# Attributes that count how far a run has come
COUNTERS = ("num_timesteps", "_n_updates", "_n_rollouts", "_n_aux_phases")
PhasicModel: TypeAlias = "PhasicAlgorithm"
