"""Steps of Adam on one tensor for all parameters, in which a step of a small network is a few kernels instead of dozens."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch as th
from torch import nn
from torch.optim.adam import adam

# Names of Adam's state and options, which its function takes
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
OPTIONS = ("amsgrad", "weight_decay", "eps", "maximize", "decoupled_weight_decay")


class FlatGroup(NamedTuple):
    """Parameters of one of Adam's groups that have taken equally many steps, N numbers in all."""

    names: list[list[str]]  # of each parameter, see ``FlatAdam``
    layouts: list[tuple[list[int], list[int]]]  # of each parameter, see ``_layout``
    values: th.Tensor  # (N,)
    moments: list[th.Tensor]  # means of the gradients, of their squares, and the largest of these with `amsgrad`, (N,) each
    n_steps: th.Tensor  # (1,): torch 2.13's compiled code changes no float64 of shape () in place
    learning_rate: th.Tensor  # ()
    options: dict[str, Any]  # of `torch.optim.adam.adam`

    def split(self, numbers: th.Tensor) -> list[th.Tensor]:
        """Split a tensor of N numbers into the parts of the parameters, in their shapes."""
        parts = numbers.split([math.prod(sizes) for sizes, _ in self.layouts])
        return [part.view(sizes).permute(dims) for part, (sizes, dims) in zip(parts, self.layouts, strict=True)]

    def step(self, gradient: th.Tensor, is_taken: th.Tensor) -> None:
        """Change values and state in place by a step, unless it is not taken. ``gradient``: (N,); ``is_taken``: ()."""
        tensors = [self.values, *self.moments, self.n_steps]
        changed = [tensor.clone() for tensor in tensors]
        values, *moments, n_steps = ([tensor] for tensor in changed)
        lists: Any = [
            values,
            [gradient],
            *moments,
            *[[]] * (3 - len(moments)),
            n_steps,
        ]  # none of the largest, without `amsgrad`
        adam(*lists, lr=self.learning_rate, **self.options)
        for tensor, new in zip(tensors, changed, strict=True):
            tensor.copy_(th.where(is_taken, new, tensor))


class FlatAdam:
    """
    A copy of parameters and of Adam's state as flat groups.

    :param optimizer: Adam or AdamW, which has taken a step
    :param reached: the parameters that the losses reach, in each of its groups
    :param names: names of each parameter in the module whose losses are computed
    """

    def __init__(
        self,
        optimizer: th.optim.Optimizer,
        reached: Sequence[Sequence[nn.Parameter]],
        names: dict[nn.Parameter, list[str]],
    ):
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
                values, *moments = (_joined(column, some) for column in columns)
                beta1, beta2 = group["betas"]
                options = {name: group[name] for name in OPTIONS} | dict(beta1=beta1, beta2=beta2, foreach=False, fused=False)
                self.groups.append(
                    FlatGroup(
                        names=[names[parameter] for parameter in some],
                        layouts=[_layout(parameter) for parameter in some],
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


def _order(parameter: nn.Parameter) -> list[int]:
    """Return the dimensions in the order of memory, which is another one in the channels-last format of convolutions."""
    return sorted(range(parameter.dim()), key=parameter.stride, reverse=True)


def _layout(parameter: nn.Parameter) -> tuple[list[int], list[int]]:
    """Return the sizes of the dimensions in the order of memory, and the place of each dimension there."""
    order = _order(parameter)
    return [parameter.shape[dim] for dim in order], [order.index(dim) for dim in range(len(order))]


def _joined(tensors: Sequence[th.Tensor], parameters: Sequence[nn.Parameter]) -> th.Tensor:
    """Join tensors that have the shapes of parameters, each in the order of its parameter's memory, (N,)."""
    return th.cat([one.detach().permute(_order(like)).flatten() for one, like in zip(tensors, parameters, strict=True)])
