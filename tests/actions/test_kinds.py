"""Exact KL divergences: torch's own, and identities; actions as environments take them, also of a kind of one's own."""

from dataclasses import replace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution, make_proba_distribution

from sb3_ppg import PPG, ArgumentError
from sb3_ppg.actions import (
    Actions,
    CategoricalActions,
    GaussianActions,
    LogitActions,
    SquashedGaussianActions,
    actions_class_of,
    register,
)
from sb3_ppg.export import DeterministicPolicy
from tests.helpers import SMALL, VECTOR, names_of, random_envs
from tests.offline.test_bcq import random_data

BOX = spaces.Box(-1, 1, (2,))
ACTION_SPACES = {
    "Discrete": spaces.Discrete(5),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    **dict.fromkeys(["Box", "gSDE", "squashed gSDE"], BOX),
}
every_kind = pytest.mark.parametrize("kind", ACTION_SPACES)


def make(kind: str, seed: int) -> tuple[Actions, Distribution, tuple[th.Tensor, ...]]:
    """Return the kind of actions, SB3's distribution with random parameters, and those parameters, which have gradients."""
    generator, space = th.Generator().manual_seed(seed), ACTION_SPACES[kind]

    def random(*shape: int) -> th.Tensor:
        return th.randn(shape, generator=generator)

    gsde = dict(use_sde=True, dist_kwargs=dict(squash_output="squashed" in kind)) if "gSDE" in kind else {}
    distribution, latent = make_proba_distribution(space, **gsde), []
    if gsde:
        distribution.proba_distribution_net(latent_dim=4, latent_sde_dim=4)
        latent = [th.randn(7, 4, generator=th.Generator().manual_seed(99))]
        outputs = (random(7, 2), random(4, 2) * 0.3 - 1)
    elif kind == "Box":
        outputs = (random(7, 2), random(2) * 0.3)
    else:
        outputs = (random(7, {"Discrete": 5, "MultiDiscrete": 9, "MultiBinary": 3}[kind]),)
    outputs = tuple(output.requires_grad_() for output in outputs)
    return actions_class_of(type(distribution))(space), distribution.proba_distribution(*outputs, *latent), outputs


@every_kind
def test_kl_and_its_gradient_are_torchs_summed_over_action_dimensions(kind):
    """Squashing leaves a KL divergence as it is, as every bijection does."""
    (actions, old, _), (_, new, outputs) = make(kind, seed=0), make(kind, seed=1)
    if kind == "MultiDiscrete":
        expected = sum(th.distributions.kl_divergence(p, q) for p, q in zip(old.distribution, new.distribution, strict=True))
    else:
        expected = th.distributions.kl_divergence(old.distribution, new.distribution).reshape(7, -1).sum(dim=1)
    kl = actions.kl_divergence(new, actions.parameters(old))
    th.testing.assert_close(kl, expected, rtol=1e-4, atol=1e-5)
    gradients = [th.autograd.grad(each.sum(), outputs, retain_graph=True) for each in (kl, expected)]
    th.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    other_way_round = actions.kl_divergence(old, actions.parameters(new))
    assert (kl - other_way_round).abs().min() > 1e-4
    assert th.equal(actions.kl_divergence(new, actions.parameters(old), reverse=True), other_way_round)
    with pytest.raises(ValueError, match="must have the same shape"):
        actions.kl_divergence(new, actions.parameters(old)[:1])


@every_kind
def test_kl_of_a_policy_to_itself_is_zero_and_so_is_its_gradient(kind):
    actions, distribution, outputs = make(kind, seed=2)
    kl = actions.kl_divergence(distribution, actions.parameters(distribution).detach())
    th.testing.assert_close(kl, th.zeros(7), rtol=0, atol=1e-6)
    kl.sum().backward()
    for output in outputs:
        th.testing.assert_close(output.grad, th.zeros_like(output), rtol=0, atol=2e-6)


# ---- conversion ----

PAGE = names_of("docs/guides/own_networks.md", "BetaDistribution")
WIDE = spaces.Box(np.float32([-2, 0]), np.float32([2, 10]))


