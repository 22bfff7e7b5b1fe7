"""
Optimizer steps as functions that torch compiles: losses, gradient, clipping and Adam. All parameters are in one tensor, so
that a step of a small network is a few kernels instead of dozens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch as th
from torch import nn
from torch.optim.adam import adam

from sb3_ppg.arrays import n_samples
from sb3_ppg.losses import Losses
from sb3_ppg.protocols import PhasicModel

# Names of Adam's state and options, which its function takes
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
OPTIONS = ("amsgrad", "weight_decay", "eps", "maximize", "decoupled_weight_decay")


class Gradient(NamedTuple):
    """Losses of a minibatch, and their gradient."""

    names: list[str]  # of the losses
    values: th.Tensor  # of the losses, (n_losses,)
    log_ratio: th.Tensor  # see `Losses`, (B,)
    size: int  # number of samples, B
    norm: Any = None  # L2 norm of the gradient before it was clipped, (); None if it is not known yet
    step_is_taken: bool = False


def minibatch_losses(model: PhasicModel, losses: Callable[..., Losses], coefficients: Any, minibatch: Any) -> Losses:
    """Evaluate a method of the objective on a minibatch of either phase."""
    return losses(model.policy, model.network_inputs(minibatch), minibatch, coefficients)


class MinibatchLosses(nn.Module):
    """``minibatch_losses`` as a module, whose networks can be called with other parameters than their own."""

    def __init__(self, model: PhasicModel, losses: Callable[..., Losses]):
        super().__init__()
        self.policy, self.objective = model.policy, model.objective
        self._losses = partial(minibatch_losses, model, losses)

    def forward(self, coefficients: Any, minibatch: Any) -> Losses:
        return self._losses(coefficients, minibatch)


class FlatGroup(NamedTuple):
    """Parameters of one of Adam's groups that have taken equally many steps, N numbers in all."""

    names: list[str]  # of each parameter in its network
    shapes: list[th.Size]
    values: th.Tensor  # (N,)
    moments: list[th.Tensor]  # means of the gradients, of their squares, and the largest of these with `amsgrad`, (N,) each
    n_steps: th.Tensor  # (1,), because torch 2.13's compiled code does not change an argument of shape () and dtype float64
    learning_rate: th.Tensor  # ()
    options: dict[str, Any]  # of `torch.optim.adam.adam`

    def split(self, numbers: th.Tensor) -> list[th.Tensor]:
        """Split a tensor of N numbers into the parts of the parameters, in their shapes."""
        parts = numbers.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def step(self, gradient: th.Tensor, is_taken: th.Tensor) -> None:
        """Change values and state in place by a step, unless it is not taken. ``gradient``: (N,); ``is_taken``: ()."""
        tensors = [self.values, *self.moments, self.n_steps]
        values, *moments, n_steps = changed = [tensor.clone() for tensor in tensors]
        lists: Any = [[one] for one in (values, gradient, *moments)]
        lists += [[]] * (5 - len(lists))  # without `amsgrad`
        lists.append([n_steps[0]])  # of shape (), as float32 numbers stay float32 in arithmetic with it
        adam(*lists, lr=self.learning_rate, **self.options)
        for tensor, new in zip(tensors, changed, strict=True):
            tensor.copy_(th.where(is_taken, new, tensor))


