"""Numbers worked by hand."""

import math

import pytest
import torch as th

from sb3_ppg.offline import losses


def tensors(*arrays):
    return [th.as_tensor(array) for array in arrays]


def test_the_vae_loss_of_worked_numbers():
    # ((0.5 - 0)² + (1 - 0)²) / 2; KL(N(1, 1), N(0, 1)) = 1/2 and KL(N(0, 2), N(0, 1)) = -1/2 (1 + log 4 - 4)
    terms = losses.vae_loss(*tensors([[0.5, 1.0]], [[0.0, 0.0]], [[1.0, 0.0]], [[1.0, 2.0]]))
    assert terms["reconstruction_loss"].item() == pytest.approx(0.625)
    assert terms["latent_kl"].item() == pytest.approx((0.5 + 0.5 * (3 - math.log(4))) / 2)


def test_soft_clipped_values_of_worked_numbers():
    """Two critics, two samples, two actions: 3/4 of the lower and 1/4 of the higher critic, then the better action."""
    values = th.tensor([[[1.0, 4.0], [2.0, 2.0]], [[3.0, 0.0], [2.0, 6.0]]])
    # 0.75 * 1 + 0.25 * 3 = 1.5 and 0.75 * 0 + 0.25 * 4 = 1; 2 and 0.75 * 2 + 0.25 * 6 = 3
    assert losses.soft_clipped_values(values, clip_weight=0.75).tolist() == [1.5, 3]
    assert losses.soft_clipped_values(values, clip_weight=1.0).tolist() == [1, 2]  # clipped double Q


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
    assert losses.constrained_actions(values, probabilities.log(), 0.9999999).tolist() == [0, 0]  # the likeliest


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
        lambda: losses.critic_loss(th.zeros(2, 4), th.zeros(4, 1)),
        lambda: losses.discrete_losses(th.zeros(4, 2), th.zeros(4, 2), th.zeros(4, dtype=th.long), th.zeros(4, 1)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ValueError, match="same shape"):
        loss()
