"""A watch over everything that reading a stranger's file must not do."""

import io
import os
import random
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import torch as th

SECONDS, MEGABYTES = 10.0, 500.0  # for one model
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = tuple(
    """os.system os.exec os.fork os.posix_spawn os.spawn os.startfile subprocess. pty. socket. urllib. http. ftplib. smtplib.
    webbrowser. ctypes. pickle. marshal. exec compile os.remove os.rename os.rmdir os.mkdir os.link os.symlink os.chmod
    os.chown os.truncate os.chdir os.putenv os.kill os.utime shutil. tempfile. signal. sys.set import""".split()
)
_events: list[str] | None = None  # of the block that is watched


def _hook(event: str, arguments: tuple) -> None:
    if _events is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool(flags & WRITING) if isinstance(flags, int) else any(letter in (mode or "") for letter in "wax+")
        if writes and path != os.devnull:
            _events.append(f"open {path!r} to write")
    elif event.startswith(FORBIDDEN):
        _events.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_hook)  # for the rest of the process: hooks cannot be removed


def generator_states() -> tuple[Any, ...]:
    """The states of the global generators of Python, NumPy and torch."""
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), rest, th.get_rng_state().numpy().tobytes()


def _megabytes(name: str) -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024


@contextmanager
def watched(megabytes: float = MEGABYTES) -> Iterator[None]:
    """
    Fail if the block does more than read: writes or removes a file, imports a module, runs code, starts a process, opens a
    socket, draws from a global generator, prints control characters, or takes too much time or memory. Errors pass through.
    """
    global _events
    events: list[str] = []
    states, before, seconds = generator_states(), _megabytes("VmRSS:"), time.process_time()
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # forget the peak
    printed, caught = io.StringIO(), []
    try:
        with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed):
            warnings.simplefilter("always")
            _events = events
            yield
    finally:
        _events = None
        seconds, taken = time.process_time() - seconds, _megabytes("VmHWM:") - before
        assert not events, f"did {events}"
        assert seconds < SECONDS, f"took {seconds:.1f} s"
        assert taken < megabytes, f"took {taken:.0f} MB"
        assert generator_states() == states, "a global generator has changed"
        for text in (printed.getvalue(), *(str(warning.message) for warning in caught)):
            assert text.replace("\n", " ").isprintable(), f"printed {text!r}"
