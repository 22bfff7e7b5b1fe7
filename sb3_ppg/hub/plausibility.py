"""What a stranger's description of a model may claim, and what a model that was made of it has to do."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import ConstantSchedule, LinearSchedule
from torch import nn
from torch.overrides import TorchFunctionMode

from sb3_ppg import losses
from sb3_ppg.arguments import is_count, is_number
from sb3_ppg.buffers.system_memory import total_memory
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.array_file import ArrayFile
from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.policies import ValueHead
from sb3_ppg.ppg import PPG

# What the classes are for that the policy's arguments may name
ROLES: dict[str, type] = {
    "activation_fn": nn.Module,
    "features_extractor_class": BaseFeaturesExtractor,
    "optimizer_class": th.optim.Optimizer,
}


def policy_kwargs(kwargs: Any, custom_objects: list[Any], compile_mode: str | None) -> dict[str, Any]:
    """
    :param kwargs: that a file has for the policy
    :param custom_objects: what the reader gave
    :param compile_mode: what the reader asks for
    :return: those to use: whether something is compiled is not the file's choice
    :raises ModelFormatError: if a class is named for what it is not
    """
    if not isinstance(kwargs, dict):
        raise ModelFormatError(f"policy_kwargs: {kwargs!r} is not a dictionary")
    for name, base in ROLES.items():
        value = kwargs.get(name, base)
        if not any(value is custom for custom in custom_objects) and not (isinstance(value, type) and issubclass(value, base)):
            raise ModelFormatError(f"policy_kwargs.{name}: {value!r} is not a class of {base.__name__}")
    kwargs = {name: value for name, value in kwargs.items() if name != "compile_mode"}
    return kwargs if compile_mode is None else {**kwargs, "compile_mode": compile_mode}


def check_action_space(space: spaces.Space, cls: type[PPG]) -> None:
    """
    What SB3 asks for where there is an environment.

    :param space: of actions
    :param cls: of the model
    :raises ModelFormatError: if the algorithm has no such actions
    """
    if not isinstance(space, cls.action_spaces):
        raise ModelFormatError(f"spaces.action: {cls.__name__} has no actions of {space}")
    if isinstance(space, spaces.Box) and not np.isfinite([space.low, space.high]).all():
        raise ModelFormatError(f"spaces.action: {space} is not bounded")


# The largest numbers that are meant; larger ones only spoil a training, or never end it
LARGEST = {
    **dict.fromkeys(("learning_rate", "aux_learning_rate"), 1.0),
    **dict.fromkeys(("ent_coef", "vf_coef", "beta_clone", "kl_coef"), 1e6),
    **dict.fromkeys(("clip_range", "clip_range_vf", "target_kl", "max_grad_norm"), 1e30),  # float32 has it
    **dict.fromkeys(("n_epochs", "n_value_epochs", "n_aux_epochs"), 1000),
    "seed": 2**32 - 1,
}


def check_plausible(model: PPG) -> None:
    """
    :param model: with the arguments of a file
    :raises ModelFormatError: for arguments that a constructor takes, but nobody means
    """
    for name, largest in LARGEST.items():
        value = getattr(model, name)
        numbers = [value(1.0), value(0.0)] if isinstance(value, (ConstantSchedule, LinearSchedule)) else [value]
        lowest = -largest if name == "ent_coef" else 0
        for number in numbers:
            if is_number(number) and not lowest <= number <= largest:
                raise ModelFormatError(f"{name}={number!r} cannot be meant: it is from {lowest} to {largest}")
    if not (model.seed is None or is_count(model.seed, minimum=0)):
        raise ModelFormatError(f"seed={model.seed!r} is not an integer of at least 0")


MAX_SAMPLES = 10**7  # of a rollout
MAX_PHASE_BYTES = 2**40  # that a machine somewhere may have; whether this one has them is asked before learning
MAX_MASK_BYTES = 2**28  # which, other than zeros, take memory at once


def check_rollout_size(model: PPG) -> None:
    """
    :param model: with its spaces and its number of environments
    :raises ModelFormatError: if the description claims more than any rollout here could take
    """
    if not is_count(model.n_steps) or not is_count(model.n_envs):
        raise ModelFormatError(f"n_steps={model.n_steps!r}, n_envs={model.n_envs!r}: they are integers of at least 1")
    observation_space = model.observation_space
    parts = observation_space.values() if isinstance(observation_space, spaces.Dict) else [observation_space]
    n_bytes = sum(np.dtype(part.dtype).itemsize * math.prod(map(int, get_obs_shape(part))) for part in parts)
    n_samples = model.n_steps * model.n_envs
    claimed = (n_bytes + 8 * (get_action_dim(model.action_space) + 6)) * n_samples
    masks = 8 * spaces.utils.flatdim(model.action_space) * n_samples if isinstance(model, MaskablePPG) else 0
    if n_samples > MAX_SAMPLES or claimed > total_memory() or masks > MAX_MASK_BYTES:
        raise ModelFormatError(
            f"n_steps={model.n_steps} with n_envs={model.n_envs} claims {claimed + masks:.1e} bytes of memory for a rollout"
        )
    for name, kept in (("n_policy_iterations", model.n_policy_iterations), *_others_kept(model)):
        if not is_count(kept) or n_bytes * n_samples * kept > MAX_PHASE_BYTES:
            raise ModelFormatError(f"{name}={kept!r} is no number of rollouts, or claims too much memory for them")


def _others_kept(model: PPG) -> Iterator[tuple[str, Any]]:
    """How many rollouts a model keeps beside those of a phase."""
    for kwargs, names in (
        (model.aux_buffer_kwargs, ("capacity",)),
        (model.replay_kwargs, ("policy_rollouts", "value_rollouts", "staleness")),
    ):
        given = kwargs if isinstance(kwargs, dict) else {}
        yield from ((name, given[name]) for name in names if given.get(name))


PER_TENSOR = 1000  # what a tensor costs besides its numbers


class AllocationLimit(TorchFunctionMode):
    """
    Networks do not get many more tensors and numbers than the file has weights (some are made and replaced): a description
    cannot claim memory that is not backed by data.

    :param arrays: of the file
    """

    def __init__(self, arrays: ArrayFile) -> None:
        super().__init__()
        weights = [entry for name, entry in arrays.entries.items() if name.startswith(("policy.", "objective."))]
        self.left = 10**6 + 2 * sum(PER_TENSOR + math.prod(entry.shape) for entry in weights)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (th.empty, th.zeros, th.ones):
            size = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else (args or kwargs["size"])
            self.left -= PER_TENSOR + math.prod(size)
            if self.left < 0:
                raise ModelFormatError("it describes networks that are larger than its arrays")
        return func(*args, **(kwargs or {}))


MAX_UNIT = 1e15  # of values and of what networks give: squares of it are finite
MAX_WEIGHT = 1e6
MAX_LOG_PROB = 1e7  # of an action that the policy itself has chosen


@th.no_grad()
def try_out(model: PPG) -> None:
    """
    :param model: complete
    :raises ModelFormatError: if the networks do not give finite numbers for an observation
    """
    for owner, network in (("policy", model.policy), ("objective", model.objective)):
        for name, parameter in network.named_parameters():
            if not (parameter.abs() <= MAX_WEIGHT).all():
                raise ModelFormatError(f"{owner}.{name}: weights of more than {MAX_WEIGHT:,.0f} are none to train with")
        for name, module in network.named_modules():
            if isinstance(module, ValueHead) and not 0 < module.std <= MAX_UNIT:
                raise ModelFormatError(f"{owner}.{name}.std: {module.std.item()} is no unit of values")
    if not model.objective.has_plausible_state():
        raise ModelFormatError("objective: the state of the objective is none that training can have led to")
    observation = _some_observation(model.observation_space)
    training = model.policy.training
    model.policy.set_training_mode(False)
    # Nothing is compiled for one observation
    with nullcontext() if model.policy.compile_mode is None else th.compiler.set_stance("force_eager"):
        model.predict(observation)
        tensors, _ = model.policy.obs_to_tensor(observation)
        distribution, aux_values, values, _ = model.policy.evaluate_auxiliary(tensors)
        log_prob = distribution.log_prob(distribution.get_actions())
    parameters = losses.distribution_parameters(distribution)
    for numbers, largest in ((parameters, MAX_UNIT), (aux_values, MAX_UNIT), (values, MAX_UNIT), (log_prob, MAX_LOG_PROB)):
        if not (numbers.abs() <= largest).all():
            raise ModelFormatError("its networks give numbers that are not finite, or too large to train with")
    model.policy.set_training_mode(training)


def _some_observation(space: spaces.Space) -> Any:
    """One as near to zero as there is."""
    if isinstance(space, spaces.Dict):
        return {key: _some_observation(part) for key, part in space.items()}
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    start = getattr(space, "start", 0)
    return np.zeros(space.shape or (), space.dtype) + np.asarray(start, space.dtype)


# What the settings of VecNormalize can be
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("training", "norm_obs", "norm_reward"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("clip_obs", "clip_reward"), lambda value: isinstance(value, (int, float)) and value > 0),
    "gamma": lambda value: is_number(value) and 0 <= value <= 1,
    "epsilon": lambda value: is_number(value) and 1e-20 <= value <= 1,
    "norm_obs_keys": lambda value: value is None or (isinstance(value, list) and all(isinstance(key, str) for key in value)),
}
