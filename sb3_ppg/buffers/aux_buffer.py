"""The rollouts that are kept for the auxiliary phase."""

import copy
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor
from torch.utils._pytree import tree_map

from sb3_ppg.buffers.rollouts import Observations, n_bytes, reuses_memory
from sb3_ppg.buffers.system_memory import available_memory
from sb3_ppg.checks import is_count
from sb3_ppg.errors import ArgumentError


class AuxiliaryBatch(NamedTuple):
    """
    Samples for the auxiliary phase: B = number of sequences x ``n_steps``, sequence after sequence; or B single ones.

    :param observations: (B, and the shape of one), in the type of the observation space
    :param context: what the policy needs beside them, by name, (B, ...), or (number of sequences, ...)
    :param value_targets: V_targ, in the units of the (normalised) return, (B,)
    :param recorded: what the objective has recorded before the phase's epochs, (B, P): the parameters of π_old(.|s), as in
        ``losses.distribution_parameters``, if it is the paper's
    """

    observations: PyTorchObs
    context: dict[str, th.Tensor]
    value_targets: th.Tensor
    recorded: th.Tensor


class AuxBuffer:
    """
    Observations and value targets of the rollouts since the last auxiliary phase, or, with ``capacity``, of the latest ones.

    A *sequence* is one environment's part of one rollout: ``n_steps`` consecutive samples, or, with ``single_samples``, one.
    Sequences are numbered rollout by rollout, then environment by environment, then by time.

    The arrays of the rollout buffer are kept by reference, not copied: SB3's buffers allocate new ones for each rollout. A
    buffer of another class that defines its own ``reset`` may reuse its memory, so its arrays are copied.

    With a GPU, observations go there for the auxiliary phase, in their own type, if they take no more than half of its free
    memory. Else each minibatch goes through pinned memory, while the one before it trains.

    :param device: where minibatches go
    :param storage: of observations: "memory", or "mmap" for files that are mapped into memory, on a disk with more room. They
        have no name, and are gone with the process, however it ends
    :param path: the folder of these files, with "mmap"; made if it is not there. None: the system's for temporary files
    :param capacity: how many rollouts are kept: auxiliary phases use the latest ones again. None: those of one phase, which
        are forgotten after it
    :raises ArgumentError: for another storage, a path without "mmap", a capacity below one
    """

    def __init__(
        self,
        device: th.device | str = "cpu",
        storage: Literal["memory", "mmap"] = "memory",
        path: str | Path | None = None,
        capacity: int | None = None,
    ):
        if storage not in ("memory", "mmap"):
            raise ArgumentError(f"`storage`={storage!r} of the auxiliary buffer is unknown: use 'memory' or 'mmap'")
        if path is not None and storage != "mmap":
            raise ArgumentError(
                f"`path`={str(path)!r} of the auxiliary buffer has no meaning with `storage`={storage!r}: use 'mmap'"
            )
        if not (capacity is None or is_count(capacity)):
            raise ArgumentError(f"`capacity`={capacity!r} of the auxiliary buffer cannot work: use an integer of at least 1")
        self.device = th.device(device)
        self.storage = storage
        self.capacity = capacity
        self.single_samples = False
        self.path = Path(tempfile.gettempdir() if path is None else path)
        self._copy_stream: th.cuda.Stream | None = None
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, or a pickle. Streams can be neither."""
        return {**vars(self), "_copy_stream": None}

    def reset(self) -> None:
        """Forget everything."""
        self.observations: list[Observations] = []  # a rollout each, (n_envs, n_steps, and the shape of one)
        self.observations_on_device: list[PyTorchObs] | None = None  # likewise, once they are there
        self.context: list[dict[str, np.ndarray]] = []  # a rollout each, (n_envs, n_steps or 1, ...)
        self.value_targets: list[np.ndarray] = []  # a rollout each, (n_envs, n_steps)
        self.recorded: th.Tensor | None = None  # (n_sequences, sequence length, P)
        self.n_new = 0  # rollouts since the last auxiliary phase

    def end_phase(self) -> None:
        """An auxiliary phase is over, or has failed: the next one waits for new rollouts."""
        if self.capacity is None:
            self.reset()
        self.observations_on_device = self.recorded = None
        self.n_new = 0

    def __len__(self) -> int:
        """How many rollouts are kept."""
        return len(self.value_targets)

    @property
    def n_sequences(self) -> int:
        """How many sequences are kept."""
        return self.n_samples // self.sequence_length if len(self) > 0 else 0

    @property
    def sequence_length(self) -> int:
        """In samples."""
        return 1 if self.single_samples else self.value_targets[0].shape[1]

    @property
    def n_samples(self) -> int:
        """How many samples are kept."""
        return sum(targets.size for targets in self.value_targets)

    def add(self, rollout_buffer: RolloutBuffer, context: dict[str, np.ndarray] | None = None) -> None:
        """
        Keep a rollout.

        :param rollout_buffer: after the policy phase has gone through it: ``get()`` has ordered its samples environment
            by environment, (n_envs * n_steps, ...)
        :param context: what the policy needs beside the observations, by name, (n_envs, n_steps, ...), or (n_envs, 1, ...) for
            what a sequence has once
        :raises ValueError: if nobody has called ``get()``
        """
        if not rollout_buffer.generator_ready:
            raise ValueError("The rollout buffer's samples are not ordered by environment yet: call its `get()` first")
        to_be_copied = reuses_memory(rollout_buffer)

        def own(array: np.ndarray) -> np.ndarray:
            return array.copy() if to_be_copied else array

        def keep(array: np.ndarray) -> np.ndarray:
            return own(array).reshape(rollout_buffer.n_envs, rollout_buffer.buffer_size, *array.shape[1:])

        self.keep(
            tree_map(keep, rollout_buffer.observations),
            {name: own(array) for name, array in (context or {}).items()},
            keep(rollout_buffer.returns.ravel()),
        )

    def keep(self, observations: Observations, context: dict[str, np.ndarray], value_targets: np.ndarray) -> None:
        """
        Keep a rollout in arrays that nobody will change.

        :param observations: (n_envs, n_steps, and the shape of one)
        :param context: what the policy needs beside them, by name, (n_envs, n_steps or 1, ...)
        :param value_targets: (n_envs, n_steps)
        """
        self.observations.append(tree_map(self._stored, observations))
        self.context.append(tree_map(self._stored, context))
        self.value_targets.append(value_targets)
        self.n_new += 1
        if self.capacity is not None and len(self) > self.capacity:
            for rollouts in (self.observations, self.context, self.value_targets):
                del rollouts[0]

    def emptied(self) -> "AuxBuffer":
        """
        :return: another buffer for the same device and storage, with nothing in it
        """
        other = copy.copy(self)
        other.reset()
        return other

    def _stored(self, observations: np.ndarray) -> np.ndarray:
        """Where they are kept: as they are, or in a file."""
        if self.storage == "memory":
            return observations
        with self._new_file() as file:
            np.ascontiguousarray(observations).tofile(file)
            file.flush()
            return np.asarray(np.memmap(file, observations.dtype, "r", shape=observations.shape))

    def available_bytes(self) -> int:
        """How much room there is for more observations."""
        if self.storage == "memory":
            return available_memory()
        self._new_file().close()
        return shutil.disk_usage(self.path).free

    def _new_file(self) -> IO[bytes]:
        """In the folder, which is made if it is not there. A model may come from a machine that had another."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryFile(dir=self.path)
        except OSError as error:
            raise ArgumentError(
                f"`path`={str(self.path)!r} of the auxiliary buffer cannot be used ({error.strerror}): give another folder, "
                "aux_buffer_kwargs=dict(storage='mmap', path=...), also to load"
            ) from error

    def record(self, recorded_fn: Callable[[AuxiliaryBatch], th.Tensor], n_sequences: int) -> None:
        """
        Evaluate the policy on everything that is kept. Call it right before the auxiliary epochs.

        :param recorded_fn: from a batch, where nothing is ``recorded``, to what is, (B, P)
        :param n_sequences: how many sequences at a time
        """
        if self._fits_on_the_device():
            self.observations_on_device = [obs_as_tensor(rollout, self.device) for rollout in self.observations]
        self.recorded = None
        recorded: th.Tensor | None = None
        for ids, batch in self.batches(np.arange(self.n_sequences), n_sequences):
            chunk = recorded_fn(batch).unflatten(0, (len(ids), self.sequence_length))
            if recorded is None:
                # At once: small arrays that stay, among large ones that come and go, would leave holes in memory
                recorded = chunk.new_empty(self.n_sequences, self.sequence_length, chunk.shape[-1])
            recorded[ids[0] : ids[-1] + 1] = chunk
        self.recorded = recorded

    def minibatches(self, n_sequences: int) -> Iterator[AuxiliaryBatch]:
        """
        One epoch: whole sequences, shuffled over environments and rollouts (by NumPy's global generator, as SB3 does), each
        exactly once.

        :param n_sequences: the most per minibatch; they are spread evenly
        """
        assert self.recorded is not None, "record() comes first"
        for _, batch in self.batches(np.random.permutation(self.n_sequences), n_sequences):
            yield batch

    def evenly_spread(self, n_sequences: int) -> np.ndarray:
        """
        :param n_sequences: how many at most
        :return: the numbers of so many sequences, spread over all that are kept
        """
        return np.linspace(0, self.n_sequences - 1, min(self.n_sequences, n_sequences)).astype(int)

    def batches(self, order: np.ndarray, n_sequences: int) -> Iterator[tuple[np.ndarray, AuxiliaryBatch]]:
        """
        :param order: numbers of sequences
        :param n_sequences: how many at a time at most; the batches differ by one sequence at most
        :return: these sequences in this order, with their numbers; of single samples, each batch in the order of the phase
        """
        recorded = self.recorded
        if recorded is None:
            recorded = th.empty(self.n_sequences, self.sequence_length, 0, device=self.device)
        n_batches = math.ceil(len(order) / n_sequences)
        parts = np.array_split(order, n_batches) if n_batches else []
        parts = [np.sort(part) for part in parts] if self.single_samples else parts
        # Once: a transfer for each minibatch would wait for those before it
        parts_on_device = th.as_tensor(np.concatenate(parts), device=self.device).split([*map(len, parts)]) if parts else []
        targets = th.as_tensor(np.concatenate(self.value_targets), device=self.device)
        targets = targets.reshape(self.n_sequences, self.sequence_length)
        for ids, ids_on_device in zip(parts, parts_on_device, strict=True):
            yield (
                ids,
                AuxiliaryBatch(
                    observations=self._gather(self.observations_on_device or self.observations, ids),
                    context=self._gather(self.context, ids),
                    value_targets=targets[ids_on_device].flatten(),
                    recorded=recorded[ids_on_device].flatten(0, 1),
                ),
            )

    def _fits_on_the_device(self) -> bool:
        if self.device.type != "cuda":
            return False
        free, _ = th.cuda.mem_get_info(self.device)
        return sum(map(n_bytes, self.observations)) <= free / 2

    def _gather(self, rollouts: list[Any], ids: np.ndarray) -> Any:
        """One copy of the arrays of some sequences, (len(ids) * sequence length, ...)."""
        if isinstance(rollouts[0], dict):
            return {key: self._gather_arrays([rollout[key] for rollout in rollouts], ids) for key in rollouts[0]}
        return self._gather_arrays(rollouts, ids)

    def _gather_arrays(self, arrays: list[Any], ids: np.ndarray) -> th.Tensor:
        """As ``_gather``, of one array for each rollout, (n_envs, n_steps or 1, ...)."""
        n_envs, n_steps = self.value_targets[0].shape
        if self.single_samples:
            return self._gather_samples(arrays, ids // (n_steps // arrays[0].shape[1]))
        places = zip(*(numbers.tolist() for numbers in np.divmod(ids, n_envs)), strict=True)
        return self._stack([arrays[rollout][env] for rollout, env in places])

    def _gather_samples(self, arrays: list[Any], ids: np.ndarray) -> th.Tensor:
        """As ``_gather_arrays``, of single samples in ascending order: an indexed copy for each rollout."""
        rollouts, samples = np.divmod(ids, arrays[0].shape[0] * arrays[0].shape[1])
        numbers, firsts = np.unique(rollouts, return_index=True)
        some = zip(numbers, np.split(samples, firsts[1:]), strict=True)
        return self._stack([arrays[rollout].reshape(-1, *arrays[rollout].shape[2:])[part] for rollout, part in some])

    def _stack(self, sequences: list[Any]) -> th.Tensor:
        if isinstance(sequences[0], th.Tensor):
            return th.cat(sequences)
        if self._copy_stream is None and self.device.type == "cuda":
            self._copy_stream = th.cuda.Stream(self.device)
        if self._copy_stream is None:
            return th.as_tensor(np.concatenate(sequences), device=self.device)
        dtype = th.from_numpy(np.empty(0, sequences[0].dtype)).dtype
        pinned = th.empty(sum(map(len, sequences)), *sequences[0].shape[1:], dtype=dtype, pin_memory=True)
        np.concatenate(sequences, out=pinned.numpy())
        with th.cuda.stream(self._copy_stream):  # its own: the copy need not wait for the training that is queued
            on_device = pinned.to(self.device, non_blocking=True)
        training = th.cuda.current_stream(self.device)
        training.wait_stream(self._copy_stream)
        on_device.record_stream(training)
        return on_device
