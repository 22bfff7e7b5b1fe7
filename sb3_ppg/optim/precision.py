"""Settings of torch that change while a model trains: validation of distributions, TensorFloat-32."""

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


@contextmanager
def tensor_float_32(enabled: bool) -> Iterator[None]:
    """
    Let NVIDIA GPUs round the factors of float32 matrix products to TensorFloat-32, which has ten bits of mantissa. (For
    convolutions, torch allows this by default.) Experimental, as nobody has run it.

    :param enabled: False: change nothing
    """
    settings = th.backends.cuda.matmul
    before = getattr(settings, "fp32_precision", None)  # since torch 2.9
    if not enabled or before == "tf32" or (before is None and settings.allow_tf32):
        yield
        return
    settings.allow_tf32 = True  # the older name: after setting `fp32_precision`, torch's compiler could not read the older one
    try:
        yield
    finally:
        settings.allow_tf32 = False
        if before is not None:
            settings.fp32_precision = before
