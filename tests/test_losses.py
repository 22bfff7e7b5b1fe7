"""Numbers worked by hand, identities, and torch's own KL divergences."""

import math

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import make_proba_distribution

from sb3_ppg import losses

OLD = th.tensor([math.log(0.5), math.log(0.25), math.log(0.2)])
NEW = th.tensor([math.log(0.75), math.log(0.125), math.log(0.22)])  # ratios 1.5, 0.5, 1.1
ADVANTAGES = th.tensor([2.0, -1.0, 3.0])


def test_clipped_surrogate():
    # min(1.5 * 2, 1.2 * 2) = 2.4; min(0.5 * -1, 0.8 * -1) = -0.8; min(1.1 * 3, 1.1 * 3) = 3.3
    loss = losses.policy_gradient_loss(NEW, OLD, ADVANTAGES, clip_range=0.2)
    assert loss.item() == pytest.approx(-(2.4 - 0.8 + 3.3) / 3)


def test_dual_clip():
    """Ratios 10, 10, 1/2 and 10 with A = -1, 1, -1 and -1: min(r A, clip(r) A) is -10, 1.2, -0.8 and -10, and at least 3 A."""
    ratio, advantages = th.tensor([10.0, 10.0, 0.5, 10.0]), th.tensor([-1.0, 1.0, -1.0, -1.0])
    log_prob = ratio.log().requires_grad_()
    loss = losses.policy_gradient_loss(log_prob, th.zeros(4), advantages, 0.2, dual_clip=3.0)
    assert loss.item() == pytest.approx(-(-3 + 1.2 - 0.8 - 3) / 4)
    loss.backward()
    assert (log_prob.grad == 0).all()  # all four are held
    assert losses.policy_gradient_loss(log_prob, th.zeros(4), advantages, 0.2).item() == pytest.approx(
        -(-10 + 1.2 - 0.8 - 10) / 4
    )


def test_unclipped_surrogate():
    loss = losses.policy_gradient_loss(NEW, OLD, ADVANTAGES, clip_range=None)
    assert loss.item() == pytest.approx(-(3.0 - 0.5 + 3.3) / 3)


def test_clipping_stops_the_gradient_only_where_it_binds():
    log_prob = NEW.clone().requires_grad_()
    losses.policy_gradient_loss(log_prob, OLD, ADVANTAGES, clip_range=0.2).backward()
    # d(-ratio A / 3)/d log_prob = -ratio A / 3 where not clipped
    assert log_prob.grad.tolist() == pytest.approx([0.0, 0.0, -1.1 * 3 / 3])


def test_kl_penalty():
    expected = (math.log(1.5) ** 2 + math.log(0.5) ** 2 + math.log(1.1) ** 2) / 6
    assert losses.kl_penalty(NEW, OLD).item() == pytest.approx(expected)


def test_approximate_kl_and_clip_fraction():
    expected = (0.5 - math.log(1.5) - 0.5 - math.log(0.5) + 0.1 - math.log(1.1)) / 3
    assert losses.approximate_kl(NEW - OLD).item() == pytest.approx(expected, rel=1e-5)
    assert losses.clip_fraction(NEW - OLD, 0.2).item() == pytest.approx(2 / 3)


def test_entropy_loss():
    assert losses.entropy_loss(th.tensor([1.0, 3.0]), th.zeros(2)).item() == -2.0
    # Without a closed form: E[log π(a|s)]
    assert losses.entropy_loss(None, th.tensor([-1.0, -4.0])).item() == -2.5


def test_value_losses():
    values, targets, old_values = th.tensor([1.0, 5.0]), th.tensor([0.0, 2.0]), th.tensor([0.8, 2.0])
    assert losses.value_loss(values, targets).item() == (1 + 9) / 2
    # 1.0 is within .5 of .8; 5 is held at 2.5
    assert losses.value_loss(values, targets, old_values, clip_range_vf=0.5).item() == pytest.approx((1 + 0.25) / 2)
    with pytest.raises(ValueError, match="old_values"):
        losses.value_loss(values, targets, clip_range_vf=0.5)


