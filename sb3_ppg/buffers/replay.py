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
from torch.utils._pytree import tree_map

from sb3_ppg.buffers.rollouts import RolloutEnd, in_order, minibatches, reuses_memory
from sb3_ppg.checks import is_count
from sb3_ppg.errors import ArgumentError

Kind = Literal["policy", "value"]  # of epochs; joint ones are the policy's
KINDS: tuple[Kind, ...] = ("policy", "value")
# The arrays of rollout buffers: what is collected, and what is computed anew before an older rollout is used
COLLECTED = (
    "observations",
    "actions",
    "rewards",
    "episode_starts",
    "values",
    "log_probs",
    "action_masks",
    "lstm_states",
)
COMPUTED = ("advantages", "returns")
SPENT = ("bootstrapped",)  # is in the rewards, once a rollout is complete
END = "end "  # before the names of what follows a rollout, among its arrays


@dataclass(eq=False)
class Rollout:
    """
    A rollout, and what belongs to it.

    :param buffer: full
    :param end: what follows it; None where rollouts came from elsewhere
    :param extras: what the objective's losses need of each sample beside, see ``Objective.extras``
    :param uses: how many epochs have gone through it, of each kind
    """

    buffer: RolloutBuffer
    end: RolloutEnd | None
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    uses: Counter[Kind] = field(default_factory=Counter)

    def arrays(self) -> dict[str, np.ndarray]:
        """
        :return: by name, all that cannot be computed from other things; what is in a dictionary under "name/key"
        """
        end = {} if self.end is None else {f"{END}{name}": value for name, value in self.end._asdict().items()}
        parts = {**{name: getattr(self.buffer, name, None) for name in COLLECTED}, **end}
        flat = {
            **parts,
            **{f"{name}/{key}": one for name, part in parts.items() if isinstance(part, dict) for key, one in part.items()},
        }
        return {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}

    def with_arrays(self, arrays: dict[str, np.ndarray], uses: dict[Kind, int]) -> "Rollout":
        """
        :param arrays: another rollout's, as ``arrays`` gives them
        :param uses: of it
        :return: that rollout
        """
        parts: dict[str, Any] = {}
        for name, array in arrays.items():
            part, is_in_dictionary, key = name.partition("/")
            if is_in_dictionary:
                parts.setdefault(part, {})[key] = array
            else:
                parts[part] = array
        buffer, end = copy.copy(self.buffer), RolloutEnd(*(parts.pop(f"{END}{name}", None) for name in RolloutEnd._fields))
        vars(buffer).update(parts)
        return Rollout(buffer, end, uses=Counter(uses))


