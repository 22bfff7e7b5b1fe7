"""
The contents of ``model.json``. Everything that is not described here is refused, with its path. Arguments are plain data,
classes by name from a fixed list, and the reader's own objects.
"""

import math
from collections.abc import Mapping
from functools import partial
from types import CellType, FunctionType
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch as th
from gymnasium import spaces
from msgspec import Meta, Struct
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule
from torch import nn

from sb3_ppg.arguments import without_numpy
from sb3_ppg.buffers.rollout_buffers import NormalizedRewardDictRolloutBuffer, NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.errors import ModelFormatError, raised_as
from sb3_ppg.family import ALGORITHMS
from sb3_ppg.policies.extractors import ImpalaCNN, MinAtarCNN

# ---- spaces ----

MAX_NUMBERS = 2**22  # in an observation or an action; the space's bounds take memory, however short their description is
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Size = Annotated[int, Meta(ge=0, le=MAX_NUMBERS)]
Shape = Annotated[list[Size], Meta(max_length=16)]
IntegerType = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
Bound = int | float | None  # None: infinity, which msgspec writes as null
Key = Annotated[str, Meta(min_length=1, max_length=200)]


class Described(Struct, forbid_unknown_fields=True, tag_field="space", tag=True):
    """A space, by the name of its class and its arguments."""


class Box(Described):
    """``spaces.Box``; each bound is one for all numbers, or a list of one for each in C order."""

    shape: Shape
    dtype: IntegerType | Literal["float16", "float32", "float64", "bool"]
    low: Bound | list[Bound]
    high: Bound | list[Bound]


class Discrete(Described):
    """``spaces.Discrete``."""

    n: Annotated[int, Meta(ge=1, le=2**32)]
    start: Integer = 0
    dtype: IntegerType = "int64"


class MultiDiscrete(Described):
    """``spaces.MultiDiscrete``, its arrays flat; at most 1000, because a distribution makes an object for each dimension."""

    nvec: Annotated[list[Annotated[int, Meta(ge=1, le=2**32)]], Meta(min_length=1, max_length=1000)]
    start: Annotated[list[Integer], Meta(max_length=1000)]
    shape: Shape
    dtype: IntegerType = "int64"


class MultiBinary(Described):
    """``spaces.MultiBinary``."""

    n: Size | Shape


class Dict(Described):
    """``spaces.Dict``, its parts in their order."""

    parts: Annotated[dict[Key, "Space"], Meta(max_length=1000)]


class Tuple(Described):
    """``spaces.Tuple``."""

    parts: Annotated[list["Space"], Meta(max_length=1000)]


Space = Box | Discrete | MultiDiscrete | MultiBinary | Dict | Tuple


def make_space(described: Space) -> Any:
    """Make a described space, unless it is too large."""
    if (size := _size(described)) > MAX_NUMBERS:
        raise ModelFormatError(f"a space has more than {MAX_NUMBERS} numbers: {size}")
    match described:
        case Box(shape, dtype, low, high):
            bounds = (_bound(low, -math.inf, shape, dtype), _bound(high, math.inf, shape, dtype))
            return spaces.Box(*bounds, dtype=np.dtype(dtype).type)
        case Discrete(n, start, dtype):
            return spaces.Discrete(n, start=start, dtype=np.dtype(dtype).type)
        case MultiDiscrete(nvec, start, shape, dtype):
            return spaces.MultiDiscrete(np.reshape(nvec, shape), dtype=np.dtype(dtype).type, start=np.reshape(start, shape))
        case MultiBinary(n):
            return spaces.MultiBinary(n)
        case Tuple(parts):
            return spaces.Tuple([make_space(part) for part in parts])
    if not all(key.isprintable() for key in described.parts):  # they become names of modules
        raise ModelFormatError("a Dict space has keys that cannot be printed")
    return spaces.Dict([(key, make_space(part)) for key, part in described.parts.items()])


def _bound(numbers: Any, infinite: float, shape: list[int], dtype: str) -> np.ndarray:
    """Return a bound of each number of a Box."""
    if not isinstance(numbers, list):
        return np.full(shape, infinite if numbers is None else numbers, dtype)
    return np.array([infinite if number is None else number for number in numbers], dtype).reshape(shape)


def _size(described: Space) -> int:
    """Return how many numbers an element of the space has."""
    match described:
        case Box(shape=list(shape)) | MultiDiscrete(shape=list(shape)) | MultiBinary(n=list(shape)):
            return math.prod(shape)
        case MultiBinary(n=int(n)):
            return n
        case Dict(parts):
            return sum(map(_size, parts.values()))
        case Tuple(parts):
            return sum(map(_size, parts))
    return 1


