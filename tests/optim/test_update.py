"""The optimizer steps that both phases share."""

from typing import NamedTuple

import numpy as np
import pytest
import torch as th
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sb3_ppg import PPG
from sb3_ppg.errors import NonFiniteLossError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Objective
from sb3_ppg.optim.update import Update, mean_losses
from sb3_ppg.optim.value_units import rescale_moments


class Batch(NamedTuple):
    """A user's minibatch may have fields that belong to every micro-batch."""

    observations: dict[str, th.Tensor]
    targets: th.Tensor
    factor: th.Tensor = th.tensor(2.0)
    note: str | None = "a text"


def make_batch(n_samples: int, seed: int = 0) -> Batch:
    generator = th.Generator().manual_seed(seed)
    return Batch({"x": th.randn(n_samples, 3, generator=generator)}, th.randn(n_samples, generator=generator))


class Regression:
    """A small network with a loss on dictionary observations."""

    def __init__(self):
        th.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.network.register_buffer("n_passes", th.zeros(()))
        self.optimizer = th.optim.Adam(self.network.parameters(), lr=1e-2)
        self.batch_sizes: list[int] = []

    def losses(self, network: nn.Module, batch: Batch, coefficients: None = None) -> Losses:
        self.batch_sizes.append(len(batch.targets))
        self.network.n_passes += 1
        difference = network(batch.observations["x"]).flatten() - batch.targets
        error = difference.square().mean()
        assert batch.note == "a text"
        return Losses(batch.factor * error, {"error": error}, difference.detach())

    def update(self, kind: str = "policy", micro_batch_size: int | None = None) -> Update:
        objective = Objective(self.network)
        return Update(kind, self.network, objective, self.losses, self.optimizer, 1e-2, None, micro_batch_size)

    def gradient(self) -> list[th.Tensor]:
        return [parameter.grad.clone() for parameter in self.network.parameters()]

    def weights(self) -> list[th.Tensor]:
        return [parameter.detach().clone() for parameter in self.network.parameters()]


@pytest.mark.parametrize("micro_batch_size", [1, 5, 6, 7, 24, 100])
def test_micro_batches_give_the_gradient_of_the_whole_minibatch(micro_batch_size):
    batch = make_batch(24)
    whole, parts = Regression(), Regression()
    of_whole = whole.update().gradient(batch, whole.losses, [*whole.network.parameters()])
    of_parts = parts.update(micro_batch_size=micro_batch_size).gradient(batch, parts.losses, [*parts.network.parameters()])
    th.testing.assert_close(of_parts.log_ratio, of_whole.log_ratio)
    assert max(parts.batch_sizes) <= micro_batch_size and sum(parts.batch_sizes) == 24
    th.testing.assert_close(of_parts.values, of_whole.values)
    th.testing.assert_close(parts.gradient(), whole.gradient(), rtol=1e-5, atol=1e-7)


def test_losses_of_each_minibatch_come_back_and_are_averaged_over_samples():
    regression = Regression()
    minibatches = [make_batch(8), make_batch(2)]
    with th.no_grad():
        first = regression.losses(regression.network, minibatches[0])
    epoch = regression.update(micro_batch_size=3).epoch(minibatches)
    assert set(epoch.losses) == {"loss", "error"} and epoch.sizes.tolist() == [8, 2]
    assert epoch.losses["error"][0] == pytest.approx(first.terms["error"].item())
    np.testing.assert_allclose(epoch.losses["loss"], 2 * epoch.losses["error"], rtol=1e-6)
    th.testing.assert_close(epoch.log_ratio[:8], first.log_ratio)
    assert epoch.log_ratio.shape == (10,) and epoch.grad_norm.shape == (2,) and (epoch.grad_norm > 0).all()
    assert mean_losses([epoch])["loss"] == pytest.approx(epoch.losses["loss"] @ [0.8, 0.2])
    assert mean_losses([epoch, epoch])["grad_norm"] == pytest.approx(epoch.grad_norm.mean())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("bad_minibatch", [0, 2])
def test_a_loss_that_is_not_finite_leaves_weights_and_optimizer_alone(bad, bad_minibatch):
    regression = Regression()
    regression.update().epoch([make_batch(8, 5)])
    before = regression.weights()
    states = [{k: v.clone() for k, v in s.items()} for s in regression.optimizer.state.values()]
    minibatches = [make_batch(8, seed) for seed in range(4)]
    minibatches[bad_minibatch].targets[3] = bad
    with pytest.raises(NonFiniteLossError, match=rf"auxiliary phase.*minibatch {bad_minibatch}.*'error'"):
        regression.update("auxiliary").epoch(minibatches)
    assert all(th.equal(a, b) for a, b in zip(regression.weights(), before, strict=True)) and regression.network.n_passes == 1
    for state, saved in zip(regression.optimizer.state.values(), states, strict=True):
        assert all(th.equal(state[name], saved[name]) for name in saved)


def test_a_minibatch_that_stops_an_update_may_have_any_loss():
    """PPO takes no step on it, either."""
    regression = Regression()
    minibatches = [make_batch(8, 0), make_batch(8, 1), make_batch(8, 2)]
    minibatches[1].targets[3] = -1e30  # whose square is infinite in float32, and so is the KL divergence
    update = regression.update()
    update.largest_kl = 1e6
    assert update.epoch(minibatches).stopped and all(weight.isfinite().all() for weight in regression.weights())


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: th.optim.Adam(parameters, lr=0.1),
        lambda parameters: th.optim.Adam(parameters, lr=0.1, amsgrad=True),
        lambda parameters: th.optim.RMSprop(parameters, lr=0.1, centered=True, momentum=0.9, eps=0),
        lambda parameters: th.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: th.optim.Adagrad(parameters, lr=0.1),
        lambda parameters: th.optim.Adamax(parameters, lr=0.1, eps=0),
        lambda parameters: th.optim.Rprop(parameters),
        lambda parameters: th.optim.Adadelta(parameters, eps=1e-12),
        lambda parameters: th.optim.Adafactor(parameters),
    ],
)
def test_rescaled_moments_are_those_of_rescaled_gradients(make_optimizer):
    parameters = [nn.Parameter(th.zeros(2, 2)), nn.Parameter(th.zeros(2, 2))]
    optimizers = [make_optimizer([parameter]) for parameter in parameters]
    for _ in range(3):
        gradient = th.randn(2, 2)
        for parameter, optimizer, factor in zip(parameters, optimizers, (1.0, 0.2), strict=True):
            parameter.grad = factor * gradient
            optimizer.step()
    rescale_moments(optimizers[0], parameters[:1], th.tensor(0.2))
    states = [optimizer.state[parameter] for optimizer, parameter in zip(optimizers, parameters, strict=True)]
    assert states[0].keys() == states[1].keys() and states[0]
    for name in states[0]:
        th.testing.assert_close(states[0][name], states[1][name])


class WithoutFloat64(TorchDispatchMode):
    """A device that refuses to convert a tensor to float64, as Apple's MPS does."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert (kwargs or {}).get("dtype") != th.float64, func
        return func(*args, **(kwargs or {}))


def test_both_phases_train_where_a_device_has_no_float64():
    with WithoutFloat64():
        model = PPG("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_policy_iterations=2).learn(128)
    assert model.n_aux_phases == 2 and model.policy.value_unit > 1
