"""Acting with small networks in NumPy: torch takes ten times as long for one observation, nearly all of it in Python."""

import math
import operator
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    SquashedDiagGaussianDistribution,
)
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import nn
from torch.nn.parameter import is_lazy

from sb3_ppg.actions import SquashedGaussianDistribution
from sb3_ppg.policies.extractors import SharedTrunk
from sb3_ppg.policies.heads import ValueHead, VectorValueHead

Layer = Callable[[np.ndarray], np.ndarray]
# From the parameters of distributions, (B, P), masks, (B, n) or None, and whether to take the most likely actions, to actions,
# (B, ...), and their log π, (B,)
Draw = Callable[[np.ndarray, Any, bool], tuple[np.ndarray, np.ndarray]]

LARGEST_LAYER = 2**18  # number of weights up to which NumPy is faster, with any number of environments
EXCLUDED = np.float32(-1e8)  # logit of an action that a mask excludes, as in sb3-contrib
HALF_LOG_2_PI = np.float32(0.5 * np.log(2 * np.pi))
EPS = np.finfo(np.float32).eps
ACTIVATIONS: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.Tanh: lambda _: np.tanh,
    nn.ReLU: lambda _: lambda x: np.maximum(x, 0),
    nn.LeakyReLU: lambda module: lambda x: np.where(x > 0, x, np.float32(module.negative_slope) * x),
    nn.ELU: lambda module: lambda x: np.where(x > 0, x, np.float32(module.alpha) * np.expm1(np.minimum(x, 0))),
    nn.Sigmoid: lambda _: _sigmoid,
    nn.SiLU: lambda _: lambda x: x * _sigmoid(x),
}
# Methods of a policy that say how it acts; a class or an object that has its own acts through torch
METHODS = (
    *("evaluate", "forward", "extract_features", "_get_action_dist_from_latent", "_act", "get_distribution", "_predict"),
    *("act", "next_values", "evaluate_batch", "network_inputs", "step_batch", "_predict_next"),
)


def _is_ours(cls: type, method: str) -> bool:
    """Return whether a class inherits a method from this package, and nobody has replaced it there."""
    owner = next(base for base in cls.__mro__ if method in vars(base))
    modules = (owner.__module__, getattr(vars(owner)[method], "__module__", None) or "")
    return all(module.startswith("sb3_ppg.") for module in modules)


