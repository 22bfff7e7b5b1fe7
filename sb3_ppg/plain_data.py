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
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_ppg.ppg import PPG
from sb3_ppg.recurrent import RecurrentPPG
from sb3_ppg.reward_normalizer import (
    NormalizedRewardDictRolloutBuffer,
    NormalizedRewardRolloutBuffer,
    RewardNormalizer,
)
from sb3_ppg.torch_layers import ImpalaCNN

_CLASSES: tuple[type, ...] = (
    *(PPG, MlpPolicy, CnnPolicy, MultiInputPolicy, ImpalaCNN),
    *(MaskablePPG, RecurrentPPG, *MaskablePPG.policy_aliases.values(), *RecurrentPPG.policy_aliases.values()),  # type: ignore[arg-type]
    *(*MaskablePPG.rollout_buffer_classes, *RecurrentPPG.rollout_buffer_classes),
    *(sb3_torch_layers.FlattenExtractor, sb3_torch_layers.NatureCNN, sb3_torch_layers.CombinedExtractor),
    *(RolloutBuffer, DictRolloutBuffer, NormalizedRewardRolloutBuffer, NormalizedRewardDictRolloutBuffer),
    *(nn.Tanh, nn.ReLU, nn.ELU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Softplus, nn.Identity),
    *(th.optim.Adam, th.optim.AdamW, th.optim.RMSprop, th.optim.SGD, RMSpropTFLike),
)
# The classes that a file may name
CLASSES = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in _CLASSES}


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
        if isinstance(value, type) and CLASSES.get(f"{value.__module__}.{value.__qualname__}") is value:
            return {"$class": f"{value.__module__}.{value.__qualname__}"}
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
            return {"$space": [type(value).__name__, arguments]}
        if type(value) is RewardNormalizer:
            state = {name: getattr(value, name) for name in ("gamma", "clip", "epsilon", "last_returns")}
            state |= {name: getattr(value.return_rms, name) for name in ("mean", "var", "count")}
            return {"$reward_normalizer": self.encode(state, path)}
        if type(value) is spaces.Dict:
            return {"$space": ["Dict", [[key, self.encode(space, f"{path}.{key}")] for key, space in value.items()]]}
        raise ModelFormatError(
            f"{path}={value!r} is not plain data and cannot be shared without pickle: name it here, custom_objects="
            f"{{{getattr(value, '__name__', type(value).__name__)!r}: ...}}, and give it again where the model is loaded"
        )


# The arguments that make a space again
SPACE_FIELDS: dict[type[spaces.Space], list[str]] = {
    spaces.Box: ["low", "high"],
    spaces.Discrete: ["n", "start"],
    spaces.MultiDiscrete: ["nvec", "start"],
    spaces.MultiBinary: ["n"],
}


class Decoder:
    """
    The way back from what ``Encoder`` wrote, or a stranger.

    :param arrays: by name
    :param custom_objects: as the writer named them
    """

    def __init__(self, arrays: Mapping[str, th.Tensor], custom_objects: Mapping[str, Any] | None = None) -> None:
        self.arrays = arrays
        self.custom_objects = dict(custom_objects or {})
        self.unread = set(arrays)

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
            "$float": lambda text, _: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[text],
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

    def _array(self, name: Any, path: str) -> th.Tensor:
        if name not in self.arrays:
            raise ModelFormatError(f"{path}: there is no array {name!r}")
        if name not in self.unread:  # nothing small may become large by naming it often
            raise ModelFormatError(f"{path}: the array {name!r} is somebody else's, too")
        self.unread.remove(name)
        return self.arrays[name]

    def _class(self, name: Any, path: str) -> type:
        if name not in CLASSES:
            raise ModelFormatError(
                f"{path}: the class {name!r} is not on the list of those that a file may name (sb3_ppg.plain_data.CLASSES)"
            )
        return CLASSES[name]

    def _schedule(self, data: list, path: str) -> ConstantSchedule | LinearSchedule:
        kind, *numbers = data
        if not all(isinstance(number, (int, float)) for number in numbers):
            raise ModelFormatError(f"{path}: a schedule is made of numbers, not {numbers}")
        return {"constant": ConstantSchedule, "linear": LinearSchedule}[kind](*numbers)

    def _space(self, data: list, path: str) -> spaces.Space:
        kind, arguments = data
        if kind == "Dict":
            return spaces.Dict(OrderedDict((key, self._subspace(space, f"{path}.{key}")) for key, space in arguments))
        cls = next(cls for cls in SPACE_FIELDS if cls.__name__ == kind)
        if set(arguments) != set(SPACE_FIELDS[cls]):
            raise ModelFormatError(f"{path}: {kind} is made of {SPACE_FIELDS[cls]}, not {sorted(arguments)}")
        values = {key: _to_numpy(self.decode(value, f"{path}.{key}")) for key, value in arguments.items()}
        return cls(**values, dtype=values["low"].dtype) if cls is spaces.Box else cls(**values)

    def _subspace(self, data: Any, path: str) -> spaces.Space:
        space = self.decode(data, path)
        if not isinstance(space, spaces.Space):
            raise ModelFormatError(f"{path}: {space!r} is not a space")
        return space

    def _reward_normalizer(self, data: Any, path: str) -> RewardNormalizer:
        values = {name: _to_numpy(value) for name, value in self.decode(data, path).items()}
        normalizer = RewardNormalizer(*(float(values[name]) for name in ("gamma", "clip", "epsilon")))
        normalizer.last_returns = values["last_returns"]
        rms = normalizer.return_rms
        rms.mean, rms.var, rms.count = np.asarray(values["mean"]), np.asarray(values["var"]), float(values["count"])
        return normalizer

    def _custom(self, name: Any, path: str) -> Any:
        if name not in self.custom_objects:
            raise ModelFormatError(
                f"{path} is not plain data: its author has to tell you what {name!r} is. Load the model with "
                f"custom_objects={{{name!r}: ...}}"
            )
        return self.custom_objects[name]


def _to_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, th.Tensor) else value