class RolloutReplay:
    """
    The latest rollouts, in the order in which they were collected. An epoch goes through all samples of those that are due:
    the last ``n``, but for those that as many epochs of its kind as may have used already.

    Arrays are kept by reference, as in ``AuxBuffer``: observations that wait for the auxiliary phase are there once. Where
    value losses are clipped, it is against the values at collection.

    :param policy_rollouts: how many of the latest rollouts the policy's epochs (or joint ones) draw from
    :param value_rollouts: likewise for epochs on the value function alone. None: as the policy's
    :param policy_uses: how many of the policy's epochs use a rollout at most. None: there is no limit
    :param value_uses: likewise for epochs on the value function alone
    :param staleness: how many newer rollouts there have to be before a rollout is used: data as late as in the experiments of
        https://arxiv.org/abs/2110.00641, or as from actors that are far away
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
        numbers = dict(policy_rollouts=policy_rollouts, value_rollouts=value_rollouts)
        numbers |= dict(policy_uses=policy_uses, value_uses=value_uses)
        for name, value in numbers.items():
            if not (is_count(value) or (value is None and name != "policy_rollouts")):
                raise ArgumentError(f"`{name}`={value!r} of the replay cannot work: use an integer of at least 1")
        if not is_count(staleness, at_least=0):
            raise ArgumentError(f"`staleness`={staleness!r} of the replay cannot work: use an integer of at least 0")
        self.n_rollouts: dict[Kind, int] = {"policy": policy_rollouts, "value": value_rollouts or policy_rollouts}
        self.max_uses: dict[Kind, int | None] = {"policy": policy_uses, "value": value_uses}
        self.staleness = staleness
        self.rollouts: list[Rollout] = []

    @property
    def capacity(self) -> int:
        """How many rollouts are kept."""
        return self.staleness + max(self.n_rollouts.values())

    @property
    def n_stored(self) -> int:
        """How many rollouts there are that a resumed training needs: none, if each is used in its own update only."""
        return len(self.rollouts) if self.capacity > 1 else 0

    def add(self, rollout_buffer: RolloutBuffer, end: RolloutEnd | None) -> None:
        """
        :param rollout_buffer: full
        :param end: what follows it
        """
        if self.capacity > 1:
            next(in_order(rollout_buffer, 1))  # orders its samples by environment
        self.rollouts = [*self.rollouts, Rollout(rollout_buffer, end)][-self.capacity :]

    def keep_latest(self) -> None:
        """The next rollout is about to be collected, with the same buffer object: let the latest one have one of its own."""
        if self.capacity > 1:
            buffer = self.rollouts[-1].buffer
            self.rollouts[-1].buffer = copy.deepcopy(buffer) if reuses_memory(buffer) else copy.copy(buffer)

    def forget(self, rollout_buffer: RolloutBuffer) -> None:
        """
        :param rollout_buffer: whose rollout has not been learned from
        """
        self.rollouts = [rollout for rollout in self.rollouts if rollout.buffer is not rollout_buffer]

    def older(self, kinds: Sequence[Kind] = KINDS) -> list[Rollout]:
        """
        :param kinds: of the epochs that take place
        :return: those before the latest one that some epoch can still use
        """
        due = [id(rollout) for kind in kinds for rollout in self.due(kind)]
        return [rollout for rollout in self.rollouts[:-1] if id(rollout) in due]

    def due(self, kind: Kind) -> list[Rollout]:
        """
        :param kind: of an epoch
        :return: the rollouts that it goes through; none while all that there are have been used up, or are too new
        """
        end = len(self.rollouts) - self.staleness
        last = self.rollouts[max(0, end - self.n_rollouts[kind]) : max(0, end)]
        limit = self.max_uses[kind]
        return [rollout for rollout in last if limit is None or rollout.uses[kind] < limit]

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


def full_like(rollout_buffer: RolloutBuffer) -> RolloutBuffer:
    """
    :param rollout_buffer: full or empty
    :return: another one, full of zeros, its samples ordered by environment
    """
    other = copy.deepcopy(rollout_buffer) if reuses_memory(rollout_buffer) else copy.copy(rollout_buffer)
    other.reset()
    other.full, other.pos = True, other.buffer_size
    next(in_order(other, 1))
    return other


def mixed_minibatches(rollouts: Sequence[Rollout], batch_size: int) -> Iterator[Any]:
    """
    One epoch: all samples of some rollouts, shuffled, in minibatches that have equally many of each.

    :param rollouts: of one size
    :param batch_size: about so many samples, not less than there are rollouts: parts of equal size, rounded up
    :return: see ``minibatches``
    """
    n_samples = rollouts[0].buffer.buffer_size * rollouts[0].buffer.n_envs
    n_minibatches = math.ceil(len(rollouts) * n_samples / batch_size)
    size = batch_size if len(rollouts) == 1 else math.ceil(n_samples / n_minibatches)
    parts = [minibatches(rollout.buffer, size, rollout.extras) for rollout in rollouts]
    for some in zip(*parts, strict=True):
        yield some[0] if len(some) == 1 else tree_map(lambda *tensors: th.cat(tensors), *some)
