"""
Training with several processes, those of ``torch.distributed``'s process group: what each has to do where all do it. Each
collects with its own environments, of the same number and with the same settings, so averages over processes are averages
over samples. Without a group there is one process, and nothing here costs anything.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
import torch as th
import torch.distributed as dist
from stable_baselines3.common.utils import set_random_seed
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from sb3_ppg.errors import ArgumentError, NonFiniteLossError, ProcessGroupError

Exc = TypeVar("Exc", bound=BaseException)
FIRST_ERROR = "sb3_ppg/first_error"  # where processes look for it that are cut off
_board: "dist.Store | None" = None  # for messages to those that cannot be reached by the group any more
_left_as: tuple[int, int] | None = None  # number and size, in a group that an error has ended


def is_together() -> bool:
    """Whether there is a group. Torch is built without them for some systems."""
    return dist.is_available() and dist.is_initialized()


def n_processes() -> int:
    """How many train together."""
    return dist.get_world_size() if is_together() else 1


def rank() -> int:
    """Which of them this is, from 0: the first one prints, logs, evaluates and saves."""
    return number_and_size()[0]


def number_and_size() -> tuple[int, int]:
    """Which of how many this is, also after an error has ended the group: files of several stay several."""
    if is_together():
        return dist.get_rank(), dist.get_world_size()
    return _left_as or (0, 1)


def n_processes_here() -> int:
    """How many of them share this machine's memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", n_processes())) if n_processes() > 1 else 1


def has_left() -> bool:
    """Whether an error has ended the group: nobody can say what the others do now."""
    return _left_as is not None


def use_board(store: "dist.Store | None") -> None:
    """
    :param store: of the group, which outlives it
    """
    global _board, _left_as
    _board, _left_as = store, None


# ---- numbers ----


@th.no_grad()
def average_over_processes(tensors: list[th.Tensor]) -> None:
    """
    Replace tensors by their averages over all processes, in one transfer.

    :param tensors: of the same shapes in every process
    """
    if not is_together():
        return
    for tensor, average in zip(tensors, _averages([tensor.flatten() for tensor in tensors]), strict=True):
        tensor.copy_(average.view_as(tensor))


@th.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], values: th.Tensor) -> None:
    """
    As ``average_over_processes``, with one copy instead of two: gradients become views of what was transferred.

    :param parameters: whose gradients are replaced, of the same shapes and memory formats in every process
    :param values: further numbers to average in the same transfer, of any shape
    """
    owners = [parameter for parameter in parameters if parameter.grad is not None]
    gradients: list[th.Tensor] = [_dense(parameter.grad) for parameter in owners]  # type: ignore[arg-type]
    in_memory = [gradient.as_strided((gradient.numel(),), (1,)) for gradient in gradients]
    of_values, *averages = _averages([values.flatten(), *in_memory])
    values.copy_(of_values.view_as(values))
    for parameter, gradient, average in zip(owners, gradients, averages, strict=True):
        parameter.grad = average.as_strided(gradient.shape, gradient.stride())


def _averages(parts: list[th.Tensor]) -> tuple[th.Tensor, ...]:
    """
    :param parts: (N_i,), the same everywhere
    :return: their averages over all processes, views of the one tensor that was transferred
    """
    flat = th.cat(parts)
    with _connected():
        dist.all_reduce(flat)
    flat /= dist.get_world_size()
    return flat.split([part.numel() for part in parts])


def _dense(tensor: th.Tensor) -> th.Tensor:
    """Without gaps in memory, in whatever order of dimensions."""
    is_dense = tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=th.channels_last))
    return tensor if is_dense else tensor.contiguous()


def moments(values: np.ndarray, device: th.device | str = "cpu") -> tuple[float, float]:
    """
    Mean and standard deviation (of the population), over all processes.

    :param values: of any shape, of one size everywhere
    :param device: of the process group's backend
    :return: in the units of the values
    """

    def mean(array: np.ndarray) -> float:
        own = float(array.mean(dtype=np.float64))
        if not is_together():
            return own
        average = th.tensor([own], dtype=th.float64, device=device)
        average_over_processes([average])
        return average.item()

    center = mean(values)
    return center, mean(np.square(values - center)) ** 0.5


def average_batch_statistics(networks: Sequence[nn.Module]) -> None:
    """
    Batch normalisation keeps running means and variances, each process those of its own batches: all take the averages.

    :param networks: the same everywhere
    """
    layers = [layer for network in networks for layer in network.modules() if isinstance(layer, _NormBase)]
    buffers = [buffer for layer in layers for buffer in (layer.running_mean, layer.running_var) if buffer is not None]
    if buffers:
        average_over_processes(buffers)


# ---- objects ----


