"""Arrays in nested dictionaries and tuples, such as the observations of a Dict space."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch as th

Minibatch = TypeVar("Minibatch", bound=tuple)


def map_arrays(function: Callable[..., Any], *trees: Any) -> Any:
    """
    Apply a function to the leaves of trees of the same structure: dictionaries and tuples of arrays, nested to any depth.
    Return its values in this structure.
    """
    first = trees[0]
    if isinstance(first, dict):
        return {key: map_arrays(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        parts = [map_arrays(function, *branches) for branches in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return function(*trees)


def n_samples(observations: Any) -> int:
    """Return the number of samples, B, in an array or a tensor of shape (B, ...), or a dictionary of such."""
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)


def split(minibatch: Minibatch, size: int | None) -> Iterator[Minibatch]:
    """
    Split a minibatch into micro-batches.

    :param minibatch: tuple of tensors, or of nested dictionaries and tuples of tensors, of shape (B, ...), or (number of
        sequences, ...) for sequences of equal length. Scalars and values that are not tensors are the same in every part
    :param size: largest number of samples in a part; None: do not split
    :return: consecutive parts, which share the minibatch's memory; a part has as many whole sequences as fit, at least one
    """
    whole = n_samples(minibatch[0])
    if size is None or size >= whole:
        yield minibatch
        return
    n_rows: list[int] = []
    map_arrays(lambda leaf: n_rows.append(len(leaf)) if has_samples(leaf) else None, minibatch)
    length = whole // min(n_rows)
    size = max(length, size // length * length)
    sizes = [min(size, whole - start) for start in range(0, whole, size)]
    yield from split_arrays(minibatch, sizes)


def split_each(minibatches: Iterable[Minibatch], size: int | None) -> Iterator[Minibatch]:
    """Split minibatches one after the other, see ``split``."""
    return (part for minibatch in minibatches for part in split(minibatch, size))


def split_arrays(tree: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """Split a tree like ``split``, into parts with these numbers of samples, multiples of the sequence length."""
    if has_samples(tree):
        total, n_rows = sum(sizes), len(tree)
        return tree.split([size * n_rows // total for size in sizes])
    if not isinstance(tree, dict | tuple) or not tree:
        return [tree] * len(sizes)
    branches = tree.values() if isinstance(tree, dict) else tree
    parts = zip(*(split_arrays(branch, sizes) for branch in branches), strict=True)
    if isinstance(tree, dict):
        return [dict(zip(tree, part, strict=True)) for part in parts]
    return [type(tree)(*part) for part in parts] if hasattr(tree, "_fields") else [*parts]


def has_samples(value: Any) -> bool:
    """Return whether a value is a tensor with at least one dimension; the first one is that of the samples."""
    return isinstance(value, th.Tensor) and value.dim() > 0


def parameters_of(optimizer: th.optim.Optimizer) -> list[Any]:
    """Return the parameters of all groups of an optimizer, in their order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
