"""The rollouts that are kept for the auxiliary phase."""

import copy
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import map_arrays, split_arrays
from sb3_ppg.buffers.memory import available_memory
from sb3_ppg.buffers.rollouts import GATHERED_BYTES, Observations, has_new_arrays, n_bytes
from sb3_ppg.errors import ArgumentError


class AuxiliaryBatch(NamedTuple):
    """
    Samples for the auxiliary phase: B = number of sequences * ``n_steps``, sequence after sequence; or B single ones.

    :param observations: ``(B, *observation shape)``, in the type of the observation space
    :param context: further inputs of the policy by name, (B, ...), or (number of sequences, ...); "aux_data": ``SampleData``
    :param value_targets: V_targ, in the units of the (normalized) return, (B,)
    :param recorded: data that the objective recorded before the epochs of the phase, (B, P); for the paper's, the parameters
        of π_old(.|s), see ``Actions.parameters``
    """

    observations: PyTorchObs
    context: dict[str, Any]
    value_targets: th.Tensor
    recorded: th.Tensor


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
    :param prior: parameters of π_prior(.|s) in the policy phase, (B, P); set by the algorithm
    """

    weights: Any = None
    values: Any = None
    component_targets: Any = None
    component_values: Any = None
    prior: Any = None

    @classmethod
    def of(cls, batch: Any) -> Self:
        """
        :param batch: minibatch of either phase
        :return: its tensors
        """
        by_name = batch.context.get("aux_data", {}) if isinstance(batch, AuxiliaryBatch) else getattr(batch, "extras", {})
        return cls(**{name: by_name.get(name) for name in cls.__dataclass_fields__})

    def by_name(self) -> dict[str, Any]:
        """Return the fields that are not None, as buffers keep them."""
        return {name: value for name, value in vars(self).items() if value is not None}


class StoredRollout(NamedTuple):
    """Arrays of a rollout that the auxiliary phase keeps."""

    observations: Observations  # (n_envs, n_steps, *observation shape)
    context: dict[str, Any]  # inputs of the policy and, under "aux_data", `SampleData`, by name, (n_envs, n_steps or 1, ...)
    value_targets: np.ndarray  # V_targ, (n_envs, n_steps)


class AuxBuffer:
    """
    Observations and value targets of the rollouts since the last auxiliary phase, or, with ``capacity``, of the latest ones.

    A *sequence* is one environment's part of one rollout: ``n_steps`` consecutive samples, or, with ``single_samples``, one.
    Sequences are numbered rollout by rollout, then environment by environment, then by time.

    The arrays of the rollout buffer are kept by reference, because SB3's buffers allocate new ones for each rollout. The
    arrays of a buffer that may reuse its memory are copied, see ``buffers.rollouts``.

    With a GPU, the observations are copied to it for the auxiliary phase, in their own type, if they take no more than half of
    its free memory. Otherwise, each minibatch is copied when it is needed. This is experimental, as nobody has run it.

    :param device: device of the minibatches
    :param storage: where observations are kept: "memory", or "mmap" for files on a disk that are mapped into memory. The files
        have no name, and disappear when the process ends, even if it is killed
    :param path: folder of these files, created if it does not exist. None: the system's folder for temporary files
    :param capacity: number of rollouts that are kept, so that auxiliary phases use the latest ones again. None: those of one
        phase, which are dropped after it
    :raises ArgumentError: for another storage, a path without "mmap", or a capacity below one
    """

    def __init__(
        self,
        device: th.device | str = "cpu",
        storage: Literal["memory", "mmap"] = "memory",
        path: str | Path | None = None,
        capacity: int | None = None,
    ):
        check_values(storage=storage, capacity=capacity)
        if path is not None and storage != "mmap":
            raise ArgumentError(
                f"`path`={str(path)!r} of the auxiliary buffer has no meaning with `storage`={storage!r}: use 'mmap'"
            )
        self.device = th.device(device)
        self.storage = storage
        self.capacity = capacity
        self.single_samples = False
        self.path = Path(tempfile.gettempdir() if path is None else path)
        self.reset()

    def reset(self) -> None:
        """Drop all rollouts."""
        self.rollouts: list[StoredRollout] = []
        self.observations_on_device: list[PyTorchObs] | None = None  # those of all rollouts, during a phase
        self.recorded: th.Tensor | None = None  # (n_sequences, sequence length, P)
        self.progress: list[float] = []  # remaining progress of the run (from 1 to 0) at each new rollout's policy update

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Surround an auxiliary phase. After it, even if it has failed, the next phase waits for new rollouts."""
        try:
            yield
        finally:
            if self.capacity is None:
                self.reset()
            self.observations_on_device = self.recorded = None
            self.progress = []

    def emptied(self) -> Self:
        """Return an empty buffer for the same device and storage."""
        other = copy.copy(self)
        other.reset()
        return other

    def __len__(self) -> int:
        """The number of rollouts."""
        return len(self.rollouts)

    @property
    def n_new(self) -> int:
        """The number of rollouts since the last auxiliary phase."""
        return len(self.progress)

    @property
    def n_samples(self) -> int:
        """The number of samples in all rollouts."""
        return sum(rollout.value_targets.size for rollout in self.rollouts)

    @property
    def n_sequences(self) -> int:
        """The number of sequences in all rollouts."""
        return self.n_samples // self.sequence_length if self.rollouts else 0

    @property
    def sequence_length(self) -> int:
        """The number of samples in a sequence."""
        return 1 if self.single_samples else self.rollouts[0].value_targets.shape[1]

    # ---- storing ----

    def add(self, rollout_buffer: RolloutBuffer, context: dict[str, Any] | None = None, progress: float = 1.0) -> None:
        """Keep a rollout; see ``stored`` and the attribute ``progress`` for the arguments."""
        self.keep(self.stored(rollout_buffer, context or {}), progress)

    @staticmethod
    def stored(rollout_buffer: RolloutBuffer, context: dict[str, Any]) -> StoredRollout:
        """
        Return what is kept of a rollout.

        :param rollout_buffer: full buffer, whose samples are ordered by environment
        :param context: inputs of the policy in addition to the observations by name, and under "aux_data" the data of the
            objective, (n_envs, n_steps, ...), or (n_envs, 1, ...) for data that a sequence has once
        """
        is_kept_by_reference, sizes = has_new_arrays(rollout_buffer), (rollout_buffer.n_envs, rollout_buffer.buffer_size)

        def own(array: np.ndarray) -> np.ndarray:
            return array if is_kept_by_reference else array.copy()

        observations = map_arrays(lambda array: own(array).reshape(*sizes, *array.shape[1:]), rollout_buffer.observations)
        return StoredRollout(observations, map_arrays(own, context), own(rollout_buffer.returns).reshape(sizes))

    def keep(self, rollout: StoredRollout, progress: float = 1.0) -> None:
        """Keep a rollout, whose arrays must not change later; see the attribute ``progress``."""
        observations, context = map_arrays(self._stored, (rollout.observations, rollout.context))
        self.rollouts.append(rollout._replace(observations=observations, context=context))
        self.progress.append(progress)
        if self.capacity is not None:
            self.rollouts = self.rollouts[-self.capacity :]

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

    def available_bytes(self) -> int:
        """Return the number of bytes that are available for more observations."""
        if self.storage == "memory":
            return available_memory()
        self._new_file().close()
        return shutil.disk_usage(self.path).free

    # ---- the auxiliary phase ----

    def record(self, recorded_fn: Callable[[AuxiliaryBatch], th.Tensor], n_sequences: int) -> None:
        """
        Evaluate the policy on all stored samples. Call it right before the auxiliary epochs.

        :param recorded_fn: maps a batch with an empty ``recorded`` to the data to record, (B, P)
        :param n_sequences: largest number of sequences in a batch
        """
        if self.device.type == "cuda":
            free, _ = th.cuda.mem_get_info(self.device)
            if self._n_observation_bytes() <= free / 2:
                observations = (rollout.observations for rollout in self.rollouts)
                self.observations_on_device = [obs_as_tensor(one, self.device) for one in observations]
        self.recorded = None
        recorded: th.Tensor | None = None
        for ids, batch in self.batches(np.arange(self.n_sequences), n_sequences):
            chunk = recorded_fn(batch).unflatten(0, (len(ids), self.sequence_length))
            if recorded is None:
                # One array for all: small arrays that stay between large ones that are freed would fragment the memory
                recorded = chunk.new_empty(self.n_sequences, self.sequence_length, chunk.shape[-1])
            recorded[ids[0] : ids[-1] + 1] = chunk
        self.recorded = recorded

    def minibatches(self, n_sequences: int) -> Iterator[AuxiliaryBatch]:
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

    def batches(self, order: np.ndarray, n_sequences: int) -> Iterator[tuple[np.ndarray, AuxiliaryBatch]]:
        """
        :param order: numbers of sequences, at least one
        :param n_sequences: largest number of sequences in a batch; the sizes of batches differ by at most one sequence
        :return: numbers and samples of each batch, in this order; single samples are in ascending order within each batch
        """
        recorded = self.recorded
        if recorded is None:
            recorded = th.empty(self.n_sequences, self.sequence_length, 0, device=self.device)
        targets = th.as_tensor(np.concatenate([rollout.value_targets for rollout in self.rollouts]), device=self.device)
        targets = targets.reshape(self.n_sequences, self.sequence_length)
        parts, n_at_once = np.array_split(order, math.ceil(len(order) / n_sequences)), 1
        if self.single_samples:
            parts = [np.sort(part) for part in parts]
            n_at_once = max(1, GATHERED_BYTES * len(parts) // max(1, self._n_observation_bytes()))
        chunks = [parts[start : start + n_at_once] for start in range(0, len(parts), n_at_once)]
        ids_of_chunks = [np.concatenate(chunk) for chunk in chunks]
        # One transfer for all chunks: the transfer of a chunk would wait for the training on earlier minibatches
        on_device = th.as_tensor(np.concatenate(ids_of_chunks), device=self.device).split([*map(len, ids_of_chunks)])
        observations, context, _ = zip(*self.rollouts, strict=True)
        for chunk, ids, ids_on_device in zip(chunks, ids_of_chunks, on_device, strict=True):
            batch = AuxiliaryBatch(
                observations=self._gather(self.observations_on_device or observations, ids),
                context=self._gather(context, ids),
                value_targets=targets[ids_on_device].flatten(),
                recorded=recorded[ids_on_device].flatten(0, 1),
            )
            sizes = [len(part) * self.sequence_length for part in chunk]
            yield from zip(chunk, split_arrays(batch, sizes), strict=True)

    def _n_observation_bytes(self) -> int:
        return sum(n_bytes(rollout.observations) for rollout in self.rollouts)

    def _gather(self, rollouts: Sequence[Any], ids: np.ndarray) -> Any:
        """Copy sequences from arrays (n_envs, n_steps or 1, ...) to one tensor, (len(ids) * sequence length or 1, ...)."""

        def gather(*arrays: Any) -> th.Tensor:
            n_envs, n_rows, *shape = arrays[0].shape
            length = min(self.sequence_length, n_rows)
            n_pieces = n_envs * n_rows // length  # of each array; single samples of an environment may share one
            numbers, pieces = np.divmod(ids // (self.n_sequences // (n_pieces * len(arrays))), n_pieces)
            size, is_tensor = (len(ids), length, *shape), isinstance(arrays[0], th.Tensor)
            gathered: Any = arrays[0].new_empty(size) if is_tensor else np.empty(size, arrays[0].dtype)
            for number in np.unique(numbers):
                of_rollout = np.flatnonzero(numbers == number)
                gathered[of_rollout] = arrays[number].reshape(n_pieces, length, *shape)[pieces[of_rollout]]
            return th.as_tensor(gathered.reshape(len(ids) * length, *shape), device=self.device)

        return map_arrays(gather, *rollouts)
