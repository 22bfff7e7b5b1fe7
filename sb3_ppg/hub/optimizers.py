"""Optimizers as plain data. Torch believes any state that it is given, so a stranger's is compared with a fresh optimizer."""

import copy
from collections import defaultdict
from typing import Any

import torch as th
from torch import nn

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.arrays import Arrays

# How a step is computed is for this machine to choose, not for a file
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
LARGEST_CHANGE = 1.0  # of a weight, by the next step


def describe_options(optimizer: th.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group of parameters."""
    names = optimizer.defaults.keys() - IMPLEMENTATION
    return [{name: group[name] for name in sorted(names)} for group in optimizer.param_groups]


def state_arrays(optimizer: th.optim.Optimizer, name: str) -> dict[str, th.Tensor]:
    """Return the state of an optimizer as arrays by name, "<optimizer>.<number of the parameter>.<part>"."""
    states = optimizer.state_dict()["state"]
    return {
        f"{name}.{index}.{key}": th.as_tensor(value)
        for index, state in states.items()
        for key, value in state.items()
        if value is not None
    }


def load_optimizer(
    optimizer: th.optim.Optimizer, options: list[dict[str, Any]], arrays: Arrays, learning_rate: float, name: str
) -> None:
    """
    Give a fresh optimizer the options and the state of a file.

    :param optimizer: as the model's constructor makes it, of parameters that have their values already
    :param options: what ``describe_options`` returned, or a stranger wrote
    :param arrays: of the file
    :param learning_rate: the largest that may follow
    :param name: of the optimizer
    :raises ModelFormatError: if options or state are not what this optimizer has, or its next step would ruin a weight
    """
    groups = optimizer.state_dict()["param_groups"]
    if len(options) != len(groups):
        raise ModelFormatError(f"optimizers.{name}: there have to be options of {len(groups)} groups, not of {len(options)}")
    states: dict[int, dict[str, Any]] = {}
    index = 0
    for number, (group, chosen) in enumerate(zip(groups, options, strict=True)):
        where = f"optimizers.{name}[{number}]"
        _choose(group, chosen, where)
        example = _example_state(optimizer, group, where)
        for parameter in optimizer.param_groups[number]["params"]:
            names = {key: f"{name}.{index}.{key}" for key in example}
            if arrays.left & set(names.values()):  # a parameter that was never trained has no state
                states[index] = {
                    key: _take(arrays, names[key], parameter if isinstance(like, nn.Parameter) else like)
                    for key, like in example.items()
                }
            index += 1
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    _try_step(optimizer, learning_rate, name)


def _choose(group: dict[str, Any], chosen: dict[str, Any], where: str) -> None:
    """Set the options that a file decides, if this optimizer has them, of that kind."""
    own = {key: value for key, value in group.items() if key not in {"params", *IMPLEMENTATION}}
    for key, value in chosen.items():
        value = tuple(value) if isinstance(value, list) else value
        if key not in own and value in (None, False):  # an option of another version of torch, which is off
            continue
        if key not in own or _kind(value) != _kind(own[key]):
            raise ModelFormatError(f"{where}.{key}: {value!r} is not an option of this optimizer, which has {own.get(key)!r}")
        group[key] = value


def _kind(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple, len(value)
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _example_state(optimizer: th.optim.Optimizer, options: dict[str, Any], where: str) -> dict[str, Any]:
    """Find out, by a step on a parameter, what this optimizer keeps of one; a parameter stands for its shape."""
    parameter = nn.Parameter(optimizer.param_groups[0]["params"][0].detach().new_zeros(2, 3))
    parameter.grad = th.ones_like(parameter)
    trial = copy.copy(optimizer)
    trial.param_groups = [{**options, "params": [parameter]}]
    trial.state = defaultdict(dict)
    try:
        trial.step()
    except Exception as error:
        raise ModelFormatError(f"{where}: no step can be made with these options ({type(error).__name__}: {error})") from error
    return {
        key: parameter if isinstance(value, th.Tensor) and value.shape == parameter.shape else value
        for key, value in trial.state[parameter].items()
        if value is not None
    }


def _take(arrays: Arrays, name: str, like: Any) -> Any:
    """Read a part of a state: an array, or a number where the optimizer keeps a number of Python's."""
    if isinstance(like, th.Tensor):
        return arrays.take(name, like)
    return arrays.take(name, th.as_tensor(like)).item()


def _try_step(optimizer: th.optim.Optimizer, learning_rate: float, name: str) -> None:
    """
    :raises ModelFormatError: if a step without a gradient would move a weight far away: moments do not belong together
    """
    trial = copy.deepcopy(optimizer)
    for group in trial.param_groups:
        group["lr"] = learning_rate
        for parameter in group["params"]:
            parameter.grad = th.zeros_like(parameter)
    trial.step()
    for group, moved in zip(optimizer.param_groups, trial.param_groups, strict=True):
        for before, after in zip(group["params"], moved["params"], strict=True):
            if before.numel() > 0 and not (after - before).abs().max() <= LARGEST_CHANGE * (1 + before.abs().max()):
                raise ModelFormatError(f"{name}: its state would change weights by more than {LARGEST_CHANGE} in a step")
