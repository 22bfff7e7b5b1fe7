"""Arguments as plain data: classes by name from a fixed list, and the reader's own objects."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn

from sb3_ppg.arguments import without_numpy
from sb3_ppg.buffers.reward_normalizer import (
    NormalizedRewardDictRolloutBuffer,
    NormalizedRewardRolloutBuffer,
    RewardNormalizer,
)
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.family import ALGORITHMS
from sb3_ppg.hub.safety import check_statistics
from sb3_ppg.hub.schema import Fraction, RewardStatistics
from sb3_ppg.policies.extractors import ImpalaCNN, MinAtarCNN

MODELS: tuple[type, ...] = (
    *ALGORITHMS.values(),
    *(policy for algorithm in ALGORITHMS.values() for policy in algorithm.policy_aliases.values()),
    *(buffer for algorithm in ALGORITHMS.values() for buffer in algorithm.rollout_buffer_classes),
    *(NormalizedRewardRolloutBuffer, NormalizedRewardDictRolloutBuffer),
)
EXTRACTORS: tuple[type, ...] = (ImpalaCNN, MinAtarCNN, FlattenExtractor, NatureCNN, CombinedExtractor)
ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.ELU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Softplus, nn.Identity)
OPTIMIZERS: tuple[type, ...] = (th.optim.Adam, th.optim.AdamW, th.optim.RMSprop, th.optim.SGD, RMSpropTFLike)
# The classes that a file may name
CLASSES: dict[str, type] = {cls.__name__: cls for cls in (*MODELS, *EXTRACTORS, *ACTIVATIONS, *OPTIMIZERS)}


def encode(value: Any, path: str, custom_objects: Mapping[str, Any]) -> Any:
    """
    Encode a value for JSON. What JSON does not have is a dictionary with one key: "$class", "$custom", "$tuple", "$linear"
    (a schedule) or "$reward_normalizer".

    :param value: to encode
    :param path: where it was found, for errors
    :param custom_objects: objects that the reader has to give, by name
    :return: plain data
    :raises ModelFormatError: if it is neither plain data, nor one of ``CLASSES``, nor one of the custom objects
    """
    for name, custom in custom_objects.items():
        if value is custom:
            return {"$custom": name}
    value = without_numpy(value)
    match value:
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            items = [encode(item, f"{path}[{index}]", custom_objects) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(item, f"{path}.{key}", custom_objects) for key, item in value.items()}
        case FloatSchedule():
            return encode(value.value_schedule, path, custom_objects)
        case ConstantSchedule():
            return encode(value.val, path, custom_objects)
    return _encode_object(value, path)


def _encode_object(value: Any, path: str) -> dict[str, Any]:
    match value:
        case type() if CLASSES.get(value.__name__) is value:
            return {"$class": value.__name__}
        case LinearSchedule():
            return {"$linear": [float(number) for number in (value.start, value.end, value.end_fraction)]}
        case RewardNormalizer():
            return {"$reward_normalizer": msgspec.to_builtins(_describe_reward_normalizer(value))}
    raise ModelFormatError(
        f"{path}={value!r} is not plain data and cannot be shared without pickle: name it here, custom_objects="
        f"{{{getattr(value, '__name__', type(value).__name__)!r}: ...}}, and give it again where the model is loaded"
    )


def decode(value: Any, path: str, custom_objects: Mapping[str, Any]) -> Any:
    """
    Decode what ``encode`` returned, or what a stranger wrote. Nothing is imported or evaluated.

    :param value: plain data
    :param path: where it was found, for errors
    :param custom_objects: the caller's objects, as the author named them
    :return: the value
    :raises ModelFormatError: if it is not what ``encode`` returns, or names an object that was not given
    """
    if isinstance(value, list):
        return [decode(item, f"{path}[{index}]", custom_objects) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if not any(key.startswith("$") for key in value):
        return {key: decode(item, f"{path}.{key}", custom_objects) for key, item in value.items()}
    return _decode_object(value, path, custom_objects)


def _decode_object(value: dict[str, Any], path: str, custom_objects: Mapping[str, Any]) -> Any:
    match list(value.items()):
        case [("$class", str(name))] if name in CLASSES:
            return CLASSES[name]
        case [("$class", name)]:
            raise ModelFormatError(f"{path}: the class {name!r} is not on the list of those that a file may name")
        case [("$custom", str(name))] if name in custom_objects:
            return custom_objects[name]
        case [("$custom", name)]:
            raise ModelFormatError(
                f"{path} is not plain data: its author has to tell you what {name!r} is. Load the model with "
                f"custom_objects={{{name!r}: ...}}"
            )
        case [("$tuple", list(items))]:
            return tuple(decode(items, path, custom_objects))
        case [("$linear", numbers)]:
            return LinearSchedule(*msgspec.convert(numbers, tuple[float, float, Fraction]))
        case [("$reward_normalizer", state)]:
            return _make_reward_normalizer(msgspec.convert(state, RewardStatistics))
    raise ModelFormatError(f"{path}: {value!r:.200} is not known; a newer sb3_ppg may know it")


def _describe_reward_normalizer(normalizer: RewardNormalizer) -> RewardStatistics:
    rms, returns = normalizer.return_rms, normalizer.last_returns
    return RewardStatistics(
        gamma=float(normalizer.gamma),
        clip=float(normalizer.clip) if math.isfinite(normalizer.clip) else None,
        epsilon=float(normalizer.epsilon),
        mean=np.asarray(rms.mean, dtype=np.float64).tolist(),  # a list for vector rewards
        var=np.asarray(rms.var, dtype=np.float64).tolist(),
        count=float(rms.count),
        last_returns=None if returns is None else returns.tolist(),
    )


def _make_reward_normalizer(state: RewardStatistics) -> RewardNormalizer:
    normalizer = RewardNormalizer(state.gamma, math.inf if state.clip is None else state.clip, state.epsilon)
    normalizer.return_rms.mean, normalizer.return_rms.var = np.array(state.mean), np.array(state.var)
    normalizer.return_rms.count = state.count
    check_statistics(normalizer.return_rms, "reward_normalizer")
    normalizer.last_returns = None if state.last_returns is None else np.array(state.last_returns, dtype=np.float64)
    return normalizer