class FlatAdam:
    """
    A copy of parameters and of Adam's state as flat groups.

    :param optimizer: Adam or AdamW, which has taken a step
    :param reached: the parameters that the losses reach, in each of its groups
    :param network: the module with the parameters, which names them
    """

    def __init__(
        self,
        optimizer: th.optim.Optimizer,
        reached: Sequence[Sequence[nn.Parameter]],
        network: nn.Module,
    ):
        names = {parameter: name for name, parameter in network.named_parameters()}
        self.groups: list[FlatGroup] = []
        self._originals: list[tuple[dict[str, Any], list[nn.Parameter], list[dict[str, th.Tensor]]]] = []
        for group, parameters in zip(optimizer.param_groups, reached, strict=True):
            alike: dict[Any, list[nn.Parameter]] = {}
            for parameter in parameters:
                key = (parameter.dtype, float(optimizer.state[parameter]["step"]))
                alike.setdefault(key, []).append(parameter)
            for some in alike.values():
                states = [optimizer.state[parameter] for parameter in some]
                self._originals.append((group, some, states))
                columns = [some, *([state[name] for state in states] for name in MOMENTS if name in states[0])]
                values, *moments = (th.cat([one.detach().flatten() for one in column]) for column in columns)
                beta1, beta2 = group["betas"]
                options = {name: group[name] for name in OPTIONS} | dict(beta1=beta1, beta2=beta2, foreach=False, fused=False)
                self.groups.append(
                    FlatGroup(
                        names=[names[parameter] for parameter in some],
                        shapes=[parameter.shape for parameter in some],
                        values=values,
                        moments=moments,
                        n_steps=states[0]["step"].double().reshape(1),  # in eager mode, Adam computes with it in Python
                        learning_rate=th.empty((), dtype=th.float64, device=values.device),
                        options=options,
                    )
                )

    def set_learning_rates(self) -> None:
        """Use the optimizer's current learning rates."""
        for flat, (group, *_) in zip(self.groups, self._originals, strict=True):
            flat.learning_rate.fill_(group["lr"])

    @th.no_grad()
    def copy_back(self, gradients: Sequence[th.Tensor] | None) -> None:
        """Set the parameters, the optimizer's state, and the ``grad`` of the parameters, for callbacks that read it."""
        for number, (flat, (_, parameters, states)) in enumerate(zip(self.groups, self._originals, strict=True)):
            th._foreach_copy_([*parameters], flat.split(flat.values))
            for name, moment in zip(MOMENTS, flat.moments, strict=False):
                th._foreach_copy_([state[name] for state in states], flat.split(moment))
            for state in states:
                state["step"].copy_(flat.n_steps[0])
            for parameter, gradient in zip(parameters, flat.split(gradients[number]) if gradients else [], strict=False):
                parameter.grad = gradient


# ---- compiled functions ----


def loss_gradient(
    losses_of: MinibatchLosses, coefficients: Any, minibatch: Any, parameters: list[nn.Parameter]
) -> tuple[Gradient, Sequence[th.Tensor]]:
    """Compute the gradient of a minibatch's loss in the parameters that it reaches."""
    losses = losses_of(coefficients, minibatch)
    gradients = th.autograd.grad(losses.total, parameters)
    return Gradient(losses.names, losses.values, losses.log_ratio.detach(), n_samples(minibatch[0])), gradients


def take_steps(
    losses_of: MinibatchLosses,
    coefficients: Any,
    minibatches: list[Any],
    n_steps: th.Tensor,
    groups: list[FlatGroup],
    max_grad_norm: th.Tensor | None,
) -> tuple[Gradient, Sequence[th.Tensor]]:
    """
    For each of the first ``n_steps`` minibatches, compute the gradient of its loss, clip it, and take a step of Adam, which
    changes the groups in place. Further minibatches change nothing: they fill up a call, so that it needs no graph of its own.

    :return: what ``Gradient`` has of each minibatch, stacked, and the latest gradient in the parameters of each group
    """
    results, latest = [], [th.zeros_like(group.values) for group in groups]
    for number, minibatch in enumerate(minibatches):
        leaves = [group.values.detach().requires_grad_() for group in groups]
        parameters: dict[str, th.Tensor] = {}
        for group, leaf in zip(groups, leaves, strict=True):
            parameters.update(zip(group.names, group.split(leaf), strict=True))
        losses = th.func.functional_call(losses_of, parameters, (coefficients, minibatch))
        gradients = th.autograd.grad(losses.total, leaves)
        is_taken = number < n_steps
        with th.no_grad():
            norm = th.stack([gradient.abs().square().sum() for gradient in gradients]).sum().sqrt()
            scale = 1.0 if max_grad_norm is None else th.clamp(max_grad_norm / (norm + 1e-6), max=1.0)
            latest = [th.where(is_taken, new * scale, old) for new, old in zip(gradients, latest, strict=True)]
            for group, gradient in zip(groups, latest, strict=True):
                group.step(gradient, is_taken)
        results.append((losses.values, losses.log_ratio.detach(), norm))
    values, log_ratios, norms = (th.stack(column) for column in zip(*results, strict=True))
    return Gradient(losses.names, values, log_ratios, n_samples(minibatch[0]), norms, step_is_taken=True), latest
