"""Signals that ask a process to end: a training ends between two iterations, where it can be gone on from."""

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol


class Ending(Protocol):
    """What is asked of an algorithm that can end."""

    asked_to_end: int | None
    end_signal: int | None


@contextmanager
def ending_between_iterations(model: Ending, signals: Iterable[int]) -> Iterator[None]:
    """
    Meanwhile the first of these signals is a wish, ``model.asked_to_end``, a second one what it was before. A wish that all
    processes have heard of is ``model.end_signal``, and the end of the block is as if the signal had come there.

    :param model: which learns in the block
    :param signals: SIGTERM, for instance, by which schedulers of clusters announce the end
    :raises SystemExit: with 128 + the signal's number, as a shell sees a process that a signal has ended
    :raises KeyboardInterrupt: after SIGINT
    """
    model.asked_to_end = model.end_signal = None
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        model.asked_to_end = number
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
    if model.end_signal is not None:
        end = KeyboardInterrupt() if model.end_signal == signal.SIGINT else SystemExit(128 + model.end_signal)
        vars(end)["is_told"] = True  # see `processes.agreed`
        raise end
