"""Objectives, which the epochs of both phases minimize: the paper's, and one file for each relative with its variants."""

from typing import Any

from sb3_ppg.arguments import made_from
from sb3_ppg.buffers.rollouts import Rollout, RolloutEnd
from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.losses import Losses
from sb3_ppg.objectives.advantage_head import AdvantageHeadObjective, OrderObjective
from sb3_ppg.objectives.delayed_critic import DelayedCriticObjective, DynamicsObjective
from sb3_ppg.objectives.distillation import DistillationObjective
from sb3_ppg.objectives.ewma import DecoupledObjective, EWMAObjective
from sb3_ppg.objectives.paper import Coefficients, Objective
from sb3_ppg.policies import PhasicActorCriticPolicy

# Objectives by name, as the algorithms' argument `objective` takes them
OBJECTIVES: dict[str, type[Objective]] = {
    "ppg": Objective,
    "decoupled": DecoupledObjective,
    "ewma": EWMAObjective,
    "dcpg": DelayedCriticObjective,
    "ddcpg": DynamicsObjective,
    "daac": AdvantageHeadObjective,
    "idaac": OrderObjective,
    "dna": DistillationObjective,
}


def find_objective(objective: Any) -> type[Objective]:
    """Return the class of an objective: a name from ``OBJECTIVES``, or a class; raise an ``ArgumentError`` for others."""
    cls = OBJECTIVES.get(objective) if isinstance(objective, str) else objective
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        hint = nearest(objective, OBJECTIVES) if isinstance(objective, str) else ""
        raise ArgumentError(
            f"`objective`={objective!r} is unknown{hint}: use one of {', '.join(map(repr, OBJECTIVES))}, or a class derived "
            "from sb3_ppg.objectives.Objective"
        )
    return cls


def objective_name(cls: type[Objective]) -> str | type[Objective]:
    """Return a class's name in ``OBJECTIVES``, or the class if it has none."""
    return next((name for name, known in OBJECTIVES.items() if known is cls), cls)


def make_objective(objective: Any, policy: PhasicActorCriticPolicy, kwargs: dict[str, Any] | None) -> Objective:
    """
    Make an objective, a name or a class, for a policy.

    :raises ArgumentError: if there is no such objective, or if it keeps the policy
    """
    cls = find_objective(objective)
    made = made_from(kwargs, cls, policy)
    known = {id(parameter) for parameter in policy.parameters()}
    if shared := [name for name, parameter in made.named_parameters() if id(parameter) in known]:
        raise ArgumentError(
            f"`objective`={objective_name(cls)!r} keeps the policy's {', '.join(shared)}, which would be trained twice per "
            "step: use the policy that each of its methods gets"
        )
    return made


__all__ = [
    "OBJECTIVES",
    "AdvantageHeadObjective",
    "Coefficients",
    "DecoupledObjective",
    "DelayedCriticObjective",
    "DistillationObjective",
    "DynamicsObjective",
    "EWMAObjective",
    "Losses",
    "Objective",
    "OrderObjective",
    "Rollout",
    "RolloutEnd",
    "find_objective",
    "make_objective",
    "objective_name",
]
