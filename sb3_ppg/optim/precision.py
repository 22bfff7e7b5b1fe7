"""A setting of torch that changes while a model trains."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch as th

_lock = threading.Lock()
_before: list[bool] = []  # the setting before each block that is being run, in any thread


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """
    Turn off the validation of arguments in torch's distributions. Each validation costs a transfer from the device, and an
    exported program would contain its result as a constant. The losses are checked once per epoch instead. If several threads
    train, the last one to leave its block restores the setting.
    """
    distributions = th.distributions.Distribution
    with _lock:
        _before.append(distributions._validate_args)
        distributions.set_default_validate_args(False)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                distributions.set_default_validate_args(before)
