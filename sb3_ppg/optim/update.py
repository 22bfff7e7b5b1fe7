"""
The epochs of an update, the same for both phases: micro-batches, averages over processes, gradient clipping, and a check that
losses and gradients are finite.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.utils import update_learning_rate
from torch import nn

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arrays import Minibatch, map_arrays, n_samples, parameters_of, split
from sb3_ppg.distributed import average_gradients, average_over_processes, n_processes
from sb3_ppg.errors import NonFiniteLossError
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

    :param kind: "policy" (alone, or with the value function), "value" or "auxiliary"
    :param losses: method of the objective
    :param learning_rate: set in the optimizer, and in that of an adversary
    :param compiled: compiled steps, see ``optimize_epoch``, which has the other arguments, too
    """

    kind: Literal["policy", "value", "auxiliary"]
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
        update_learning_rate(self.optimizer, self.learning_rate)
        if self.kind != "policy":
            self.target_kl = None
        self.adversary = self.objective.adversary_optimizer if self.kind == "policy" else None
        if self.adversary is not None:
            update_learning_rate(self.adversary, self.learning_rate)
        has_hook = type(self.objective).after_policy_step is not Objective.after_policy_step
        self.acts_after_step = has_hook and self.kind == "policy"

    def epoch(self, minibatches: Iterable[Any]) -> Epoch:
        """Take one optimizer step per minibatch, see ``optimize_epoch``; ``epochs`` gets the record of the epoch."""

        def minibatch_losses(minibatch: Any) -> Losses:
            return self.losses(self.policy, minibatch, self.coefficients)

        def adversary_losses(minibatch: Any) -> Losses:
            return self.objective.adversary_losses(self.policy, minibatch, self.coefficients)

        epoch = optimize_epoch(
            "auxiliary" if self.kind == "auxiliary" else "policy",
            [self.policy, self.objective],
            self.optimizer,
            minibatches,
            minibatch_losses,
            self.micro_batch_size,
            self.max_grad_norm,
            self.target_kl,
            partial(self.objective.after_policy_step, self.policy) if self.acts_after_step else None,
            None if self.adversary is None else (self.adversary, adversary_losses),
            self.compiled,
        )
        self.epochs.append(epoch)
        return epoch


def mean_losses(epochs: list[Epoch]) -> dict[str, float]:
    """Return means over the samples of all epochs by name, and the mean "grad_norm" over all steps."""
    sizes = np.concatenate([epoch.sizes for epoch in epochs])
    names = epochs[0].losses
    means = {name: np.average(np.concatenate([epoch.losses[name] for epoch in epochs]), weights=sizes) for name in names}
    means["grad_norm"] = np.concatenate([epoch.grad_norm for epoch in epochs]).mean()
    return {name: float(mean) for name, mean in means.items()}


