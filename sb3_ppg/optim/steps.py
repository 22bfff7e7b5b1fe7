"""
Optimizer steps as functions that torch compiles: losses, gradient, clipping and Adam. All parameters are in one tensor, so
that a step of a small network is a few kernels instead of dozens.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch as th
from torch import nn
from torch._higher_order_ops import while_loop
from typing_extensions import override

from sb3_ppg.arrays import map_arrays, n_samples
from sb3_ppg.losses import Losses, approximate_kl
from sb3_ppg.objectives import Objective
from sb3_ppg.policies import PhasicActorCriticPolicy

# Names of Adam's state and options
ADAM_STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
OPTIONS = ("betas", "amsgrad", "weight_decay", "eps", "maximize", "decoupled_weight_decay")


class Gradient(NamedTuple):
    """Losses of a minibatch, and their gradient. After compiled steps, those of ``n_steps`` minibatches."""

    names: list[str]  # of the losses
    values: th.Tensor  # of the losses, (n_losses,); after compiled steps (n_steps, n_losses)
    log_ratio: th.Tensor  # see `Losses`, (B,); after compiled steps (n_steps * B,)
    size: int  # number of samples in a minibatch, B
    norm: Any = None  # L2 norm of the gradient before it was clipped; after compiled steps (n_steps,); None: not known yet
    n_steps: int = 0  # number of optimizer steps; 0 if they are not taken yet
    stopped: bool = False  # whether the last step was skipped, because the minibatch's KL divergence was too large


class MinibatchLosses(nn.Module):
    """A method of the objective as a module, whose networks can be called with other parameters than their own."""

    def __init__(self, policy: PhasicActorCriticPolicy, objective: Objective, losses: Callable[..., Losses]):
        super().__init__()
        self.policy, self.objective = policy, objective
        self.losses = losses

    @override
    def forward(self, coefficients: Any, minibatch: Any) -> Losses:
        return self.losses(self.policy, minibatch, coefficients)


class FlatGroup(NamedTuple):
    """Parameters of one of Adam's groups that have taken equally many steps, N numbers in all."""

    names: list[str]  # of each parameter in its network
    shapes: list[th.Size]
    options: dict[str, Any]  # of the optimizer
    learning_rate: th.Tensor  # ()
    # Values; means of the gradients, of their squares, and the largest of these with `amsgrad`, (N,) each; number of steps, ()
    state: list[th.Tensor]

    def split(self, numbers: th.Tensor) -> list[th.Tensor]:
        """Split a tensor of N numbers into the parts of the parameters, in their shapes."""
        parts = numbers.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def bias_corrections(self, n: int) -> th.Tensor:
        """Return the divisors for the next n steps, (n, 2): of means of gradients, and of roots of means of squares."""
        numbers = self.state[-1] + th.arange(1, n + 1, device=self.state[-1].device)
        beta1, beta2 = self.options["betas"]
        return th.stack([1 - beta1**numbers, (1 - beta2**numbers).sqrt()], dim=1).to(self.state[0].device)

    def step(self, state: list[th.Tensor], gradient: th.Tensor, corrections: th.Tensor) -> list[th.Tensor]:
        """
        Return the state after one step from ``state``, like ``torch.optim.adam.adam``, which would compute two powers for
        every eight parameters when compiled.

        :param gradient: (N,)
        :param corrections: a row of ``bias_corrections``
        """
        values, mean, square, *largest, n_steps = state
        beta1, beta2 = self.options["betas"]
        weight_decay = self.options["weight_decay"]
        gradient = -gradient if self.options["maximize"] else gradient
        if self.options["decoupled_weight_decay"]:
            values = values * (1 - self.learning_rate * weight_decay)
        elif weight_decay != 0:
            gradient = gradient + weight_decay * values
        mean = mean.lerp(gradient, 1 - beta1)
        square = beta2 * square + (1 - beta2) * gradient * gradient
        if self.options["amsgrad"]:
            largest = [th.maximum(largest[0], square)]
        second = largest[0] if self.options["amsgrad"] else square
        denominator = second.sqrt() / corrections[1] + self.options["eps"]
        values = values - self.learning_rate / corrections[0] * (mean / denominator)
        return [values, mean, square, *largest, n_steps + 1]


