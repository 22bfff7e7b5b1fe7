"""
States of optimizers as plain data. Torch does not check states, so a stranger's is compared with that of a fresh optimizer.
Options are not shared: the constructor makes them from the model's arguments, and each update computes its learning rate.
"""

import copy
from typing import Any

import torch as th

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.arrays import Arrays

LARGEST_CHANGE = 1.0  # of a weight, by the next step
LARGEST_STATE = 1e37  # times the squared unit of the value heads, by which squared gradients grow when that becomes 1


def state_arrays(optimizer: th.optim.Optimizer, name: str) -> dict[str, th.Tensor]:
    """Return the state of an optimizer as arrays by name, "<optimizer>.<number of the parameter>.<part>"."""
    states = optimizer.state_dict()["state"]
    return {
        f"{name}.{index}.{key}": th.as_tensor(value)
        for index, state in states.items()
        for key, value in state.items()
        if value is not None
    }


def load_optimizer(optimizer: th.optim.Optimizer, arrays: Arrays, learning_rate: float, unit: float, name: str) -> None:
    """
    Give a fresh optimizer the state of a file.

    :param optimizer: as the model's constructor makes it, of parameters that have their values already
    :param arrays: of the file
    :param learning_rate: the largest that may follow
    :param unit: of the value heads
    :param name: of the optimizer
    :raises ModelFormatError: if the state is not what this optimizer keeps, or it would not stay finite, or ruin a weight
    """
    if not any(stored.startswith(f"{name}.") for stored in arrays.left):  # it never made a step
        return
    states: dict[int, dict[str, Any]] = {}
    for index, state in _after_a_step(optimizer, learning_rate).state_dict()["state"].items():
        kept = {key: value for key, value in state.items() if value is not None}
        names = {key: f"{name}.{index}.{key}" for key in kept}
        if arrays.left & set(names.values()):  # a parameter that was never trained has no state
            taken = {key: arrays.take(names[key], th.as_tensor(value)) for key, value in kept.items()}
            for key, array in taken.items():
                if not (array.double().abs() * unit**2 <= LARGEST_STATE).all():
                    raise ModelFormatError(f"{names[key]} has numbers that are too large to train with")
            # Some optimizers keep numbers of Python's
            states[index] = {key: taken[key] if isinstance(kept[key], th.Tensor) else taken[key].item() for key in kept}
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    moved = _after_a_step(optimizer, learning_rate)
    for before, after in zip(_parameters(optimizer), _parameters(moved), strict=True):
        if before.numel() > 0 and not (after - before).abs().max() <= LARGEST_CHANGE * (1 + before.abs().max()):
            raise ModelFormatError(f"{name}: its state would change weights by more than {LARGEST_CHANGE} in a step")


def _after_a_step(optimizer: th.optim.Optimizer, learning_rate: float) -> th.optim.Optimizer:
    """Return a copy of an optimizer, with its parameters, after a step without a gradient."""
    copied = copy.deepcopy(optimizer)
    for group in copied.param_groups:
        group["lr"] = learning_rate
    for parameter in _parameters(copied):
        parameter.grad = th.zeros_like(parameter)
    copied.step()
    return copied


def _parameters(optimizer: th.optim.Optimizer) -> list[th.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
