"""Numbers worked by hand, and NumPy's from the papers' formulas."""

import math

import numpy as np
import pytest
import torch as th

from sb3_ppg.offline import losses

RNG = np.random.default_rng(0)


def tensors(*arrays):
    return [th.as_tensor(array) for array in arrays]


def test_the_vae_loss_of_worked_numbers():
    # ((0.5 - 0)² + (1 - 0)²) / 2; KL(N(1, 1), N(0, 1)) = 1/2 and KL(N(0, 2), N(0, 1)) = -1/2 (1 + log 4 - 4)
    terms = losses.vae_loss(*tensors([[0.5, 1.0]], [[0.0, 0.0]], [[1.0, 0.0]], [[1.0, 2.0]]))
    assert terms["reconstruction_loss"].item() == pytest.approx(0.625)
    assert terms["latent_kl"].item() == pytest.approx((0.5 + 0.5 * (3 - math.log(4))) / 2)


def test_the_latents_kl_is_torchs():
    mean, std = tensors(RNG.normal(size=(5, 4)), RNG.uniform(0.1, 3, (5, 4)))
    expected = th.distributions.kl_divergence(th.distributions.Normal(mean, std), th.distributions.Normal(0.0, 1.0)).mean()
    actions = th.zeros(5, 2)
    assert losses.vae_loss(actions, actions, mean, std)["latent_kl"].item() == pytest.approx(expected.item(), abs=1e-12)


def test_soft_clipped_values_of_worked_numbers():
    """Two critics, two samples, two actions: 3/4 of the lower and 1/4 of the higher critic, then the better action."""
    q1, q2 = [[1.0, 4.0], [2.0, 2.0]], [[3.0, 0.0], [2.0, 6.0]]
    # 0.75 * 1 + 0.25 * 3 = 1.5 and 0.75 * 0 + 0.25 * 4 = 1; 2 and 0.75 * 2 + 0.25 * 6 = 3
    assert losses.soft_clipped_values(th.tensor([q1, q2]), clip_weight=0.75).tolist() == [1.5, 3]


def test_a_clip_weight_of_one_is_clipped_double_q():
    values = th.as_tensor(RNG.normal(size=(2, 6, 3)))
    np.testing.assert_array_equal(losses.soft_clipped_values(values, 1.0), values.numpy().min(axis=0).max(axis=1))


def test_targets_of_worked_numbers():
    """The second sample has ended; discounts may be one number, or one for each sample."""
    rewards, dones, values = tensors([10.0, 20.0, 30.0], [0.0, 1.0, 0.0], [1.5, 3.0, 2.0])
    assert losses.td_targets(rewards, dones, 0.5, values).tolist() == [10.75, 20, 31]
    assert losses.td_targets(rewards, dones, th.tensor([1.0, 0.5, 0.25]), values).tolist() == [11.5, 20, 30.5]


def test_the_critics_loss_is_summed_over_critics():
    loss = losses.critic_loss(th.tensor([[1.0, 2.0], [0.0, 0.0]]), th.tensor([0.0, 4.0]))
    assert loss.item() == (1 + 4) / 2 + (0 + 16) / 2


def test_actions_below_a_fraction_of_the_likeliest_are_not_allowed():
    probabilities = th.tensor([[0.5, 0.2, 0.1, 0.2], [0.97, 0.01, 0.01, 0.01]])
    values = th.tensor([[0.0, 1.0, 9.0, 2.0], [0.0, 1.0, 2.0, 3.0]])
    assert losses.constrained_actions(values, probabilities.log(), 0.3).tolist() == [3, 0]  # 0.2 / 0.5 = 0.4, 0.1 / 0.5 = 0.2
    assert losses.constrained_actions(values, probabilities.log(), 0.0).tolist() == [2, 3]  # Double DQN


def test_the_likeliest_action_is_allowed_however_low_its_value():
    log_prob = th.as_tensor(RNG.normal(size=(50, 7)) * 20).log_softmax(dim=1)
    values = -1e6 * th.nn.functional.one_hot(log_prob.argmax(dim=1), 7).double()
    chosen = losses.constrained_actions(values, log_prob, 0.9999999)
    np.testing.assert_array_equal(chosen, log_prob.argmax(dim=1))


def test_discrete_losses_of_worked_numbers():
    values, logits = th.tensor([[0.5, 9.0], [9.0, 4.0]]), th.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    terms = losses.discrete_losses(values, logits, th.tensor([0, 1]), th.tensor([0.0, 1.0]))
    assert terms["critic_loss"].item() == pytest.approx((0.5**2 / 2 + (3 - 0.5)) / 2)
    assert terms["imitation_loss"].item() == pytest.approx((math.log(2) + math.log(4)) / 2)
    assert terms["logit_penalty"].item() == pytest.approx(math.log(3) ** 2 / 4)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: losses.vae_loss(th.zeros(4, 1), th.zeros(4), th.zeros(4, 2), th.ones(4, 2)),
        lambda: losses.td_targets(th.zeros(4, 1), th.zeros(4), 0.9, th.zeros(4)),
        lambda: losses.td_targets(th.zeros(4), th.zeros(4), 0.9, th.zeros(10)),
        lambda: losses.critic_loss(th.zeros(2, 4), th.zeros(4, 1)),
        lambda: losses.constrained_actions(th.zeros(4, 2), th.zeros(4, 3), 0.3),
        lambda: losses.discrete_losses(th.zeros(4, 2), th.zeros(4, 2), th.zeros(4, dtype=th.long), th.zeros(4, 1)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ValueError, match="same shape"):
        loss()
