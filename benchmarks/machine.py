"""What a measurement was made on, and an end to the processes that make it."""

import multiprocessing
import os
import platform
import threading
from pathlib import Path


def model_name() -> str:
    """Of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def processor() -> str:
    """Its name, and how many there are."""
    return f"{model_name()}, {os.cpu_count()} cores"


def end_with_parent() -> None:
    """
    From now on this process ends when the one that started it does, however that ends: a queue that is killed leaves no
    training behind that nobody waits for. To be called in a child process.
    """

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
