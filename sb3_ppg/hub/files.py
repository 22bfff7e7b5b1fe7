"""Files of strangers, and the arrays in them, which are compared with the described model before memory is taken."""

import copy
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch as th
from safetensors import safe_open
from stable_baselines3.common.save_util import recursive_getattr
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from sb3_ppg.arrays import parameters_of
from sb3_ppg.buffers.memory import total_memory
from sb3_ppg.buffers.rollouts import arrays_by_step, n_bytes
from sb3_ppg.errors import ModelFormatError, raised_as
from sb3_ppg.ppg import PPG

MAX_JSON_BYTES = 2**22
MAX_HEADER_BYTES = 2**20  # of safetensors files; room for about ten thousand arrays
Schema = TypeVar("Schema")


def regular_file(path: Path) -> Path:
    """
    Return the path of a file's content, or raise ``ModelFormatError`` for links, pipes and devices. Links in the cache of the
    Hugging Face Hub's client, from ``snapshots/<commit>/`` to ``blobs/``, are followed.
    """
    snapshot, target = path.parent.resolve(), Path(os.path.realpath(path))
    is_of_client = snapshot.parent.name == "snapshots" and target.parent == snapshot.parent.parent / "blobs"
    place = target if is_of_client else path
    if not stat.S_ISREG(os.lstat(place).st_mode):
        raise ModelFormatError(f"{path} is not a regular file: put the file itself there, not a link or a device")
    return place


def read_json(path: Path, schema: type[Schema], limit: int = MAX_JSON_BYTES) -> Schema:
    """Read a JSON file of at most ``limit`` bytes that a schema of msgspec describes."""
    with regular_file(path).open("rb") as file:
        return decode_json(file.read(limit + 1), path, schema, limit)


def decode_json(content: bytes, path: str | Path, schema: type[Schema], limit: int = MAX_JSON_BYTES) -> Schema:
    """Decode the content of such a file; errors name the path."""
    if len(content) > limit:
        raise ModelFormatError(f"{path} is larger than {limit} bytes")
    with raised_as(ModelFormatError, f"{path} cannot be read"):
        return msgspec.json.decode(content, type=schema)


class Arrays:
    """Arrays of a safetensors file by name. Names, shapes and types are compared before a number is read."""

    def __init__(self, path: Path):
        place = regular_file(path)
        with place.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ModelFormatError(f"{path}: its header has {length} bytes, more than {MAX_HEADER_BYTES}")
        self._file = safe_open(place, "pt")
        self._path = path
        self.left = set(self._file.keys())  # names of arrays that were not taken

    def find(self, name: str, like: th.Tensor) -> th.Tensor:
        """Return a view of the file, which may change later, on an array with the shape and type of a tensor."""
        if name not in self.left:
            raise ModelFormatError(f"{self._path} has no array {name!r}")
        shape = tuple(self._file.get_slice(name).get_shape())
        if shape != tuple(like.shape):
            raise ModelFormatError(f"{self._path}: {name!r} has the shape {shape}, the model needs {tuple(like.shape)}")
        array = self._file.get_tensor(name)
        if array.dtype != like.dtype:
            raise ModelFormatError(f"{self._path}: {name!r} is {array.dtype}, the model needs {like.dtype}")
        return array

    def take(self, name: str, like: th.Tensor) -> th.Tensor:
        """Read an array with the shape and type of a tensor, once, and check that its numbers are finite."""
        array = self.find(name, like)
        self.left.remove(name)
        if not array.isfinite().all():
            remedy = "a constant of the author's network needs `register_buffer(..., persistent=False)`"
            raise ModelFormatError(f"{self._path}: {name!r} has numbers that are not finite; {remedy}")
        return array.clone()


# ---- networks ----

NETWORKS = ("policy", "objective")  # attributes whose weights are shared
META = th.device("meta")
MAX_CALLS = 2**14  # of torch's functions when networks are made: about a thousand tensors
MAX_MASK_BYTES = 2**28  # of a rollout's action masks, which are filled when the model is made


def weights(model: PPG) -> dict[str, th.Tensor]:
    """Return the parameters and buffers of all networks by name."""
    return {f"{name}.{key}": tensor for name in NETWORKS for key, tensor in getattr(model, name).state_dict().items()}


class _SizesOnly(TorchFunctionMode):
    """Tensors that are made in this context are on torch's device "meta", with shapes and types, but without numbers."""

    n_calls = 0

    @override
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
    """Compare a future model's networks with the arrays of a file, and the size of its rollouts with this machine's memory."""
    made = copy.copy(model)
    made.device, made.env, made.n_steps, made.n_envs = META, None, 2, 1  # some objectives need two steps
    made._maybe_recommend_cpu = lambda *_: None  # type: ignore[method-assign] # it would take the device for a GPU
    with META, _SizesOnly(), th.no_grad():
        made._setup_model()
    for name, tensor in weights(made).items():
        arrays.find(name, tensor)
    times, parts = model.n_steps * model.n_envs / 2, arrays_by_step(made.rollout_buffer)
    claimed, mask_bytes = times * n_bytes(parts), times * n_bytes(parts.get("action_masks", {}))
    if claimed > total_memory() or mask_bytes > MAX_MASK_BYTES:
        sizes = f"n_steps={model.n_steps} with n_envs={model.n_envs}"
        claim = f"{sizes} claims {claimed:.1e} bytes of memory for a rollout"
        if mask_bytes > MAX_MASK_BYTES:
            claim += f", more than {MAX_MASK_BYTES:.1e} of them for action masks: use fewer steps or environments"
        raise ModelFormatError(claim)


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
    """Read the weights and optimizer states of a new model; raise an error if arrays are left over."""
    for name, optimizer in _optimizers(model).items():
        parameters = parameters_of(optimizer)
        for parameter in parameters:
            parameter.grad = th.zeros_like(parameter)
        optimizer.step()  # torch does not check states: this makes one of the right shapes
        optimizer.zero_grad()
        for index, parameter in enumerate(parameters):
            state = {key: part for key, part in optimizer.state[parameter].items() if part is not None}
            if arrays.left.isdisjoint(f"{name}.{index}.{key}" for key in state):  # it was never trained
                del optimizer.state[parameter]
                continue
            for key, part in state.items():
                array = arrays.take(f"{name}.{index}.{key}", th.as_tensor(part))
                # Some optimizers keep numbers of Python's
                optimizer.state[parameter][key] = part.copy_(array) if isinstance(part, th.Tensor) else array.item()
    for name, tensor in weights(model).items():
        tensor.copy_(arrays.take(name, tensor))
    if arrays.left:
        raise ModelFormatError(f"the file has arrays that no part of the model is for: {sorted(arrays.left)}")


def _optimizers(model: PPG) -> dict[str, th.optim.Optimizer]:
    return {name: recursive_getattr(model, name) for name in model.get_parameters() if name not in NETWORKS}
