"""Replay of rollouts in the policy phase."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sb3_ppg.arguments import check_values
from sb3_ppg.buffers.memory import available_memory, check_room
from sb3_ppg.buffers.rollouts import Kind, Observations, Rollout, batches, n_bytes

KINDS: tuple[Kind, ...] = ("policy", "value")


class RolloutReplay:
    """
    The latest rollouts, in the order in which they were collected. An epoch uses all samples of those that are due: the last
    ``n`` rollouts for its kind of epoch, except those that have reached the maximum number of uses.

    Arrays are the same objects as in an ``AuxBuffer`` in memory, until they are read from files. Clipped value losses are
    clipped around the values at collection.

    :param policy_rollouts: number of the latest rollouts that the policy's epochs (or joint ones) use
    :param value_rollouts: number of the latest rollouts that epochs on the value function alone use. None: the same number
    :param policy_uses: maximum number of the policy's epochs (or joint ones) that use a rollout. None: no limit
    :param value_uses: maximum number of epochs on the value function alone that use a rollout. None: no limit
    :raises ArgumentError: for numbers that cannot work
    """

    def __init__(
        self,
        policy_rollouts: int = 1,
        value_rollouts: int | None = None,
        policy_uses: int | None = None,
        value_uses: int | None = None,
    ):
        check_values(policy_rollouts=policy_rollouts, value_rollouts=value_rollouts)
        check_values(policy_uses=policy_uses, value_uses=value_uses)
        self.n_rollouts: dict[Kind, int] = {"policy": policy_rollouts, "value": value_rollouts or policy_rollouts}
        self.max_uses: dict[Kind, int | None] = {"policy": policy_uses, "value": value_uses}
        self.rollouts: list[Rollout] = []

    @property
    def capacity(self) -> int:
        """The number of rollouts that are kept."""
        return max(self.n_rollouts.values())

    @property
    def n_stored(self) -> int:
        """The number of rollouts that a resumed run needs: none, if each is used only in its own update."""
        return len(self.rollouts) if self.capacity > 1 else 0

    def check_room(self, observations: Observations) -> None:
        """Raise an ``ArgumentError`` if the memory cannot hold further rollouts with such observations."""
        needed = 0 if self.capacity == 1 else (self.capacity - len(self.rollouts)) * n_bytes(observations)
        remedy = f"`replay_kwargs` keeps {self.capacity} rollouts; use fewer, or smaller ones"
        check_room(needed, available_memory(), f"in memory: {remedy}")

    @contextmanager
    def learning_from(self, latest: Rollout) -> Iterator[None]:
        """Context manager around an update on a rollout, which becomes the latest one. If the update fails, it is dropped."""
        self.rollouts = [*self.rollouts, latest][-self.capacity :]
        try:
            yield
        except BaseException:  # Ctrl-C included
            self.rollouts = [rollout for rollout in self.rollouts if rollout is not latest]
            raise

    def due(self, kind: Kind) -> list[Rollout]:
        """Return the rollouts that an epoch of this kind uses; none if all are used up."""
        latest, limit = self.rollouts[-self.n_rollouts[kind] :], self.max_uses[kind]
        return [rollout for rollout in latest if limit is None or rollout.uses[kind] < limit]

    def older(self, kinds: Sequence[Kind] = KINDS) -> list[Rollout]:
        """Return the rollouts before the latest one that an epoch of these kinds can still use."""
        due = [rollout for kind in kinds for rollout in self.due(kind)]
        return [rollout for rollout in self.rollouts[:-1] if rollout in due]

    def epoch(self, kind: Kind, batch_size: int, keys: Iterable[str], device: Any) -> Iterator[Any]:
        """
        Draw one epoch from the rollouts that are ``due``, at least one, and count it as a use of each.

        :param kind: kind of the epoch
        :param batch_size: in samples, rounded up to parts of equal size
        :param keys: names of the arrays that minibatches have
        :return: minibatches of all samples, shuffled by NumPy's global generator as in SB3, with equally many of each rollout
        """
        due = self.due(kind)
        for rollout in due:
            rollout.uses[kind] += 1
        n_samples = due[0].n_samples
        n_minibatches = math.ceil(len(due) * n_samples / batch_size)
        size = batch_size if len(due) == 1 else math.ceil(n_samples / n_minibatches)
        divided = [rollout.parts(size, np.random.permutation) for rollout in due]
        length, _ = divided[0]
        columns = ([k * n_samples // length + part for part in parts] for k, (_, parts) in enumerate(divided))
        parts = [np.concatenate(column) for column in zip(*columns, strict=True)]
        yield from batches([rollout.select(keys) for rollout in due], parts, length, device)
