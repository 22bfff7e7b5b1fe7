"""
The states of the global random generators, of Python, NumPy and torch: kept, checked, restored.

All three are Mersenne Twisters, 624 numbers of 32 bits and a position among them, but for CUDA's.
"""

import math
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th

N_WORDS = 624
CUDA_BYTES = 16
# torch's CPU generator: at::CPUGeneratorImplState in aten/src/ATen/CPUGeneratorImpl.cpp, which is as in Lua's torch
TORCH_STATE = np.dtype(
    [
        ("seed", "u8"),
        ("n_left", "i4"),
        ("is_seeded", "i4"),
        ("position", "u8"),
        ("words", "u8", N_WORDS),
        ("rest", "V40"),
    ]
)


def python_state() -> list[Any]:
    """
    :return: of Python's generator, as JSON has it: version, 625 integers, half of a pair of normal numbers or None
    """
    version, words, half = random.getstate()
    return [version, list(words), half]


def array_states() -> dict[str, np.ndarray]:
    """
    :return: of NumPy's generator: "numpy/keys", (624,), "numpy/rest": position, whether half of a pair of normal numbers is
        kept, that half, (3,); of torch's, for the CPU and, if they are in use, GPUs: "torch/cpu", "torch/cuda/<number>", bytes
    """
    _, keys, position, has_half, half = np.random.get_state(legacy=True)
    arrays = {"numpy/keys": np.asarray(keys), "numpy/rest": np.array([position, has_half, half], dtype=np.float64)}
    arrays["torch/cpu"] = th.get_rng_state().numpy()
    for index, state in enumerate(th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []):
        arrays[f"torch/cuda/{index}"] = state.numpy()
    return arrays


def is_cuda_state(name: str) -> bool:
    """
    :param name: of an array
    :return: whether it is the state of a GPU's generator, of this machine or another
    """
    return re.fullmatch(r"torch/cuda/\d{1,3}", name) is not None


def restore(python: list[Any], arrays: dict[str, np.ndarray]) -> None:
    """
    Cannot fail after ``check``.

    :param python: as from ``python_state``
    :param arrays: as from ``array_states``; those of GPUs that are not there are left out
    """
    version, words, half = python
    random.setstate((version, tuple(words), half))
    position, has_half, half = arrays["numpy/rest"]
    np.random.set_state(("MT19937", arrays["numpy/keys"], int(position), int(has_half), half))
    th.set_rng_state(th.from_numpy(arrays["torch/cpu"]))
    for index in range(th.cuda.device_count() if th.cuda.is_available() else 0):
        if f"torch/cuda/{index}" in arrays:
            th.cuda.set_rng_state(th.from_numpy(arrays[f"torch/cuda/{index}"]), index)


@contextmanager
def generators_kept() -> Iterator[None]:
    """
    Whatever the block draws, or seeds: the global generators of Python, NumPy and torch are then as before it.
    """
    states = random.getstate(), np.random.get_state(), th.get_rng_state()
    seed, on_gpus = th.initial_seed(), th.cuda.get_rng_state_all() if th.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        th.set_rng_state(states[2])
        if on_gpus is None:
            th.cuda.manual_seed_all(seed)  # which waits until GPUs are in use, as one from the block would
        else:
            th.cuda.set_rng_state_all(on_gpus)


def check(python: Any, arrays: dict[str, np.ndarray]) -> None:
    """
    NumPy takes any position and then reads memory that is not its own; torch takes nearly anything.

    :param python: from a file, any value of JSON
    :param arrays: from a file, in the shapes and types of ``array_states``
    :raises ValueError: unless a generator of each kind can be in that state
    """
    _require(_is_python_state(python), "Python's")
    _require(_is_numpy_state(arrays["numpy/keys"], *arrays["numpy/rest"]), "NumPy's")
    _require(_is_torch_state(arrays["torch/cpu"]), "torch's")
    for name, state in arrays.items():
        if is_cuda_state(name):
            _require(_is_cuda_state(state), "torch's CUDA")


def _require(condition: bool, whose: str) -> None:
    if not condition:
        raise ValueError(f"the state of {whose} generator is none that it can be in")


def _is_python_state(state: Any) -> bool:
    match state:
        case [version, list() as words, half]:
            pass
        case _:
            return False
    if type(version) is not int or version != 3 or len(words) != N_WORDS + 1:
        return False
    if not all(type(word) is int and 0 <= word < 2**32 for word in words) or words[-1] > N_WORDS:
        return False
    return _makes_numbers(words[:-1]) and (half is None or (type(half) is float and math.isfinite(half)))


def _is_numpy_state(keys: np.ndarray, position: float, has_half: float, half: float) -> bool:
    return (
        0 <= position <= N_WORDS
        and position == int(position)
        and has_half in (0, 1)
        and math.isfinite(half)
        and _makes_numbers(keys)
    )


def _is_torch_state(state: np.ndarray) -> bool:
    fields = np.frombuffer(state.tobytes(), dtype=TORCH_STATE)[0]
    n_left, position = int(fields["n_left"]), int(fields["position"])
    # Else it would read beyond its words
    if (n_left, position) != (1, 0) and not (1 <= n_left <= N_WORDS and n_left + position == N_WORDS + 1):
        return False
    return fields["is_seeded"] == 1 and _makes_numbers(fields["words"]) and _is_taken(th.Generator(), state)


def _is_cuda_state(state: np.ndarray) -> bool:
    _, offset = state.view(np.int64)  # and the seed, which may be anything
    if offset < 0 or offset % 4 > 0:
        return False
    return not th.cuda.is_available() or _is_taken(th.Generator("cuda"), state)


def _is_taken(generator: th.Generator, state: np.ndarray) -> bool:
    """Whether torch takes it, and as it is: numbers that are not finite, for instance, it would leave out."""
    try:
        generator.set_state(th.from_numpy(state))
    except RuntimeError:
        return False
    return np.array_equal(generator.get_state().numpy(), state)


def _makes_numbers(words: Any) -> bool:
    """From zeros a Mersenne Twister makes zeros for ever. (Of the first word it uses one bit.)"""
    return bool(np.any(words[1:]) or int(words[0]) >= 2**31)
