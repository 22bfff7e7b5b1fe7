"""
One epoch of optimizer steps, the same for both phases: micro-batches, averaging over processes, gradient clipping, and the
guard against losses that are not finite.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch as th
from torch import nn
from torch.optim.adam import adam
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from sb3_ppg.distributed.collectives import average_gradients, average_over_processes, n_processes
from sb3_ppg.errors import NonFiniteLossError
from sb3_ppg.losses import Losses, approximate_kl
from sb3_ppg.optim.precision import unvalidated_distributions

ADVICE = (
    "The weights are those from before that epoch. Normalise observations and rewards (VecNormalize), or use a smaller "
    "learning rate or `max_grad_norm`"
)
Minibatch = TypeVar("Minibatch", bound=tuple)


class Epoch(NamedTuple):
    """
    What one epoch of optimisation has seen.

    :param losses: by their names, their values for each minibatch, shape (n_minibatches,)
    :param grad_norm: the L2 norm of each minibatch's gradient before it was clipped, shape (n_minibatches,)
    :param sizes: how many samples each minibatch had, shape (n_minibatches,)
    :param log_ratio: of all samples, in the order of the minibatches, shape (n_samples,); empty if the losses have none
    :param stopped: whether ``target_kl`` was exceeded
    """

    losses: dict[str, np.ndarray]
    grad_norm: np.ndarray
    sizes: np.ndarray
    log_ratio: th.Tensor
    stopped: bool


def mean_losses(epochs: list[Epoch]) -> dict[str, float]:
    """
    :param epochs: of the same losses
    :return: by their names, the means over the samples of all epochs, and under "grad_norm" the mean over all steps
    """
    sizes = np.concatenate([epoch.sizes for epoch in epochs])
    names = epochs[0].losses
    means = {name: np.average(np.concatenate([epoch.losses[name] for epoch in epochs]), weights=sizes) for name in names}
    means["grad_norm"] = np.concatenate([epoch.grad_norm for epoch in epochs]).mean()
    return {name: float(mean) for name, mean in means.items()}


class Adversary(NamedTuple):
    """
    Networks that learn against the others: they take a step before each of theirs.

    :param optimizer: of their parameters
    :param loss_fn: the losses of a minibatch
    """

    optimizer: th.optim.Optimizer
    loss_fn: Callable[[Any], Losses]


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
    adversary: Adversary | None = None,
) -> Epoch:
    """
    One optimizer step per minibatch. The losses stay on the device until the end of the epoch, then come in one transfer.

    :param phase: for the message of an error
    :param networks: what an error has to leave as it was
    :param optimizer: of parameters of theirs
    :param minibatches: named tuples of tensors, or of dictionaries of tensors, of shape (B, ...)
    :param loss_fn: the losses of a minibatch
    :param micro_batch_size: the most samples in one forward pass, see ``accumulate_gradient``
    :param max_grad_norm: the gradient's L2 norm is clipped to it; None: no clipping
    :param target_kl: in nats. Stop, without taking the step, at a minibatch whose approximate KL exceeds it, see
        ``exceeds_target_kl``; it has to be looked at for each minibatch. None: never
    :param after_step: is called after each step
    :param adversary: takes a step before each step
    :return: the losses and log-ratios
    :raises NonFiniteLossError: if a loss or a gradient is NaN or infinite
    """
    optimizers = [optimizer] if adversary is None else [optimizer, adversary.optimizer]
    backup = _Backup(networks, optimizers)
    history: list[th.Tensor] = []
    sizes: list[int] = []
    log_ratios: list[th.Tensor] = []
    with unvalidated_distributions():
        for minibatch in minibatches:
            names: list[str] = []
            if adversary is not None:
                gradient = _step_of(adversary, minibatch, micro_batch_size, max_grad_norm)
                names += [f"adversary_{name}" for name in gradient.losses.names]
                history.append(gradient.values)
            gradient = _gradient(optimizer, minibatch, loss_fn, micro_batch_size)
            names += gradient.losses.names
            history += [gradient.values, gradient.norm]
            log_ratios.append(gradient.losses.log_ratio)
            sizes.append(n_samples(minibatch))
            if stopped := target_kl is not None and exceeds_target_kl(gradient.losses.log_ratio, target_kl):
                break
            _take_step(optimizer, gradient, max_grad_norm)
            if after_step is not None:
                after_step()
    for one in optimizers:
        _forget_gradients(_parameters(one))

    table = _checked(phase, networks, names, th.cat(history), len(sizes), backup)
    losses = dict(zip(names, table.T, strict=False))
    return Epoch(losses, table[:, -1], np.array(sizes), th.cat(log_ratios), stopped)


class _Gradient(NamedTuple):
    losses: Losses
    values: th.Tensor
    norm: th.Tensor  # shape (1,)
    parts: list[th.Tensor]


def _gradient(
    optimizer: th.optim.Optimizer,
    minibatch: Minibatch,
    loss_fn: Callable[[Minibatch], Losses],
    micro_batch_size: int | None,
) -> _Gradient:
    """Of a minibatch's loss, in the optimizer's parameters; over all processes."""
    parameters = _parameters(optimizer)
    _forget_gradients(parameters)
    losses, values = accumulate_gradient(minibatch, loss_fn, micro_batch_size)
    if n_processes() > 1:
        average_gradients(parameters, values)
    parts = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return _Gradient(losses, values, gradient_norm(parts), parts)


def _step_of(
    adversary: Adversary, minibatch: Minibatch, micro_batch_size: int | None, max_grad_norm: float | None
) -> _Gradient:
    gradient = _gradient(adversary.optimizer, minibatch, adversary.loss_fn, micro_batch_size)
    _take_step(adversary.optimizer, gradient, max_grad_norm)
    return gradient


def _take_step(optimizer: th.optim.Optimizer, gradient: _Gradient, max_grad_norm: float | None) -> None:
    if max_grad_norm is not None:
        clip_gradients(gradient.parts, gradient.norm, max_grad_norm)
    take_step(optimizer)


def _parameters(optimizer: th.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _checked(
    phase: str, networks: Sequence[nn.Module], names: list[str], history: th.Tensor, n_steps: int, backup: "_Backup"
) -> np.ndarray:
    """
    All losses, and whether a gradient that is not finite has spoiled the weights, in one transfer.

    :param names: of the losses
    :param history: those of each step, and the norm of its gradient, (n_steps * (n_scalars + 1),)
    :return: the same, (n_steps, n_scalars + 1)
    """
    weights = {name: weight for network in networks for name, weight in network.named_parameters() if weight.requires_grad}
    sums = th.stack([weight.detach().sum() for weight in weights.values()])
    numbers = th.cat([history, sums.abs() if sums.is_complex() else sums]).cpu().numpy()
    table = numbers[: -len(sums)].reshape(n_steps, -1)
    if not np.isfinite(numbers).all():
        backup.restore()
        culprit = _culprit(table[:, :-1], names, numbers[-len(sums) :], list(weights))
        raise NonFiniteLossError(f"The {phase} phase met a {culprit}. {ADVICE}")
    return table


def _culprit(table: np.ndarray, losses: list[str], weights: np.ndarray, parameters: list[str]) -> str:
    """
    What was not finite first.

    :param table: (n_minibatches, n_scalars), with the names of the losses
    :param weights: a number for each parameter, with their names
    """
    finite = np.isfinite(table)
    if finite.all():
        bad = ", ".join(name for name, weight in zip(parameters, weights, strict=True) if not np.isfinite(weight))
        return f"gradient that is not finite, that of {bad}"
    step = int(np.argmin(finite.all(axis=1)))
    values = {name: table[step, i].item() for i, name in enumerate(losses) if not finite[step, i]}
    return f"loss that is not finite, in minibatch {step} of an epoch: {values}"


def exceeds_target_kl(log_ratio: th.Tensor, target_kl: float) -> bool:
    """
    Whether the policy has moved too far: SB3's PPO stops at one and a half times its target.

    :param log_ratio: log π(a|s) - log π_old(a|s), (B,)
    :param target_kl: of E[KL(π_old, π)] over all processes' samples, in nats
    """
    approx_kl = approximate_kl(log_ratio)
    average_over_processes([approx_kl])
    return bool(approx_kl > 1.5 * target_kl)


def accumulate_gradient(
    minibatch: Minibatch, loss_fn: Callable[[Minibatch], Losses], micro_batch_size: int | None = None
) -> tuple[Losses, th.Tensor]:
    """
    Add the gradient of a minibatch's loss to the parameters', over several smaller forward passes where asked.

    The losses are means over samples, so the mean of the micro-batches' gradients, weighted by their sizes, is the gradient
    of the whole minibatch. (Not for layers that look at the batch, like batch normalisation.)

    :param minibatch: named tuple of tensors, or of dictionaries of tensors, of shape (B, ...)
    :param loss_fn: its losses
    :param micro_batch_size: the most samples in one forward pass; None: all at once
    :return: the losses of the last micro-batch, with all log-ratios; the scalars of the whole minibatch, shape (n_scalars,)
    """
    size = n_samples(minibatch)
    if micro_batch_size is None or micro_batch_size >= size:
        losses = loss_fn(minibatch)
        values = losses.values
        losses.total.backward()
        return losses, values
    all_values: list[th.Tensor] = []
    log_ratios: list[th.Tensor] = []
    for micro_batch in split(minibatch, micro_batch_size):
        weight = n_samples(micro_batch) / size
        losses = loss_fn(micro_batch)
        all_values.append(weight * losses.values)
        (weight * losses.total).backward()
        log_ratios.append(losses.log_ratio)
    return losses._replace(log_ratio=th.cat(log_ratios)), th.stack(all_values).sum(dim=0)


def _forget_gradients(parameters: list[nn.Parameter]) -> None:
    """As ``optimizer.zero_grad()``, in a third of its time for small networks."""
    for parameter in parameters:
        parameter.grad = None


def gradient_norm(gradients: list[th.Tensor]) -> th.Tensor:
    """
    As ``torch.nn.utils.get_total_norm``, in half its time for small networks.

    :param gradients: of any shapes
    :return: the L2 norm of all together, shape (1,)
    """
    return th.linalg.vector_norm(th.cat([gradient.flatten() for gradient in gradients])).unsqueeze(0)


def clip_gradients(gradients: list[th.Tensor], norm: th.Tensor, max_norm: float) -> None:
    """
    As ``torch.nn.utils.clip_grads_with_norm_``, which ``clip_grad_norm_`` ends with.

    :param gradients: of any shapes
    :param norm: of all together, L2, shape (1,)
    :param max_norm: what it may be at most
    """
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0).squeeze()  # for parameters that are scalars, too
    for gradient in gradients:
        gradient.mul_(factor)


@th.no_grad()
def take_step(optimizer: th.optim.Optimizer) -> None:
    """
    As ``optimizer.step()``. Fused Adam gets there without the profiler's record of it, which takes longer than the step of a
    small network.

    :param optimizer: of parameters with gradients
    """
    if not _is_plain_fused_adam(optimizer):
        optimizer.step()
        return
    (group,) = optimizer.param_groups
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    states = [optimizer.state[parameter] for parameter in parameters]
    if not all(states):
        optimizer.step()  # makes them
        return
    beta1, beta2 = group["betas"]
    adam(
        parameters,
        [parameter.grad for parameter in parameters],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        [state["step"] for state in states],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        **{name: group[name] for name in ("lr", "weight_decay", "eps", "maximize")},
    )


# The powers with which the states of torch's optimizers grow with a gradient (RMSprop's momentum does not)
MOMENTS = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2, "grad_avg": 1, "square_avg": 2, "sum": 2, "exp_inf": 1}


@th.no_grad()
def rescale_moments(optimizer: th.optim.Optimizer, parameters: Iterable[nn.Parameter], factor: th.Tensor) -> None:
    """
    Change what an optimizer remembers of gradients, where a change of units makes all of them larger or smaller.

    :param optimizer: of these parameters, among others
    :param parameters: whose gradients have changed
    :param factor: by which they have, scalar
    """
    powers = {**MOMENTS, "momentum_buffer": 1} if isinstance(optimizer, th.optim.SGD) else MOMENTS
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for name, power in powers.items():
            if name in state:
                state[name].mul_(factor**power)


def _is_plain_fused_adam(optimizer: th.optim.Optimizer) -> bool:
    """Adam as ``take_step`` knows it: one group, none of its variants, nobody listening."""
    return (
        type(optimizer) is th.optim.Adam
        and len(optimizer.param_groups) == 1
        and bool(optimizer.param_groups[0]["fused"])
        and not any(optimizer.param_groups[0].get(variant) for variant in ("amsgrad", "decoupled_weight_decay"))
        and "step" not in vars(optimizer)  # which learning rate schedulers replace
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not _global_optimizer_pre_hooks
        and not _global_optimizer_post_hooks
    )


def n_samples(minibatch: tuple) -> int:
    """
    :param minibatch: tuple of tensors, or of dictionaries of tensors, the first of shape (B, ...)
    :return: B
    """
    first = minibatch[0]
    return len(next(iter(first.values())) if isinstance(first, dict) else first)


def split(minibatch: Minibatch, size: int | None) -> Iterator[Minibatch]:
    """
    :param minibatch: tuple of tensors, or of nested dictionaries and tuples of tensors, of shape (B, ...), or (number of
        sequences, ...), where all sequences are as long. What is no tensor, or has no dimension, belongs to every part
    :param size: in samples; None: all
    :return: consecutive parts of at most that size, of whole sequences and at least one, which share its memory
    """
    whole = n_samples(minibatch)
    if size is None or size >= whole:
        yield minibatch
        return
    leaves, structure = tree_flatten(minibatch)
    length = whole // min(len(leaf) for leaf in leaves if _has_samples(leaf))
    size = max(length, size // length * length)
    for start in range(0, whole, size):
        yield tree_unflatten([_part(leaf, start, start + size, whole) for leaf in leaves], structure)


def _part(leaf: Any, start: int, stop: int, whole: int) -> Any:
    """What belongs to some of the samples."""
    return leaf[start * len(leaf) // whole : stop * len(leaf) // whole] if _has_samples(leaf) else leaf


def _has_samples(leaf: Any) -> bool:
    return isinstance(leaf, th.Tensor) and leaf.dim() > 0


class _Backup:
    """
    The tensors that an epoch changes, as they were before it.

    It costs a copy of the parameters per epoch; checking each minibatch's loss instead would cost a transfer from the
    device for each.

    :param networks: their parameters and buffers
    :param optimizers: their states
    """

    def __init__(self, networks: Sequence[nn.Module], optimizers: Sequence[th.optim.Optimizer]):
        self.optimizers = optimizers
        tensors = [tensor for network in networks for tensor in (*network.parameters(), *network.buffers())]
        self.tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self.states = [
            {
                parameter: {name: value.clone() if isinstance(value, th.Tensor) else value for name, value in state.items()}
                for parameter, state in optimizer.state.items()
            }
            for optimizer in optimizers
        ]

    @th.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for tensor, saved in self.tensors:
            tensor.copy_(saved)
        for optimizer, state in zip(self.optimizers, self.states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)
