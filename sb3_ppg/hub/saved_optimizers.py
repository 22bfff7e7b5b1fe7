"""Optimizers as plain data. Torch believes whatever state it is given, down to shapes, so a stranger's is checked here."""

import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch as th
from torch import nn

from sb3_ppg.arguments import is_number
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.plain_data import Decoder, Encoder, exactly

# How a step is computed is for this machine to choose, not for a file
IMPLEMENTATION = {"foreach", "fused", "capturable", "differentiable"}
SECOND_MOMENTS = {"exp_avg_sq", "max_exp_avg_sq", "square_avg"}
LARGEST_CHANGE = 1.0  # of a weight, by the step that follows


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: is_number(value) and low <= value <= high


def _are_betas(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(is_number(beta) and 0 <= beta < 1 for beta in value)


_fraction = _between(0, 1)
_is_bool: Callable[[Any], bool] = lambda value: isinstance(value, bool)  # noqa: E731
# What the options of torch's optimizers can be
OPTIONS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("lr", "initial_lr", "weight_decay", "dampening"), _fraction),
    "alpha": _between(0.5, 1),  # less leaves centered second moments to rounding
    "momentum": lambda value: is_number(value) and 0 <= value < 1,
    "eps": _between(1e-20, 1),
    "betas": _are_betas,
    **dict.fromkeys(("amsgrad", "maximize", "nesterov", "centered", "decoupled_weight_decay"), _is_bool),
    **dict.fromkeys(IMPLEMENTATION, lambda value: value is None or isinstance(value, bool)),
}


def describe_optimizer(optimizer: th.optim.Optimizer, encoder: Encoder, name: str) -> dict[str, Any]:
    """
    :param optimizer: to write
    :param encoder: takes its arrays
    :param name: of it
    :return: for JSON
    """
    state = optimizer.state_dict()
    return {
        "groups": [
            encoder.encode({key: value for key, value in group.items() if key != "params"}, f"{name}.groups[{index}]")
            for index, group in enumerate(state["param_groups"])
        ],
        "state": encoder.encode({str(index): values for index, values in state["state"].items()}, f"{name}.state"),
    }


def read_optimizer(optimizer: th.optim.Optimizer, data: Any, decoder: Decoder, name: str) -> dict[str, Any]:
    """
    Check all that is known before the arrays are read, then read them.

    :param optimizer: as it is made anew
    :param data: what ``describe_optimizer`` returned, or a stranger
    :param decoder: has the arrays
    :param name: of the optimizer
    :return: for ``load_optimizer``
    :raises ModelFormatError: if an option is out of range, or a state not what this optimizer has for its parameter
    """
    described = exactly(data, {"groups", "state"}, name)
    groups = optimizer.state_dict()["param_groups"]
    if not isinstance(described["groups"], list) or len(described["groups"]) != len(groups):
        raise ModelFormatError(f"{name}.groups: there have to be {len(groups)}")
    parameters: list[nn.Parameter] = []
    examples: list[dict[str, Any]] = []
    for number, (group, own) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        where = f"{name}.groups[{number}]"
        group.update(_options(decoder.decode(described["groups"][number], where), group, where))
        parameters += own["params"]
        examples += [_example_state(optimizer, group, where)] * len(own["params"])
    states = described["state"]
    if not isinstance(states, dict) or not states.keys() <= {str(index) for index in range(len(parameters))}:
        raise ModelFormatError(f"{name}.state: it is for parameters 0 to {len(parameters) - 1}, not {states!r:.100}")
    return {
        "state": {
            int(index): _read_state(parameters[int(index)], examples[int(index)], state, decoder, f"{name}.state.{index}")
            for index, state in states.items()
        },
        "param_groups": groups,
    }


def _options(options: Any, fresh: dict[str, Any], where: str) -> dict[str, Any]:
    """Those that the file decides."""
    if not isinstance(options, dict):
        raise ModelFormatError(f"{where}: {options!r} is not a dictionary of options")
    chosen = {}
    for key, value in options.items():
        # An option of another version of torch does not matter where it is off
        if key == "params" or not (key in fresh or key == "initial_lr" or value in (None, False)):
            raise ModelFormatError(f"{where}.{key}: this optimizer has no such option")
        if key in fresh and key not in IMPLEMENTATION:
            chosen[key] = tuple(value) if key == "betas" and isinstance(value, list) else value
    for key, value in {**fresh, **chosen}.items():
        if key in OPTIONS and not OPTIONS[key](value):
            raise ModelFormatError(f"{where}.{key}: {value!r} in place of {fresh[key]!r} cannot work")
    return chosen


def _example_state(optimizer: th.optim.Optimizer, options: dict[str, Any], where: str) -> dict[str, Any]:
    """What this class of optimizers, with these options, keeps of a parameter: found out by a step on one."""
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
    }


def _read_state(parameter: nn.Parameter, example: dict[str, Any], data: Any, decoder: Decoder, where: str) -> dict[str, Any]:
    if data == {}:
        return {}
    described = exactly(data, set(example), where)
    state = {}
    for key, like in example.items():
        if isinstance(like, th.Tensor):
            like = parameter if isinstance(like, nn.Parameter) else like
            state[key] = decoder.expected_array(described[key], f"{where}.{key}", like)
        else:
            state[key] = decoder.decode(described[key], f"{where}.{key}")
            if type(state[key]) is not type(like):
                raise ModelFormatError(f"{where}.{key}: {state[key]!r} in place of {like!r}")
        if key in SECOND_MOMENTS | {"step"} and (th.as_tensor(state[key]) < 0).any():
            raise ModelFormatError(f"{where}.{key}: it cannot be negative")
    return state


def load_optimizer(optimizer: th.optim.Optimizer, state: dict[str, Any], learning_rate: float, name: str) -> None:
    """
    :param optimizer: as it is made anew
    :param state: what ``read_optimizer`` returned
    :param learning_rate: the largest that may come
    :param name: of the optimizer
    :raises ModelFormatError: if its moments do not belong together: a step without a gradient would move a weight far away
    """
    optimizer.load_state_dict(state)
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
