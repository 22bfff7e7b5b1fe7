"""Processes that carry out functions, one at a time, and measurements that take turns."""

import os
import pickle
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

import cloudpickle
import pandas as pd

from sb3_ppg.errors import ArgumentError

Measure = Callable[[], dict[str, float]]

_to_parent: BinaryIO | None = None  # in a worker
_prepared: list[Measure] = []  # the measurement of the contestant whose process this is


class Worker:
    """
    A process for functions and their arguments, which may come from a notebook, or from a script that does not ask for
    ``__main__``. It ends with this process, even if that is killed.

    :param n_threads: number of torch's threads
    :param log: file for what the functions print
    """

    def __init__(self, n_threads: int = 1, log: str | Path = os.devnull) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = {**os.environ, "OMP_NUM_THREADS": str(n_threads), "PYTHONPATH": paths}
        program = f"from {__name__} import serve; serve()"
        pipes: dict[str, Any] = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with open(log, "ab") as file:
            self.process = subprocess.Popen([sys.executable, "-c", program], stderr=file, env=environment, **pipes)
        self.log = log

    def __call__(
        self, function: Callable[..., Any], *arguments: Any, on_progress: Callable[[float], Any] | None = None
    ) -> Any:
        """
        Return the result of a function.

        :param on_progress: gets the fractions that the function passes to ``tell``
        :raises ArgumentError: if the function does
        :raises RuntimeError: if it raises another error, or if the process ends
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            pickle.dump(cloudpickle.dumps((function, arguments)), self.process.stdin)
            self.process.stdin.flush()
        kind, content = "ended", None
        with suppress(EOFError, pickle.UnpicklingError):
            while (answer := pickle.load(self.process.stdout))[0] == "progress":
                if on_progress is not None:
                    on_progress(answer[1])
            kind, content = answer
        if kind == "result":
            return content
        if kind == "ended":
            raise RuntimeError(f"the process has ended with status {self.process.wait()}; see {self.log}")
        raise (ArgumentError if kind == "ArgumentError" else RuntimeError)(content)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.communicate()


def serve() -> None:
    """Carry out what the parent process sends."""
    global _to_parent
    _to_parent = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print is no answer
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        with suppress(EOFError):
            while True:
                tasks.put(pickle.load(sys.stdin.buffer))
        os._exit(1)  # there is no parent any more

    threading.Thread(target=receive, daemon=True).start()
    while True:
        try:
            function, arguments = pickle.loads(tasks.get())
            _answer("result", function(*arguments))
        except ArgumentError as error:
            _answer("ArgumentError", str(error))
        except Exception:
            _answer("error", traceback.format_exc())


def _answer(kind: str, content: Any) -> None:
    if _to_parent is not None:
        _to_parent.write(pickle.dumps((kind, content)))
        _to_parent.flush()


def tell(fraction: float) -> None:
    """Tell the parent process which part of the work is done; in another process than a worker, nothing happens."""
    _answer("progress", fraction)


# ---- turns ----


def _measure(make: Callable[..., Measure] | None = None, arguments: tuple = ()) -> dict[str, float]:
    """Measure in a worker; the first call makes what measures."""
    if make is not None:
        _prepared.append(make(*arguments))
    return _prepared[0]()


def take_turns(
    contestants: Mapping[str, tuple[Callable[..., Measure], tuple]],
    n_threads: int = 1,
    n_turns: int = 5,
    log: str | Path = os.devnull,
) -> pd.DataFrame:
    """
    Measure contestants alternately, each in its own process, so that what the machine does meanwhile falls on all of them.

    :param contestants: by name, what makes a measurement, and its arguments
    :param n_threads: number of torch's threads
    :param n_turns: number of turns after turn 0, which may take longer
    :return: a row per turn and contestant, with what it measured
    """
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(n_threads, log)) for name in contestants}
        rows = [{"contestant": name, "turn": 0, **worker(_measure, *contestants[name])} for name, worker in workers.items()]
        for turn in range(1, n_turns + 1):
            for name, worker in workers.items():
                rows.append({"contestant": name, "turn": turn, **worker(_measure)})
                values = (f"{key} {one if isinstance(one, str) else f'{one:.4g}'}" for key, one in rows[-1].items())
                print(*values, sep=", ", flush=True)
    return pd.DataFrame(rows)
