"""
Python values as JSON and arrays, and back. Only what is listed here is written or read: reading never unpickles, imports or
evaluates anything.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common import torch_layers as sb3_torch_layers
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn

from sb3_ppg.arguments import is_number
from sb3_ppg.buffers.reward_normalizer import (
    NormalizedRewardDictRolloutBuffer,
    NormalizedRewardRolloutBuffer,
    RewardNormalizer,
)
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.family import ALGORITHMS
from sb3_ppg.hub.array_file import ArrayFile, Entry
from sb3_ppg.objectives import OBJECTIVES
from sb3_ppg.policies.extractors import ImpalaCNN, MinAtarCNN

OURS: tuple[type, ...] = (
    *ALGORITHMS.values(),
    *(policy for algorithm in ALGORITHMS.values() for policy in algorithm.policy_aliases.values()),
    *(buffer for algorithm in ALGORITHMS.values() for buffer in algorithm.rollout_buffer_classes),
    *OBJECTIVES.values(),
    NormalizedRewardRolloutBuffer,
    NormalizedRewardDictRolloutBuffer,
    ImpalaCNN,
    MinAtarCNN,
)
OTHERS: tuple[type, ...] = (
    sb3_torch_layers.FlattenExtractor,
    sb3_torch_layers.NatureCNN,
    sb3_torch_layers.CombinedExtractor,
    nn.Tanh,
    nn.ReLU,
    nn.ELU,
    nn.LeakyReLU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Softplus,
    nn.Identity,
    th.optim.Adam,
    th.optim.AdamW,
    th.optim.RMSprop,
    th.optim.SGD,
    RMSpropTFLike,
)
# The classes that a file may name, by names that stay when modules move
CLASSES = {cls.__name__: cls for cls in (*OURS, *OTHERS)}
# The first files named classes by their modules
FORMER_MODULES = {
    "sb3_ppg.maskable",
    "sb3_ppg.policies",
    "sb3_ppg.ppg",
    "sb3_ppg.recurrent",
    "sb3_ppg.reward_normalizer",
    "sb3_ppg.policies.extractors",
    *(cls.__module__ for cls in CLASSES.values() if not cls.__module__.startswith("sb3_ppg.")),
}


def exactly(data: Any, keys: set[str], path: str) -> dict[str, Any]:
    """
    :param data: what a file has at a place
    :param keys: what has to be there
    :param path: the place
    :return: the data
    :raises ModelFormatError: if it is no dictionary of exactly these keys
    """
    if not isinstance(data, dict):
        raise ModelFormatError(f"{path}: {data!r:.200} in place of a dictionary of {sorted(keys)}")
    if data.keys() != keys:
        missing, unknown = sorted(keys - data.keys()), sorted(data.keys() - keys)
        raise ModelFormatError(f"{path}: {missing} are missing there, and {unknown} are not known")
    return data


class Encoder:
    """
    Turns values into what JSON knows; arrays and tensors are put aside.

    What JSON does not know is an object with one key that begins with "$": ``$array``, ``$tuple``, ``$float`` (infinity, NaN),
    ``$class``, ``$schedule``, ``$space``, ``$reward_normalizer``, ``$custom``.

    :param custom_objects: what the reader has to give, by name
    """

    def __init__(self, custom_objects: Mapping[str, Any] | None = None) -> None:
        self.custom_objects = dict(custom_objects or {})
        self.arrays: dict[str, th.Tensor] = {}

    def encode(self, value: Any, path: str) -> Any:
        """
        :param value: to encode
        :param path: where it was found, for names of arrays and for errors
        :return: for ``json.dumps``
        :raises ModelFormatError: if it is not plain data, nor a class of ours, nor one of the custom objects
        """
        for name, custom in self.custom_objects.items():
            if value is custom:
                return {"$custom": name}
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, (list, tuple)):
            items = [self.encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: self.encode(item, f"{path}.{key}") for key, item in value.items()}
        if isinstance(value, (np.ndarray, th.Tensor)):
            return self._encode_array(th.as_tensor(value), path)
        if isinstance(value, type) and CLASSES.get(value.__name__) is value:
            return {"$class": value.__name__}
        return self._encode_object(value, path)

    def _encode_array(self, array: th.Tensor, path: str) -> dict[str, str]:
        self.arrays[path] = array.detach().cpu().contiguous().clone()
        return {"$array": path}

    def _encode_object(self, value: Any, path: str) -> Any:
        if type(value) is FloatSchedule:
            return self.encode(value.value_schedule, path)
        if type(value) is ConstantSchedule:
            return {"$schedule": ["constant", self.encode(value.val, path)]}
        if type(value) is LinearSchedule:
            numbers = [value.start, value.end, value.end_fraction]
            return {"$schedule": ["linear", *(self.encode(number, path) for number in numbers)]}
        fields = SPACE_FIELDS.get(type(value))
        if fields is not None:
            arguments = {field: self.encode(getattr(value, field), f"{path}.{field}") for field in fields}
            if type(value) in INTEGER_SPACES and value.dtype != np.int64:
                arguments["dtype"] = np.dtype(value.dtype).name
            return {"$space": [type(value).__name__, arguments]}
        if type(value) is RewardNormalizer:
            state = {name: getattr(value, name) for name in ("gamma", "clip", "epsilon", "last_returns")}
            state |= {name: getattr(value.return_rms, name) for name in ("mean", "var", "count")}
            return {"$reward_normalizer": self.encode(state, path)}
        if type(value) is spaces.Dict:
            _check_keys(list(value), path)
            return {"$space": ["Dict", [[key, self.encode(space, f"{path}.{key}")] for key, space in value.items()]]}
        raise ModelFormatError(
            f"{path}={value!r} is not plain data and cannot be shared without pickle: name it here, custom_objects="
            f"{{{getattr(value, '__name__', type(value).__name__)!r}: ...}}, and give it again where the model is loaded"
        )


FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
MAX_DESCRIPTION_BYTES = 2**26  # of arrays that are no weights: bounds of spaces, statistics
MAX_KEYS = 1000
MAX_DIMENSIONS = 10_000  # of MultiDiscrete spaces, each of which is an object in a distribution
MAX_STATISTIC = 1e30  # whose square is still finite

# The arguments that make a space again
SPACE_FIELDS: dict[type[spaces.Space], list[str]] = {
    spaces.Box: ["low", "high"],
    spaces.Discrete: ["n", "start"],
    spaces.MultiDiscrete: ["nvec", "start"],
    spaces.MultiBinary: ["n"],
}
INTEGER_SPACES = (spaces.Discrete, spaces.MultiDiscrete)  # which say of which type their integers are, if not int64
INTEGERS = {np.dtype(kind).name for kind in np.typecodes["AllInteger"]}


class Decoder:
    """
    The way back from what ``Encoder`` wrote, or a stranger.

    :param arrays: by name, with what is known of them before they are read
    :param custom_objects: as the writer named them
    """

    def __init__(self, arrays: ArrayFile, custom_objects: Mapping[str, Any] | None = None) -> None:
        self.arrays = arrays
        self.custom_objects = dict(custom_objects or {})
        self.unread = set(arrays)
        self._bytes_left = MAX_DESCRIPTION_BYTES

    def decode(self, data: Any, path: str) -> Any:
        """
        :param data: from ``json.loads``
        :param path: where it was found, for errors
        :return: the value
        :raises ModelFormatError: if it is not what ``Encoder`` writes
        """
        if isinstance(data, list):
            return [self.decode(item, f"{path}[{index}]") for index, item in enumerate(data)]
        if not isinstance(data, dict):
            return data
        kind = next((key for key in data if key.startswith("$")), None)
        if kind is None:
            return {key: self.decode(item, f"{path}.{key}") for key, item in data.items()}
        readers: dict[str, Callable[[Any, str], Any]] = {
            "$array": self._array,
            "$tuple": lambda items, path: tuple(self.decode(items, path)),
            "$float": lambda text, _: FLOATS[text],
            "$class": self._class,
            "$schedule": self._schedule,
            "$space": self._space,
            "$reward_normalizer": self._reward_normalizer,
            "$custom": self._custom,
        }
        if len(data) != 1 or kind not in readers:
            raise ModelFormatError(f"{path}: {sorted(data)} is not known; a newer sb3_ppg may know it")
        try:
            return readers[kind](data[kind], path)
        except ModelFormatError:
            raise
        except Exception as error:  # whatever a stranger thought of
            raise ModelFormatError(f"{path}: cannot be read as {kind} ({type(error).__name__}: {error})") from error

    def expected_array(self, data: Any, path: str, like: th.Tensor) -> th.Tensor:
        """
        :param data: ``{"$array": name}``
        :param path: where it was found, for errors
        :param like: what it has the shape of, so that its size is not the file's choice, and the kind of numbers
        :return: the array, of finite numbers
        :raises ModelFormatError: if it is another one
        """
        name = exactly(data, {"$array"}, path)["$array"]
        dtype, shape, *_ = self._entry(name, path)
        same_kind = dtype == like.dtype or (dtype.is_floating_point and like.is_floating_point())
        if not same_kind or shape != tuple(like.shape):
            raise ModelFormatError(
                f"{path} is not a number for each of the parameter, {like.dtype} {tuple(like.shape)}, but {dtype} {shape}"
            )
        array = self.arrays[name]
        if not array.isfinite().all():
            raise ModelFormatError(f"{path}: not all of its numbers are finite")
        return array

    def _array(self, name: Any, path: str) -> th.Tensor:
        entry = self._entry(name, path)
        self._bytes_left -= entry.stop - entry.start
        if self._bytes_left < 0:
            raise ModelFormatError(f"{path}: what describes a model does not take more than {MAX_DESCRIPTION_BYTES} bytes")
        return self.arrays[name]

    def _entry(self, name: Any, path: str) -> Entry:
        if not isinstance(name, str) or name not in self.arrays:
            raise ModelFormatError(f"{path}: there is no array {name!r}")
        if name not in self.unread:  # nothing small may become large by naming it often
            raise ModelFormatError(f"{path}: the array {name!r} is somebody else's, too")
        self.unread.remove(name)
        return self.arrays.entries[name]

    def _class(self, name: Any, path: str) -> type:
        module, _, stable_name = name.rpartition(".") if isinstance(name, str) else ("", "", name)
        if stable_name not in CLASSES or (module and module not in FORMER_MODULES):
            raise ModelFormatError(
                f"{path}: the class {name!r} is not on the list of those that a file may name (sb3_ppg.hub.plain_data.CLASSES)"
            )
        return CLASSES[stable_name]

    def _schedule(self, data: list, path: str) -> ConstantSchedule | LinearSchedule:
        kind, *numbers = data
        if not all(map(is_number, numbers)):
            raise ModelFormatError(f"{path}: a schedule is made of numbers, not {numbers}")
        return {"constant": ConstantSchedule, "linear": LinearSchedule}[kind](*numbers)

    def _space(self, data: list, path: str) -> spaces.Space:
        kind, arguments = data
        if kind == "Dict":
            _check_keys([key for key, _ in arguments], path)
            return spaces.Dict(OrderedDict((key, self.space(space, f"{path}.{key}")) for key, space in arguments))
        cls = next(cls for cls in SPACE_FIELDS if cls.__name__ == kind)
        own_type = {"dtype"} & set(arguments) if cls in INTEGER_SPACES else set()
        fields = exactly(arguments, set(SPACE_FIELDS[cls]) | own_type, path)
        values = {key: _to_numpy(self.decode(value, f"{path}.{key}")) for key, value in fields.items()}
        if own_type and values["dtype"] not in INTEGERS:
            raise ModelFormatError(f"{path}: {values['dtype']!r:.100} is no type of integers")
        if cls is spaces.MultiDiscrete and np.size(values["nvec"]) > MAX_DIMENSIONS:
            raise ModelFormatError(
                f"{path}: it has {np.size(values['nvec'])} dimensions; more than {MAX_DIMENSIONS} are too many to be meant"
            )
        if cls is not spaces.Box:
            return cls(**values)
        if values["low"].dtype != values["high"].dtype:
            raise ModelFormatError(f"{path}: its bounds are {values['low'].dtype} and {values['high'].dtype}")
        return cls(**values, dtype=values["low"].dtype)

    def space(self, data: Any, path: str) -> spaces.Space:
        """
        :param data: from ``json.loads``
        :param path: where it was found, for errors
        :return: a space
        :raises ModelFormatError: if it is something else
        """
        space = self.decode(data, path)
        if not isinstance(space, spaces.Space):
            raise ModelFormatError(f"{path}: {space!r} is not a space")
        return space

    def _reward_normalizer(self, data: Any, path: str) -> RewardNormalizer:
        names = {"gamma", "clip", "epsilon", "last_returns", "mean", "var", "count"}
        values = {name: _to_numpy(value) for name, value in exactly(self.decode(data, path), names, path).items()}
        normalizer = RewardNormalizer(*(float(values[name]) for name in ("gamma", "clip", "epsilon")))
        returns = values["last_returns"]
        if returns is not None and not (returns.ndim == 1 and np.isfinite(returns).all()):
            raise ModelFormatError(f"{path}.last_returns: it is not a finite number for each environment")
        normalizer.last_returns = None if returns is None else returns.astype(np.float64)
        set_statistics(normalizer.return_rms, values["mean"], values["var"], values["count"], path)
        if not normalizer.return_rms.var + normalizer.epsilon > 0:
            raise ModelFormatError(f"{path}: it would divide by zero")
        return normalizer

    def _custom(self, name: Any, path: str) -> Any:
        if name not in self.custom_objects:
            raise ModelFormatError(
                f"{path} is not plain data: its author has to tell you what {name!r} is. Load the model with "
                f"custom_objects={{{name!r}: ...}}"
            )
        return self.custom_objects[name]


def set_statistics(rms: RunningMeanStd, mean: Any, var: Any, count: Any, path: str) -> None:
    """
    :param rms: gets what follows
    :param mean: of the shape that it has
    :param var: likewise
    :param count: how many samples that was
    :param path: where it was found, for errors
    :raises ModelFormatError: for shapes, types or numbers that statistics never have
    """
    is_possible = is_number(count) and 0 < count <= MAX_STATISTIC
    for array, lowest in ((mean, -MAX_STATISTIC), (var, 0.0)):
        array = np.asarray(array)
        is_possible = is_possible and array.dtype.kind == "f" and array.shape == np.shape(rms.mean)
        array = array.astype(np.float64)  # in half precision the limits would be infinite
        is_possible = is_possible and bool(np.all((array >= lowest) & (array <= MAX_STATISTIC)))
    if not is_possible:
        raise ModelFormatError(
            f"{path}: statistics of {np.shape(rms.mean)} are finite means, variances of at least 0 and a count above 0"
        )
    # As they are made: half precision would overflow with the next samples
    rms.mean, rms.var, rms.count = np.asarray(mean, dtype=np.float64), np.asarray(var, dtype=np.float64), float(count)


def _check_keys(keys: list[str], path: str) -> None:
    """
    :raises ModelFormatError: if a ``Dict`` space of these is not to be read
    """
    if len(keys) > MAX_KEYS:
        raise ModelFormatError(f"{path}: it has {len(keys)} keys; more than {MAX_KEYS} are too many to be meant")
    if not all(key.isprintable() for key in keys):  # they become names of modules
        raise ModelFormatError(f"{path}: it has keys that cannot be printed")


def _to_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, th.Tensor) else value