def test_shapes_that_would_broadcast_are_refused():
    column, row = th.zeros(4, 1), th.zeros(4)
    for loss in (
        lambda: losses.value_loss(column, row),
        lambda: losses.policy_gradient_loss(row, row, column, 0.2),
        lambda: losses.kl_penalty(row, column),
        lambda: losses.entropy_loss(column, row),
    ):
        with pytest.raises(ValueError, match="same shape"):
            loss()


# ---- KL divergences ----

ACTION_SPACES = {
    "Discrete": spaces.Discrete(5),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 4]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(-1, 1, (2,)),
    "gSDE": spaces.Box(-1, 1, (2,)),
    "squashed gSDE": spaces.Box(-1, 1, (2,)),
}


def make_distribution(kind: str, seed: int, n_samples: int = 7):
    """SB3's distribution over the action space, with random parameters that require gradients, and those parameters."""
    generator = th.Generator().manual_seed(seed)
    space = ACTION_SPACES[kind]
    if "gSDE" in kind:
        distribution = make_proba_distribution(space, use_sde=True, dist_kwargs=dict(squash_output="squashed" in kind))
        distribution.proba_distribution_net(latent_dim=4, latent_sde_dim=4)
        mean = th.randn(n_samples, 2, generator=generator).requires_grad_()
        log_std = (th.randn(4, 2, generator=generator) * 0.3 - 1).requires_grad_()
        latent = th.randn(n_samples, 4, generator=th.Generator().manual_seed(99))
        return distribution.proba_distribution(mean, log_std, latent), (mean, log_std)
    distribution = make_proba_distribution(space)
    if kind == "Box":
        mean = th.randn(n_samples, 2, generator=generator).requires_grad_()
        log_std = (th.randn(2, generator=generator) * 0.3).requires_grad_()
        return distribution.proba_distribution(mean, log_std), (mean, log_std)
    n_logits = {"Discrete": 5, "MultiDiscrete": 9, "MultiBinary": 3}[kind]
    logits = th.randn(n_samples, n_logits, generator=generator).requires_grad_()
    return distribution.proba_distribution(action_logits=logits), (logits,)


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_kl_is_torchs_summed_over_action_dimensions(kind):
    old, _ = make_distribution(kind, seed=0)
    new, _ = make_distribution(kind, seed=1)
    if kind == "MultiDiscrete":
        expected = sum(th.distributions.kl_divergence(p, q) for p, q in zip(old.distribution, new.distribution, strict=True))
    else:
        expected = th.distributions.kl_divergence(old.distribution, new.distribution)
        expected = expected.sum(dim=1) if expected.dim() > 1 else expected
    kl = losses.kl_divergence(new, losses.distribution_parameters(old))
    assert kl.shape == (7,)
    th.testing.assert_close(kl, expected, rtol=1e-4, atol=1e-5)
    # Not the other way round
    reverse = losses.kl_divergence(old, losses.distribution_parameters(new))
    assert (kl - reverse).abs().min() > 1e-4


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_kl_of_a_policy_to_itself_is_zero_and_so_is_its_gradient(kind):
    distribution, parameters = make_distribution(kind, seed=2)
    kl = losses.kl_divergence(distribution, losses.distribution_parameters(distribution).detach())
    th.testing.assert_close(kl, th.zeros(7), rtol=0, atol=1e-6)
    kl.sum().backward()
    for parameter in parameters:
        th.testing.assert_close(parameter.grad, th.zeros_like(parameter), rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_kl_has_the_gradient_of_its_value(kind):
    """Operations on distribution parameters must not cut the graph to any output of the network."""
    old, _ = make_distribution(kind, seed=0)
    old_parameters = losses.distribution_parameters(old).detach()
    new, parameters = make_distribution(kind, seed=1)
    losses.kl_divergence(new, old_parameters).sum().backward()
    for parameter in parameters:
        assert parameter.grad.abs().sum() > 0.1


def test_kl_by_hand():
    # Bernoulli 1/2 against 1/4, twice: 2 * (1/2 ln 2 + 1/2 ln 2/3)
    old = make_proba_distribution(spaces.MultiBinary(2)).proba_distribution(th.zeros(1, 2))
    new = make_proba_distribution(spaces.MultiBinary(2)).proba_distribution(th.full((1, 2), math.log(1 / 3)))
    kl = losses.kl_divergence(new, losses.distribution_parameters(old))
    assert kl.item() == pytest.approx(math.log(2) + math.log(2 / 3), rel=1e-5)
    # N(0, 1) against N(1, 2), in each of two dimensions: ln 2 + (1 + 1) / 8 - 1/2
    box = spaces.Box(-1, 1, (2,))
    old = make_proba_distribution(box).proba_distribution(th.zeros(1, 2), th.zeros(2))
    new = make_proba_distribution(box).proba_distribution(th.ones(1, 2), th.full((2,), math.log(2)))
    kl = losses.kl_divergence(new, losses.distribution_parameters(old))
    assert kl.item() == pytest.approx(2 * (math.log(2) + 0.25 - 0.5), rel=1e-5)


def test_kl_of_squashed_actions_is_that_of_the_gaussians():
    """Monte Carlo over squashed actions, with SB3's own log-probabilities."""
    th.manual_seed(0)
    old, _ = make_distribution("squashed gSDE", seed=0, n_samples=1)
    old_parameters = losses.distribution_parameters(old)
    gaussian = old_parameters[:, :2] + old_parameters[:, 2:] * th.randn(200_000, 2)
    actions = th.tanh(gaussian).clamp(-0.999999, 0.999999)
    old_log_prob = old.log_prob(actions)
    new, _ = make_distribution("squashed gSDE", seed=1, n_samples=1)
    estimate = (old_log_prob - new.log_prob(actions)).mean()
    exact = losses.kl_divergence(new, old_parameters)
    assert exact.item() == pytest.approx(estimate.item(), rel=0.02)


def test_parameters_outlive_the_distribution_object():
    """SB3's distribution object is overwritten by the next forward pass."""
    distribution, _ = make_distribution("Discrete", seed=0)
    parameters = losses.distribution_parameters(distribution)
    before = parameters.clone()
    assert distribution.proba_distribution(action_logits=th.randn(7, 5)) is distribution
    assert th.equal(parameters, before)


def test_weights_of_samples():
    """They multiply each sample's term, and are not divided by their sum."""
    weights = th.tensor([2.0, 0.5])
    ones, zeros = th.ones(2), th.zeros(2)
    advantages = th.tensor([1.0, -4.0])
    assert losses.policy_gradient_loss(zeros, zeros, advantages, 0.2, weights=weights).item() == -(2 * 1 - 0.5 * 4) / 2
    decoupled = losses.decoupled_policy_gradient_loss(zeros, zeros, zeros, advantages, 0.2, 100.0, weights)
    assert decoupled.item() == -(2 * 1 - 0.5 * 4) / 2
    assert losses.entropy_loss(th.tensor([1.0, 3.0]), zeros, weights).item() == -(2 * 1 + 0.5 * 3) / 2
    assert losses.entropy_loss(None, th.tensor([-1.0, -4.0]), weights).item() == -(2 * 1 + 0.5 * 4) / 2
    targets = th.tensor([2.0, 4.0])  # errors of 1 and 9
    assert losses.value_loss(ones, targets, weights=weights).item() == (2 * 1 + 0.5 * 9) / 2
    clipped = losses.clipped_value_loss(ones, targets, zeros, 0.5, weights)  # V_clip is .5: 2.25 and 12.25
    assert clipped.item() == (2 * 2.25 + 0.5 * 12.25) / 2
    with pytest.raises(ValueError, match="must have the same shape"):
        losses.value_loss(ones, targets, weights=weights[:, None])
