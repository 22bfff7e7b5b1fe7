"""Settings of torch that a training changes for a while: validation of distributions, TensorFloat-32."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch as th


class _Validation:
    """The setting of torch's distributions, which is the process's: the last one to leave restores it."""

    lock = threading.Lock()
    n_inside = 0
    before: bool

    @classmethod
    def switch_off(cls) -> None:
        with cls.lock:
            if cls.n_inside == 0:
                cls.before = th.distributions.Distribution._validate_args
            cls.n_inside += 1
            th.distributions.Distribution.set_default_validate_args(False)

    @classmethod
    def restore(cls) -> None:
        with cls.lock:
            cls.n_inside -= 1
            if cls.n_inside == 0:
                th.distributions.Distribution.set_default_validate_args(cls.before)


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """
    Torch's distributions look at their arguments' values when they are made: a transfer from the device, each time, and in
    an exported program a constant. The losses are checked instead, once per epoch. Several threads may be training.
    """
    _Validation.switch_off()
    try:
        yield
    finally:
        _Validation.restore()


@contextmanager
def tensor_float_32(enabled: bool) -> Iterator[None]:
    """
    NVIDIA's matrix units round float32 factors to TensorFloat-32, ten bits of mantissa. (Torch allows it for convolutions
    anyway; this is for the dense layers.)

    :param enabled: False: everything stays as it is
    """
    if not enabled or _is_tf32_on():
        yield
        return
    settings = th.backends.cuda.matmul
    before = getattr(settings, "fp32_precision", None)
    settings.allow_tf32 = True  # by the older of its two names: after the newer one, torch's compiler could not ask for it
    try:
        yield
    finally:
        settings.allow_tf32 = False
        if before is not None:
            settings.fp32_precision = before


def _is_tf32_on() -> bool:
    settings = th.backends.cuda.matmul
    if hasattr(settings, "fp32_precision"):  # since torch 2.9
        return settings.fp32_precision == "tf32"
    return settings.allow_tf32
