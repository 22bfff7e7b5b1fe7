"""Arrays in nested dictionaries and tuples, such as the observations of a Dict space."""

from collections.abc import Callable
from typing import Any


def map_arrays(function: Callable[..., Any], *trees: Any) -> Any:
    """
    :param function: of as many arrays as there are trees
    :param trees: arrays or tensors, or dictionaries and tuples of such, nested as deep as one likes, of the same structure
    :return: the function's values, in the same structure
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_arrays(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        parts = [map_arrays(function, *some) for some in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return function(*trees)


def n_samples(observations: Any) -> int:
    """
    :param observations: an array or a tensor of shape (B, ...), or a dictionary of such
    :return: B
    """
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
