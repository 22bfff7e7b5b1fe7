"""The rollouts that are kept for the auxiliary phase."""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import map_arrays, split
from sb3_ppg.buffers.memory import available_memory, check_room
from sb3_ppg.buffers.rollouts import Rollout, batches, n_bytes
from sb3_ppg.errors import ArgumentError


class AuxBuffer:
    """
    The arrays that the auxiliary phase needs, of the rollouts since the last phase.

    A *sequence* is one environment's part of one rollout: ``n_steps`` consecutive samples, or, with ``single_samples``, one.
    Sequences are numbered rollout by rollout, then environment by environment, then by time.

    With a GPU, the arrays are copied to it for the auxiliary phase, in their own types, if they take no more than half of its
    free memory. Otherwise, each minibatch is copied when it is needed. This is experimental, as nobody has run it.

    :param device: device of the minibatches
    :param storage: where arrays are kept: "memory", or "mmap" for files on a disk that are mapped into memory. The files
        have no name, and disappear when the process ends, even if it is killed
    :param path: folder of these files, created if it does not exist. None: the system's folder for temporary files
    :raises ArgumentError: for another storage, or a path without "mmap"
    """

    def __init__(
        self,
        device: th.device | str = "cpu",
        storage: Literal["memory", "mmap"] = "memory",
        path: str | Path | None = None,
    ):
        check_values(storage=storage)
        if path is not None and storage != "mmap":
            raise ArgumentError(
                f"`path`={str(path)!r} of the auxiliary buffer has no meaning with `storage`={storage!r}: use 'mmap'"
            )
        self.device = th.device(device)
        self.storage = storage
        self.single_samples = False
        self.path = Path(tempfile.gettempdir() if path is None else path)
        self.reset()

    def reset(self) -> None:
        """Drop all rollouts."""
        self.rollouts: list[Rollout] = []
        self.on_device: list[Rollout] | None = None  # all rollouts, during a phase
        self.recorded: th.Tensor | None = None  # (n_samples, P)
        self.progress: list[float] = []  # remaining progress of the run (from 1 to 0) at each rollout's policy update

    def __len__(self) -> int:
        """The number of rollouts."""
        return len(self.rollouts)

    @property
    def n_samples(self) -> int:
        """The number of samples in all rollouts."""
        return sum(rollout.n_samples for rollout in self.rollouts)

    @property
    def n_sequences(self) -> int:
        """The number of sequences in all rollouts."""
        return self.n_samples // self.sequence_length if self.rollouts else 0

    @property
    def sequence_length(self) -> int:
        """The number of samples in a sequence."""
        return 1 if self.single_samples else self.rollouts[0].shape[1]

    # ---- storing ----

    def add(self, rollout: Rollout, progress: float = 1.0) -> None:
        """Keep a rollout, whose arrays must not change later; see the attribute ``progress``."""
        self.rollouts.append(replace(rollout, arrays=map_arrays(self._stored, rollout.arrays)))
        self.progress.append(progress)

    def _stored(self, array: np.ndarray) -> np.ndarray:
        if self.storage == "memory" or array.size == 0:  # a file without bytes cannot be mapped
            return array
        with self._new_file() as file:
            np.ascontiguousarray(array).tofile(file)
            file.flush()
            return np.asarray(np.memmap(file, array.dtype, "r", shape=array.shape))

    def _new_file(self) -> IO[bytes]:
        """Open a file without a name. Its folder is created here, because a model may come from another machine."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=self.path)
        except OSError as error:
            raise ArgumentError(
                f"`path`={str(self.path)!r} of the auxiliary buffer cannot be used ({error.strerror}): give another folder, "
                "aux_buffer_kwargs=dict(storage='mmap', path=...), also to load"
            ) from error

    def check_room(
        self, rollout_buffer: RolloutBuffer, keys: Iterable[str], n_rollouts: int, states: Iterable[str] = ()
    ) -> None:
        """
        Refuse to begin if the memory, or the disk, cannot hold the arrays with these names of so many further rollouts.
        ``states`` do not count, as they are kept once for each environment.

        :raises ArgumentError: with the sizes, and what to do
        """
        step = Rollout.of(rollout_buffer, steps=slice(1))
        step_bytes = n_bytes(step.select({*keys} & {*step.arrays} - {*states}).arrays)
        needed = n_rollouts * rollout_buffer.buffer_size * step_bytes
        remedy = (
            f"reduce `n_policy_iterations`, `n_steps` (now {rollout_buffer.buffer_size}) or the number of environments "
            f"({rollout_buffer.n_envs}), or "
        )
        if self.storage == "memory":
            remedy += "keep them on a disk, aux_buffer_kwargs=dict(storage='mmap', path=folder)"
            check_room(needed, available_memory(), f"in memory: {remedy}")
        else:
            self._new_file().close()
            remedy += "use another disk, aux_buffer_kwargs=dict(storage='mmap', path=...)"
            check_room(needed, shutil.disk_usage(self.path).free, f"on the disk of {self.path}: {remedy}")

    # ---- the auxiliary phase ----

    @th.no_grad()
    @unvalidated_distributions()
    def record(self, recorded_fn: Callable[[Any], th.Tensor], n_sequences: int, micro_batch_size: int | None = None) -> None:
        """
        Evaluate the policy on all stored samples. Call it right before the auxiliary epochs, with their batch sizes, so that
        rounding is the same and KL(π_old, π) starts at zero.

        :param recorded_fn: maps a batch without ``recorded`` to the data to record, (B, P)
        :param n_sequences: largest number of sequences in a batch
        :param micro_batch_size: largest number of samples in one call of ``recorded_fn``. None: whole batches
        """
        if self.device.type == "cuda":
            free, _ = th.cuda.mem_get_info(self.device)
            if sum(n_bytes(rollout.arrays) for rollout in self.rollouts) <= free / 2:
                to_device = partial(th.as_tensor, device=self.device)
                self.on_device = [replace(rollout, arrays=map_arrays(to_device, rollout.arrays)) for rollout in self.rollouts]
        self.recorded = None
        recorded: th.Tensor | None = None
        for ids, batch in self.batches(np.arange(self.n_sequences), n_sequences):
            chunk = th.cat([recorded_fn(part) for part in split(batch, micro_batch_size)])
            first = ids[0] * self.sequence_length
            if recorded is None:
                # One array for all: small arrays that stay between large ones that are freed would fragment the memory
                recorded = chunk.new_empty(self.n_samples, chunk.shape[-1])
            recorded[first : first + len(chunk)] = chunk
        self.recorded = recorded

    def minibatches(self, n_sequences: int) -> Iterator[Any]:
        """
        Draw one epoch: each sequence exactly once, shuffled over environments and rollouts (by NumPy's global generator, as in
        SB3).

        :param n_sequences: largest number of sequences in a minibatch; they are spread evenly over the minibatches
        """
        assert self.recorded is not None, "record() comes first"
        for _, batch in self.batches(np.random.permutation(self.n_sequences), n_sequences):
            yield batch

    def evenly_spread(self, n_sequences: int) -> np.ndarray:
        """Return the numbers of at most ``n_sequences`` sequences, spread evenly over all."""
        return np.linspace(0, self.n_sequences - 1, min(self.n_sequences, n_sequences)).astype(int)

    def batches(self, order: np.ndarray, n_sequences: int) -> Iterator[tuple[np.ndarray, Any]]:
        """
        :param order: numbers of sequences, at least one
        :param n_sequences: largest number of sequences in a batch; the sizes of batches differ by at most one sequence
        :return: numbers and samples of each batch, in this order; single samples are in ascending order within each batch. B
            samples are sequence after sequence. Fields are ``observations``, in the type of their space; ``targets``, V_targ
            in the units of the (normalized) return, (B,), or (B, K) for vector rewards; inputs of the policy and data of the
            objective by name, (B, ...), or (number of sequences, ...); ``recorded``, (B, P), once there is such data
        """
        rollouts = self.on_device or self.rollouts
        if self.recorded is not None:
            both = zip(rollouts, self.recorded.reshape(len(rollouts), *rollouts[0].shape, -1), strict=True)
            rollouts = [replace(rollout, arrays={**rollout.arrays, "recorded": recorded}) for rollout, recorded in both]
        parts = np.array_split(order, math.ceil(len(order) / n_sequences))
        if self.single_samples:
            parts = [np.sort(part) for part in parts]
        yield from zip(parts, batches(rollouts, parts, self.sequence_length, self.device), strict=True)
