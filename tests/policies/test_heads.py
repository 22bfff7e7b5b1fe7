"""Value heads and action distributions: units, initialisation, and those of a user's."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import nn

from sb3_ppg import PPG, ArgumentError, MlpPolicy, RecurrentPPG
from sb3_ppg.objectives import Objective
from sb3_ppg.policies import ValueHead, head_loss
from tests.helpers import KINDS, VECTOR, WITH_CONTEXT, learn_and_log, names_of, random_envs, untrained

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")


def test_a_run_rescales_the_moments_of_every_optimizer_of_a_head():
    """Each rollout changes the unit before its epochs; four times the unit makes weights and gradients a quarter as large."""
    after: list[tuple] = []

    def moments(policy: MlpPolicy) -> tuple[float, list[list[th.Tensor]]]:
        optimizers = (policy.optimizer, model.value_optimizer, model.aux_optimizer)
        parameters = (policy.value_net.weight, policy.aux_value_net.weight, policy.action_net.weight)
        states = [
            optimizer.state[parameter] for parameter in parameters for optimizer in optimizers if parameter in optimizer.state
        ]
        return policy.value_unit, [[state["exp_avg"].clone(), state["exp_avg_sq"].clone()] for state in states]

    class Watching(Objective):
        def before_policy_update(self, policy):
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


HEADS = {
    "of another shape": Quantiles,
    "with layers": lambda n: nn.Sequential(nn.Linear(n, 16), nn.Tanh(), nn.Linear(16, 1)),
    "with layers and units": lambda n: ValueHead(16, layers=nn.Sequential(nn.Linear(n, 16), nn.Tanh())),
}


@pytest.mark.parametrize("architecture", ["dual", "detached"])
@pytest.mark.parametrize("make_head", HEADS.values(), ids=HEADS)
def test_own_heads_are_initialised_and_trained(make_head, architecture):
    class Own(MlpPolicy):
        def make_heads(self):
            return {name: make_head(64) for name in ("value_net", "aux_value_net")}

    has_units = hasattr(make_head(64), "change_units")
    if not has_units:
        message = r"`normalize_value_targets`=True.*`value_net` has no mean, std, change_units, .*ValueHead"
        with pytest.raises(ArgumentError, match=message):
            PPG(Own, "CartPole-v1", **SMALL)
    model = PPG(Own, "CartPole-v1", normalize_value_targets=has_units, policy_kwargs=dict(architecture=architecture), **SMALL)
    for head in (model.policy.value_net, model.policy.aux_value_net):
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                th.testing.assert_close(layer.weight @ layer.weight.T, th.eye(layer.out_features))  # orthogonal, of gain 1
                assert not layer.bias.any()
    assert not untrained(model, 2)
    assert not has_units or model.policy.value_unit > 1


def test_weights_without_a_unit_are_in_that_of_the_return_and_half_a_unit_is_refused():
    """Another unit leaves a head's values as they are, but a new head begins at the mean."""
    head, other, latent = ValueHead(3), ValueHead(3), th.randn(4, 3)
    before = head(latent)
    head.change_units(5.0, 2.0)
    th.testing.assert_close(head(latent), before)
    new = ValueHead(3)
    nn.init.zeros_(new.bias)
    before = new(latent)
    for mean, std in ((5.0, 2.0), (7.0, 4.0)):
        new.change_units(mean, std)
        th.testing.assert_close(new(latent), mean + std * before)
    other.load_state_dict({name: value for name, value in head.state_dict().items() if name in ("weight", "bias")})
    th.testing.assert_close(other(latent), nn.functional.linear(latent, head.weight, head.bias))
    for name in ("mean", "std"):
        with pytest.raises(RuntimeError, match=f"Missing key.*{name}"):
            other.load_state_dict({key: value for key, value in head.state_dict().items() if key != name})


# For the head and the distribution that docs/guides/own_networks.md shows, on all kinds of policies
PAGES = SMALL | dict(n_steps=16, batch_size=16, n_epochs=2, n_aux_epochs=2)


TWO_HOT, BETA = (names_of("docs/guides/own_networks.md", f"class {name}") for name in ("TwoHotHead", "BetaDistribution"))


