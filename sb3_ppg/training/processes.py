"""
Training with several processes: those of ``torch.distributed``, when its process group is initialised. Each collects with
its own environments, of the same number and with the same settings, so averages over processes are averages over samples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
import torch.distributed as dist
from torch import nn

from sb3_ppg.errors import ArgumentError


@th.no_grad()
def average_over_processes(tensors: list[th.Tensor]) -> None:
    """
    Replace tensors by their averages over all processes, in one transfer.

    :param tensors: of the same shapes in every process
    """
    if not dist.is_initialized():
        return
    flat = th.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, average in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(average.view_as(tensor))


@th.no_grad()
def synchronize_processes(networks: Sequence[nn.Module], settings: dict[str, Any], seed: int | None) -> None:
    """
    Give every process the parameters and buffers of the first one.

    :param networks: of the same architecture everywhere
    :param settings: what has to be the same in every process
    :param seed: what has to be another one in each
    :raises ArgumentError: in every process, if settings differ or seeds do not
    """
    if not dist.is_initialized():
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (settings, seed))
    for name in settings:
        values = [theirs[name] for theirs, _ in everyone]
        if len(set(map(repr, values))) > 1:
            raise ArgumentError(f"`{name}`={values} differs between the processes: use one value")
    seeds = [seed for _, seed in everyone if seed is not None]
    if len(set(seeds)) < len(seeds):
        raise ArgumentError(f"`seed`={seeds}: processes with the same seed collect the same samples; use seed + rank")
    for tensor in (tensor for network in networks for tensor in (*network.parameters(), *network.buffers())):
        dist.broadcast(tensor, src=0)


def moments(values: np.ndarray, device: th.device | str = "cpu") -> tuple[float, float]:
    """
    Mean and standard deviation (of the population), over all processes.

    :param values: of any shape, of one size everywhere
    :param device: of the process group's backend
    :return: in the units of the values
    """

    def mean(array: np.ndarray) -> float:
        average = th.tensor([array.mean(dtype=np.float64)], dtype=th.float64, device=device)
        average_over_processes([average])
        return average.item()

    center = mean(values)
    return center, mean(np.square(values - center)) ** 0.5


def n_processes() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_initialized() else 1
