"""Helpers of tests that need several processes, as ``torchrun`` starts them."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import torch as th

from sb3_ppg.distributed import process_group


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def work(rank: int, size: int, port: int, folder: Path, task: Callable, arguments: tuple) -> Any:
    """Do a task as one of the processes that ``torchrun`` starts."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    th.set_num_threads(1)
    os.chdir(folder)
    with process_group(timeout=20, start_timeout=20):
        return task(*arguments)


def in_processes(task: Callable, folder: Path, *arguments: Any, size: int = 2) -> list[Any]:
    """Call a function of a module in several processes, in a process group and a folder; return what it returns in each."""
    port = free_port()
    with ProcessPoolExecutor(size, multiprocessing.get_context("forkserver")) as pool:
        return [*pool.map(work, range(size), *map(repeat, (size, port, folder, task, arguments)))]
