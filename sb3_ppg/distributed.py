"""
One model trained in several processes: their group, averages and exchanged objects, and what all must agree on.

All processes call the collective operations in the same order. Each has the same number of environments and steps, so an
average over processes is an average over samples. Without a process group there is one process, and nothing is transferred.
"""

import ctypes
import gc
import os
import platform
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from importlib.metadata import version
from os.path import commonprefix
from typing import Any

import numpy as np
import torch as th
import torch.distributed as dist
from stable_baselines3.common.utils import set_random_seed
from torch import nn

from sb3_ppg.errors import ArgumentError, ProcessGroupError, warn

COMPARED_PACKAGES = ("sb3-ppg", "stable-baselines3", "torch", "numpy", "gymnasium")  # whose versions must be equal
PR_SET_PDEATHSIG = 1  # an option of Linux's prctl
SECONDS_TO_END = 10  # for torchrun to notice that another process has ended


def has_group() -> bool:
    """Return whether there is a process group. Some builds of torch have no ``torch.distributed``."""
    return dist.is_available() and dist.is_initialized()


def n_processes() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if has_group() else 1


def rank() -> int:
    """Return this process's number, from 0. Process 0 prints, logs, evaluates and saves."""
    return dist.get_rank() if has_group() else 0


def n_local_processes() -> int:
    """Return the number of processes that share this machine's memory."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", n_processes())) if n_processes() > 1 else 1


# ---- the group's start ----


def n_started() -> int:
    """Return the number of processes that ``torchrun`` has started; 0 without its environment variables."""
    return int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else 0


@contextmanager
def process_group() -> Iterator[None]:
    """
    Train one model in all processes that ``torchrun`` has started: ``with process_group(): PPG(...).learn(...)``.

    CPUs communicate by gloo. NVIDIA GPUs communicate by NCCL if each process has one of its own (experimental: nobody has run
    it), else by gloo; ``device="auto"`` is the GPU with the process's number on its node. From then on, this process ends
    when the torchrun agent that started it ends. Without ``torchrun``, or within an existing group, nothing happens. The
    environment variables ``SB3_PPG_TIMEOUT`` and ``SB3_PPG_START_TIMEOUT`` are described in docs/distributed.md.

    :raises ProcessGroupError: if some do not start, or MASTER_ADDR or MASTER_PORT is not set
    :raises ArgumentError: if they have different versions of Python or of the packages that matter
    """
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # else it would train on when torchrun's agent is killed
    if n_started() < 2 or has_group():
        yield
        return
    store = _start_group()
    try:
        require_equal({"Python": platform.python_version(), **{package: version(package) for package in COMPARED_PACKAGES}})
        yield
    except Exception as error:
        _wait_for_torchrun(error, store)
        raise
    finally:
        leave_group()
        gc.collect()  # the group's threads end with its last reference; at the interpreter's exit they would abort it


def _start_group() -> "dist.Store":
    """Call ``init_process_group("env://")`` with a fitting backend, so that torchrun can restart all; return the store."""
    from torch.distributed.rendezvous import rendezvous  # some builds of torch do not have it

    timeout = timedelta(seconds=float(os.environ.get("SB3_PPG_TIMEOUT", 1800)))
    start_timeout = timedelta(seconds=float(os.environ.get("SB3_PPG_START_TIMEOUT", 60)))
    n_gpus = th.cuda.device_count() if th.cuda.is_available() else 0
    if n_gpus > 0:
        th.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % n_gpus)
    try:
        store, rank, size = next(rendezvous("env://", timeout=start_timeout))
        # The store of torchrun's agent still has the keys of earlier attempts. Of several agents, each counts its own
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store = dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        gpu = f"{socket.gethostname()} {th.cuda.get_device_properties('cuda').uuid}" if n_gpus > 0 else ""  # unique anywhere
        store.set(f"process_{rank}", gpu)
        backend = choose_backend([store.get(f"process_{other}").decode() for other in range(size)])
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        number = f"process {os.environ['RANK']} of {n_started()}"
        raise ProcessGroupError(f"{number} has not met the others within {start_timeout}: {error}") from error
    if rank == 0:
        print(f"{size} processes train one model, which they share by {backend}")
    return store


def choose_backend(gpus: list[str]) -> str:
    """Return the backend for processes with GPUs of these unique names (empty: none): NCCL refuses two processes on one."""
    return "cpu:gloo,cuda:nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"


def check_group() -> None:
    """Warn under ``torchrun`` if this process trains a model of its own, which is surely not meant."""
    if n_processes() == 1 and n_started() > 1:
        warn(
            f"This is one of {n_started()} processes, but it trains alone: put `with sb3_ppg.process_group():` around the "
            "training, for all to train one model. After an error, start all again"
        )


# ---- the group's end ----


def leave_group() -> None:
    """End this process's part of the group, so that no other process waits for it."""
    if has_group():
        dist.destroy_process_group()


