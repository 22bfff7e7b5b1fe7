"""Arguments of ``PPG`` that cannot work are refused before they have cost an hour."""

import inspect
import math
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from gymnasium import spaces

from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.checks import is_count, is_number, is_number_or_schedule
from sb3_ppg.distributed.collectives import n_processes
from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.extras import missing_extras_named
from sb3_ppg.model import PhasicModel
from sb3_ppg.optim.micro_batches import looks_at_the_batch
from sb3_ppg.policies import PhasicActorCriticPolicy

REPLAY_ARGUMENTS = tuple(inspect.signature(RolloutReplay).parameters)
Constructor = TypeVar("Constructor", bound=Callable[..., None])


def arguments_explained(constructor: Constructor) -> Constructor:
    """
    :param constructor: ``PPG.__init__``
    :return: the same, but that it names what is nearest to an argument that it does not have, and the extra of this package
        that an environment needs
    """
    known = inspect.signature(constructor).parameters

    @wraps(constructor)
    def explaining(self: PhasicModel, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - known.keys():
            there = (argument for argument in argument_names(type(self)) if not argument.startswith("_"))
            raise TypeError(f"{type(self).__name__} has no argument `{name}`{nearest(name, there)}")
        with missing_extras_named():
            constructor(self, *args, **kwargs)

    return cast(Constructor, explaining)


# What the values of some arguments have to be, and how to say it
RULES: list[tuple[tuple[str, ...], Callable[[Any], bool], str]] = [
    (
        ("n_steps", "batch_size", "n_epochs", "n_policy_iterations", "_stats_window_size"),
        is_count,
        "use an integer of at least 1",
    ),
    (
        ("n_value_epochs", "aux_batch_size"),
        lambda value: value is None or is_count(value),
        "use an integer of at least 1, or None",
    ),
    (
        ("micro_batch_size",),
        lambda value: value in (None, "auto") or is_count(value),
        'use an integer of at least 1, "auto", or None for whole minibatches',
    ),
    (("mixed_precision",), lambda value: value in (None, "bf16", "tf32"), 'use "bf16", "tf32", or None for float32'),
    (("n_aux_epochs",), lambda value: is_count(value, at_least=0), "use an integer of at least 0"),
    (("sde_sample_freq",), lambda value: is_count(value, at_least=-1), "use an integer of at least 1, or -1 or 0 for never"),
    (("gamma", "gae_lambda"), lambda value: is_number(value) and 0 <= value <= 1, "use a number in [0, 1]"),
    (("ent_coef",), is_number, "use a finite number"),
    (
        ("beta_clone", "kl_coef", "vf_coef"),
        lambda value: is_number(value) and value >= 0,
        "use a finite number of at least 0",
    ),
    (
        ("max_grad_norm", "target_kl"),
        lambda value: value is None or (is_number(value) and value > 0),
        "use a finite number above 0, or None to do without",
    ),
    (
        ("clip_range", "clip_range_vf"),
        lambda value: value is None or is_number_or_schedule(value, lambda start: start > 0),
        "use a finite number above 0, a schedule that starts with one, or None to do without",
    ),
    (
        ("learning_rate",),
        lambda value: is_number_or_schedule(value, lambda start: start >= 0),
        "use a finite number of at least 0, or a schedule that starts with one",
    ),
    (
        ("aux_learning_rate",),
        lambda value: value is None or is_number_or_schedule(value, lambda start: start >= 0),
        "use a finite number of at least 0, a schedule that starts with one, or None for that of the policy phase",
    ),
    (
        ("normalize_value_targets",),
        lambda value: value == "running" or isinstance(value, (bool, np.bool_)),
        'use True, False, or "running"',
    ),
    (
        ("normalize_advantage", "recompute_advantages", "use_sde"),
        lambda value: isinstance(value, (bool, np.bool_)),
        "use True or False",
    ),
    (
        ("aux_buffer_kwargs",),
        lambda value: value is None or (isinstance(value, dict) and value.keys() <= {"storage", "path", "capacity"}),
        'use a dictionary with "storage", "path" and "capacity", or None',
    ),
    (("objective_kwargs",), lambda value: value is None or isinstance(value, dict), "use a dictionary, or None"),
    (
        ("replay_kwargs",),
        lambda value: value is None or (isinstance(value, dict) and value.keys() <= set(REPLAY_ARGUMENTS)),
        f"use a dictionary with {', '.join(REPLAY_ARGUMENTS)}, or None",
    ),
    (("rollout_buffer_kwargs", "policy_kwargs"), lambda value: isinstance(value, dict), "use a dictionary, or None"),
]


def argument_names(cls: type[PhasicModel]) -> list[str]:
    """
    :param cls: PPG, or a class derived from it
    :return: the names of the constructor's arguments, also of those that a subclass passes on as ``**kwargs``
    """
    parameters = [
        parameter
        for ancestor in cls.__mro__
        if "__init__" in vars(ancestor) and ancestor.__module__.split(".")[0] not in ("stable_baselines3", "builtins")
        for parameter in inspect.signature(vars(ancestor)["__init__"]).parameters.values()
    ]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = dict.fromkeys(parameter.name for parameter in parameters if parameter.kind not in variable)
    return [name for name in names if name != "self"]


def argument_value(model: PhasicModel, argument: str) -> Any:
    """
    :param model: any
    :param argument: the name of a constructor's argument
    :return: its value, as it may be given to the constructor
    """
    return getattr(model, "objective_class" if argument == "objective" else argument, None)


def require(model: PhasicModel, condition: bool, argument: str, remedy: str) -> None:
    """
    :param model: whose argument it is
    :param condition: without which it cannot work
    :param argument: its name
    :param remedy: what to do
    :raises ArgumentError: with the argument, its value and the remedy
    """
    if not condition:
        raise ArgumentError(f"`{argument.lstrip('_')}`={argument_value(model, argument)!r} cannot work: {remedy}")


def check_policy_class(policy: Any, algorithm: type[PhasicModel]) -> None:
    """
    :param policy: what was given for ``policy``
    :param algorithm: PPG or a variant, which names its policies
    :raises ArgumentError: if it is neither a name nor a class with an auxiliary value head, or one for another variant
    """
    names = ", ".join(map(repr, algorithm.policy_aliases))
    base = next(iter(algorithm.policy_aliases.values()))
    if isinstance(policy, str):
        if policy not in algorithm.policy_aliases:
            raise ArgumentError(f"`policy`={policy!r} is unknown to {algorithm.__name__}: use one of {names}")
        return
    remedy = f"use one of {names}, or derive your class from {base.__module__}.{base.__name__}"
    if not isinstance(policy, type) or not issubclass(policy, PhasicActorCriticPolicy):
        raise ArgumentError(f"`policy`={getattr(policy, '__name__', policy)} has no auxiliary value head: {remedy}")
    if not issubclass(policy, base) or policy.algorithm not in [cls.__name__ for cls in algorithm.__mro__]:
        raise ArgumentError(f"`policy`={policy.__name__} is for {policy.algorithm}, not for {algorithm.__name__}: {remedy}")


def check_arguments(model: PhasicModel) -> None:
    """
    :param model: with its environment
    :raises ArgumentError: with the argument, its value and the remedy
    """
    for arguments, is_allowed, remedy in RULES:
        for argument in arguments:
            require(model, is_allowed(getattr(model, argument)), argument, remedy)
    require(
        model,
        model.clip_range is not None or model.kl_coef > 0,
        "clip_range",
        "nothing would hold the policy near the one that collected the data; set `kl_coef` above 0, or a clip range",
    )
    require(
        model,
        not model.use_sde or isinstance(model.action_space, spaces.Box),
        "use_sde",
        f"gSDE is for continuous actions (Box), these are {model.action_space}; leave it False",
    )
    rollout_size = model.n_steps * model.n_envs
    require(
        model,
        rollout_size > 1 or not model.normalize_advantage,
        "n_steps",
        "the advantage of one sample alone is normalised to zero; use more steps, or normalize_advantage=False",
    )


def warn_of_truncated_minibatches(model: PhasicModel) -> None:
    """
    :param model: with its environment
    """
    rollout_size = model.n_steps * model.n_envs
    if rollout_size % model.batch_size > 0:
        warnings.warn(
            f"You have specified a mini-batch size of {model.batch_size}, but because the rollout has "
            f"`n_steps * n_envs = {rollout_size}` samples, there will be a truncated mini-batch of size "
            f"{rollout_size % model.batch_size}. We recommend a `batch_size` that is a factor of `n_steps * n_envs`.",
            stacklevel=4,
        )


def warn_of_learning_rates(model: PhasicModel) -> None:
    """
    :param model: with its environment
    """
    for name in ("learning_rate", "aux_learning_rate"):
        value = getattr(model, name)
        rate = value(1.0) if callable(value) else value
        if rate is not None and rate > 1:
            warnings.warn(
                f"`{name}`={rate:g} is above 1, which ruins any network. Is it meant for another argument? PPG takes those of "
                "PPO in PPO's order, and its own by keyword only",
                stacklevel=4,
            )


def tell_of_phases(model: PhasicModel, total_timesteps: int) -> None:
    """
    Say how many phases a training has, and warn if it has none.

    :param model: before ``learn``
    :param total_timesteps: the budget of this call, perhaps infinite
    """
    if model.n_aux_epochs == 0 or math.isinf(total_timesteps):  # until a callback ends it
        return
    n_envs = model.n_envs * n_processes()
    per_rollout = model.n_steps * n_envs
    phase = per_rollout * model.n_policy_iterations
    n_phases = (math.ceil(total_timesteps / per_rollout) + model.aux_buffer.n_new) // model.n_policy_iterations
    if model.verbose >= 1:
        print(f"One phase = {phase:,} steps, {n_phases} phase{'s' * (n_phases != 1)} in this budget of {total_timesteps:,.0f}")
    if n_phases == 0 and model.aux_buffer.n_new == 0 and model._n_aux_phases == 0:
        warnings.warn(
            f"A budget of {total_timesteps:,.0f} steps ends before the first auxiliary phase, so there is nothing but PPO's "
            f"updates: one phase is n_steps * n_envs * n_policy_iterations = {model.n_steps} * {n_envs} * "
            f"{model.n_policy_iterations} = {phase:,} steps. Use smaller ones, so that at least three phases fit, or "
            "`n_aux_epochs=0` for PPO; or call `learn` again, which goes on with the phase",
            stacklevel=5,
        )


def check_policy(model: PhasicModel) -> None:
    """
    :param model: with its policy
    :raises ArgumentError: if a policy of the user's has value heads whose units cannot be changed, but they would be; if
        there is nothing to compute in bfloat16, but it was asked for; if CUDA graphs or batch normalisation meet micro-batches
    """
    require(
        model,
        not isinstance(model.micro_batch_size, int) or not looks_at_the_batch(model.policy),
        "micro_batch_size",
        "batch normalisation of micro-batches is not that of their minibatch; use None",
    )
    compile_mode = getattr(model.policy, "compile_mode", None)
    require(
        model,
        compile_mode not in ("reduce-overhead", "max-autotune") or not isinstance(model.micro_batch_size, int),
        "micro_batch_size",
        f"CUDA graphs (compile_mode={compile_mode!r}) do not add up gradients over micro-batches; use None or another mode",
    )
    require(
        model,
        model.mixed_precision != "bf16" or any(True for _ in model.policy.features_extractor.parameters()),
        "mixed_precision",
        "it is for the features extractor, and this one has no layers; leave it None",
    )
    heads = (model.policy.value_net, model.policy.aux_value_net)
    require(
        model,
        not model.normalize_value_targets or model.n_aux_epochs == 0 or model.policy.can_change_value_units,
        "normalize_value_targets",
        f"the policy's `value_net` and `aux_value_net` are no sb3_ppg.policies.ValueHead; use that class, or False ({heads})",
    )