@pytest.mark.parametrize(
    ("kind", "space", "samples", "taken"),
    [
        (GaussianActions, WIDE, [[-3.0, 4.0]], [[-2, 4]]),
        # Users expect the nearest integers (https://github.com/DLR-RM/stable-baselines3/issues/547)
        (GaussianActions, spaces.Box(-128, 127, (1,), np.int8), [[-300.0], [0.6], [-0.6]], [[-128], [1], [-1]]),
        (SquashedGaussianActions, WIDE, [[-1.0, 1.0], [0.5, 0.0]], [[-2, 10], [1, 5]]),
        (SquashedGaussianActions, spaces.Box(-128, 127, (1,), np.int8), [[-1.0], [0.01], [1.0]], [[-128], [1], [127]]),
        # 0.77 + (9.05 - 0.77) is above 9.05 in float32
        (SquashedGaussianActions, spaces.Box(0.77, 9.05, (1,)), [[1.0]], [[float(np.float32(9.05))]]),
        (SquashedGaussianActions, spaces.Box(-(2**40), 2**40, (1,), np.int64), [[-1.0], [0.5]], [[-(2**40)], [2**39]]),
        (CategoricalActions, spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (LogitActions, spaces.MultiDiscrete([2, 3], start=[5, 0]), [[1, 2]], [[6, 2]]),
    ],
)
def test_samples_as_environments_take_them(kind, space, samples, taken):
    actions = kind(space).for_step(th.tensor(samples))
    assert actions.tolist() == taken and all(space.contains(action.astype(space.dtype)) for action in actions)


class UnitBeta(PAGE["BetaDistribution"]):
    """The page's, with samples in [0, 1]."""

    def log_prob(self, actions):
        return super().log_prob(2 * actions - 1)

    def sample(self):
        return self.distribution.sample()

    def mode(self):
        return self.distribution.mean


class Wrong(PAGE["BetaActions"]):
    bounded = False

    def for_environments(self, actions):
        return self.low + actions * (self.high - self.low)


class UnitActions(Wrong):
    def from_environments(self, actions):
        return (actions - self.low) / (self.high - self.low)


def unit_beta(actions_class: type[Actions]) -> PPG:
    register(UnitBeta, actions_class)
    arguments = dict(SMALL, aux_learning_rate=1e-2, policy_kwargs=dict(distribution_class=UnitBeta))
    return PPG("MlpPolicy", random_envs(VECTOR, WIDE), **arguments)


def test_environments_exported_policies_and_cloning_ask_the_kind_to_convert():
    """The data's actions are 1.5 and 9 everywhere; the environments refuse actions out of bounds."""
    model, data = unit_beta(UnitActions).learn(32), random_data(VECTOR, WIDE, 40)
    model.warm_start(replace(data, actions=np.tile(np.float32([1.5, 9]), (40, 1))), n_epochs=100)
    played = model.predict(data.observations, deterministic=True)[0]
    np.testing.assert_allclose(played, np.tile([1.5, 9], (40, 1)), atol=0.5)
    exported = DeterministicPolicy(model)(th.as_tensor(data.observations))
    np.testing.assert_allclose(exported, played, rtol=1e-5, atol=1e-5)


def test_a_kind_that_does_not_convert_back_and_forth_is_refused():
    where = r"`distribution_class`=UnitBeta cannot work: "
    with pytest.raises(ArgumentError, match=where + r"Wrong.for_env.* is 100 for a=10; override both"):
        unit_beta(Wrong)
    for method in (
        lambda self, actions: self.space.low + actions * (self.space.high - self.space.low),  # the bounds as arrays
        lambda self, actions: Wrong.for_environments(self, actions).numpy(),
        lambda self, actions: Wrong.for_environments(self, actions).flatten(),
    ):
        broken = type("Broken", (UnitActions,), dict(for_environments=method))
        with pytest.raises(ArgumentError, match=where + "Broken.for_env.*take and return tensors on the CPU, fail"):
            unit_beta(broken)