def space_struct(space: spaces.Space, path: str) -> Any:
    """Return the struct that describes a space, for ``make_space``. Errors name the path."""
    dtype: Any = np.dtype(space.dtype).name
    match space:
        case spaces.Box():
            return Box(list(space.shape), dtype, _bound_numbers(space.low), _bound_numbers(space.high))
        case spaces.Discrete():
            return Discrete(int(space.n), int(space.start), dtype)
        case spaces.MultiDiscrete():
            return MultiDiscrete(space.nvec.ravel().tolist(), space.start.ravel().tolist(), list(space.shape), dtype)
        case spaces.MultiBinary():
            return MultiBinary(list(space.n) if isinstance(space.n, tuple) else int(space.n))
        case spaces.Dict() if all(isinstance(key, str) for key in space):
            return Dict({key: space_struct(part, f"{path}.{key}") for key, part in space.items()})
        case spaces.Tuple():
            return Tuple([space_struct(part, f"{path}.{index}") for index, part in enumerate(space)])
    raise ModelFormatError(f"{path}={space} cannot be shared: use one of SB3's spaces, and texts as keys of a Dict")


def _bound_numbers(bound: np.ndarray) -> Any:
    numbers = (bound.astype(np.uint8) if bound.dtype == bool else bound).ravel().tolist()
    return numbers[0] if len(set(numbers)) == 1 else numbers


# ---- models ----

Name = Annotated[str, Meta(max_length=200)]
Version = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z.+-]{1,64}\Z")]
MAX_COUNT = 2**53
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Limit = NotNegative | None  # None: infinity, which msgspec writes as null
Fraction = Annotated[float, Meta(ge=0, le=1)]
Statistic = Annotated[float, Meta(ge=-1e15, le=1e15)]

Scalar = None | bool | Integer | Annotated[float, Meta(ge=-1e38, le=1e38)] | str  # numbers that float32 can hold
Plain: Any = Scalar  # lists and dictionaries of scalars, nested at most ten times
for _ in range(10):
    Plain = Scalar | list[Plain] | dict[Name, Plain]


class Counters(Struct, forbid_unknown_fields=True):
    """Progress of the run, by the names of the model's attributes."""

    num_timesteps: Count
    _total_timesteps: Count
    _num_timesteps_at_start: Count
    _current_progress_remaining: Fraction
    _episode_num: Count
    _n_updates: Count
    _n_aux_phases: Count
    _n_rollouts: Count
    _warmup_end: Count = 0


class Normalization(Struct, forbid_unknown_fields=True):
    """Arguments of ``VecNormalize``, and the space of the observations that it normalizes."""

    observation_space: Space
    training: bool
    norm_obs: bool
    norm_reward: bool
    clip_obs: Limit
    clip_reward: Limit
    gamma: Fraction
    epsilon: NotNegative
    norm_obs_keys: list[Name] | None


class RewardStatistics(Struct, forbid_unknown_fields=True):
    """State of a ``RewardNormalizer``."""

    gamma: Fraction
    clip: Limit
    epsilon: NotNegative
    mean: Statistic | list[Statistic]  # for vector rewards a list, with one number for each component
    var: Positive | list[Positive]
    count: Positive
    last_returns: list[Statistic | list[Statistic]] | None  # one for each environment


SCHEMA_VERSION: Literal[1] = 1


class Header(Struct):
    """The part of a description that every version has."""

    schema_version: int
    versions: dict[Name, Version]  # of the packages that wrote it


class Description(Struct, forbid_unknown_fields=True):
    """A model without its arrays."""

    format: Literal["sb3_ppg"]
    schema_version: Literal[1]
    versions: dict[Name, Version]
    algorithm: Plain  # this and the next two as `encode` returns them
    policy: Plain
    arguments: dict[Name, Plain]
    observation_space: Space
    action_space: Space
    n_envs: Annotated[int, Meta(ge=1, le=2**16)]
    counters: Counters
    vec_normalize: Normalization | None  # None: its environments were not in `VecNormalize`
    missing_rollouts: tuple[Count, Count] = (0, 0)  # numbers in the phase and in the replay, not in the files


class Bounded(Struct):
    """Arguments that memory, files or generators depend on before the algorithm checks them."""

    n_steps: Annotated[int, Meta(ge=1, le=10**7)] = 1
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    policy_kwargs: dict[str, Any] | None = None


# ---- arguments ----

ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.ELU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Softplus, nn.Identity)
LISTED: tuple[type, ...] = (
    *ALGORITHMS.values(),
    *(policy for algorithm in ALGORITHMS.values() for policy in algorithm.policy_aliases.values()),
    *(buffer for algorithm in ALGORITHMS.values() for buffer in algorithm.rollout_buffer_classes),
    *(NormalizedRewardRolloutBuffer, NormalizedRewardDictRolloutBuffer),
    *(ImpalaCNN, MinAtarCNN, FlattenExtractor, NatureCNN, CombinedExtractor),
    *ACTIVATIONS,
    *(th.optim.Adam, th.optim.AdamW, th.optim.RMSprop, th.optim.SGD, RMSpropTFLike),
)
CLASSES = {cls.__name__: cls for cls in LISTED}  # that a file may name


