"""Weights and optimizer states as arrays by name, compared with the described model before memory is taken."""

import copy
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.save_util import recursive_getattr
from torch.overrides import TorchFunctionMode

from sb3_ppg.arrays import parameters_of
from sb3_ppg.buffers.memory import total_memory
from sb3_ppg.buffers.rollouts import n_bytes
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.files import Arrays
from sb3_ppg.ppg import PPG

NETWORKS = ("policy", "objective")  # attributes whose weights are shared
META = th.device("meta")
MAX_CALLS = 2**14  # of torch's functions when networks are made: about a thousand tensors
MAX_MASK_BYTES = 2**28  # of a rollout's action masks, which are filled when the model is made


def weights(model: PPG) -> dict[str, th.Tensor]:
    """Return the parameters and buffers of all networks by name."""
    networks = {name: getattr(model, name) for name in NETWORKS}
    return {f"{name}.{key}": tensor for name, network in networks.items() for key, tensor in network.state_dict().items()}


class _SizesOnly(TorchFunctionMode):
    """Tensors that are made in this context are on torch's device "meta", with shapes and types, but without numbers."""

    n_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is th.Tensor.__bool__:  # gSDE's distribution checks its parameters
            return True
        if func is th.Tensor.to:  # SB3 moves some layers to its default device
            args = [META if isinstance(argument, (str, th.device)) else argument for argument in args]
        result = func(*args, **(kwargs or {}))
        self.n_calls += 1
        if self.n_calls > MAX_CALLS:  # after the call, which may be the end of `no_grad`
            raise ModelFormatError("it describes networks of too many layers")
        return result


def check_sizes(model: PPG, arrays: Arrays) -> None:
    """Compare the networks that a model is going to have with the arrays of a file, and its rollouts with this machine."""
    made = copy.copy(model)
    made.device, made.env, made.n_steps, made.n_envs = META, None, 2, 1  # some objectives need two steps
    made._maybe_recommend_cpu = lambda *_: None  # type: ignore[method-assign] # it would take the device for a GPU
    with META, _SizesOnly(), th.no_grad():
        made._setup_model()
    for name, tensor in weights(made).items():
        arrays.find(name, tensor)
    times, parts = model.n_steps * model.n_envs / 2, vars(made.rollout_buffer)
    arrays_of_rollout = {name: part for name, part in parts.items() if isinstance(part, np.ndarray) or name == "observations"}
    claimed = times * n_bytes(arrays_of_rollout)
    of_masks = times * n_bytes(arrays_of_rollout.get("action_masks", {}))
    if claimed > total_memory() or of_masks > MAX_MASK_BYTES:
        sizes = f"n_steps={model.n_steps} with n_envs={model.n_envs}"
        raise ModelFormatError(f"{sizes} claims {claimed:.1e} bytes of memory for a rollout")


def all_arrays(model: PPG) -> dict[str, th.Tensor]:
    """
    Return weights and optimizer states by name, "<optimizer>.<number of the parameter>.<part>". Options of optimizers are not
    among them: the constructor makes them from the model's arguments, and each update sets the learning rate.
    """
    arrays = weights(model)
    for name, optimizer in _optimizers(model).items():
        for index, state in optimizer.state_dict()["state"].items():
            arrays |= {f"{name}.{index}.{key}": th.as_tensor(part) for key, part in state.items() if part is not None}
    return arrays


@th.no_grad()
def load_arrays(model: PPG, arrays: Arrays) -> None:
    """Read the weights and optimizer states of a new model, which are all arrays that are left."""
    for name, optimizer in _optimizers(model).items():
        if any(stored.startswith(f"{name}.") for stored in arrays.left):  # else it never made a step
            _load_optimizer(optimizer, arrays, name)
    for name, tensor in weights(model).items():
        tensor.copy_(arrays.take(name, tensor))
    if arrays.left:
        raise ModelFormatError(f"the file has arrays that no part of the model is for: {sorted(arrays.left)}")


def _optimizers(model: PPG) -> dict[str, th.optim.Optimizer]:
    return {name: recursive_getattr(model, name) for name in model.get_parameters() if name not in NETWORKS}


def _load_optimizer(optimizer: th.optim.Optimizer, arrays: Arrays, name: str) -> None:
    """Read the state of an optimizer. Torch does not check states, so a step makes one of the right shapes first."""
    for parameter in parameters_of(optimizer):
        parameter.grad = th.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for index, (parameter, state) in enumerate(list(optimizer.state.items())):
        parts = {key: f"{name}.{index}.{key}" for key, part in state.items() if part is not None}
        if arrays.left.isdisjoint(parts.values()):  # it was never trained
            del optimizer.state[parameter]
            continue
        for key, stored in parts.items():
            array = arrays.take(stored, th.as_tensor(state[key]))
            # Some optimizers keep numbers of Python's
            state[key] = state[key].copy_(array) if isinstance(state[key], th.Tensor) else array.item()
