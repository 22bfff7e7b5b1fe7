"""The contents of ``model.json``. Everything that is not described here is refused, with its path."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from sb3_ppg.hub.spaces import Integer, Space

Name = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[float, Meta(gt=0)]
Limit = Positive | None  # None: infinity
Fraction = Annotated[float, Meta(ge=0, le=1)]
Statistic = Annotated[float, Meta(ge=-1e15, le=1e15)]

Scalar = None | bool | Integer | Annotated[float, Meta(ge=-1e38, le=1e38)] | str  # numbers that float32 has, too
Plain: Any = Scalar  # lists and dictionaries of scalars; recursion ends here, whatever Python's recursion limit
for _ in range(8):
    Plain = Scalar | list[Plain] | dict[Name, Plain]


class Counters(Struct, forbid_unknown_fields=True):
    """Progress of the training, by the names of the model's attributes."""

    num_timesteps: Count
    _total_timesteps: Count
    _num_timesteps_at_start: Count
    _current_progress_remaining: Fraction
    _episode_num: Count
    _n_updates: Count
    _n_aux_phases: Count
    _n_rollouts: Count


class Normalization(Struct, forbid_unknown_fields=True):
    """Settings of ``VecNormalize`` by its arguments, and the observations that it is for."""

    observation_space: Space
    training: bool
    norm_obs: bool
    norm_reward: bool
    clip_obs: Limit
    clip_reward: Limit
    gamma: Fraction
    epsilon: Positive
    norm_obs_keys: list[Name] | None


class RewardStatistics(Struct, forbid_unknown_fields=True):
    """The state of a ``RewardNormalizer``."""

    gamma: Fraction
    clip: Limit
    epsilon: Annotated[float, Meta(ge=0)]
    mean: Statistic | list[Statistic]  # a list for vector rewards, with one number for each component
    var: Positive | list[Positive]
    count: Positive
    last_returns: list[Statistic | list[Statistic]] | None  # one for each environment


class Description(Struct, forbid_unknown_fields=True):
    """
    A model, apart from its arrays.

    :param versions: of the packages that wrote it
    :param algorithm: its class, as ``hub.values`` encodes it
    :param policy: the class of its policy, encoded in the same way
    :param arguments: arguments of the algorithm's constructor, encoded in the same way
    :param vec_normalize: None if its environments were not in ``VecNormalize``
    """

    format: Literal["sb3_ppg"]
    schema_version: Literal[1]
    versions: dict[Name, Name]
    algorithm: Plain
    policy: Plain
    arguments: dict[Name, Plain]
    observation_space: Space
    action_space: Space
    n_envs: Annotated[int, Meta(ge=1, le=2**24)]
    counters: Counters
    vec_normalize: Normalization | None


class Bounded(Struct):
    """Arguments on which memory, files or generators depend before anything else has checked them."""

    n_steps: Annotated[int, Meta(ge=1, le=10**7)] = 1
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    policy_kwargs: dict[str, Any] | None = None
    aux_buffer_kwargs: "AuxiliaryBuffer | None" = None


class AuxiliaryBuffer(Struct, forbid_unknown_fields=True):
    """Arguments of ``AuxBuffer`` that a file may choose: not where it keeps rollouts."""

    capacity: Annotated[int, Meta(ge=1, le=2**31)] | None = None
