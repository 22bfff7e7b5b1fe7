"""Settings of torch that a training changes for a while: validation of distributions, TensorFloat-32."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch as th

_lock = threading.Lock()
_before: list[bool] = []  # the setting before each block that is being run, in any thread


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """
    Switch off the validation of torch's distributions, which looks at their arguments' values: a transfer from the device
    each time, and in an exported program a constant. The losses are checked instead, once per epoch. Several threads may be
    training: the last one to leave its block restores the setting.
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
    NVIDIA's matrix units round float32 factors to TensorFloat-32, ten bits of mantissa. (Torch allows it for convolutions
    anyway; this is for the dense layers.)

    :param enabled: False: everything stays as it is
    """
    settings = th.backends.cuda.matmul
    before = getattr(settings, "fp32_precision", None)  # since torch 2.9
    if not enabled or before == "tf32" or (before is None and settings.allow_tf32):
        yield
        return
    settings.allow_tf32 = True  # by the older of its two names: after the newer one, torch's compiler could not ask for it
    try:
        yield
    finally:
        settings.allow_tf32 = False
        if before is not None:
            settings.fp32_precision = before
