"""One training in several processes, as PyTorch's ``torchrun`` starts them: how they find each other, and how they part."""

import ctypes
import gc
import json
import os
import platform
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import torch as th
import torch.distributed as dist

from sb3_ppg.distributed import collectives as processes
from sb3_ppg.errors import ArgumentError, ProcessGroupError

MEETING = "sb3_ppg/meeting"
PACKAGES = ("sb3-ppg", "stable-baselines3", "torch", "numpy", "gymnasium")
BETWEEN_LOOKS, GRACE = 0.05, 2  # seconds: who waits for the first process hears of who it has waited for
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def n_started() -> int:
    """How many processes ``torchrun``, or whoever sets its environment variables, has started; 0: this one was not."""
    is_one = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if is_one else 0


@contextmanager
def process_group(timeout: float = 1800, start_timeout: float = 60) -> Iterator[None]:
    """
    Train with all processes that ``torchrun`` has started::

        from stable_baselines3.common.env_util import make_vec_env
        from sb3_ppg import PPG, process_group

        with process_group():
            model = PPG("MlpPolicy", make_vec_env("CartPole-v1", 8), n_steps=128, seed=0).learn(100_000)
            model.save("ppg_cartpole")

    CPUs talk by gloo, NVIDIA GPUs by NCCL, or by gloo, if some are to share one; ``device="auto"`` is the GPU of the process's
    number on its node. From then on this process ends when the agent that has started it does. Without ``torchrun``, or within
    a group that is there, nothing happens. See docs/distributed.md.

    :param timeout: in seconds, for how long a process waits for another one that is still there
    :param start_timeout: likewise, for all to come
    :raises ProcessGroupError: if some do not come
    :raises ArgumentError: if they have different versions of Python or of the packages that matter
    """
    if n_started() == 0 or processes.is_together():
        yield
        return
    number, size = int(os.environ["RANK"]), n_started()
    end_with_the_agent()
    store = _meeting(number, size, start_timeout)
    n_gpus = th.cuda.device_count() if th.cuda.is_available() else 0
    if n_gpus > 0:
        th.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % n_gpus)
    has_own = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) <= n_gpus  # NCCL knows no two processes on one GPU
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if has_own else "gloo",
        store=dist.PrefixStore("group", store),
        rank=number,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    processes.use_board(store)
    try:
        yield
    except BaseException as error:
        processes.leave_after(error)
        raise
    finally:
        if processes.is_together():
            dist.destroy_process_group()
        processes.use_board(None)
        gc.collect()  # the group's threads end with its last reference; at the interpreter's exit they would abort it


def end_with_the_agent() -> None:
    """
    Whoever kills torchrun's agent means its processes, too, which would otherwise train on, unseen. (On Linux.)
    """
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _meeting(number: int, size: int, timeout: float) -> "dist.Store":
    """
    All processes of this attempt come together in a part of the store that no other attempt knows: torchrun's agent keeps one
    store for all, and its number of restarts is each node's own.

    :param number: of this process
    :param size: how many there are
    :param timeout: in seconds
    :return: that part
    """
    deadline = time.monotonic() + timeout
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = number == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = _store(host, port, is_host, timeout)
        own, verdict = _preside(store, size, deadline) if number == 0 else _arrive(store, number, deadline)
    except RuntimeError as error:
        raise ProcessGroupError(f"process {number} of {size} has not met the others at {host}:{port}: {error}") from error
    if verdict["missing"]:
        raise ProcessGroupError(f"of {size} processes, these have not come: {verdict['missing']}")
    if verdict["different"]:
        raise ArgumentError(verdict["different"])
    return own


def _store(host: str, port: int, is_host: bool, timeout: float) -> "dist.Store":
    """
    :raises RuntimeError: if it cannot be reached within so many seconds: torch itself waits for ever where something else has
        taken the port, and does not answer
    """
    made: list[Any] = []

    def make() -> None:
        patience = timedelta(seconds=timeout)
        try:
            made.append(dist.TCPStore(host, port, None, is_host, patience, wait_for_workers=False, multi_tenant=True))
        except RuntimeError as error:
            made.append(error)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(timeout + GRACE)
    if not made:
        raise RuntimeError("what listens there is no torch.distributed, or of another job")
    if isinstance(made[0], RuntimeError):
        raise made[0]
    return made[0]


def _preside(store: "dist.Store", size: int, deadline: float) -> "tuple[dist.Store, dict[str, Any]]":
    """The first process waits for the others, and says what is wrong with them."""
    token = uuid.uuid4().hex
    own = dist.PrefixStore(token, store)
    store.set(MEETING, token)
    missing = set(range(1, size))
    while missing and time.monotonic() < deadline:
        missing = {other for other in missing if not own.check([f"arrival/{other}"])}
        time.sleep(BETWEEN_LOOKS if missing else 0)
    arrivals = {other: json.loads(own.get(f"arrival/{other}")) for other in range(1, size) if other not in missing}
    different = [
        f"process {other} has {name} {arrival['versions'].get(name)}, process 0 has {mine}: use one version"
        for other, arrival in arrivals.items()
        for name, mine in versions().items()
        if arrival["versions"].get(name) != mine
    ]
    names = [arrival["name"] for arrival in arrivals.values()]
    verdict = {"names": names, "missing": sorted(missing), "different": "; ".join(different)}
    own.set("verdict", json.dumps(verdict))
    if verdict["missing"] or verdict["different"]:  # the store may end with this process: the others read first
        end = time.monotonic() + GRACE
        while time.monotonic() < end and not own.check([f"read/{other}" for other in arrivals]):
            time.sleep(BETWEEN_LOOKS)
    return own, verdict


def _arrive(store: "dist.Store", number: int, deadline: float) -> "tuple[dist.Store, dict[str, Any]]":
    """Any other process. The meeting that it finds may be that of an attempt that is over: there it is not expected."""
    name, found = uuid.uuid4().hex, None
    while time.monotonic() < deadline + GRACE:
        if store.check([MEETING]) and store.get(MEETING) != found:
            found = store.get(MEETING)
            own = dist.PrefixStore(found.decode(), store)
            own.set(f"arrival/{number}", json.dumps({"name": name, "versions": versions()}))
        if found is not None and own.check(["verdict"]):
            verdict = json.loads(own.get("verdict"))
            if name in verdict["names"]:
                own.set(f"read/{number}", "")
                return own, verdict
        time.sleep(BETWEEN_LOOKS)
    raise ProcessGroupError(f"process {number} has waited for process 0, which has not come")


def versions() -> dict[str, str]:
    """Of what has to be the same in all processes."""
    return {"Python": platform.python_version(), **{package: version(package) for package in PACKAGES}}