def gathered(value: Any) -> list[Any]:
    """
    :param value: of this process; it is pickled
    :return: those of all, in their order
    """
    if not is_together():
        return [value]
    everyone: list[Any] = [None] * dist.get_world_size()
    with _connected():
        dist.all_gather_object(everyone, value)
    return everyone


def from_first(value: Any) -> Any:
    """
    :param value: of this process; it is pickled
    :return: that of the first one
    """
    if not is_together():
        return value
    values = [value if rank() == 0 else None]
    with _connected():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def require_equal(settings: Mapping[str, Any]) -> None:
    """
    :param settings: by their names, what has to be the same in every process
    :raises ArgumentError: in every process, if something differs
    """
    everyone = gathered({name: described(value) for name, value in settings.items()})
    for name, first in everyone[0].items():
        values = [theirs.get(name) for theirs in everyone]
        if any(value != first for value in values):
            shown = ", ".join(_where_they_differ([str(value) for value in values]))
            raise told(ArgumentError(f"`{name}` differs between the processes, {shown}: use one value"))


def _where_they_differ(texts: list[str]) -> list[str]:
    """A part of each, from shortly before the first difference."""
    n_alike = next((n for n, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), min(map(len, texts)))
    start = max(0, n_alike - 40)
    return [f"{'...' * (start > 0)}{text[start : start + 200]}" for text in texts]


def described(value: Any) -> str:
    """
    :param value: any
    :return: the same text for equal values in different processes: schedules by what they say, classes by their names
    """
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {described(one)}' for key, one in sorted(value.items(), key=str))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    if callable(value):
        try:
            return f"a schedule from {value(1.0)} by {value(0.5)} to {value(0.0)}"
        except Exception:
            return getattr(value, "__qualname__", type(value).__qualname__)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def separate_generators(device: th.device) -> None:
    """
    Processes whose generators are in the same state would draw the same actions: then each gets a seed of its own.

    :param device: on which actions are drawn
    """
    states = [th.get_rng_state(), *([th.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    hashes = [sha256(state.numpy().tobytes()).digest() for state in states]
    if any(len(set(everyones)) < len(everyones) for everyones in zip(*gathered(hashes), strict=True)):
        set_random_seed((int.from_bytes(hashes[0][:4], "little") + rank()) % 2**32)


# ---- errors ----


class Agreement:
    """
    What the processes say to each other at the end of a block.

    :ivar says: what this one does
    :ivar heard: afterwards, what all have said, in their order
    """

    says: Any = None
    heard: Sequence[Any] = ()


@contextmanager
def agreed() -> Iterator[Agreement]:
    """
    A block that all processes go through, without waiting for each other in it. An error in any ends it in all.

    :raises ProcessGroupError: in those that were without, with the first error's message
    """
    agreement = Agreement()
    try:
        yield agreement
    except Exception as error:
        if is_told(error):  # by a block within
            raise
        gathered((_message(error), None))
        told(error)
        raise
    reports = gathered((None, agreement.says))
    for number, (message, _) in enumerate(reports):
        if message is not None:
            raise told(ProcessGroupError(f"process {number} of {len(reports)}: {message}"))
    agreement.heard = [says for _, says in reports]


def is_everybodys(error: BaseException) -> bool:
    """
    :param error: of this process
    :return: whether all have it, or another one that says so
    """
    return is_told(error) or isinstance(error, NonFiniteLossError)


def is_told(error: BaseException) -> bool:
    """
    :param error: of this process
    :return: whether ``told`` was called with it
    """
    return getattr(error, "is_told", False)


def leave_after(error: BaseException) -> None:
    """
    An error that the others do not know of, outside of ``agreed``: they hear of it, and stop waiting for this process.

    :param error: which ends this process's training
    """
    global _left_as
    if not is_together() or is_everybodys(error):
        return
    if _board is not None and not isinstance(error, ProcessGroupError):
        with suppress(RuntimeError):  # whoever keeps it may have ended, too
            _board.compare_set(FIRST_ERROR, "", f"process {rank()} of {n_processes()}: {_message(error)}")
    _left_as = number_and_size()
    dist.destroy_process_group()


@contextmanager
def _connected() -> Iterator[None]:
    """
    :raises ProcessGroupError: if another process has ended
    """
    try:
        yield
    except RuntimeError as error:
        raise ProcessGroupError(_first_error() or f"another process does not answer any more: {error}") from error


def _first_error() -> str | None:
    with suppress(RuntimeError):
        if _board is not None and _board.check([FIRST_ERROR]):
            return _board.get(FIRST_ERROR).decode()
    return None


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def told(error: Exc) -> Exc:
    """
    :param error: of which all processes know
    :return: the same, for which ``is_told``
    """
    vars(error)["is_told"] = True
    return error
