"""Replay of rollouts in the policy phase."""

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import RolloutEnd, has_new_arrays, minibatches, order_by_environment

Kind = Literal["policy", "value"]  # of epochs; joint ones are the policy's
KINDS: tuple[Kind, ...] = ("policy", "value")
COMPUTED = ("advantages", "returns")  # arrays that are recomputed before an older rollout is used


@dataclass(eq=False)
class Rollout:
    """A rollout with its data."""

    buffer: RolloutBuffer
    end: Any  # a `RolloutEnd`; None if `collect_rollouts` of a subclass has not stored it, and nothing needs it
    extras: dict[str, np.ndarray] = field(default_factory=dict)  # see `Objective.extras`
    uses: Counter[Kind] = field(default_factory=Counter)  # number of epochs of each kind that have used the rollout

    def arrays(self) -> dict[str, Any]:
        """
        Return all arrays that cannot be recomputed, by name, and those of ``end`` under "rollout_end". Observations may be a
        dictionary of arrays.
        """
        buffer = vars(self.buffer).items()
        arrays = {name: value for name, value in buffer if isinstance(value, np.ndarray) or name == "observations"}
        end = {} if self.end is None else self.end._asdict()
        return {
            **{name: value for name, value in arrays.items() if name not in COMPUTED},
            "rollout_end": {name: value for name, value in end.items() if value is not None},
        }

    def with_arrays(self, arrays: dict[str, Any], uses: dict[Kind, int]) -> "Rollout":
        """Return a rollout like this one with other ``arrays`` and ``uses``."""
        buffer, arrays = copy.copy(self.buffer), dict(arrays)
        end = RolloutEnd(**arrays.pop("rollout_end"))
        vars(buffer).update(arrays)
        return Rollout(buffer, end, uses=Counter(uses))


class RolloutReplay:
    """
    The latest rollouts, in the order in which they were collected. An epoch uses all samples of those that are due: the last
    ``n`` rollouts for its kind of epoch, except those that have reached the maximum number of uses.

    Arrays are kept by reference, as in ``AuxBuffer``, so that observations that the auxiliary phase needs as well exist once.
    Clipped value losses are clipped around the values at collection.

    :param policy_rollouts: number of the latest rollouts that the policy's epochs (or joint ones) use
    :param value_rollouts: number of the latest rollouts that epochs on the value function alone use. None: the same number
    :param policy_uses: maximum number of the policy's epochs (or joint ones) that use a rollout. None: no limit
    :param value_uses: maximum number of epochs on the value function alone that use a rollout. None: no limit
    :param staleness: number of newer rollouts before a rollout is used, as in the experiments of
        https://arxiv.org/abs/2110.00641, or as with distant actors
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
        """The number of rollouts that a resumed run needs: none, if each is used only in its own update."""
        return len(self.rollouts) if self.capacity > 1 else 0

    @contextmanager
    def learning_from(self, rollout_buffer: RolloutBuffer, end: RolloutEnd | None) -> Iterator[None]:
        """
        Surround an update on a full rollout, which becomes the latest one. If the update fails, the rollout is dropped. If it
        succeeds and the rollout is kept, it gets its own buffer object, because the next one is collected in the current one.

        :param rollout_buffer: full buffer
        :param end: state after the rollout
        """
        order_by_environment(rollout_buffer)
        latest = Rollout(rollout_buffer, end)
        self.rollouts = [*self.rollouts, latest][-self.capacity :]
        try:
            yield
        except BaseException:  # Ctrl-C included
            self.rollouts = [rollout for rollout in self.rollouts if rollout is not latest]
            raise
        if self.capacity > 1:
            latest.buffer = independent_copy(rollout_buffer)

    def due(self, kind: Kind) -> list[Rollout]:
        """Return the rollouts that an epoch of this kind uses; none if all are used up, or too new."""
        end = len(self.rollouts) - self.staleness
        latest = self.rollouts[max(0, end - self.n_rollouts[kind]) : max(0, end)]
        limit = self.max_uses[kind]
        return [rollout for rollout in latest if limit is None or rollout.uses[kind] < limit]

    def older(self, kinds: Sequence[Kind] = KINDS) -> list[Rollout]:
        """Return the rollouts before the latest one that an epoch of these kinds can still use."""
        due = [rollout for kind in kinds for rollout in self.due(kind)]
        return [rollout for rollout in self.rollouts[:-1] if rollout in due]

    def epoch(self, kind: Kind, batch_size: int) -> Iterator[Any]:
        """
        Draw one epoch from the rollouts that are ``due``, at least one, and count it as a use of each.

        :param kind: kind of the epoch
        :param batch_size: in samples, rounded up to parts of equal size
        :return: minibatches of all samples, shuffled, with equally many of each rollout
        """
        due = self.due(kind)
        for rollout in due:
            rollout.uses[kind] += 1
        n_samples = due[0].buffer.buffer_size * due[0].buffer.n_envs
        n_minibatches = math.ceil(len(due) * n_samples / batch_size)
        size = batch_size if len(due) == 1 else math.ceil(n_samples / n_minibatches)
        parts = [minibatches(rollout.buffer, size, rollout.extras) for rollout in due]
        for some in zip(*parts, strict=True):
            yield some[0] if len(some) == 1 else map_arrays(lambda *arrays: th.cat(arrays), *some)


def independent_copy(rollout_buffer: RolloutBuffer) -> RolloutBuffer:
    """Return a copy whose arrays stay unchanged when the original collects another rollout."""
    return copy.copy(rollout_buffer) if has_new_arrays(rollout_buffer) else copy.deepcopy(rollout_buffer)


def full_like(rollout_buffer: RolloutBuffer) -> RolloutBuffer:
    """Return a rollout buffer of the same kind, full of zeros, with its samples ordered by environment."""
    other = independent_copy(rollout_buffer)
    other.reset()
    other.full, other.pos = True, other.buffer_size
    order_by_environment(other)
    return other
