"""Systematic changes to JSON and to arrays."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Path = tuple[str | int, ...]
Change = tuple[str, Callable[[], bytes]]


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    data: Any = 0
    for _ in range(depth):
        data = [data]
    return data


def shown(value: Any) -> str:
    """A short name for a value."""
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:40]}... ({len(text)})"


SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**53 + 1, 10**15, -(10**15), 10**400),
    *(0.5, -0.5, 1.5, 1e-300, 1e10, 1e39, 1e300, -1e300, -0.0, math.nan, math.inf),
    *("", "x", "auto", "../../etc/passwd", "\x1b[2Ja\r\nfake: --allow os.system", "\ud800", "\u202egnp", "a" * 100_000),
]
CONTAINERS: list[Any] = [
    *([], {}, [[]], [1], [0.5, 0.5], [1] * 20_000, ["x"] * 3, nested(90), nested(400), {"x": 1}, {"": None}, {"a.b": {}}),
]
KINDS: list[Any] = [
    *({"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}, {"$float": 5}, {"$tuple": []}, {"$tuple": [0.5, 0.999]}),
    *(
        {"$tuple": 5},
        {"$class": "os.system"},
        {"$class": "torch.optim.adam.Adam"},
        {"$class": "sb3_ppg.ppg.PPG"},
        {"$class": []},
    ),
    *({"$class": "torch.nn.modules.activation.ReLU"}, {"$class": "stable_baselines3.common.buffers.RolloutBuffer"}),
    *({"$array": "nothing"}, {"$array": "policy.value_net.bias"}, {"$array": 5}, {"$custom": "x"}, {"$reward_normalizer": {}}),
    *(
        {"$schedule": ["linear", 0.5, -1.0, 0.5]},
        {"$schedule": ["linear", 0.5, 0.1, 0]},
        {"$schedule": ["linear", 1, 1e300, 1.0]},
    ),
    *({"$schedule": ["constant", {"$float": "nan"}]}, {"$schedule": ["constant", 1e300]}, {"$schedule": ["constant", 0.01]}),
    *({"$schedule": []}, {"$space": ["Discrete", {"n": 3, "start": 0}]}, {"$space": ["MultiBinary", {"n": 10**9}]}),
    *({"$space": ["Discrete", {"n": 10**12, "start": 0}]}, {"$space": ["Dict", []]}, {"$space": []}, {"$unknown": 1}),
    *({"$class": "os.system", "$float": "nan"}, {"$float": "nan", "x": 1}),
]
NASTY = [(shown(value), value) for value in (*SCALARS, *CONTAINERS, *KINDS)]


def places(data: Any, path: Path = ()) -> Iterator[Path]:
    """Where something is in JSON, from the outside to the inside."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def at(data: Any, path: Path) -> Any:
    """What is at a place."""
    for key in path:
        data = data[key]
    return data


def put(data: Any, path: Path, value: Any) -> Any:
    """A copy with something else at a place."""
    if not path:
        return value
    data = copy.deepcopy(data)
    at(data, path[:-1])[path[-1]] = value
    return data


def changed_json(data: Any, path: Path) -> Iterator[Change]:
    """
    All changes at one place.

    :param data: of a file
    :param path: the place
    :return: what was done, and what makes the content of the file after it
    """
    where = "/".join(map(str, path))
    before = at(data, path)
    for name, value in NASTY:
        if value is not before:
            yield f"{where}={name}", lambda value=value: encoded(put(data, path, value))
    if path:
        yield f"{where} removed", lambda: encoded(_without(data, path))
    if isinstance(before, dict):
        yield f"{where}: an unknown key", lambda: encoded(put(data, (*path, "unknown"), 1))
        yield f"{where}: an unknown key with much in it", lambda: encoded(put(data, (*path, "unknown"), [[]] * 300_000))
        if before:
            yield f"{where}: a key twice", lambda: _with_a_key_twice(data, path, next(iter(before)))
    if isinstance(before, list):
        yield f"{where}: another item", lambda: encoded(put(data, path, [*before, None]))
        yield f"{where}: many items", lambda: encoded(put(data, path, (before or [0]) * 3000))
        yield f"{where}: other order", lambda: encoded(put(data, path, before[::-1]))
    if isinstance(before, (int, float)) and not isinstance(before, bool):
        for value in (before + 1, -before, before * 1000, before / 3):
            yield f"{where}={value}", lambda value=value: encoded(put(data, path, value))


def encoded(data: Any) -> bytes:
    """As a file holds it."""
    return json.dumps(data).encode()


def _with_a_key_twice(data: Any, path: Path, key: str) -> bytes:
    content = encoded(put(data, (*path, "a second"), at(data, path)[key]))
    return content.replace(b'"a second"', encoded(key))


def _without(data: Any, path: Path) -> Any:
    data = copy.deepcopy(data)
    del at(data, path[:-1])[path[-1]]
    return data


def changed_array(array: np.ndarray) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """
    :param array: of a file
    :return: what was done, and what makes the array after it: other types, shapes and numbers
    """
    for dtype in ("float64", "float16", "int64", "uint8", "bool", "int8", "uint64"):
        if array.dtype != dtype:
            yield f"as {dtype}", lambda dtype=dtype: array.astype(dtype)
    shapes = [
        (),
        (0,),
        (1,),
        (*array.shape, 1),
        (1, *array.shape),
        (*array.shape, 0),
        array.shape[::-1],
        (array.size,),
        (3, 17),
    ]
    for shape in dict.fromkeys(shapes):
        if shape != array.shape:
            yield f"of shape {shape}", lambda shape=shape: np.resize(array, shape)
    numbers: list[Any] = []
    if array.dtype.kind == "f":
        largest = float(np.finfo(array.dtype).max)
        numbers = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e4, -1e4, 1e-40, 1e30, largest, -largest]
    elif array.dtype != bool:
        numbers = [0, 1, int(np.iinfo(array.dtype).max), int(np.iinfo(array.dtype).min)]
    for number in numbers:
        yield f"full of {number}", lambda number=number: np.full_like(array, number)
        if array.size > 1:
            yield f"with {number}", lambda number=number: _with(array, number)


def _with(array: np.ndarray, number: float) -> np.ndarray:
    """One number is another."""
    array = array.copy()
    array.flat[array.size // 2] = number
    return array