class FlatAdam:
    """
    A copy of parameters and of Adam's state as flat groups.

    :param optimizer: Adam or AdamW, which has taken a step
    :param reached: the parameters that the losses reach, in each of its groups
    """

    def __init__(
        self, optimizer: th.optim.Optimizer, reached: Sequence[Sequence[nn.Parameter]], names: Mapping[nn.Parameter, str]
    ):
        self.groups: list[FlatGroup] = []
        self._originals: list[tuple[list[nn.Parameter], list[dict[str, th.Tensor]]]] = []
        for group, parameters in zip(optimizer.param_groups, reached, strict=True):
            alike: dict[Any, list[nn.Parameter]] = {}
            for parameter in parameters:
                key = (parameter.dtype, float(optimizer.state[parameter]["step"]))
                alike.setdefault(key, []).append(parameter)
            for flattened in alike.values():
                states = [optimizer.state[parameter] for parameter in flattened]
                self._originals.append((flattened, states))
                columns = [flattened, *([state[name] for state in states] for name in ADAM_STATE if name in states[0])]
                values, *moments = (th.cat([tensor.detach().flatten() for tensor in column]) for column in columns)
                self.groups.append(
                    FlatGroup(
                        names=[names[parameter] for parameter in flattened],
                        shapes=[parameter.shape for parameter in flattened],
                        options={name: group[name] for name in OPTIONS},
                        learning_rate=th.as_tensor(group["lr"], dtype=th.float64, device=values.device),
                        state=[values, *moments, states[0]["step"].double()],  # in eager mode, Adam computes with it in Python
                    )
                )

    @th.no_grad()
    def copy_back(self, gradients: Sequence[th.Tensor] | None) -> None:
        """Set the parameters, the optimizer's state, and the ``grad`` of the parameters, for callbacks that read it."""
        for number, (flat, (parameters, states)) in enumerate(zip(self.groups, self._originals, strict=True)):
            values, *moments, n_steps = flat.state
            th._foreach_copy_([*parameters], flat.split(values))
            for name, moment in zip(ADAM_STATE, moments, strict=False):
                th._foreach_copy_([state[name] for state in states], flat.split(moment))
            th._foreach_copy_([state["step"] for state in states], [n_steps] * len(states))
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


def run_adam_steps(
    losses_of: MinibatchLosses,
    coefficients: Any,
    minibatches: Any,
    n_steps: th.Tensor,
    groups: list[FlatGroup],
    max_grad_norm: th.Tensor | None,
    largest_kl: th.Tensor | None,
    records: tuple[th.Tensor, th.Tensor, th.Tensor],
) -> tuple[tuple[th.Tensor, ...], list[list[th.Tensor]], list[th.Tensor], th.Tensor, th.Tensor]:
    """
    For each of the first ``n_steps`` minibatches, compute the gradient of its loss, clip it, and take a step of Adam. It is a
    loop in compiled code, whose body is compiled once. It stops before the step on a minibatch whose approximate KL divergence
    exceeds ``largest_kl``.

    :param minibatches: minibatches of the same size, stacked: tensors of shape (K, B, ...)
    :param n_steps: (), at most K
    :param records: empty tensors for each minibatch's losses, (K, n_losses), log-ratios, (K, B), and norm, (K,)
    :return: these records; the state of each group; the latest gradient in the parameters of each group; the number of
        minibatches, (); whether the last of them was too far away, ()
    """

    def loss(flat: list[th.Tensor], minibatch: Any) -> tuple[th.Tensor, tuple[th.Tensor, th.Tensor]]:
        parameters: dict[str, th.Tensor] = {}
        for group, values in zip(groups, flat, strict=True):
            parameters.update(zip(group.names, group.split(values), strict=True))
        losses = th.func.functional_call(losses_of, parameters, (coefficients, minibatch))
        return losses.total, (losses.values, losses.log_ratio)

    def step(number: th.Tensor, stopped: th.Tensor, records: Any, states: Any, _: list[th.Tensor]) -> tuple[Any, ...]:
        minibatch = map_arrays(lambda leaf: _row(leaf, number), minibatches)
        gradients, (values, log_ratio) = th.func.grad(loss, has_aux=True)([values for values, *_ in states], minibatch)
        norm = th.stack([gradient.abs().square().sum() for gradient in gradients]).sum().sqrt()
        scale = 1.0 if max_grad_norm is None else th.clamp(max_grad_norm / (norm + 1e-6), max=1.0)
        gradients = [gradient * scale for gradient in gradients]
        rows = [_row(of_group, number) for of_group in corrections]
        new_states = [FlatGroup.step(*each) for each in zip(groups, states, gradients, rows, strict=True)]
        if largest_kl is None:
            stopped = stopped.clone()  # of which a loop's result must not be an alias
        else:
            stopped = approximate_kl(log_ratio) > largest_kl
            pairs = zip(states, new_states, strict=True)
            new_states = [[th.where(stopped, *each) for each in zip(*pair, strict=True)] for pair in pairs]
        places = th.arange(len(records[0]), device=number.device) == number
        records = tuple(
            th.where(places.reshape(-1, *[1] * new.dim()), new.to(old.dtype), old)
            for old, new in zip(records, (values, log_ratio, norm), strict=True)
        )
        return number + 1, stopped, records, new_states, gradients

    states, start = [group.state for group in groups], th.zeros_like(n_steps)
    corrections = [group.bias_corrections(len(records[0])) for group in groups]
    with th.no_grad():
        latest = [th.zeros_like(values) for values, *_ in states]
        carried = (start, th.zeros_like(start, dtype=th.bool), records, states, latest)
        number, stopped, records, states, latest = while_loop(
            lambda number, stopped, *_: (number < n_steps) & ~stopped, step, carried
        )
    return records, states, latest, number, stopped


def _row(leaf: Any, number: th.Tensor) -> Any:
    return leaf.index_select(0, number.reshape(1)).squeeze(0) if isinstance(leaf, th.Tensor) else leaf
