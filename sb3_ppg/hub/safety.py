"""Limits on the memory that a stranger's description can claim, and checks of the model that is made from it."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sb3_ppg.actions import flat_space
from sb3_ppg.buffers.memory import total_memory
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.optim.precision import unvalidated_distributions
from sb3_ppg.policies import PhasicActorCriticPolicy, ValueHead
from sb3_ppg.ppg import PPG

MAX_OUTPUT = 1e15  # of a network, or an environment; its square is finite in float32
MAX_BOUND = 1e30  # of every intermediate number, computed with the absolute values of weights and observations
MAX_OBSERVATION = 1000.0  # for which this is checked
MAX_COUNT = 1e30  # of samples in statistics
META = th.device("meta")
MAX_CALLS = 2**14  # of torch's functions, when networks are made: about a thousand tensors
MAX_FILLED = 2**24  # numbers that are filled in and no weights, such as the states of LSTMs
MAX_ACTIVATIONS = 2**27  # numbers that a features extractor may make of one observation
MAX_MASK_BYTES = 2**28  # of action masks, which are filled with ones when the model is made


def check_rollout_size(model: PPG) -> None:
    """
    Check that this machine can hold a rollout.

    :raises ModelFormatError: if it cannot
    """
    space = model.observation_space
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    n_bytes = sum(np.dtype(part.dtype).itemsize * math.prod(map(int, get_obs_shape(part))) for part in parts)
    n_samples = model.n_steps * model.n_envs
    n_numbers = get_action_dim(flat_space(model.action_space)) + 6 + 3 * (model.n_reward_components or 0)
    claimed = (n_bytes + 8 * n_numbers) * n_samples
    masks = 8 * spaces.utils.flatdim(model.action_space) * n_samples if isinstance(model, MaskablePPG) else 0
    if claimed > total_memory() or masks > MAX_MASK_BYTES:
        raise ModelFormatError(
            f"n_steps={model.n_steps} with n_envs={model.n_envs} claims {claimed + masks:.1e} bytes of memory for a rollout"
        )


def check_statistics(rms: RunningMeanStd, name: str) -> None:
    """
    Check running moments. A second moment within the limit stays within it in training if the data do.

    :raises ModelFormatError: if there cannot be such moments, or they are too large to train with
    """
    if not ((rms.var >= 0).all() and (np.hypot(rms.mean, rms.var**0.5) <= MAX_OUTPUT).all() and 0 < rms.count <= MAX_COUNT):
        raise ModelFormatError(
            f"{name}: variances are negative, the count is not above 0, or they are too large to train with"
        )


class _SizesOnly(TorchFunctionMode):
    """Tensors that are made in this context have shapes and types, but no numbers: they lie on the device "meta"."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.numbers = self.filled = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is th.Tensor.__bool__:  # an average over policies asks for its count
            return False
        if func is th.Tensor.to:
            args = [META if isinstance(argument, (str, th.device)) else argument for argument in args]
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        self.numbers += result.numel() if isinstance(result, th.Tensor) else 0
        self.filled += result.numel() if func in (th.zeros, th.ones) else 0
        if self.filled > MAX_FILLED:
            raise ModelFormatError("it describes an LSTM whose states, one for each environment, are too large")
        if self.calls > MAX_CALLS:
            raise ModelFormatError("it describes networks of too many layers")
        return result


class Unorthogonal(TorchFunctionMode):
    """Weights that are made in this context are not orthogonal: a file's replace them, and large ones would take minutes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (args[0], args[0]) if func is th.linalg.qr else func(*args, **(kwargs or {}))


def _sampled_as_zeros(space: Any) -> Any:
    """Copy a space; samples of the copy are zeros, which take no memory until somebody reads them."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _sampled_as_zeros(part) for key, part in space.items()})
    space = copy.copy(space)
    space.sample = partial(np.zeros, space.shape, space.dtype)
    return space


