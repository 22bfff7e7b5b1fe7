"""
One epoch of optimizer steps, the same for both phases: micro-batches, averaging over processes, gradient clipping, and the
guard against losses that are not finite.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
import torch as th
from torch import nn

from sb3_ppg.errors import NonFiniteLossError
from sb3_ppg.processes import average_over_processes, n_processes

Minibatch = TypeVar("Minibatch", bound=tuple)


class Losses(NamedTuple):
    """
    What a loss function returns for a minibatch: scalars, each a mean over the samples.

    :param total: to differentiate
    :param terms: what the total is made of, by the names under which to log them
    :param diagnostics: to be logged too, but neither differentiated nor checked
    """

    total: th.Tensor
    terms: dict[str, th.Tensor]
    diagnostics: dict[str, th.Tensor]

    @property
    def names(self) -> list[str]:
        """Of all scalars, in the order of ``values``."""
        return ["loss", *self.terms, *self.diagnostics]

    @property
    def values(self) -> th.Tensor:
        """All scalars without their graph, shape (n_scalars,)."""
        return th.stack([self.total, *self.terms.values(), *self.diagnostics.values()]).detach()


def optimize_epoch(
    phase: str,
    module: nn.Module,
    optimizer: th.optim.Optimizer,
    minibatches: Iterable[Minibatch],
    loss_fn: Callable[[Minibatch], Losses],
    micro_batch_size: int | None = None,
    max_grad_norm: float | None = None,
    target_kl: float | None = None,
) -> dict[str, np.ndarray]:
    """
    One optimizer step per minibatch. The losses stay on the device until the end of the epoch, then come in one transfer.

    :param phase: for the message of an error
    :param module: what is trained
    :param optimizer: of its parameters
    :param minibatches: named tuples of tensors, or of dictionaries of tensors, of shape (B, ...)
    :param loss_fn: the losses of a minibatch
    :param micro_batch_size: the most samples in one forward pass, see ``accumulate_gradient``
    :param max_grad_norm: the gradient's L2 norm is clipped to it; None: no clipping
    :param target_kl: in nats. Stop, without taking the step, at a minibatch whose ``approx_kl`` exceeds it, see ``exceeds``;
        it has to be looked at for each minibatch. None: never
    :return: by the names of the losses, their values for each minibatch, shape (n_minibatches,)
    :raises NonFiniteLossError: if a loss is NaN or infinite
    """
    backup = _Backup(module, optimizer)
    history: list[th.Tensor] = []
    with unvalidated_distributions():
        for minibatch in minibatches:
            optimizer.zero_grad()
            losses, values = accumulate_gradient(minibatch, loss_fn, micro_batch_size)
            if n_processes() > 1:
                average_over_processes([values, *(p.grad for p in module.parameters() if p.grad is not None)])
            history.append(values)
            if target_kl is not None and exceeds(values[losses.names.index("approx_kl")], target_kl):
                break
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)
            optimizer.step()
    optimizer.zero_grad()  # free the last gradient

    table = th.stack(history).cpu().numpy()  # (n_minibatches, n_scalars)
    checked = ["loss", *losses.terms]
    finite = np.isfinite(table[:, : len(checked)])
    if not finite.all():
        backup.restore()
        step = int(np.argmin(finite.all(axis=1)))
        culprits = {name: table[step, i].item() for i, name in enumerate(checked) if not finite[step, i]}
        raise NonFiniteLossError(
            f"The {phase} phase met a loss that is not finite, in minibatch {step} of an epoch: {culprits}. The weights are "
            "those from before that epoch. Look for NaN or infinity in observations and rewards (VecCheckNan finds them), "
            "normalise them (VecNormalize), or use a smaller learning rate or `max_grad_norm`"
        )
    return dict(zip(losses.names, table.T, strict=True))


def exceeds(approx_kl: th.Tensor | np.floating, target_kl: float) -> bool:
    """
    Whether a policy has moved too far: SB3's PPO stops at one and a half times its target.

    :param approx_kl: scalar, in nats
    :param target_kl: in nats
    """
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
    :return: the losses of the last micro-batch, and the scalars of the whole minibatch, shape (n_scalars,)
    """
    n_samples = _n_samples(minibatch)
    minibatch_values: th.Tensor | None = None
    for micro_batch in _split(minibatch, micro_batch_size or n_samples):
        weight = _n_samples(micro_batch) / n_samples
        losses = loss_fn(micro_batch)
        (weight * losses.total).backward()
        values = weight * losses.values
        minibatch_values = values if minibatch_values is None else minibatch_values + values
    assert minibatch_values is not None, "An empty minibatch"
    return losses, minibatch_values


def _n_samples(minibatch: tuple) -> int:
    first = minibatch[0]
    return len(next(iter(first.values()))) if isinstance(first, dict) else len(first)


def _split(minibatch: Minibatch, size: int) -> Iterator[Minibatch]:
    """Consecutive micro-batches of at most ``size`` samples."""
    n_samples = _n_samples(minibatch)
    if size >= n_samples:
        yield minibatch
        return
    for start in range(0, n_samples, size):
        part = slice(start, start + size)
        fields = ({k: v[part] for k, v in field.items()} if isinstance(field, dict) else field[part] for field in minibatch)
        yield type(minibatch)(*fields)


class _Backup:
    """
    The tensors that an epoch changes, as they were before it.

    It costs a copy of the parameters per epoch; checking each minibatch's loss instead would cost a transfer from the
    device for each.

    :param module: its parameters and buffers
    :param optimizer: its state
    """

    def __init__(self, module: nn.Module, optimizer: th.optim.Optimizer):
        self.optimizer = optimizer
        self.tensors = [(tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())]
        self.state = {
            parameter: {name: value.clone() if isinstance(value, th.Tensor) else value for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }

    @th.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for tensor, saved in self.tensors:
            tensor.copy_(saved)
        self.optimizer.state.clear()
        self.optimizer.state.update(self.state)


@contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """
    Torch's distributions look at their arguments' values when they are made: a transfer from the device, each time. The
    losses are checked instead, once per epoch.
    """
    validate = th.distributions.Distribution._validate_args
    th.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        th.distributions.Distribution.set_default_validate_args(validate)
