"""The process group of a training that PyTorch's ``torchrun`` has started in several processes."""

import ctypes
import gc
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import version

import torch as th
import torch.distributed as dist

from sb3_ppg.distributed.agreement import leave_group, require_equal
from sb3_ppg.distributed.collectives import gpu_name, has_abandoned_group, has_group, n_processes, use_store
from sb3_ppg.errors import ProcessGroupError, warn

PACKAGES = ("sb3-ppg", "stable-baselines3", "torch", "numpy", "gymnasium")
TIMEOUT, START_TIMEOUT = "SB3_PPG_TIMEOUT", "SB3_PPG_START_TIMEOUT"  # environment variables, in seconds
GRACE = 2  # seconds in which the other processes read what process 0 says before it ends
PR_SET_PDEATHSIG = 1  # of Linux's prctl


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
    size = n_started()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if size == 0 or has_group() or (size == 1 and missing):
        yield
        return
    if missing:
        raise ProcessGroupError(
            f"WORLD_SIZE={size} asks for {size} processes, but {' and '.join(missing)} is not set, where they could meet: "
            "start them by torchrun, or set it"
        )
    timeout = float(os.environ.get(TIMEOUT, 1800)) if timeout is None else timeout
    start_timeout = float(os.environ.get(START_TIMEOUT, 60)) if start_timeout is None else start_timeout
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # else it would train on when torchrun's agent is killed
    number = int(os.environ["RANK"])
    n_gpus = th.cuda.device_count() if th.cuda.is_available() else 0
    if n_gpus > 0:
        th.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % n_gpus)
    store = _meet(number, size, start_timeout)
    backend = choose_backend([store.get(f"rank_{other}").decode() for other in range(size)])
    if number == 0 and size > 1:
        print(f"{size} processes train one model, which they share by {backend}")
    dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=timedelta(seconds=timeout))
    use_store(store)
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


def choose_backend(gpus: list[str]) -> str:
    """
    Choose how processes communicate, the same in all of them.

    :param gpus: the GPU of each process, see ``gpu_name``
    :return: backend of ``torch.distributed``: NCCL refuses two processes on one GPU
    """
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


def _meet(rank: int, size: int, timeout: float) -> "dist.Store":
    """
    Wait for all processes at the address that the environment names, as ``init_process_group("env://")`` does, but say which
    are missing.

    :param timeout: in seconds
    :return: the store of this attempt
    :raises ProcessGroupError: in all processes, if some do not start
    """
    host, port, patience = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=timeout)
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_host = rank == 0 and not is_agents
    try:
        store: dist.Store = dist.TCPStore(host, port, size, is_host, patience, wait_for_workers=False, multi_tenant=True)
        if is_agents:  # it has the keys of the attempts before, see `--max-restarts`
            store = dist.PrefixStore(f"attempt_{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        store.set(f"rank_{rank}", gpu_name(th.device("cuda")) if th.cuda.is_available() else "")
        if rank == 0:
            keys = [f"rank_{other}" for other in range(size)]
            with suppress(dist.DistStoreError):
                store.wait(keys, patience)
            store.set("missing", str([other for other, key in enumerate(keys) if not store.check([key])]))
        store.wait(["missing"], timedelta(seconds=timeout + GRACE))
        missing = store.get("missing").decode()
    except RuntimeError as error:
        raise ProcessGroupError(f"process {rank} of {size} has not met the others at {host}:{port}: {error}") from error
    if missing != "[]":
        if is_host:  # the store ends with this process
            time.sleep(GRACE)
        raise ProcessGroupError(
            f"of {size} processes, these have not come: {missing}, within {timeout:g} seconds ({START_TIMEOUT})"
        )
    return store
