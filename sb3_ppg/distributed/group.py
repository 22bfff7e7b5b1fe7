"""The process group of a run that PyTorch's ``torchrun`` has started in several processes."""

import ctypes
import gc
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version

import torch as th
import torch.distributed as dist

from sb3_ppg.distributed.agreement import require_equal
from sb3_ppg.distributed.collectives import gpu_name, has_abandoned_group, has_group, leave_group, n_processes, use_store
from sb3_ppg.errors import ProcessGroupError, warn

PACKAGES = ("sb3-ppg", "stable-baselines3", "torch", "numpy", "gymnasium")
PR_SET_PDEATHSIG = 1  # an option of Linux's prctl


def n_started() -> int:
    """Return the number of processes that ``torchrun`` has started; 0 without its environment variables."""
    return int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else 0


@contextmanager
def process_group(timeout: float | None = None, start_timeout: float | None = None) -> Iterator[None]:
    """
    Train one model in all processes that ``torchrun`` has started::

        from stable_baselines3.common.env_util import make_vec_env
        from sb3_ppg import PPG, process_group

        with process_group():
            env = make_vec_env("CartPole-v1", 8)
            model = PPG("MlpPolicy", env, n_steps=128, seed=0).learn(100_000)
            model.save("ppg_cartpole")

    CPUs communicate by gloo. NVIDIA GPUs communicate by NCCL if each process has one of its own (experimental: nobody has run
    it), else by gloo; ``device="auto"`` is the GPU with the process's number on its node. From then on, this process ends
    when the torchrun agent that started it ends. Without ``torchrun``, or within an existing group, nothing happens. See
    docs/distributed.md.

    :param timeout: seconds that a process waits for another one that is alive. None: the environment variable
        ``SB3_PPG_TIMEOUT``, or half an hour
    :param start_timeout: seconds that processes wait for all to start. None: the environment variable
        ``SB3_PPG_START_TIMEOUT``, or a minute
    :raises ProcessGroupError: if some do not start, or MASTER_ADDR or MASTER_PORT is not set
    :raises ArgumentError: if they have different versions of Python or of the packages that matter
    """
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # else it would train on when torchrun's agent is killed
    if n_started() < 2 or has_group():
        yield
        return
    timeout = float(os.environ.get("SB3_PPG_TIMEOUT", 1800)) if timeout is None else timeout
    start_timeout = float(os.environ.get("SB3_PPG_START_TIMEOUT", 60)) if start_timeout is None else start_timeout
    _start_group(timedelta(seconds=timeout), timedelta(seconds=start_timeout))
    try:
        require_equal({"Python": platform.python_version(), **{package: version(package) for package in PACKAGES}})
        yield
    except BaseException as error:
        leave_group(error)
        raise
    finally:
        if has_group():
            dist.destroy_process_group()
        use_store(None)
        gc.collect()  # the group's threads end with its last reference; at the interpreter's exit they would abort it


def _start_group(timeout: timedelta, start_timeout: timedelta) -> None:
    """Call ``init_process_group("env://")`` with a fitting backend, and so that torchrun can restart the processes."""
    from torch.distributed.rendezvous import rendezvous  # some builds of torch do not have it

    n_gpus = th.cuda.device_count() if th.cuda.is_available() else 0
    if n_gpus > 0:
        th.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % n_gpus)
    try:
        store, rank, size = next(rendezvous("env://", timeout=start_timeout))
        # The store of torchrun's agent still has the keys of earlier attempts
        store = dist.PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
        store.set(f"process_{rank}", gpu_name(th.device("cuda")) if n_gpus > 0 else "")
        backend = choose_backend([store.get(f"process_{other}").decode() for other in range(size)])
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        number = f"process {os.environ['RANK']} of {n_started()}"
        raise ProcessGroupError(f"{number} has not met the others within {start_timeout}: {error}") from error
    use_store(store)
    if rank == 0:
        print(f"{size} processes train one model, which they share by {backend}")


def choose_backend(gpus: list[str]) -> str:
    """Return the backend for processes with these GPUs (see ``gpu_name``): NCCL refuses two processes on one GPU."""
    return "cpu:gloo,cuda:nccl" if all(gpus) and len(set(gpus)) == len(gpus) else "gloo"


def check_group() -> None:
    """
    Warn under ``torchrun`` if each process trains a model of its own, which is surely not meant.

    :raises ProcessGroupError: if there was a group, but an error has ended it
    """
    if has_abandoned_group():
        raise ProcessGroupError("an error has ended the group of processes: leave `process_group()`, and start all again")
    if n_processes() == 1 and n_started() > 1:
        warn(
            f"This is one of {n_started()} processes, but it trains alone: put `with sb3_ppg.process_group():` around the "
            "training, for all to train one model"
        )
