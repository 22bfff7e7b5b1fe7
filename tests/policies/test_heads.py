"""Value heads: units, initialisation, and heads of a user's."""

import pytest
import torch as th
from torch import nn

from sb3_ppg import PPG, ArgumentError, MlpPolicy
from sb3_ppg.objectives import Objective
from sb3_ppg.policies import ValueHead, head_loss
from tests.helpers import untrained

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")


def test_a_run_rescales_the_moments_of_every_optimizer_of_a_head():
    """
    Each rollout changes the unit before its epochs, and with it the moments of the heads in all three optimizers: a unit that
    is four times as large makes the weights of the last layer, and their gradients, a quarter as large.
    """
    after: list[tuple] = []

    def moments(policy: MlpPolicy) -> tuple[float, list[list[th.Tensor]]]:
        optimizers = (policy.optimizer, model.value_optimizer, model.aux_optimizer)
        parameters = (policy.value_net.weight, policy.aux_value_net.weight, policy.action_net.weight)
        states = [optimizer.state[one] for one in parameters for optimizer in optimizers if one in optimizer.state]
        return policy.value_unit, [[state["exp_avg"].clone(), state["exp_avg_sq"].clone()] for state in states]

    class Watching(Objective):
        def before_policy_phase(self, policy):
            after.append(moments(policy))

    model = PPG("MlpPolicy", "CartPole-v1", n_value_epochs=1, objective=Watching, **SMALL)
    model.learn(64)
    old_unit, before = moments(model.policy)
    model.learn(32, reset_num_timesteps=False)
    new_unit, rescaled = after[-1]
    assert old_unit != new_unit and len(before) == 5
    for place, (old, new) in enumerate(zip(before, rescaled, strict=True)):
        factor = old_unit / new_unit if place < 3 else 1.0  # the action net's stay
        th.testing.assert_close(new, [old[0] * factor, old[1] * factor**2])


def test_a_plain_head_is_trained_on_the_squared_error_and_another_by_its_own_loss():
    latent, targets, weights = th.tensor([[1.0], [3.0]]), th.tensor([3.0, 7.0]), th.tensor([1.0, 0.0])
    head = nn.Identity()
    assert head_loss(head, latent, targets, 2.0).item() == (1 + 4) / 2  # errors of 1 and 2 in the unit
    assert head_loss(head, latent, targets, 2.0, weights).item() == 1 / 2
    head.loss = lambda latent, targets, unit, weights: (latent.flatten() - targets).abs().mean() / unit
    assert head_loss(head, latent, targets, 2.0).item() == (2 + 4) / 2 / 2


class Quantiles(nn.Linear):
    """Its ``weight`` has another shape than SB3's value head."""

    def __init__(self, in_features: int):
        super().__init__(in_features, 5)

    def forward(self, latent: th.Tensor) -> th.Tensor:
        return super().forward(latent).mean(dim=1, keepdim=True)


def layers(n: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n, 16), nn.Tanh(), nn.Linear(16, 1))


HEADS = {
    "of another shape": Quantiles,
    "with layers": layers,
    "with layers and units": lambda n: ValueHead(16, layers=nn.Sequential(nn.Linear(n, 16), nn.Tanh())),
}


@pytest.mark.parametrize("architecture", ["dual", "detached"])
@pytest.mark.parametrize("make_head", HEADS.values(), ids=HEADS)
def test_own_heads_are_initialised_and_trained(make_head, architecture):
    class Own(MlpPolicy):
        def make_heads(self):
            return {name: make_head(64) for name in ("value_net", "aux_value_net")}

    has_units = hasattr(make_head(64), "change_units")
    model = PPG(Own, "CartPole-v1", normalize_value_targets=has_units, policy_kwargs=dict(architecture=architecture), **SMALL)
    for head in (model.policy.value_net, model.policy.aux_value_net):
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                th.testing.assert_close(layer.weight @ layer.weight.T, th.eye(layer.out_features))  # orthogonal, of gain 1
                assert not layer.bias.any()
    assert not untrained(model, 2)
    assert not has_units or model.policy.value_unit > 1


class WithoutUnits(nn.Linear):
    """It can be told a unit, but not be asked for it."""

    def __init__(self, in_features: int):
        super().__init__(in_features, 1)

    def change_units(self, mean, std): ...


def test_heads_of_which_value_units_need_more_are_refused_when_the_model_is_made():
    class Own(MlpPolicy):
        def make_heads(self):
            return {name: WithoutUnits(64) for name in ("value_net", "aux_value_net")}

    with pytest.raises(ArgumentError, match=r"`normalize_value_targets`=True.*`value_net` has no mean, std.*HasUnits"):
        PPG(Own, "CartPole-v1", **SMALL)
    assert not untrained(PPG(Own, "CartPole-v1", normalize_value_targets=False, **SMALL), 2)


def test_weights_without_a_unit_are_in_that_of_the_return_and_half_a_unit_is_refused():
    """Another unit leaves a head's values as they are."""
    head, other, latent = ValueHead(3), ValueHead(3), th.randn(4, 3)
    before = head(latent)
    head.change_units(5.0, 2.0)
    th.testing.assert_close(head(latent), before)
    other.load_state_dict({name: one for name, one in head.state_dict().items() if name in ("weight", "bias")})
    th.testing.assert_close(other(latent), nn.functional.linear(latent, head.weight, head.bias))
    for name in ("mean", "std"):
        with pytest.raises(RuntimeError, match=f"Missing key.*{name}"):
            other.load_state_dict({key: one for key, one in head.state_dict().items() if key != name})