class NumpyActor:
    """
    A policy's networks as functions of NumPy, on views of torch's parameters, so that they change with these.

    It covers what ``MlpPolicy`` and its maskable variant are made of: flat observations, linear layers and activations,
    distributions of SB3 and sb3-contrib except gSDE. Actions are drawn from torch's generator, and are those that torch draws
    unless rounding decides.

    :param policy: policy
    """

    covers: bool = False  # whether the policy is of such parts

    def __init__(self, policy: Any):
        self._policy, self._actions_shape = policy, (-1, *policy.actions.shape)
        modules = [*policy.modules()]
        owners = [owner for module in modules for owner in (module._parameters, module._buffers) if owner]
        self._owners = [*owners, *(module._modules for module in modules)]
        self._hooks = [owner for module in modules for owner in (module._forward_hooks, module._forward_pre_hooks)]
        self._hooks += [nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks]
        self._attributes = [*map(vars, modules)]
        self._parts, self._distribution = self._current_parts(), policy._action_dist
        self._tensors = [part for part in self._parts if isinstance(part, th.Tensor) and not is_lazy(part)]
        self._places = [*map(th.Tensor.data_ptr, self._tensors)]
        is_plain = all(_is_ours(type(policy), name) for name in METHODS) and policy.input_keys in ((), ("action_masks",))
        if is_plain and not self._is_changed() and policy.mixed_precision is None and policy.device.type == "cpu":
            with suppress(NotImplementedError):  # for a part that has no counterpart here
                self._encode = _encoder(policy)
                trunk, head = policy.mlp_extractor, policy.value_net
                self._pi_layers = _layers(trunk.policy_net)
                self._vf_layers = None if type(trunk) is SharedTrunk else _layers(trunk.value_net)
                self._action_layers, self._value_layers = _layers(policy.action_net), _layers(head)
                self._draw = _draw_of(policy)
                self.covers = True

    def _current_parts(self) -> list[Any]:
        return [*chain.from_iterable(map(dict.values, self._owners))]

    def _is_changed(self) -> bool:
        """Return whether hooks are registered, or an object has a method of its own."""
        has_own = any(map(dict.__contains__, self._attributes, repeat("forward")))
        has_own |= any(map(vars(self._policy.mlp_extractor).__contains__, ("forward_actor", "forward_critic")))
        return has_own or any(self._hooks) or any(map(self._attributes[0].__contains__, METHODS))

    def is_current(self) -> bool:
        """Return whether the policy still consists of the same networks and parameters."""
        parts = self._current_parts()
        is_same = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        is_same &= self._policy._action_dist is self._distribution
        return is_same and not self._is_changed() and [*map(th.Tensor.data_ptr, self._tensors)] == self._places

    def act(self, batch: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, th.Tensor]] | None:
        """Act like the policy's ``act``; return None if its networks have changed, or for numbers that are not finite."""
        if not self.is_current():
            return None
        try:
            with np.errstate(all="ignore"):
                features = self._encode(batch.observations.numpy())
                latent_pi = _through(self._pi_layers, features)
                latent_vf = latent_pi if self._vf_layers is None else _through(self._vf_layers, features)
                masks = getattr(batch, "action_masks", None)
                actions, log_probs = self._draw(_through(self._action_layers, latent_pi), masks, False)
                values = _through(self._value_layers, latent_vf)
                is_finite = math.isfinite(np.add.reduce(log_probs.dot(values)))
        except RuntimeError:  # as torch would raise it
            return None
        if not is_finite:
            return None
        vars(self._policy)["acted_on"] = self._policy.network_inputs(batch)  # much faster than through torch
        return th.from_numpy(actions.reshape(self._actions_shape)), th.from_numpy(values), th.from_numpy(log_probs), {}

    def choose(self, observations: np.ndarray, deterministic: bool, action_masks: Any = None) -> np.ndarray | None:
        """Return samples of the distribution, or the most likely actions; None if their probabilities are not finite."""
        with suppress(RuntimeError), np.errstate(all="ignore"):
            latent_pi = _through(self._pi_layers, self._encode(observations))
            actions, log_probs = self._draw(_through(self._action_layers, latent_pi), action_masks, deterministic)
            if np.isfinite(log_probs).all():
                return actions
        return None


# ---- networks ----


def _through(layers: list[Layer], array: np.ndarray) -> np.ndarray:
    for layer in layers:
        array = layer(array)
    return array


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _layers(network: Any) -> list[Layer]:
    kind: Any = type(network)
    if kind is nn.Sequential:
        return [layer for part in network.children() for layer in _layers(part)]
    if kind in (ValueHead, VectorValueHead):
        mean, std = network.mean.numpy(), network.std.numpy()
        before = [] if network.layers is None else _layers(network.layers)
        return [*before, _linear(network), lambda x: mean + std * x]
    if kind is nn.Linear:
        return [_linear(network)]
    if kind in ACTIVATIONS:
        return [ACTIVATIONS[kind](network)]
    raise NotImplementedError


def _linear(layer: nn.Linear) -> Layer:
    if layer.weight.dtype != th.float32 or layer.weight.numel() > LARGEST_LAYER:
        raise NotImplementedError
    weight = layer.weight.detach().numpy().T
    if layer.bias is None:
        return lambda x: x.dot(weight)
    bias = layer.bias.detach().numpy()
    return lambda x: x.dot(weight) + bias  # `@` takes three times as long for one row


def _encoder(policy: Any) -> Layer:
    """Return the function from observations to the inputs of the first layers, (B, features_dim), of float32."""
    space = policy.preprocessed_space
    extractors = {type(policy.pi_features_extractor), type(policy.vf_features_extractor)}
    if extractors != {FlattenExtractor} or type(policy.mlp_extractor) not in (MlpExtractor, SharedTrunk):
        raise NotImplementedError
    size = spaces.flatdim(space)
    if (isinstance(space, spaces.Box) and not policy.scaled_images) or isinstance(space, spaces.MultiBinary):
        return lambda x: x.reshape(len(x), size).astype(np.float32, copy=False)
    if isinstance(space, spaces.Discrete):
        return partial(_one_hot, size=size, start=space.start)
    raise NotImplementedError