def outline(model: PPG) -> PPG:
    """
    Make a model's networks without taking memory.

    :param model: before its networks are made
    :return: a copy whose networks have names, shapes and types, but no numbers
    :raises ModelFormatError: if the networks have too many layers, or too much would come out of them
    """
    made = copy.copy(model)
    made.observation_space = _sampled_as_zeros(model.observation_space)
    made.device = META
    made._maybe_recommend_cpu = lambda *_: None  # type: ignore[method-assign] # it would take the device for a GPU
    with META, _SizesOnly() as sizes, th.no_grad(), unvalidated_distributions():
        made._setup_model()
        made.policy.mixed_precision = None  # this device has none
        observation, _ = made.policy.obs_to_tensor(made.observation_space.sample())
        for extractor in (made.policy.pi_features_extractor, made.policy.vf_features_extractor):
            extractor.takes_uint8 = False  # type: ignore[assignment] # which asks for the device
            sizes.numbers = 0
            made.policy.extract_features(observation, extractor)
            if sizes.numbers > MAX_ACTIVATIONS:
                raise ModelFormatError(f"its features extractor makes {sizes.numbers} numbers of one observation")
    return made


class _Bounded(TorchFunctionMode):
    """Every number that networks make in this context is far from the largest of float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is F.one_hot:
            result = th.ones_like(result)  # all choices at once
        if isinstance(result, th.Tensor) and result.is_floating_point() and not (result.abs() <= MAX_BOUND).all():
            raise ModelFormatError("its weights are so large that for some observations its networks can overflow")
        return result


@contextmanager
def _absolute(policy: PhasicActorCriticPolicy) -> Iterator[None]:
    """Replace weights by their absolute values: networks of the listed classes then give bounds of their outputs."""
    parameters = [one for module in policy.children() for one in module.parameters()]  # not a Gaussian's logarithms
    signed = [parameter.data for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.data = parameter.data.abs()
        yield
    finally:
        for parameter, data in zip(parameters, signed, strict=True):
            parameter.data = data


@th.no_grad()
def try_out(model: PPG, is_listed: bool) -> None:
    """
    Evaluate a complete model for a few observations, and bound what its networks give for all others.

    :param model: to evaluate
    :param is_listed: whether all of its classes are on the list; of others there is no bound
    :raises ModelFormatError: if its networks give no numbers that it could be trained with
    """
    units = [module.std for module in model.policy.modules() if isinstance(module, ValueHead)]
    if not all(((unit > 0) & (unit <= MAX_OUTPUT)).all() for unit in units):
        raise ModelFormatError("its value heads are in a state to which no training leads")
    was_training = model.policy.training
    model.policy.set_training_mode(False)
    for observation in _some_observations(model.observation_space):
        model.predict(observation)
        tensors, _ = model.policy.obs_to_tensor(observation)
        distribution, aux_values, values, _ = model.policy.evaluate_auxiliary(tensors)
        log_prob = distribution.log_prob(distribution.get_actions())
        for numbers in (model.policy.actions.parameters(distribution), aux_values, values, log_prob):
            if not (numbers.abs() <= MAX_OUTPUT).all():
                raise ModelFormatError("its networks give numbers that are not finite, or too large to train with")
    if is_listed:
        *_, highest = _some_observations(model.observation_space)
        tensors, _ = model.policy.obs_to_tensor(highest)
        with _absolute(model.policy), _Bounded():
            model.policy.evaluate_auxiliary(tensors)
    model.policy.set_training_mode(was_training)


def _some_observations(space: spaces.Space) -> Iterator[Any]:
    """Yield a low observation, the one nearest to zero, a high one, and the largest absolute values; of integers the first."""
    if isinstance(space, spaces.Dict):
        for values in zip(*map(_some_observations, space.values()), strict=True):
            yield dict(zip(space, values, strict=True))
        return
    if not isinstance(space, (spaces.Box, spaces.MultiBinary)):
        yield from [np.zeros(space.shape or (), np.int64) + getattr(space, "start", 0)] * 4
        return
    ones = np.ones(space.shape, np.float64)
    low, high = (space.low * ones, space.high * ones) if isinstance(space, spaces.Box) else (0 * ones, ones)
    for number in (-10, 0, 10):
        yield np.clip(number * ones, low, high).astype(space.dtype)
    yield np.minimum(np.maximum(abs(low), abs(high)), MAX_OBSERVATION)