def optimize_epoch(
    phase: str,
    networks: Sequence[nn.Module],
    optimizer: th.optim.Optimizer,
    minibatches: Iterable[Minibatch],
    loss_fn: Callable[[Minibatch], Losses],
    micro_batch_size: int | None = None,
    max_grad_norm: float | None = None,
    target_kl: float | None = None,
    after_step: Callable[[], None] | None = None,
    adversary: tuple[th.optim.Optimizer, Callable[[Minibatch], Losses]] | None = None,
    compiled: Any = None,
) -> Epoch:
    """
    Take one optimizer step per minibatch. The losses stay on the device until the epoch ends, then one transfer reads them.

    :param networks: networks whose weights are restored if a loss or a gradient is not finite
    :param minibatches: named tuples of tensors, or of dictionaries of tensors, of shape (B, ...)
    :param micro_batch_size: the most samples in one forward pass. None: whole minibatches
    :param max_grad_norm: the largest L2 norm; a larger gradient is scaled down to it. None: no clipping
    :param target_kl: in nats. Stop before the step on a minibatch whose approximate KL exceeds 1.5 times this, as in SB3;
        this costs a transfer per minibatch. None: never stop
    :param adversary: optimizer and losses of networks that learn against the policy; they take a step before each of its
        steps
    :param compiled: ``CompiledStep``, for the minibatches that it takes. None: nothing is compiled
    :raises NonFiniteLossError: if a loss or a gradient is NaN or infinite
    """
    optimizers = [optimizer] if adversary is None else [optimizer, adversary[0]]
    restore = _backed_up(networks, optimizers)
    parameters = parameters_of(optimizer)
    adversary_parameters = [] if adversary is None else parameters_of(adversary[0])
    adversary_names: list[str] = []
    records: list[th.Tensor] = []
    sizes: list[int] = []
    log_ratios: list[th.Tensor] = []
    stopped = False

    def eager(minibatch: Minibatch) -> Gradient:
        if adversary is not None:
            gradient = compute_gradient(adversary_parameters, adversary[1], minibatch, micro_batch_size)
            _average_and_clip(gradient, adversary_parameters, max_grad_norm)
            adversary[0].step()
            adversary_names[:] = [f"adversary_{name}" for name in gradient.names]
            records.append(gradient.values)
        return compute_gradient(parameters, loss_fn, minibatch, micro_batch_size)

    gradients = (eager(batch) for batch in minibatches) if compiled is None else compiled.gradients(minibatches, eager)
    with unvalidated_distributions(), closing(gradients):
        for gradient in gradients:
            norm = gradient.norm if gradient.n_steps else _average_and_clip(gradient, parameters, max_grad_norm)
            records.append(th.cat([gradient.values, norm.unsqueeze(-1)], dim=-1).flatten())
            log_ratios.append(gradient.log_ratio)
            sizes += [gradient.size] * max(1, gradient.n_steps)
            if target_kl is not None:
                approx_kl = approximate_kl(gradient.log_ratio)
                average_over_processes([approx_kl])
                if stopped := bool(approx_kl > 1.5 * target_kl):
                    break
            if not gradient.n_steps:
                optimizer.step()
            if after_step is not None:
                after_step()

    names = adversary_names + gradient.names
    weights = [named for network in networks for named in network.named_parameters() if named[1].requires_grad]
    sums = th.stack([weight.detach().sum() for _, weight in weights])
    numbers = th.cat([*records, sums.abs() if sums.is_complex() else sums]).cpu().numpy()  # the one transfer
    table = numbers[: -len(sums)].reshape(len(sizes), -1)
    if not np.isfinite(numbers).all():
        restore()
        culprit = _culprit(table[:, :-1], names, numbers[-len(sums) :], [name for name, _ in weights])
        raise NonFiniteLossError(f"The {phase} phase met a {culprit}. {ADVICE}")
    return Epoch(dict(zip(names, table.T, strict=False)), table[:, -1], np.array(sizes), th.cat(log_ratios), stopped)


def compute_gradient(
    parameters: list[nn.Parameter],
    loss_fn: Callable[[Minibatch], Losses],
    minibatch: Minibatch,
    micro_batch_size: int | None = None,
) -> Gradient:
    """
    Compute the gradient of a minibatch's loss in the parameters' ``grad``, accumulated over micro-batches.

    The losses are means over samples, so the mean of the micro-batches' gradients, weighted by their sizes, is the gradient
    of the whole minibatch (not for layers that mix the samples of a batch, like batch normalization).
    """
    for parameter in parameters:
        parameter.grad = None
    all_values: list[th.Tensor] = []
    log_ratios: list[th.Tensor] = []
    size = n_samples(minibatch[0])
    for micro_batch in split(minibatch, micro_batch_size):
        losses, weight = loss_fn(micro_batch), n_samples(micro_batch[0]) / size
        values, total = losses.values, losses.total
        if weight < 1:
            values, total = weight * values, weight * total
        total.backward()
        all_values.append(values)
        log_ratios.append(losses.log_ratio)
    if len(all_values) == 1:
        return Gradient(losses.names, values, losses.log_ratio, size)
    return Gradient(losses.names, th.stack(all_values).sum(dim=0), th.cat(log_ratios), size)


def _average_and_clip(gradient: Gradient, parameters: list[nn.Parameter], max_grad_norm: float | None) -> th.Tensor:
    """Average losses and gradient over all processes, clip the gradient, and return its norm before that, ()."""
    if n_processes() > 1:
        average_gradients(parameters, gradient.values)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if max_grad_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
    return norm


def _culprit(table: np.ndarray, losses: list[str], weights: np.ndarray, parameters: list[str]) -> str:
    """Describe the first loss, (n_minibatches, n_losses), or the gradients (by the parameters' sums) that are not finite."""
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