def _one_hot(numbers: np.ndarray, size: int, start: int) -> np.ndarray:
    places = numbers.reshape(-1).astype(np.int64) - start
    if (places < 0).any() or (places >= size).any():
        raise RuntimeError("an observation is not in its Discrete space")
    encoded = np.zeros((len(places), size), np.float32)
    encoded[np.arange(len(places)), places] = 1
    return encoded


# ---- distributions ----


def _draw_of(policy: Any) -> Draw:
    distribution = policy._action_dist
    kind = type(distribution)
    if kind in (CategoricalDistribution, MaskableCategoricalDistribution):
        return _draw_choice
    if kind in (MultiCategoricalDistribution, MaskableMultiCategoricalDistribution, MaskableBernoulliDistribution):
        ends = np.cumsum(distribution.action_dims)[:-1].tolist()
        return lambda logits, masks, mode: _draw_choices(logits, masks, mode, ends)
    if kind is BernoulliDistribution:
        return _draw_bits
    if kind in (DiagGaussianDistribution, SquashedDiagGaussianDistribution, SquashedGaussianDistribution):
        log_std, epsilon = policy.log_std.detach().numpy(), getattr(distribution, "epsilon", None)
        return lambda mean, _, mode: _draw_numbers(mean, log_std, mode, epsilon)
    raise NotImplementedError


def _draw_choice(logits: np.ndarray, masks: Any, mode: bool) -> tuple[np.ndarray, np.ndarray]:
    if masks is not None:
        logits = np.where(np.asarray(masks, dtype=bool).reshape(logits.shape), logits, EXCLUDED)
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    weights = np.exp(shifted)
    # Drawn as by torch.multinomial
    chosen = (weights if mode else weights / _noise(weights, th.Tensor.exponential_)).argmax(axis=1)
    return chosen, shifted[np.arange(len(chosen)), chosen] - np.log(np.add.reduce(weights, axis=1))


def _noise(like: np.ndarray, draw: Callable[[th.Tensor], th.Tensor]) -> np.ndarray:
    """Draw random numbers from torch's generator."""
    noise = np.empty_like(like)
    draw(th.from_numpy(noise))
    return noise


def _draw_choices(logits: np.ndarray, masks: Any, mode: bool, ends: list[int]) -> tuple[np.ndarray, np.ndarray]:
    parts = np.split(logits, ends, axis=1)
    masks_of_parts = [None] * len(parts) if masks is None else np.split(np.asarray(masks).reshape(logits.shape), ends, axis=1)
    drawn = [_draw_choice(part, own, mode) for part, own in zip(parts, masks_of_parts, strict=True)]
    chosen, log_probs = zip(*drawn, strict=True)
    return np.stack(chosen, axis=1), np.stack(log_probs, axis=1).sum(axis=1)


def _draw_bits(logits: np.ndarray, masks: Any, mode: bool) -> tuple[np.ndarray, np.ndarray]:
    probabilities = _sigmoid(logits)
    bits = probabilities.round() if mode else th.bernoulli(th.from_numpy(probabilities)).numpy()
    # log p = logit - softplus(logit), log(1 - p) = -softplus(logit)
    return bits, (bits * logits - np.logaddexp(0, logits)).sum(axis=1)


def _draw_numbers(mean: np.ndarray, log_std: np.ndarray, mode: bool, epsilon: float | None) -> tuple[np.ndarray, np.ndarray]:
    std = np.exp(log_std)
    numbers = mean if mode else mean + std * _noise(mean, th.Tensor.normal_)
    actions = numbers if epsilon is None else np.tanh(numbers)
    if epsilon is not None:  # squashed; as SB3 computes it, from the action alone
        within = actions.clip(-1 + EPS, 1 - EPS)
        numbers = np.float32(0.5) * (np.log1p(within) - np.log1p(-within))
    log_probs = -0.5 * np.square((numbers - mean) / std) - log_std - HALF_LOG_2_PI
    if epsilon is not None:
        log_probs -= np.log(1 - np.square(actions) + np.float32(epsilon))
    return actions, log_probs.sum(axis=1)
