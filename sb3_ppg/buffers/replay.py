"""Rollouts that the epochs of the policy phase use again."""

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppg.arguments import check_values
from sb3_ppg.buffers.nested import map_arrays
from sb3_ppg.buffers.protocol import has_new_arrays
from sb3_ppg.buffers.rollouts import RolloutEnd, minibatches, order_by_environment

Kind = Literal["policy", "value"]  # of epochs; joint ones are the policy's
KINDS: tuple[Kind, ...] = ("policy", "value")
COMPUTED = ("advantages", "returns")  # arrays that are computed again before an older rollout is used


@dataclass(eq=False)
class Rollout:
    """
    A rollout, and what belongs to it.

    :param buffer: full
    :param end: what follows it; None where rollouts came from elsewhere
    :param extras: what the objective's losses need of each sample in addition, see ``Objective.extras``
    :param uses: how many epochs have gone through it, of each kind
    """

    buffer: RolloutBuffer
    end: RolloutEnd | None
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    uses: Counter[Kind] = field(default_factory=Counter)

    def arrays(self) -> dict[str, Any]:
        """
        Return by name all arrays that cannot be computed from others, and those of what follows under "rollout_end". An
        element may be a dictionary of arrays.
        """
        buffer = vars(self.buffer).items()
        arrays = {name: value for name, value in buffer if isinstance(value, np.ndarray) or name == "observations"}
        end = {} if self.end is None else self.end._asdict()
        return {
            **{name: value for name, value in arrays.items() if name not in COMPUTED},
            "rollout_end": {name: value for name, value in end.items() if value is not None},
        }

    def with_arrays(self, arrays: dict[str, Any], uses: dict[Kind, int]) -> "Rollout":
        """Return another rollout, by its ``arrays`` and its ``uses``."""
        buffer, arrays = copy.copy(self.buffer), dict(arrays)
        end = RolloutEnd(**arrays.pop("rollout_end"))
        vars(buffer).update(arrays)
        return Rollout(buffer, end, uses=Counter(uses))


class RolloutReplay:
    """
    The latest rollouts, in the order in which they were collected. An epoch goes through all samples of those that are due:
    the last ``n`` of its kind, without those that the maximum number of its kind's epochs has used already.

    Arrays are kept by reference, as in ``AuxBuffer``: observations that wait for the auxiliary phase are there once. Value
    losses that are clipped are clipped against the values at collection.

    :param policy_rollouts: how many of the latest rollouts the policy's epochs (or joint ones) draw from
    :param value_rollouts: how many of the latest rollouts epochs on the value function alone draw from. None: as the policy's
    :param policy_uses: the largest number of the policy's epochs that use a rollout. None: there is no limit
    :param value_uses: the largest number of epochs on the value function alone that use a rollout. None: there is no limit
    :param staleness: the number of newer rollouts that there have to be before a rollout is used: data as late as in the
        experiments of https://arxiv.org/abs/2110.00641, or as from actors that are far away
    :raises ArgumentError: for numbers that cannot work
    """

    def __init__(
        self,
        policy_rollouts: int = 1,
        value_rollouts: int | None = None,
        policy_uses: int | None = None,
        value_uses: int | None = None,
        staleness: int = 0,
    ):
        check_values(policy_rollouts=policy_rollouts, value_rollouts=value_rollouts, staleness=staleness)
        check_values(policy_uses=policy_uses, value_uses=value_uses)
        self.n_rollouts: dict[Kind, int] = {"policy": policy_rollouts, "value": value_rollouts or policy_rollouts}
        self.max_uses: dict[Kind, int | None] = {"policy": policy_uses, "value": value_uses}
        self.staleness = staleness
        self.rollouts: list[Rollout] = []

    @property
    def capacity(self) -> int:
        """The number of rollouts that are kept."""
        return self.staleness + max(self.n_rollouts.values())

    @property
    def n_stored(self) -> int:
        """The number of rollouts that a resumed training needs: none, if each is used in its own update only."""
        return len(self.rollouts) if self.capacity > 1 else 0

    def add(self, rollout_buffer: RolloutBuffer, end: RolloutEnd | None) -> None:
        """Add a full rollout, and what follows it."""
        if self.capacity > 1:
            order_by_environment(rollout_buffer)
        self.rollouts = [*self.rollouts, Rollout(rollout_buffer, end)][-self.capacity :]

    def keep_latest(self) -> None:
        """Give the latest rollout a buffer object of its own, because the next one is about to be collected with this one."""
        if self.capacity > 1:
            self.rollouts[-1].buffer = independent_copy(self.rollouts[-1].buffer)

    def forget(self, rollout_buffer: RolloutBuffer) -> None:
        """Remove the rollout in this buffer, which has not been learned from."""
        self.rollouts = [rollout for rollout in self.rollouts if rollout.buffer is not rollout_buffer]

    def due(self, kind: Kind) -> list[Rollout]:
        """Return the rollouts that an epoch of this kind goes through; none while all are used up, or too new."""
        end = len(self.rollouts) - self.staleness
        latest = self.rollouts[max(0, end - self.n_rollouts[kind]) : max(0, end)]
        limit = self.max_uses[kind]
        return [rollout for rollout in latest if limit is None or rollout.uses[kind] < limit]

    def older(self, kinds: Sequence[Kind] = KINDS) -> list[Rollout]:
        """Return the rollouts before the latest one that an epoch of these kinds can still use."""
        due = [id(rollout) for kind in kinds for rollout in self.due(kind)]
        return [rollout for rollout in self.rollouts[:-1] if id(rollout) in due]

    def epoch(self, kind: Kind, batch_size: int) -> Iterator[Any]:
        """
        :param kind: of the epoch; it counts as a use of those that are ``due``, at least one
        :param batch_size: in samples
        :return: their minibatches, see ``mixed_minibatches``
        """
        due = self.due(kind)
        for rollout in due:
            rollout.uses[kind] += 1
        return mixed_minibatches(due, batch_size)


def independent_copy(rollout_buffer: RolloutBuffer) -> RolloutBuffer:
    """Return a copy whose arrays stay as they are when the original collects another rollout."""
    return copy.copy(rollout_buffer) if has_new_arrays(rollout_buffer) else copy.deepcopy(rollout_buffer)


def full_like(rollout_buffer: RolloutBuffer) -> RolloutBuffer:
    """Return another rollout buffer of the same kind, full of zeros, its samples ordered by environment."""
    other = independent_copy(rollout_buffer)
    other.reset()
    other.full, other.pos = True, other.buffer_size
    order_by_environment(other)
    return other


def mixed_minibatches(rollouts: Sequence[Rollout], batch_size: int) -> Iterator[Any]:
    """
    Draw one epoch: all samples of some rollouts, shuffled, in minibatches that have equally many of each.

    :param rollouts: of one size
    :param batch_size: about so many samples, not less than there are rollouts: parts of equal size, rounded up
    :return: see ``minibatches``
    """
    n_samples = rollouts[0].buffer.buffer_size * rollouts[0].buffer.n_envs
    n_minibatches = math.ceil(len(rollouts) * n_samples / batch_size)
    size = batch_size if len(rollouts) == 1 else math.ceil(n_samples / n_minibatches)
    parts = [minibatches(rollout.buffer, size, rollout.extras) for rollout in rollouts]
    for some in zip(*parts, strict=True):
        yield some[0] if len(some) == 1 else map_arrays(lambda *arrays: th.cat(arrays), *some)