def test_a_two_hot_head_learns_a_value_between_two_bins():
    head, latent, targets = TWO_HOT["TwoHotHead"](3, 0.0, 10.0, 11), th.ones(2, 3), th.tensor([2.25, 2.25])
    optimizer = th.optim.Adam(head.parameters(), lr=0.3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = head.loss(latent, targets, 1.0)
        loss.backward()
        optimizer.step()
    assert head(latent).detach().numpy() == pytest.approx(2.25, abs=0.01)
    assert loss.item() == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25), abs=1e-3)  # of the two bins, the least


@pytest.mark.parametrize(("kind", "objective"), [*zip(WITH_CONTEXT, ["ppg", "dna", "dcpg"], strict=True)])
def test_two_hot_heads_train_with_memory_with_masks_and_with_relatives(kind, objective):
    cls, name, make_envs, policy_kwargs = KINDS[kind]
    policy = type("TwoHotPolicy", (TWO_HOT["TwoHot"], cls.policy_aliases[name]), {})
    fixed = {"dna": dict(n_value_epochs=1, n_policy_iterations=1), "dcpg": {}}.get(objective, {})
    policy_kwargs = dict(policy_kwargs, architecture="shared" if objective == "dcpg" else "dual")
    arguments = {**PAGES, **fixed, "objective": objective, "policy_kwargs": policy_kwargs, "normalize_value_targets": False}
    model = cls(policy, make_envs(), **arguments)
    assert {name.split(".")[0] for name in untrained(model, 4)} == ({"aux_value_net"} if objective == "dcpg" else set())
    logged = model.logger.name_to_value
    assert 0 < logged["aux/aux_value_loss" if objective != "dcpg" else "aux/value_loss"] < np.log(51)


def beta(kind: type[PPG] = PPG, policy: str = "MlpPolicy", **policy_kwargs) -> PPG:
    space = spaces.Box(np.float32([-2, 0]), np.float32([1, 0.1]))
    policy_kwargs["distribution_class"] = BETA["BetaDistribution"]
    return kind(policy, random_envs(VECTOR, space), policy_kwargs=policy_kwargs, **PAGES)


def test_a_registered_distribution_has_an_exact_kl_divergence():
    policy = beta().policy
    first, second = (policy.get_distribution(th.randn(4, 3)) for _ in range(2))
    kl = th.distributions.kl_divergence(first.distribution, second.distribution).sum(dim=1)
    parameters = [policy.actions.parameters(each) for each in (first, second)]
    th.testing.assert_close(policy.actions.kl(first, *parameters), kl)
    assert not policy.actions.kl(first, parameters[0], parameters[0]).any()


@pytest.mark.parametrize(
    ("kind", "policy", "kwargs"), [(PPG, "MlpPolicy", {}), (RecurrentPPG, "MlpLstmPolicy", dict(lstm_hidden_size=4))]
)
def test_a_registered_distribution_acts_within_the_bounds_trains_and_is_saved(kind, policy, kwargs, tmp_path):
    model = beta(kind, policy, **kwargs)
    logged = learn_and_log(model, 4 * 32)  # RandomEnv refuses actions outside of its space
    assert logged["aux/final_kl"] > -1e-6 and model.n_aux_phases == 2 and not hasattr(model.policy, "log_std")
    observations = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    actions, _ = model.predict(observations)
    assert (actions >= model.action_space.low).all() and (actions <= model.action_space.high).all()
    assert actions[:, 0].min() < -0.5 and actions[:, 1].max() > 0.05  # scaled to the bounds, not clipped at them
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model", device="cpu")
    best = [each.predict(observations, deterministic=True)[0] for each in (model, loaded)]
    np.testing.assert_array_equal(*best)


class Unknown(CategoricalDistribution.__base__):
    """Nobody has registered it."""

    actions_from_params = entropy = log_prob = log_prob_from_params = mode = proba_distribution = sample = None

    def __init__(self, action_space):
        super().__init__()

    def proba_distribution_net(self, latent_dim):
        return th.nn.Linear(latent_dim, 1)


def test_a_distribution_of_an_unknown_kind_is_refused_when_the_model_is_made():
    with pytest.raises(ArgumentError, match=r"No exact KL divergence is known for Unknown.*actions\.register\(Unknown"):
        PPG("MlpPolicy", "CartPole-v1", policy_kwargs=dict(distribution_class=Unknown))
