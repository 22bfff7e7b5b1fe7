"""Signals that ask a process to end: a training ends between two iterations, where it can be gone on from."""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from sb3_ppg.distributed.agreement import mark_shared


class Ending(Protocol):
    """What is asked of an algorithm that can end."""

    received_signal: int | None

    def agreed_end(self) -> int | None: ...


@contextmanager
def ending_between_iterations(model: Ending, signals: Iterable[int]) -> Iterator[None]:
    """
    Meanwhile the first of these signals is noted as ``model.received_signal``, and a second one does what it did before. The
    end of the block is as if the first had come there, in all processes.

    :param model: which learns in the block
    :param signals: SIGTERM, for instance, by which schedulers of clusters announce the end
    :raises SystemExit: with 128 + the signal's number, as a shell sees a process that a signal has ended
    :raises KeyboardInterrupt: after SIGINT
    """
    model.received_signal = None
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        model.received_signal = number
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():  # no other may
        for number in signals:
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if (ending := model.agreed_end()) is not None:
        raise mark_shared(KeyboardInterrupt() if ending == signal.SIGINT else SystemExit(128 + ending))
