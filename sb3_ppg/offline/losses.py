"""
The losses of Batch-Constrained deep Q-learning (BCQ), as pure functions of tensors.

Papers: Fujimoto, Meger, Precup 2018, "Off-Policy Deep Reinforcement Learning without Exploration",
https://arxiv.org/abs/1812.02900 (Box actions); Fujimoto et al. 2019, "Benchmarking Batch Deep Reinforcement Learning
Algorithms", https://arxiv.org/abs/1910.01708 (Discrete actions). Authors' code: https://github.com/sfujim/BCQ.
``B`` is the number of samples, ``S`` of actions sampled in each state, ``A`` of the actions that there are, or the dimensions
of one, ``C`` of critics. Every function raises ``ValueError`` for arguments whose shapes differ.
"""

import torch as th
from torch.nn import functional as F

from sb3_ppg.losses import check_same_shape


def td_targets(rewards: th.Tensor, dones: th.Tensor, discounts: th.Tensor | float, next_values: th.Tensor) -> th.Tensor:
    """
    Return the targets of all critics, y = r + (1 - done) γ V(s').

    :param rewards: r, or the sum of n discounted ones, (B,)
    :param dones: 1 where s' ends the episode (a time limit does not), (B,)
    :param discounts: γ, or γ^n for each sample, (B,)
    :param next_values: V(s') of the target networks: ``soft_clipped_values``, or Q'(s', a') of Double Q-learning, where a' are
        the ``constrained_actions`` of the current network, (B,)
    :return: y, (B,), in the units of the rewards
    """
    check_same_shape(rewards=rewards, dones=dones, next_values=next_values)
    return rewards + (1 - dones) * discounts * next_values


# ---- Box actions ----


def vae_loss(reconstructed: th.Tensor, actions: th.Tensor, mean: th.Tensor, std: th.Tensor) -> dict[str, th.Tensor]:
    """
    The two terms of the loss of the generative model G(a|s), which the authors' code adds up with weights of 1 and 1/2:

    .. code-block:: none

        reconstruction = E[(D(s, z) - a)²],  z ~ N(μ, σ)
        kl             = E[-1/2 (1 + log σ² - μ² - σ²)] = E[KL(N(μ, σ), N(0, 1))]

    Both are means over samples and dimensions, as in the authors' code.

    :param reconstructed: D(s, z), (B, A)
    :param actions: a, scaled to [-1, 1], (B, A)
    :param mean: μ, (B, latent dimensions)
    :param std: σ, above zero, (B, latent dimensions)
    :return: "reconstruction_loss" and "latent_kl", scalars
    """
    check_same_shape(reconstructed=reconstructed, actions=actions)
    check_same_shape(mean=mean, std=std)
    variance = std.square()
    kl = -0.5 * (1 + variance.log() - mean.square() - variance).mean()
    return {"reconstruction_loss": F.mse_loss(reconstructed, actions), "latent_kl": kl}


def soft_clipped_values(values: th.Tensor, clip_weight: float) -> th.Tensor:
    """
    Return the values of soft clipped double Q-learning over sampled actions (equation 13 of the first paper):

    .. code-block:: none

        V(s) = max_i [λ min_j Q'_j(s, a_i) + (1 - λ) max_j Q'_j(s, a_i)]

    :param values: Q'_j(s, a_i) of the target critics, (C, B, S)
    :param clip_weight: λ, from 0 to 1
    :return: V(s), (B,)
    """
    return (clip_weight * values.amin(dim=0) + (1 - clip_weight) * values.amax(dim=0)).amax(dim=1)


def critic_loss(values: th.Tensor, targets: th.Tensor) -> th.Tensor:
    """
    The sum over critics of E[(Q_j(s, a) - y)²].

    :param values: Q_j(s, a), (C, B)
    :param targets: y, see ``td_targets``, (B,)
    :return: scalar
    """
    check_same_shape(values=values[0], targets=targets)
    return (values - targets).square().mean(dim=1).sum()


# ---- Discrete actions ----


def constrained_actions(values: th.Tensor, log_prob: th.Tensor, threshold: float) -> th.Tensor:
    """
    Return argmax Q(s, a) over the actions that the data's policy is likely enough to take (equation 5 of the second paper):

    .. code-block:: none

        G(a|s) / max_b G(b|s) > τ

    The likeliest action is always allowed.

    :param values: Q(s, a), (B, A)
    :param log_prob: log G(a|s), (B, A)
    :param threshold: τ, from 0 (all actions: Double DQN) to below 1
    :return: (B,)
    """
    check_same_shape(values=values, log_prob=log_prob)
    is_allowed = (log_prob - log_prob.amax(dim=1, keepdim=True)).exp() > threshold
    return values.masked_fill(~is_allowed, -th.inf).argmax(dim=1)


def discrete_losses(values: th.Tensor, logits: th.Tensor, actions: th.Tensor, targets: th.Tensor) -> dict[str, th.Tensor]:
    """
    The terms of the discrete variant's loss, which the authors' code adds up with weights of 1, 1 and 1/100:

    .. code-block:: none

        critic_loss    = E[huber(Q(s, a) - y)],  huber(x) = x² / 2 for |x| < 1, else |x| - 1/2
        imitation_loss = -E[log G(a|s)],  G = softmax(logits)
        logit_penalty  = E[logits²],  over samples and actions

    :param values: Q(s, .), (B, A)
    :param logits: logits of G(.|s), (B, A)
    :param actions: a, as integers from 0, (B,)
    :param targets: y, (B,)
    :return: the terms by name, scalars
    """
    check_same_shape(values=values, logits=logits)
    check_same_shape(actions=actions, targets=targets)
    taken = values.gather(1, actions.unsqueeze(1)).squeeze(1)
    return {
        "critic_loss": F.smooth_l1_loss(taken, targets),
        "imitation_loss": F.cross_entropy(logits, actions),
        "logit_penalty": logits.square().mean(),
    }
