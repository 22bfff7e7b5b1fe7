"""
The epochs of an update, the same for both phases: micro-batches, averages over processes, gradient clipping, and a check that
losses and gradients are finite.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.utils import update_learning_rate
from torch import nn

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arrays import map_arrays, n_samples, parameters_of, split
from sb3_ppg.distributed import average_gradients, average_over_processes, n_processes
from sb3_ppg.errors import ArgumentError, NonFiniteLossError
from sb3_ppg.losses import Losses, approximate_kl
from sb3_ppg.objectives import Coefficients, Objective
from sb3_ppg.optim.steps import Gradient
from sb3_ppg.policies import PhasicActorCriticPolicy

ADVICE = (
    "The weights from before this epoch have been restored. Normalize observations and rewards (VecNormalize), or use a "
    "smaller learning rate or `max_grad_norm`"
)


class Epoch(NamedTuple):
    """Record of one epoch."""

    losses: dict[str, np.ndarray]  # values for each minibatch, (n_minibatches,), by name
    grad_norm: np.ndarray  # L2 norm of each minibatch's gradient before it was clipped, (n_minibatches,)
    sizes: np.ndarray  # number of samples in each minibatch, (n_minibatches,)
    log_ratio: th.Tensor  # see `Losses`, of all samples in the order of the minibatches, (n_samples,)
    stopped: bool  # whether `target_kl` was exceeded


@dataclass
class Update:
    """
    Epochs with one method of the objective, which have the same optimizer, learning rate and coefficients.

    :param kind: "policy" (alone, or with the value function), "value", "auxiliary" or "warm start"
    :param losses: method of the objective, or a function with its arguments
    :param learning_rate: set in the optimizer, and in that of an adversary
    :param micro_batch_size: the most samples in one forward pass. None: whole minibatches
    :param max_grad_norm: the largest L2 norm; a larger gradient is scaled down to it. None: no clipping
    :param target_kl: in nats. Stop policy epochs before the step on a minibatch whose approximate KL exceeds 1.5 times this,
        as in SB3; this costs a transfer per minibatch, or per call of compiled code. None: never stop
    :param compiled: ``CompiledStep``, for the minibatches that it takes. None: nothing is compiled
    :param epochs: records of the epochs so far
    """

    kind: Literal["policy", "value", "auxiliary", "warm start"]
    policy: PhasicActorCriticPolicy
    objective: Objective
    losses: Callable[..., Losses]
    optimizer: th.optim.Optimizer
    learning_rate: float
    coefficients: Coefficients
    micro_batch_size: int | None = None
    max_grad_norm: float | None = None
    target_kl: float | None = None
    compiled: Any = None
    epochs: list[Epoch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.largest_kl = None if self.kind != "policy" or self.target_kl is None else 1.5 * self.target_kl
        adversary = self.objective.adversary_optimizer if self.kind == "policy" else None
        self.optimizers = [self.optimizer] if adversary is None else [adversary, self.optimizer]  # in the order of their steps
        for optimizer in self.optimizers:
            update_learning_rate(optimizer, self.learning_rate)
        has_hook = type(self.objective).after_policy_step is not Objective.after_policy_step
        self.acts_after_step = has_hook and self.kind == "policy"

    def epoch(self, minibatches: Iterable[Any]) -> Epoch:
        """
        Take one optimizer step per minibatch, and one of the adversary before it. The losses stay on the device until the
        epoch ends, then one transfer reads them.

        :param minibatches: named tuples of tensors, or of dictionaries of tensors, of shape (B, ...)
        :raises NonFiniteLossError: if a loss or a gradient is NaN or infinite; weights are then those from before the epoch
        """
        networks = [self.policy, self.objective]
        restore = _backed_up(networks, self.optimizers)
        parameters = parameters_of(self.optimizer)
        adversaries = [(optimizer, parameters_of(optimizer)) for optimizer in self.optimizers[:-1]]
        names: list[str] = []  # of an adversary's losses
        records: list[th.Tensor] = []
        sizes: list[int] = []
        log_ratios: list[th.Tensor] = []
        stopped = False

        def eager(minibatch: Any) -> Gradient:
            for adversary, trained in adversaries:
                gradient = self.gradient(minibatch, self.objective.adversary_losses, trained)
                _average_and_clip(gradient, trained, self.max_grad_norm)
                adversary.step()
                names[:] = [f"adversary_{name}" for name in gradient.names]
                records.append(gradient.values)
            return self.gradient(minibatch, self.losses, parameters)

        compiled = self.compiled
        gradients = (eager(batch) for batch in minibatches) if compiled is None else compiled.gradients(minibatches, eager)
        with unvalidated_distributions(), closing(gradients):
            for gradient in gradients:
                norm = gradient.norm if gradient.n_steps else _average_and_clip(gradient, parameters, self.max_grad_norm)
                records.append(th.cat([gradient.values, norm.unsqueeze(-1)], dim=-1).flatten())
                log_ratios.append(gradient.log_ratio)
                sizes += [gradient.size] * max(1, gradient.n_steps)
                stopped = gradient.stopped
                if self.largest_kl is not None and not gradient.n_steps:
                    if len(gradient.log_ratio) == 0:
                        remedy = "its losses have no `log_ratio`: keep the paper's, as `losses._replace(total=...)` does"
                        raise ArgumentError(f"`target_kl` cannot work with {type(self.objective).__name__}: {remedy}")
                    approx_kl = approximate_kl(gradient.log_ratio)
                    average_over_processes([approx_kl])
                    stopped = bool(approx_kl > self.largest_kl)
                if stopped:
                    break
                if not gradient.n_steps:
                    self.optimizer.step()
                if self.acts_after_step:
                    self.objective.after_policy_step(self.policy)

        names += gradient.names
        weights = [named for network in networks for named in network.named_parameters() if named[1].requires_grad]
        sums = th.stack([weight.detach().sum() for _, weight in weights])
        numbers = th.cat([*records, sums.abs() if sums.is_complex() else sums]).cpu().numpy()  # the one transfer
        table = numbers[: -len(sums)].reshape(len(sizes), -1)
        counted = table[: len(table) - stopped]  # PPO takes no step on the last minibatch either
        if not (np.isfinite(counted).all() and np.isfinite(numbers[-len(sums) :]).all()):
            restore()
            culprit = _culprit(table[:, :-1], names, numbers[-len(sums) :], [name for name, _ in weights])
            phase = "policy" if self.kind == "value" else self.kind
            raise NonFiniteLossError(f"The {phase} phase met a {culprit}. {ADVICE}")
        losses = dict(zip(names, table.T, strict=False))
        self.epochs.append(Epoch(losses, table[:, -1], np.array(sizes), th.cat(log_ratios), stopped))
        return self.epochs[-1]

    def gradient(self, minibatch: Any, losses: Callable[..., Losses], parameters: list[nn.Parameter]) -> Gradient:
        """
        Compute the gradient of a minibatch's loss in the parameters' ``grad``, accumulated over micro-batches.

        The losses are means over samples, so the mean of the micro-batches' gradients, weighted by their sizes, is the
        gradient of the whole minibatch (not for layers that mix the samples of a batch, like batch normalization).
        """
        for parameter in parameters:
            parameter.grad = None
        all_values: list[th.Tensor] = []
        log_ratios: list[th.Tensor] = []
        size = n_samples(minibatch[0])
        for micro_batch in split(minibatch, self.micro_batch_size):
            part, weight = losses(self.policy, micro_batch, self.coefficients), n_samples(micro_batch[0]) / size
            values, total = part.values, part.total
            if weight < 1:
                values, total = weight * values, weight * total
            total.backward()
            all_values.append(values)
            log_ratios.append(part.log_ratio)
        if len(all_values) == 1:
            return Gradient(part.names, values, part.log_ratio, size)
        return Gradient(part.names, th.stack(all_values).sum(dim=0), th.cat(log_ratios), size)


def mean_losses(epochs: list[Epoch]) -> dict[str, float]:
    """Return means over the samples of all epochs by name, and the mean "grad_norm" over all steps."""
    sizes = np.concatenate([epoch.sizes for epoch in epochs])
    names = epochs[0].losses
    means = {name: np.average(np.concatenate([epoch.losses[name] for epoch in epochs]), weights=sizes) for name in names}
    means["grad_norm"] = np.concatenate([epoch.grad_norm for epoch in epochs]).mean()
    return {name: float(mean) for name, mean in means.items()}


def _average_and_clip(gradient: Gradient, parameters: list[nn.Parameter], max_grad_norm: float | None) -> th.Tensor:
    """Average losses and gradient over all processes, clip the gradient, and return its norm before that, ()."""
    if n_processes() > 1:
        average_gradients(parameters, gradient.values)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if max_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    return norm


def _culprit(table: np.ndarray, losses: list[str], weights: np.ndarray, parameters: list[str]) -> str:
    """Describe the first loss in ``table``, (n_minibatches, n_losses), that is not finite; if there is none, the gradients."""
    finite = np.isfinite(table)
    if finite.all():
        bad = ", ".join(name for name, weight in zip(parameters, weights, strict=True) if not np.isfinite(weight))
        return f"gradient that is not finite, that of {bad}" if bad else "gradient whose norm is not finite"
    step = int(np.argmin(finite.all(axis=1)))
    values = {name: table[step, i].item() for i, name in enumerate(losses) if not finite[step, i]}
    return f"loss that is not finite, in minibatch {step} of an epoch: {values}"


def _backed_up(networks: Sequence[nn.Module], optimizers: Sequence[th.optim.Optimizer]) -> Callable[[], None]:
    """
    Copy parameters, buffers and the optimizers' states, and return the function that restores them. This costs one copy per
    epoch; checking the loss of each minibatch would cost a transfer per minibatch.
    """
    tensors = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
    saved = [tensor.detach().clone() for tensor in tensors]
    states = [
        map_arrays(lambda leaf: leaf.clone() if isinstance(leaf, th.Tensor) else copy.deepcopy(leaf), optimizer.state)
        for optimizer in optimizers
    ]

    @th.no_grad()
    def restore() -> None:
        for tensor, before in zip(tensors, saved, strict=True):
            tensor.copy_(before)
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)

    return restore
