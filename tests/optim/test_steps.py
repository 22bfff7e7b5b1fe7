"""Adam on flat parameters, as compiled updates take its steps."""

import pytest
import torch as th
from torch import nn

from sb3_ppg.optim.steps import FlatAdam

OPTIMIZERS = {
    "Adam": (th.optim.Adam, {}),
    "L2": (th.optim.Adam, dict(weight_decay=0.1, betas=(0.8, 0.95))),
    "maximize, amsgrad": (th.optim.Adam, dict(maximize=True, amsgrad=True, eps=1e-3)),
    "AdamW": (th.optim.AdamW, dict(weight_decay=0.1)),
    "AdamW, maximize, amsgrad": (th.optim.AdamW, dict(weight_decay=0.1, maximize=True, amsgrad=True)),
}


@pytest.mark.parametrize("dtype", [th.float32, th.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(name, dtype):
    cls, options = OPTIMIZERS[name]
    th.manual_seed(0)
    network = nn.Linear(3, 2, dtype=dtype)
    optimizer = cls(network.parameters(), lr=0.1, **options)
    gradients = th.randn(5, 8, dtype=dtype)
    for number, gradient in enumerate(gradients):
        network.weight.grad, network.bias.grad = gradient[:6].view(2, 3), gradient[6:]
        if number == 1:
            flat = FlatAdam(optimizer, [[*network.parameters()]], {network.weight: "weight", network.bias: "bias"})
            flat.set_learning_rates()
            (group,), state = flat.groups, flat.groups[0].state
            corrections = group.bias_corrections(4)
        optimizer.step()
        if number >= 1:
            state = group.step(state, gradient, corrections[number - 1])
    expected = th.cat([network.weight.detach().flatten(), network.bias.detach()])
    th.testing.assert_close(state[0], expected)
    assert int(state[-1]) == 5
