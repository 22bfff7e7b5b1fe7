"""Numbers worked out by hand."""

import math

import pytest
import torch as th

from sb3_ppg import losses

OLD = th.tensor([math.log(0.5), math.log(0.25), math.log(0.2)])
NEW = th.tensor([math.log(0.75), math.log(0.125), math.log(0.22)])  # ratios 1.5, 0.5, 1.1
ADVANTAGES = th.tensor([2.0, -1.0, 3.0])


def test_clipped_and_unclipped_surrogate():
    # min(1.5 * 2, 1.2 * 2) = 2.4; min(0.5 * -1, 0.8 * -1) = -0.8; min(1.1 * 3, 1.1 * 3) = 3.3
    log_prob = NEW.clone().requires_grad_()
    loss = losses.policy_gradient_loss(log_prob, OLD, ADVANTAGES, clip_range=0.2)
    assert loss.item() == pytest.approx(-(2.4 - 0.8 + 3.3) / 3)
    loss.backward()  # d(-ratio A / 3)/d log_prob = -ratio A / 3 where not clipped
    assert log_prob.grad.tolist() == pytest.approx([0.0, 0.0, -1.1 * 3 / 3])
    loss = losses.policy_gradient_loss(NEW, OLD, ADVANTAGES, clip_range=None)
    assert loss.item() == pytest.approx(-(3.0 - 0.5 + 3.3) / 3)


def test_dual_clip():
    """Ratios 10, 10, 1/2 and 10 with A = -1, 1, -1 and -1: min(r A, clip(r) A) is -10, 1.2, -0.8 and -10, and at least 3 A."""
    ratio, advantages = th.tensor([10.0, 10.0, 0.5, 10.0]), th.tensor([-1.0, 1.0, -1.0, -1.0])
    log_prob = ratio.log().requires_grad_()
    loss = losses.policy_gradient_loss(log_prob, th.zeros(4), advantages, 0.2, dual_clip=3.0)
    assert loss.item() == pytest.approx(-(-3 + 1.2 - 0.8 - 3) / 4)
    loss.backward()
    assert (log_prob.grad == 0).all()  # all four are held
    plain = losses.policy_gradient_loss(log_prob, th.zeros(4), advantages, 0.2)
    assert plain.item() == pytest.approx(-(-10 + 1.2 - 0.8 - 10) / 4)


def test_kl_penalty_approximate_kl_and_clip_fraction():
    expected = (math.log(1.5) ** 2 + math.log(0.5) ** 2 + math.log(1.1) ** 2) / 6
    assert losses.kl_penalty(NEW, OLD).item() == pytest.approx(expected)
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
    # Errors of 1 and 3: from 2 on, 2 * 2 * 3 - 2² instead of 9; the latter is held at .5
    assert losses.value_loss(values, targets, huber_threshold=2.0).item() == (1 + 8) / 2
    assert losses.value_loss(values, targets, weights=th.tensor([0.0, 2.0]), huber_threshold=2.0).item() == 8
    assert losses.clipped_value_loss(values, targets, old_values, 0.5, huber_threshold=2.0).item() == (1 + 8) / 2


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
