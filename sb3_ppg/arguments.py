"""Checks of arguments, with one table of rules for algorithms, objectives, buffers and policies."""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch as th

from sb3_ppg.errors import ArgumentError, missing_extras_named, nearest, warn

Function = TypeVar("Function", bound=Callable[..., Any])


def without_numpy(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, which promotes float32 arrays differently and which files can store."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def is_count(value: Any, minimum: int = 1) -> bool:
    """Return whether a value is an integer (not a Boolean) of at least a minimum."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= minimum)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number (not a Boolean)."""
    is_real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


# ---- rules ----


class Rule(NamedTuple):
    """Condition on the value of an argument, and the advice for a value that does not meet it."""

    is_allowed: Callable[[Any], bool]
    remedy: str


def count(minimum: int = 1) -> Rule:
    """Make a rule that allows integers of at least a minimum."""
    return Rule(lambda value: is_count(value, minimum), f"use an integer of at least {minimum}")


def number(minimum: float, maximum: float = math.inf, *, exclusive: bool = False) -> Rule:
    """Make a rule that allows finite numbers in a range, which excludes the minimum itself if ``exclusive``."""

    def is_allowed(value: Any) -> bool:
        return is_number(value) and minimum <= value <= maximum and not (exclusive and value == minimum)

    if math.isfinite(maximum):
        return Rule(is_allowed, f"use a number from {minimum:g} to {maximum:g}")
    return Rule(is_allowed, f"use a finite number {'above' if exclusive else 'of at least'} {minimum:g}")


def or_schedule(rule: Rule) -> Rule:
    """Make a rule that allows schedules in addition, if they start with an allowed number."""

    def is_allowed(value: Any) -> bool:
        if callable(value):
            try:
                value = float(value(1.0))
            except (TypeError, ValueError):
                return False
        return rule.is_allowed(value)

    return Rule(is_allowed, f"{rule.remedy}, or a schedule whose first value is such a number")


def one_or_several(rule: Rule) -> Rule:
    """Make a rule that allows a list of values in addition, one for each component of vector rewards."""
    return Rule(
        lambda value: all(map(rule.is_allowed, value if isinstance(value, (list, tuple)) else [value])),
        f"{rule.remedy}, or, for vector rewards, a list of such numbers",
    )


def choice(*choices: Any) -> Rule:
    """Make a rule that allows these values only."""
    *first, last = (f'"{value}"' if isinstance(value, str) else str(value) for value in choices)

    def is_allowed(value: Any) -> bool:
        return any(isinstance(value, type(allowed)) and value == allowed for allowed in choices)  # so 1 is not True

    return Rule(is_allowed, f"use {' or '.join(filter(None, (', '.join(first), last)))}")


def optional(rule: Rule, meaning: str = "to do without") -> Rule:
    """Make a rule that allows None in addition; its meaning completes the remedy."""
    return Rule(lambda value: value is None or rule.is_allowed(value), f"{rule.remedy}, or None {meaning}".rstrip())


def is_net_arch(value: Any) -> bool:
    """Return whether a value describes layers: sizes, those of each network or, as in SB3 before 1.8, a list with these."""
    value = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
    by_name = value if isinstance(value, dict) else {"pi": value}  # SB3 would leave out other keys without a word
    return by_name.keys() <= {"pi", "vf"} and all(map(LAYERS.is_allowed, by_name.values()))


LAYERS = Rule(
    lambda value: isinstance(value, (list, tuple)) and all(map(is_count, value)), "use a list of integers of at least 1"
)
FLAG = Rule(lambda value: isinstance(value, (bool, np.bool_)), "use True or False")
DICT = Rule(lambda value: isinstance(value, dict), "use a dictionary")
CLASS = Rule(
    lambda value: callable(value) and not isinstance(value, th.nn.Module), "use a class, not its name and not an object of it"
)
FINITE = Rule(is_number, "use a finite number")
BELOW_ONE = Rule(lambda value: is_number(value) and 0 <= value < 1, "use a number from 0 to below 1")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("n_steps", "batch_size", "n_epochs", "n_policy_iterations", "stats_window_size"), count()),
    "n_value_epochs": optional(count(), "for joint epochs of policy and value function"),
    "aux_batch_size": optional(count(), "for a sixteenth of a rollout"),
    "micro_batch_size": Rule(
        lambda value: value is None or value == "auto" or is_count(value),
        'use an integer of at least 1, "auto", or None for whole minibatches',
    ),
    "compile_updates": choice(True, False, "auto"),
    "mixed_precision": optional(choice("bf16"), "for float32"),
    **dict.fromkeys(("n_aux_epochs", "n_value_warmup"), count(0)),
    "sde_sample_freq": Rule(lambda value: is_count(value, -1), "use an integer of at least 1, or -1 for once per rollout"),
    **dict.fromkeys(("gamma", "gae_lambda"), one_or_several(number(0, 1))),
    "reward_weights": Rule(
        lambda value: (
            value in (None, "observation")
            or (isinstance(value, list) and len(value) > 0 and all(is_number(x) and abs(x) <= 1e6 for x in value))
        ),
        'use a list of numbers within 1e6, one for each component of the rewards, "observation", or None for scalar rewards',
    ),
    "ent_coef": Rule(
        lambda value: is_number(value) or isinstance(value, (dict, list, tuple)),
        "use a finite number, or one for each part of the action space",
    ),
    **dict.fromkeys(("beta_clone", "kl_coef", "vf_coef"), number(0)),
    "prior": Rule(
        lambda value: value in (None, "self", "not shared") or hasattr(value, "policy"),
        'use a loaded model (in RL Zoo --prior FILE), "self" for the policy with which training begins, or None for no prior',
    ),
    "prior_coef": Rule(
        lambda value: isinstance(value, (dict, list, tuple)) or or_schedule(number(0)).is_allowed(value),
        "use a number of at least 0, a schedule, or a number for each part of the action space",
    ),
    **dict.fromkeys(("max_grad_norm", "target_kl"), optional(number(0, exclusive=True))),
    **dict.fromkeys(("clip_range", "clip_range_vf"), optional(or_schedule(number(0, exclusive=True)))),
    "learning_rate": or_schedule(number(0)),
    **dict.fromkeys(
        ("aux_learning_rate", "value_learning_rate"), optional(or_schedule(number(0)), "for that of the policy phase")
    ),
    "normalize_value_targets": choice(True, False, "running"),
    **dict.fromkeys(("normalize_advantage", "recompute_advantages", "recompute_states", "use_sde"), FLAG),
    "allow_nonfinite_observations": FLAG,
    "ignore_terminations": Rule(
        lambda value: FLAG.is_allowed(value) or is_count(value),
        "use True, False, or the step at which a time limit ends episodes",
    ),
    **dict.fromkeys(
        ("objective_kwargs", "replay_kwargs", "aux_buffer_kwargs", "rollout_buffer_kwargs", "policy_kwargs"),
        optional(DICT, ""),
    ),
    # Policies
    "net_arch": optional(
        Rule(is_net_arch, "use a list of integers of at least 1, or a dictionary of such lists; its keys are 'pi' and 'vf'"),
        "for the default",
    ),
    **dict.fromkeys(("activation_fn", "features_extractor_class", "optimizer_class"), CLASS),
    "distribution_class": optional(CLASS, "for that of the action space"),
    **dict.fromkeys(("normalize_images", "detach_value_in_aux_phase"), FLAG),
    # SB3's policies, when saved, have None where an argument has no meaning
    **dict.fromkeys(("squash_output", "full_std", "use_expln", "ortho_init"), optional(FLAG, "for the default")),
    **dict.fromkeys(("share_features_extractor", "shared_lstm", "enable_critic_lstm"), optional(FLAG, "for the default")),
    **dict.fromkeys(("features_extractor_kwargs", "optimizer_kwargs", "lstm_kwargs"), optional(DICT, "")),
    "log_std_init": FINITE,
    **dict.fromkeys(("lstm_hidden_size", "n_lstm_layers"), count()),
    # Training and play
    "total_timesteps": Rule(lambda value: is_number(value) or value == math.inf, "use a number of steps"),
    "log_interval": optional(count(), "for no log"),
    "epsilon": number(0, 1),
    "temperature": number(0, exclusive=True),
    # Recorded data
    **dict.fromkeys(("tau", "lmbda", "random_episodes"), number(0, 1)),
    "threshold": BELOW_ONE,
    **dict.fromkeys(("phi", "latent_kl_coef", "logit_penalty_coef", "noise"), number(0)),
    **dict.fromkeys(("n_train_samples", "n_play_samples"), count()),
    # Replay
    "policy_rollouts": count(),
    "value_rollouts": optional(count(), "for the same number as `policy_rollouts`"),
    **dict.fromkeys(("policy_uses", "value_uses"), optional(count(), "for no limit")),
    "seed": optional(Rule(lambda value: is_count(value, 0) and value < 2**32, "use an integer from 0 to 2**32 - 1")),
    # Auxiliary buffer
    "storage": choice("memory", "mmap"),
}


