"""
Collective operations over the processes that train one model: averages, moments, exchanged objects.

All processes call them in the same order. Each process has the same number of environments and steps, so an average over
processes is an average over samples. Without a process group there is one process, and nothing is transferred.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch as th
import torch.distributed as dist
from torch import nn

from sb3_ppg.errors import NonFiniteLossError, ProcessGroupError

FIRST_ERROR = "sb3_ppg/first_error"
_store: "dist.Store | None" = None  # it outlives the group: processes that were cut off look for the first error there
_left_as: tuple[int, int] | None = None  # rank and number of processes, in a group that an error has ended


def has_group() -> bool:
    """Return whether there is a process group. Some builds of torch have no ``torch.distributed``."""
    return dist.is_available() and dist.is_initialized()


def n_processes() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if has_group() else 1


def rank() -> int:
    """Return this process's number, from 0. Process 0 prints, logs, evaluates and saves."""
    return rank_and_size()[0]


def rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of processes; the last known values after an error has ended the group."""
    if has_group():
        return dist.get_rank(), dist.get_world_size()
    return _left_as or (0, 1)


def gpu_name(device: th.device) -> str:
    """Return a name for a GPU that no other one has, on any machine."""
    return f"{socket.gethostname()} {th.cuda.get_device_properties(device).uuid}"


def n_local_processes() -> int:
    """Return the number of processes that share this machine's memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", n_processes())) if n_processes() > 1 else 1


# ---- the group's end ----


def use_store(store: "dist.Store | None") -> None:
    """Remember a new group's store (None after the group's end), and forget the group before."""
    global _store, _left_as
    _store, _left_as = store, None


def mark_shared(error: BaseException) -> BaseException:
    """Mark, and return, an error that is raised in all processes, as itself or as a ``ProcessGroupError`` that quotes it."""
    vars(error)["is_shared"] = True
    return error


def is_shared(error: BaseException) -> bool:
    """Return whether an error is raised in all processes. Losses are averaged, so a bad one is bad in all."""
    return getattr(error, "is_shared", False) or isinstance(error, NonFiniteLossError)


def leave_group(error: BaseException) -> None:
    """
    Leave the group after an error that the other processes do not have, so that they end, too, instead of waiting. They
    report the error that came first.
    """
    global _left_as
    if not has_group() or is_shared(error):
        return
    _left_as = rank_and_size()
    if _store is not None and not isinstance(error, ProcessGroupError):
        with suppress(RuntimeError):  # the process that keeps the store may have ended, too
            _store.compare_set(FIRST_ERROR, "", f"process {rank()} of {n_processes()}: {type(error).__name__}: {error}")
    dist.destroy_process_group()


def has_abandoned_group() -> bool:
    """Return whether an error has ended the group, so that the other processes' states are unknown."""
    return _left_as is not None


@contextmanager
def _connected() -> Iterator[None]:
    """Raise a ``ProcessGroupError`` that names the first error where torch only reports a lost connection."""
    try:
        yield
    except RuntimeError as error:
        message = f"another process does not answer any more: {error}"
        with suppress(RuntimeError):
            if _store is not None and _store.check([FIRST_ERROR]):
                message = _store.get(FIRST_ERROR).decode()
        raise ProcessGroupError(message) from error


# ---- numbers ----


@th.no_grad()
def average_over_processes(tensors: Sequence[th.Tensor]) -> None:
    """Replace tensors, of the same shapes in every process, by their averages over all processes, in one transfer."""
    if len(tensors) > 0 and has_group():
        flat = th.cat([tensor.flatten() for tensor in tensors])
        with _connected():
            dist.all_reduce(flat)
        flat /= n_processes()
        for tensor, average in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(average.view_as(tensor))


@th.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], values: th.Tensor) -> None:
    """
    Average gradients over all processes, and further values of any shape in the same transfer. Where a parameter has no
    gradient in some processes, as with layers that are left out at random, it counts as zero there.
    """
    exists = th.tensor([float(parameter.grad is not None) for parameter in parameters]).to(values)
    gradients = [th.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    average_over_processes([values, exists, *gradients])
    for parameter, gradient, share in zip(parameters, gradients, exists.tolist(), strict=True):
        parameter.grad = gradient if share > 0 else None


def moments(values: np.ndarray, device: th.device | str = "cpu") -> tuple[float, float]:
    """
    Return the mean and the standard deviation (of the population) of the values of all processes, of any shape, but of one
    size in every process. The group's backend must know the device.
    """

    def mean(array: np.ndarray) -> float:
        own = float(array.mean(dtype=np.float64))
        if not has_group():
            return own
        average = th.tensor([own], dtype=th.float64, device=device)
        average_over_processes([average])
        return average.item()

    center = mean(values)
    return center, mean(np.square(values - center)) ** 0.5


def explained_variance(values: np.ndarray, value_targets: np.ndarray, device: th.device) -> float:
    """Return 1 - Var(V_targ - V) / Var(V_targ) over all processes, for any shape; NaN if all targets are equal, as in SB3."""
    (_, of_targets), (_, of_errors) = (moments(array, device) for array in (value_targets, value_targets - values))
    return 1 - (of_errors / of_targets) ** 2 if of_targets > 0 else float("nan")


def average_batch_statistics(networks: Sequence[nn.Module]) -> None:
    """Average the running means and variances of batch normalization, which each process updates with its own batches."""
    named = [one for network in networks for one in network.named_buffers()]
    average_over_processes([buffer for name, buffer in named if name.endswith(("running_mean", "running_var"))])


# ---- objects ----


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, which are pickled, in the order of their ranks."""
    if not has_group():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    with _connected():
        dist.all_gather_object(values, value)
    return values


def broadcast(value: Any) -> Any:
    """Return process 0's value, which is pickled, in every process."""
    if not has_group():
        return value
    values = [value if rank() == 0 else None]
    with _connected():
        dist.broadcast_object_list(values, src=0)
    return values[0]
