"""Data of samples in addition to the fields of SB3's rollout buffers."""

from dataclasses import dataclass
from typing import Any, Self

from sb3_ppg.buffers.aux_buffer import AuxiliaryBatch


@dataclass
class SampleData:
    """
    Data of each sample in addition to the fields of rollout buffers; None where there is none. ``Objective.extras`` and
    ``aux_data`` return it for a rollout, as arrays; ``of`` returns it for a minibatch, as tensors. An objective that needs
    more derives a dataclass, whose fields have the default None.

    :param weights: weight of each sample in the paper's terms, see ``losses.weighted_mean``, (B,)
    :param values: V(s) at collection, in the auxiliary phase, (B,)
    :param component_targets: V_targ of each component of vector rewards, (B, K); set by the algorithm
    :param component_values: V(s) of each component at collection, in the policy phase, (B, K); set by the algorithm
    """

    weights: Any = None
    values: Any = None
    component_targets: Any = None
    component_values: Any = None

    @classmethod
    def of(cls, batch: Any) -> Self:
        """
        :param batch: minibatch of either phase
        :return: its tensors
        """
        by_name = batch.context if isinstance(batch, AuxiliaryBatch) else getattr(batch, "extras", {})
        return cls(**{name: by_name.get(name) for name in cls.__dataclass_fields__})

    def by_name(self) -> dict[str, Any]:
        """Return the fields that are not None, as buffers keep them."""
        return {name: value for name, value in vars(self).items() if value is not None}