def check_value(argument: str, value: Any, rule: Rule | None = None) -> None:
    """Raise an ``ArgumentError`` with the argument, its value and the remedy unless the rule (or that in ``RULES``) holds."""
    rule = rule or RULES[argument]
    if not rule.is_allowed(value):
        raise ArgumentError(f"`{argument}`={value!r} cannot work: {rule.remedy}")


def check_values(**values: Any) -> None:
    """Check values by the names of arguments in ``RULES``."""
    for argument, value in values.items():
        check_value(argument, value)


# ---- arguments of algorithms ----


def arguments_explained(function: Function) -> Function:
    """Make a method suggest the nearest name for an unknown argument, and name the extra that an environment needs."""
    known = inspect.signature(function).parameters

    @wraps(function)
    def explaining(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs.keys() - known.keys():
            there = (argument for argument in argument_names(type(self), function.__name__) if not argument.startswith("_"))
            of_method = "" if function.__name__ == "__init__" else f".{function.__name__}"
            raise TypeError(f"{type(self).__name__}{of_method} has no argument `{name}`{nearest(name, there)}")
        with missing_extras_named():
            return function(self, *args, **kwargs)

    return cast(Function, explaining)


def argument_names(cls: type, method: str = "__init__", accepted: bool = False) -> list[str]:
    """
    Return the names of a method's arguments in a class and its bases, without those of SB3's own classes. With ``accepted``,
    return all names that the method takes or passes on as ``**kwargs``, in a class of any package.
    """
    parameters: list[inspect.Parameter] = []
    for ancestor in cls.__mro__:
        if method in vars(ancestor) and (
            accepted or ancestor.__module__.split(".")[0] not in ("stable_baselines3", "builtins")
        ):
            parameters += inspect.signature(vars(ancestor)[method]).parameters.values()
            if accepted and parameters[-1].kind != inspect.Parameter.VAR_KEYWORD:
                break
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = dict.fromkeys(parameter.name for parameter in parameters if parameter.kind not in variable)
    return [name for name in names if name != "self"]


# Arguments about where a model is made and what it prints: other processes, and shared files, need not have them
LOCAL_ARGUMENTS = {"policy", "env", "device", "verbose", "tensorboard_log", "aux_buffer_kwargs", "_init_setup_model"}
# Arguments that a model keeps under another name
ATTRIBUTES = {"objective": "objective_class", "stats_window_size": "_stats_window_size"}


def argument_value(model: Any, argument: str) -> Any:
    """Return the current value of an argument as the constructor would take it, or None if the model does not keep it."""
    return getattr(model, ATTRIBUTES.get(argument, argument), None)


def arguments_of(model: Any) -> SimpleNamespace:
    """Return the current values of all arguments of a model's constructor, as attributes."""
    return SimpleNamespace(**{name: argument_value(model, name) for name in argument_names(type(model))})


def check_each_argument(model: Any) -> None:
    """Check each argument on its own, and convert NumPy scalars to Python's; skip arguments that a user's subclass adds."""
    for argument in argument_names(next(cls for cls in type(model).__mro__ if cls.__module__.startswith("sb3_ppg."))):
        attribute = ATTRIBUTES.get(argument, argument)
        if attribute in vars(model):
            setattr(model, attribute, without_numpy(getattr(model, attribute)))
            if argument in RULES:
                check_value(argument, getattr(model, attribute))


def require(model: Any, condition: bool, argument: str, remedy: str) -> None:
    """Raise an ``ArgumentError`` with the argument, its value and the remedy unless a condition holds."""
    if not condition:
        raise ArgumentError(f"`{argument}`={argument_value(model, argument)!r} cannot work: {remedy}")


def made_from(kwargs: dict[str, Any] | None, make: Callable[..., Any], *args: Any) -> Any:
    """Make an object from the value of an argument that holds keyword arguments, such as ``replay_kwargs``."""
    given = {name: without_numpy(value) for name, value in (kwargs or {}).items()}
    with type_errors_explained(make, given):
        return make(*args, **given)


@contextmanager
def type_errors_explained(cls: Any, given: dict[str, Any]) -> Iterator[None]:
    """Raise an ``ArgumentError`` for a ``TypeError`` of a class with a user's arguments; suggest a name for an unknown one."""
    try:
        yield
    except TypeError as error:
        if not given:
            raise
        found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if found and (name := found[1]) in given:
            there = nearest(name, argument_names(cls, accepted=True))
            raise ArgumentError(f"`{name}`={given[name]!r} cannot work: {cls.__name__} has no such argument{there}") from error
        raise ArgumentError(f"{cls.__name__} cannot be made with {given}: {error}") from error


def warn_of_missing_gpu(asked: th.device | str, device: th.device) -> None:
    """Warn if a model is on the CPU because the requested GPU does not exist; SB3 does not warn."""
    if asked != "auto" and th.device(asked).type == "cuda" and device.type == "cpu":
        warn(f"`device`={str(asked)!r} runs on the CPU: PyTorch {th.__version__} finds no CUDA GPU")
