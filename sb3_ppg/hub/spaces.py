"""Gymnasium's spaces as plain data."""

import math
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium import spaces
from msgspec import Meta, Struct

from sb3_ppg.errors import ModelFormatError

MAX_NUMBERS = 2**22  # in an observation or an action; the space's bounds take memory, however short their description is
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Size = Annotated[int, Meta(ge=1, le=MAX_NUMBERS)]
Shape = Annotated[list[Size], Meta(max_length=16)]
IntegerType = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
Bound = Integer | float | None  # None: infinity, which msgspec writes as null
Key = Annotated[str, Meta(min_length=1, max_length=200)]


class Box(Struct, forbid_unknown_fields=True, tag_field="space", tag="Box"):
    """``spaces.Box``; each bound is one for all numbers, or a list of one for each in C order."""

    shape: Shape
    dtype: IntegerType | Literal["float16", "float32", "float64", "bool"]
    low: Bound | list[Bound]
    high: Bound | list[Bound]


class Discrete(Struct, forbid_unknown_fields=True, tag_field="space", tag="Discrete"):
    """``spaces.Discrete``."""

    n: Annotated[int, Meta(ge=1, le=2**32)]
    start: Integer = 0
    dtype: IntegerType = "int64"


class MultiDiscrete(Struct, forbid_unknown_fields=True, tag_field="space", tag="MultiDiscrete"):
    """``spaces.MultiDiscrete``, its arrays flat. Each dimension is an object in the distribution of actions."""

    nvec: Annotated[list[Annotated[int, Meta(ge=1, le=2**32)]], Meta(min_length=1, max_length=1000)]
    start: Annotated[list[Integer], Meta(max_length=1000)]
    shape: Shape
    dtype: IntegerType = "int64"


class MultiBinary(Struct, forbid_unknown_fields=True, tag_field="space", tag="MultiBinary"):
    """``spaces.MultiBinary``."""

    n: Size | Shape


class Dict(Struct, forbid_unknown_fields=True, tag_field="space", tag="Dict"):
    """``spaces.Dict``, its parts in their order."""

    parts: Annotated[dict[Key, "Space"], Meta(max_length=1000)]


class Tuple(Struct, forbid_unknown_fields=True, tag_field="space", tag="Tuple"):
    """``spaces.Tuple``."""

    parts: Annotated[list["Space"], Meta(max_length=1000)]


Space = Box | Discrete | MultiDiscrete | MultiBinary | Dict | Tuple


def make(described: Space) -> Any:
    """Make a described space, unless it is too large."""
    if (size := _size(described)) > MAX_NUMBERS:
        raise ModelFormatError(f"a space has more than {MAX_NUMBERS} numbers: {size}")
    match described:
        case Box(shape, dtype, low, high):
            bounds = (_bound(low, -math.inf, shape, dtype), _bound(high, math.inf, shape, dtype))
            return spaces.Box(*bounds, dtype=np.dtype(dtype).type)
        case Discrete(n, start, dtype):
            return spaces.Discrete(n, start=start, dtype=np.dtype(dtype).type)
        case MultiDiscrete(nvec, start, shape, dtype):
            return spaces.MultiDiscrete(np.reshape(nvec, shape), dtype=np.dtype(dtype).type, start=np.reshape(start, shape))
        case MultiBinary(n):
            return spaces.MultiBinary(n)
        case Tuple(parts):
            return spaces.Tuple([make(part) for part in parts])
    if not all(key.isprintable() for key in described.parts):  # they become names of modules
        raise ModelFormatError("a Dict space has keys that cannot be printed")
    return spaces.Dict([(key, make(part)) for key, part in described.parts.items()])


def _bound(numbers: Any, infinite: float, shape: list[int], dtype: str) -> np.ndarray:
    """Return a bound of each number of a Box."""
    if not isinstance(numbers, list):
        return np.full(shape, infinite if numbers is None else numbers, dtype)
    return np.array([infinite if number is None else number for number in numbers], dtype).reshape(shape)


def _size(described: Space) -> int:
    """Return how many numbers an element of the space has."""
    match described:
        case Box(shape=list(shape)) | MultiDiscrete(shape=list(shape)) | MultiBinary(n=list(shape)):
            return math.prod(shape)
        case MultiBinary(n=int(n)):
            return n
        case Dict(parts):
            return sum(map(_size, parts.values()))
        case Tuple(parts):
            return sum(map(_size, parts))
    return 1


def describe(space: spaces.Space, path: str) -> Any:
    """Describe a space for ``make``. Errors name the path."""
    dtype: Any = np.dtype(space.dtype).name
    match space:
        case spaces.Box():
            return Box(list(space.shape), dtype, _describe_bound(space.low), _describe_bound(space.high))
        case spaces.Discrete():
            return Discrete(int(space.n), int(space.start), dtype)
        case spaces.MultiDiscrete():
            return MultiDiscrete(space.nvec.ravel().tolist(), space.start.ravel().tolist(), list(space.shape), dtype)
        case spaces.MultiBinary():
            return MultiBinary(list(space.n) if isinstance(space.n, tuple) else int(space.n))
        case spaces.Dict() if all(isinstance(key, str) for key in space):
            return Dict({key: describe(part, f"{path}.{key}") for key, part in space.items()})
        case spaces.Tuple():
            return Tuple([describe(part, f"{path}.{index}") for index, part in enumerate(space)])
    raise ModelFormatError(f"{path}: a {type(space).__name__} space cannot be shared without pickle")


def _describe_bound(bound: np.ndarray) -> Any:
    bound = bound.astype(np.uint8) if bound.dtype == bool else bound
    numbers = bound.ravel().tolist()
    return numbers[0] if len(set(numbers)) == 1 else numbers
