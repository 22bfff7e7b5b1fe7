"""States of the global random generators of Python, NumPy and torch."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th

_lock = threading.RLock()


def generator_states() -> dict[str, Any]:
    """Return the state of each global generator in tuples, dictionaries, arrays, tensors; CUDA's once torch has used it."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if th.cuda.is_initialized() else [],
    }


def restore_generators(states: dict[str, Any]) -> None:
    """
    Put the global generators into the states that ``generator_states`` has returned; lists may stand for tuples, arrays and
    tensors, as they do after JSON. States of GPUs that this machine does not have are left out. If a generator refuses its
    state, all are as they were.
    """
    before = generator_states()
    try:
        _restore(states)
    except Exception:
        _restore(before)
        raise


def _restore(states: dict[str, Any]) -> None:
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(states["numpy"])
    th.set_rng_state(th.as_tensor(states["torch"], dtype=th.uint8))
    n_gpus = th.cuda.device_count() if th.cuda.is_available() else 0
    for index, state in enumerate(states["cuda"][:n_gpus]):
        th.cuda.set_rng_state(th.as_tensor(state, dtype=th.uint8), index)


@contextmanager
def generators_kept() -> Iterator[None]:
    """
    Leave the global generators as they were before the block, even if it seeds them. Only one thread at a time is in such a
    block: two would restore each other's states.
    """
    with _lock:
        before, seed = generator_states(), th.initial_seed()
        try:
            yield
        finally:
            _restore(before)
            if not before["cuda"]:
                th.cuda.manual_seed_all(seed)  # takes effect when a GPU is first used, and replaces a seed from the block