def _wait_for_torchrun(error: Exception, store: "dist.Store") -> None:
    """
    Let ``torchrun`` report the first error on this machine. When one process has ended, ``torchrun`` ends all others; so a
    process that fails later, or has merely lost another process, waits to be ended.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # some builds of torch do not have it

    machine, number, is_first = os.environ["GROUP_RANK"], os.environ["LOCAL_RANK"], False
    with suppress(RuntimeError):  # the process that keeps the store has ended, too
        is_first = store.compare_set(f"first_on_{machine}", "", number).decode() == number
    if not is_first or isinstance(error, ProcessGroupError):
        time.sleep(SECONDS_TO_END)
    get_error_handler().record_exception(error)


@contextmanager
def _connected() -> Iterator[None]:
    """Raise a ``ProcessGroupError`` where torch reports a lost connection."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessGroupError(f"another process does not answer any more: {error}") from error


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
    gradients = [th.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters]
    average_over_processes([values, exists, *gradients])
    for parameter, gradient, share in zip(parameters, gradients, exists.tolist(), strict=True):
        parameter.grad = gradient if share > 0 else None


def moments(values: np.ndarray, device: th.device | str = "cpu") -> tuple[float, float]:
    """
    Return the mean and the standard deviation (of the population) of the values of all processes. The arrays may have any
    shape, but must be of the same size in every process. The group's backend must know the device.
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
    (_, target_std), (_, error_std) = (moments(array, device) for array in (value_targets, value_targets - values))
    return 1 - (error_std / target_std) ** 2 if target_std > 0 else float("nan")


def average_batch_statistics(networks: Sequence[nn.Module]) -> None:
    """Average the running means and variances of batch normalization, which each process updates with its own batches."""
    named_buffers = [named for network in networks for named in network.named_buffers()]
    average_over_processes([buffer for name, buffer in named_buffers if name.endswith(("running_mean", "running_var"))])


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


# ---- settings ----


def require_equal(settings: Mapping[str, Any]) -> None:
    """Raise an ``ArgumentError`` in every process if one of these settings, by the same names in each of them, differs."""
    gathered = gather({name: _comparable_text(value) for name, value in settings.items()})
    for name in gathered[0]:
        values = [texts.get(name, "nothing") for texts in gathered]
        if len(set(values)) > 1:
            # Long ones are shown from shortly before their first difference
            start = max(0, len(commonprefix(values)) - 40)  # noqa: RUF071 (they are compared by characters)
            shown = ", ".join(f"{'...' * (start > 0)}{value[start : start + 200]}" for value in values)
            raise ArgumentError(f"`{name}` differs between the processes, {shown}: use one value")


def _comparable_text(value: Any) -> str:
    """Return a text that is the same for equal values in different processes: schedules by their values, no addresses."""
    if callable(value) and not isinstance(value, type):
        with suppress(Exception):  # it is no schedule
            return f"a schedule from {value(1.0)} by {value(0.5)} to {value(0.0)}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def seed_apart(device: th.device) -> None:
    """Seed each process differently if two would otherwise draw the same actions; ``device`` is where they are drawn."""
    state = th.cuda.get_rng_state(device) if device.type == "cuda" else th.get_rng_state()
    states = gather(sha256(state.numpy().tobytes()).digest())
    if len(set(states)) < len(states):
        set_random_seed((int.from_bytes(states[0][:4], "little") + rank()) % 2**32)