def encode(value: Any, path: str, custom_objects: Mapping[str, Any]) -> Any:
    """
    Encode a value for JSON. Types that JSON lacks become a dictionary with one key: "$class", "$custom", "$tuple", "$items" (a
    dictionary whose keys are not all texts), "$linear" (a schedule) or "$reward_normalizer". Errors name the path.
    """
    # Equal numbers and texts may be one object, and are no objects of the caller's
    if type(value) not in (type(None), bool, int, float, str) and (name := _given_name(value, custom_objects)) is not None:
        return {"$custom": name}
    value = without_numpy(value)
    match value:
        case None | bool() | int() | float() | str():
            with raised_as(ModelFormatError, f"{path}={value!r} cannot be shared"):
                return msgspec.convert(value, Scalar)
        case list() | tuple():
            items = [encode(item, f"{path}[{index}]", custom_objects) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(item, f"{path}.{key}", custom_objects) for key, item in value.items()}
        case dict():
            pairs = [(encode(key, path, custom_objects), item, f"{path}[{key!r}]") for key, item in value.items()]
            return {"$items": [[key, encode(item, place, custom_objects)] for key, item, place in pairs]}
        case FloatSchedule() | ConstantSchedule() if type(value) in (FloatSchedule, ConstantSchedule):  # no subclasses
            return encode(getattr(value, "value_schedule", getattr(value, "val", None)), path, custom_objects)
        case type() if CLASSES.get(value.__name__) is value:
            return {"$class": value.__name__}
        case LinearSchedule() if type(value) is LinearSchedule:
            return {"$linear": [float(number) for number in (value.start, value.end, value.end_fraction)]}
        case RewardNormalizer() if type(value) is RewardNormalizer:
            state = {**vars(value), **vars(value.return_rms)}
            return {"$reward_normalizer": {name: without_numpy(state[name]) for name in RewardStatistics.__struct_fields__}}
    raise ModelFormatError(
        f"{path}={value!r} is not plain data and cannot be shared without pickle: name the model's object here, "
        f"custom_objects={{{getattr(value, '__name__', type(value).__name__)!r}: ...}}, and give it again where the model is "
        "loaded, both in Python (hub.push, hub.load)"
    )


def _given_name(value: Any, custom_objects: Mapping[str, Any]) -> str | None:
    """
    Return an object's name in ``custom_objects``, or None. SB3's zip files hold copies of a script's classes and functions, so
    these are recognized by module and name, functions also by ``partial``'s arguments and the variables that they enclose.
    """

    def identity(thing: Any) -> Any:
        if isinstance(thing, partial):
            return identity(thing.func), repr(thing.args), repr(thing.keywords)
        if not isinstance(thing, type | FunctionType) or "<lambda>" in thing.__qualname__:
            return id(thing)
        cells = () if isinstance(thing, type) else thing.__closure__ or ()
        variables = [cell.cell_contents for cell in cells if cell != CellType()]  # which has no contents
        return thing.__module__, thing.__qualname__, repr(variables)

    return next((name for name, custom in custom_objects.items() if identity(custom) == identity(value)), None)


def decode(value: Any, path: str, custom_objects: Mapping[str, Any]) -> Any:
    """Decode a result of ``encode``, or what a stranger wrote. Nothing is imported or evaluated."""
    if isinstance(value, list):
        return [decode(item, f"{path}[{index}]", custom_objects) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if not any(key.startswith("$") for key in value):
        return {key: decode(item, f"{path}.{key}", custom_objects) for key, item in value.items()}
    with raised_as(ModelFormatError, path):
        match list(value.items()):
            case [("$class", str(name))] if name in CLASSES:
                return CLASSES[name]
            case [("$custom", str(name))] if name in custom_objects:
                return custom_objects[name]
            case [("$custom", name)]:
                raise ModelFormatError(
                    f"{path} is not plain data: its author must tell you what {name!r} is. Load the model in Python, with "
                    f"custom_objects={{{name!r}: ...}}"
                )
            case [("$tuple" | "$items" as kind, list(items))]:
                return (tuple if kind == "$tuple" else dict)(decode(items, path, custom_objects))
            case [("$linear", numbers)]:
                return LinearSchedule(*msgspec.convert(numbers, tuple[float, float, Fraction]))
            case [("$reward_normalizer", state)]:
                saved = msgspec.convert(state, RewardStatistics)
                normalizer = RewardNormalizer(saved.gamma, math.inf if saved.clip is None else saved.clip, saved.epsilon)
                rms = normalizer.return_rms
                rms.mean, rms.var, rms.count = np.array(saved.mean), np.array(saved.var), saved.count
                normalizer.last_returns = (
                    None if saved.last_returns is None else np.array(saved.last_returns, dtype=np.float64)
                )
                return normalizer
    raise ModelFormatError(f"{path}: {value!r:.200} is not on the list of what a file may name; a newer sb3_ppg may know it")
