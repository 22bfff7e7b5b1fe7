"""What the epochs of both phases minimise: the paper's objective, and those of its relatives. A file each."""

from sb3_ppg.objectives.base import Coefficients, Objective
from sb3_ppg.objectives.paper import PaperObjective

# By the names that the argument `objective` of the algorithms takes
OBJECTIVES: dict[str, type[Objective]] = {"ppg": PaperObjective}

__all__ = ["OBJECTIVES", "Coefficients", "Objective", "PaperObjective"]
