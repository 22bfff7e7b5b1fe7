"""Gymnasium's spaces as plain data."""

import math
from collections import OrderedDict
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
Bound = Integer | float | None  # None: unbounded
Key = Annotated[str, Meta(min_length=1, max_length=200)]


class Box(Struct, forbid_unknown_fields=True, tag_field="space", tag="Box"):
    """
    ``spaces.Box``.

    :param shape: of its arrays
    :param dtype: of its numbers
    :param low: the lower bound, one for all or one for each number in C order
    :param high: the upper bound, likewise
    """

    shape: Shape
    dtype: IntegerType | Literal["float16", "float32", "float64", "bool"]
    low: Bound | list[Bound]
    high: Bound | list[Bound]

    def make(self) -> spaces.Box:
        """The space."""
        _check_size(self.shape)
        low, high = (
            np.array([infinite if number is None else number for number in (bound if isinstance(bound, list) else [bound])])
            for bound, infinite in ((self.low, -math.inf), (self.high, math.inf))
        )
        low, high = (_spread(bound, self.shape, np.dtype(self.dtype)) for bound in (low, high))
        return spaces.Box(low, high, dtype=np.dtype(self.dtype).type)


class Discrete(Struct, forbid_unknown_fields=True, tag_field="space", tag="Discrete"):
    """``spaces.Discrete``, with the names of its arguments."""

    n: Annotated[int, Meta(ge=1, le=2**32)]
    start: Integer = 0
    dtype: IntegerType = "int64"

    def make(self) -> spaces.Discrete:
        """The space."""
        return spaces.Discrete(self.n, start=self.start, dtype=np.dtype(self.dtype).type)  # type: ignore[arg-type]


class MultiDiscrete(Struct, forbid_unknown_fields=True, tag_field="space", tag="MultiDiscrete"):
    """``spaces.MultiDiscrete``, with the names of its arguments, flat, and its shape."""

    # Each dimension is an object in the distribution of actions
    nvec: Annotated[list[Annotated[int, Meta(ge=1, le=2**32)]], Meta(min_length=1, max_length=1000)]
    start: Annotated[list[Integer], Meta(max_length=1000)]
    shape: Shape
    dtype: IntegerType = "int64"

    def make(self) -> spaces.MultiDiscrete:
        """The space."""
        nvec, start = (np.array(numbers).reshape(self.shape) for numbers in (self.nvec, self.start))
        return spaces.MultiDiscrete(nvec, dtype=np.dtype(self.dtype).type, start=start)  # type: ignore[arg-type]


class MultiBinary(Struct, forbid_unknown_fields=True, tag_field="space", tag="MultiBinary"):
    """``spaces.MultiBinary``, with the name of its argument."""

    n: Size | Shape

    def make(self) -> spaces.MultiBinary:
        """The space."""
        _check_size(self.n if isinstance(self.n, list) else [self.n])
        return spaces.MultiBinary(self.n)


Simple = Box | Discrete | MultiDiscrete | MultiBinary


class Dict(Struct, forbid_unknown_fields=True, tag_field="space", tag="Dict"):
    """``spaces.Dict`` of simple spaces, in their order."""

    parts: Annotated[dict[Key, Simple], Meta(max_length=1000)]

    def make(self) -> spaces.Dict:
        """The space."""
        if not all(key.isprintable() for key in self.parts):  # they become names of modules
            raise ModelFormatError("a Dict space has keys that cannot be printed")
        made = spaces.Dict(OrderedDict((key, space.make()) for key, space in self.parts.items()))
        _check_size([sum(math.prod(space.shape or ()) for space in made.values())])
        return made


Space = Simple | Dict


def describe(space: spaces.Space, path: str) -> Any:
    """
    Describe a space as plain data.

    :param space: to describe
    :param path: where it was found, for errors
    :return: a ``Space``
    :raises ModelFormatError: if there is no description for it
    """
    match space:
        case spaces.Box():
            low, high = (_describe_bound(bound) for bound in (space.low, space.high))
            return Box(list(space.shape), np.dtype(space.dtype).name, low, high)  # type: ignore[arg-type]
        case spaces.Discrete():
            return Discrete(int(space.n), int(space.start), np.dtype(space.dtype).name)  # type: ignore[arg-type]
        case spaces.MultiDiscrete():
            nvec, start = (numbers.ravel().tolist() for numbers in (space.nvec, space.start))
            return MultiDiscrete(nvec, start, list(space.shape), np.dtype(space.dtype).name)  # type: ignore[arg-type]
        case spaces.MultiBinary():
            return MultiBinary(list(space.n) if isinstance(space.n, tuple) else int(space.n))
        case spaces.Dict() if not any(isinstance(part, spaces.Dict) for part in space.values()):
            return Dict({key: describe(part, f"{path}.{key}") for key, part in space.items()})
    raise ModelFormatError(f"{path}: a {type(space).__name__} space cannot be shared without pickle")


def _describe_bound(bound: np.ndarray) -> Any:
    bound = bound.astype(np.uint8) if bound.dtype == bool else bound
    numbers = [number if math.isfinite(number) else None for number in bound.ravel().tolist()]
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _spread(bound: np.ndarray, shape: list[int], dtype: np.dtype) -> np.ndarray:
    """The bound of each number of an array, in its type, which has to have room for it."""
    with np.errstate(over="ignore", invalid="ignore"):
        typed = bound.astype(dtype)
    if not np.array_equal(typed, bound):
        raise ModelFormatError(f"a bound of a Box space is not {dtype}")
    return np.full(shape, typed) if typed.size == 1 else typed.reshape(shape)


def _check_size(shape: list[int]) -> None:
    if math.prod(shape) > MAX_NUMBERS:
        raise ModelFormatError(f"a space of shape {tuple(shape)} has more than {MAX_NUMBERS} numbers")
