"""Helpers of tests that need several processes, as ``torchrun`` starts them."""

import os
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch as th
import torch.multiprocessing as mp

from sb3_ppg.distributed import process_group


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def work(rank: int, size: int, port: int, folder: Path, task: Callable, arguments: tuple) -> None:
    """Do a task as one of the processes that ``torchrun`` starts, and leave its result or its error in the folder."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    th.set_num_threads(1)
    os.chdir(folder)
    try:
        with process_group(timeout=20, start_timeout=20):
            result = task(*arguments)
    except BaseException:
        result = traceback.format_exc()
    (folder / f"result_{rank}").write_bytes(pickle.dumps(result))


def in_processes(task: Callable, folder: Path, *arguments: Any, size: int = 2) -> list[Any]:
    """
    Call a task in several processes, within a process group.

    :param task: function of a module
    :param folder: working folder of the processes
    :return: the task's result in each process; an error in one fails the test
    """
    mp.start_processes(work, (size, free_port(), folder, task, arguments), nprocs=size, start_method="forkserver")
    results = [pickle.loads((folder / f"result_{rank}").read_bytes()) for rank in range(size)]
    for result in results:
        assert not (isinstance(result, str) and result.startswith("Traceback")), result
    return results
