"""What values are."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces


def without_numpy(value: Any) -> Any:
    """
    NumPy's scalars make other arithmetic of float32 arrays than Python's numbers, of which alone files know.

    :param value: any
    :return: the number of Python's, or the value
    """
    return value.item() if isinstance(value, np.generic) else value


def is_count(value: Any, at_least: int = 1) -> bool:
    """Whether it is an integer (and no truth value) of at least so much."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= at_least)


def is_number(value: Any) -> bool:
    """Whether it is a finite number (and no truth value), NumPy's included."""
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


def is_number_or_schedule(value: Any, is_allowed: Callable[[float], bool]) -> bool:
    """Whether a number of Python's, as SB3 asks for, or a schedule's first one, is finite and allowed."""
    if callable(value):
        try:
            value = float(value(1.0))
        except (TypeError, ValueError):
            return False
    return isinstance(value, (int, float)) and is_number(value) and is_allowed(value)


def is_within(space: spaces.Space, values: np.ndarray) -> bool:
    """
    Whether networks for this space can take these observations or actions, as buffers store them. (Those of a Box may lie
    outside of it, as everywhere.)
    """
    end: Any = 2  # of MultiBinary
    if isinstance(space, spaces.Discrete):
        end = space.n
    elif isinstance(space, spaces.MultiDiscrete):
        end = space.nvec.ravel()
    elif not isinstance(space, spaces.MultiBinary):
        return bool(np.isfinite(values).all())
    return bool(((values >= 0) & (values < end) & (values == np.floor(values))).all())
