"""
The losses of Phasic Policy Gradient, as pure functions of tensors.

Paper: Cobbe, Hilton, Klimov, Schulman, "Phasic Policy Gradient", https://arxiv.org/abs/2009.04416.
``B`` is the number of samples; expectations are means over the samples. Every function raises ``ValueError`` when the
shapes of its arguments differ: a silent broadcast from (B,) and (B, 1) to (B, B) trains on nonsense.
"""

import math
from typing import NamedTuple

import torch as th
from torch.nn import functional as F


class Losses(NamedTuple):
    """
    Losses of a minibatch: scalar tensors, each a mean over the samples, and the policy's log-ratios.

    :param total: the sum to differentiate
    :param terms: the terms of the total, by the names under which they are logged
    :param log_ratio: log π(a|s) - log π_prox(a|s), detached, (B,), for ``target_kl`` and the log; π_prox is the policy that
        clipping refers to, π_old except with "ewma" and "decoupled". Empty if no policy is trained
    """

    total: th.Tensor
    terms: dict[str, th.Tensor]
    log_ratio: th.Tensor = th.empty(0)

    @property
    def names(self) -> list[str]:
        """Names of the scalars in ``values``, in the same order."""
        return ["loss", *self.terms]

    @property
    def values(self) -> th.Tensor:
        """All scalars, detached, shape (n_scalars,)."""
        return th.stack([self.total, *self.terms.values()]).detach()


def check_same_shape(**tensors: th.Tensor) -> None:
    """
    :param tensors: by the names of arguments
    :raises ValueError: if their shapes differ, with all of them
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"These tensors must have the same shape: {shapes}")


def weighted_mean(numbers: th.Tensor, weights: th.Tensor | None) -> th.Tensor:
    """
    :param numbers: a number for each sample, shape (B,)
    :param weights: a weight for each sample, shape (B,), or None for equal weights. As in DI-engine, they are not divided by
        their sum, so weights with a mean of one keep the scale of a loss
    :return: E[w x], scalar
    """
    if weights is None:
        return numbers.mean()
    check_same_shape(numbers=numbers, weights=weights)
    return (weights * numbers).mean()


# ---- policy phase ----


def policy_gradient_loss(
    log_prob: th.Tensor,
    old_log_prob: th.Tensor,
    advantages: th.Tensor,
    clip_range: float | None,
    dual_clip: float | None = None,
    weights: th.Tensor | None = None,
) -> th.Tensor:
    """
    The clipped surrogate objective, as a loss ("L^clip" in the paper):

    .. code-block:: none

        ratio = π(a|s) / π_old(a|s)
        loss  = -E[min(ratio A, clip(ratio, 1 - ε, 1 + ε) A)]

    With ``clip_range=None`` it is the plain surrogate, -E[ratio A], to which the KL penalty variant adds ``kl_penalty``. With
    ``dual_clip``, c, the objective of an action with A < 0 is at least c A (Ye et al. 2020, https://arxiv.org/abs/1912.09729):
    its gradient is zero where the ratio exceeds c.

    :param log_prob: log π(a|s) of the taken actions under the policy in training, shape (B,)
    :param old_log_prob: log π_old(a|s), under the policy that took them, shape (B,)
    :param advantages: A, in the units of the (normalized) reward, shape (B,)
    :param clip_range: ε, or None for no clipping
    :param dual_clip: c, above one, or None for no dual clipping
    :param weights: see ``weighted_mean``, shape (B,), or None
    :return: scalar
    """
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantages=advantages)
    ratio = th.exp(log_prob - old_log_prob)
    objective = ratio * advantages
    if clip_range is not None:
        objective = th.min(objective, th.clamp(ratio, 1 - clip_range, 1 + clip_range) * advantages)
    if dual_clip is not None:
        objective = th.where(advantages < 0, th.max(objective, dual_clip * advantages), objective)
    return -weighted_mean(objective, weights)


def decoupled_policy_gradient_loss(
    log_prob: th.Tensor,
    proximal_log_prob: th.Tensor,
    behavior_log_prob: th.Tensor,
    advantages: th.Tensor,
    clip_range: float | None,
    importance_limit: float,
    weights: th.Tensor | None = None,
) -> th.Tensor:
    """
    The clipped surrogate objective, decoupled: the clip keeps π near a *proximal* policy, while importance weights correct for
    the *behavior* policy that took the actions (Hilton, Cobbe, Schulman, https://arxiv.org/abs/2110.00641):

    .. code-block:: none

        loss = -E[min(π / π_behav A, clip(π / π_prox, 1 - ε, 1 + ε) π_prox / π_behav A)]

    No importance weight π / π_behav exceeds its limit: π_behav is raised to π / limit where it is lower, without gradient, as
    in the authors' code. With π_prox = π_behav and no weight at the limit it is ``policy_gradient_loss``.

    :param log_prob: log π(a|s) of the taken actions under the policy in training, shape (B,)
    :param proximal_log_prob: log π_prox(a|s), shape (B,)
    :param behavior_log_prob: log π_behav(a|s), under the policy that took them, shape (B,)
    :param advantages: A, shape (B,)
    :param clip_range: ε, or None for no clipping; from 1 on, the ratio has no lower bound
    :param importance_limit: the largest importance weight, at least one
    :param weights: see ``weighted_mean``, shape (B,), or None
    :return: scalar
    """
    check_same_shape(
        log_prob=log_prob, proximal_log_prob=proximal_log_prob, behavior_log_prob=behavior_log_prob, advantages=advantages
    )
    behavior = th.max(behavior_log_prob, log_prob.detach() - math.log(importance_limit))
    loss = -advantages * th.exp(log_prob - behavior)
    if clip_range is not None:
        epsilon = th.as_tensor(clip_range, dtype=log_prob.dtype, device=log_prob.device)
        lowest, highest = th.log1p(-epsilon.clamp(max=1)), th.log1p(epsilon)
        log_ratio = th.clamp(log_prob - proximal_log_prob, lowest, highest)
        loss = th.max(loss, -advantages * th.exp(log_ratio + proximal_log_prob - behavior))
    return weighted_mean(loss, weights)


def kl_penalty(log_prob: th.Tensor, old_log_prob: th.Tensor, weights: th.Tensor | None = None) -> th.Tensor:
    """
    Second-order estimate of KL(π_old, π) from the taken actions: 1/2 E[(log π(a|s) - log π_old(a|s))²]

    It replaces clipping in the paper's KL variant: ``clip_param`` 0 and ``kl_penalty`` 1 in the authors' code.

    :param log_prob: log π(a|s), shape (B,)
    :param old_log_prob: log π_old(a|s), shape (B,)
    :param weights: see ``weighted_mean``, shape (B,), or None
    :return: scalar, in nats
    """
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob)
    return 0.5 * weighted_mean((log_prob - old_log_prob).square(), weights)


def entropy_loss(entropy: th.Tensor | None, log_prob: th.Tensor, weights: th.Tensor | None = None) -> th.Tensor:
    """
    The negated entropy bonus, -E[H(π(.|s))].

    :param entropy: H(π(.|s)) in nats, shape (B,), or None where it has no closed form (squashed gSDE): then the
        one-sample estimate -log π(a|s) is taken, as SB3's PPO does
    :param log_prob: log π(a|s), shape (B,)
    :param weights: see ``weighted_mean``, shape (B,), or None
    :return: scalar, in nats
    """
    if entropy is None:
        return weighted_mean(log_prob, weights)
    check_same_shape(entropy=entropy, log_prob=log_prob)
    return -weighted_mean(entropy, weights)


def squared_error(values: th.Tensor, targets: th.Tensor, huber_threshold: float | None = None) -> th.Tensor:
    """
    The square e² of each error e; with ``huber_threshold``, δ, it is ``2 δ |e| - δ²`` where ``|e|`` exceeds δ: twice Huber's
    loss.

    :param values: V(s), shape (B,)
    :param targets: V_targ, shape (B,)
    :param huber_threshold: δ, in the units of the values, or None for the square everywhere
    :return: shape (B,)
    """
    if huber_threshold is None:
        return (values - targets).square()
    return 2 * F.huber_loss(values, targets, reduction="none", delta=huber_threshold)


def value_loss(
    values: th.Tensor,
    targets: th.Tensor,
    old_values: th.Tensor | None = None,
    clip_range_vf: float | None = None,
    weights: th.Tensor | None = None,
    huber_threshold: float | None = None,
) -> th.Tensor:
    """
    Mean squared error E[(V(s) - V_targ)²] of the policy phase ("L^value" in the paper; the 1/2 is SB3's ``vf_coef``).

    With ``clip_range_vf``, V is first kept within that distance of the value predicted at rollout time, as in SB3's PPO.

    :param values: V(s), shape (B,)
    :param targets: V_targ, shape (B,)
    :param old_values: V(s) as predicted during the rollout, shape (B,); needed for clipping only
    :param clip_range_vf: in the units of the values, or None for no clipping
    :param weights: see ``weighted_mean``, shape (B,), or None
    :param huber_threshold: see ``squared_error``
    :return: scalar
    """
    check_same_shape(values=values, targets=targets)
    if clip_range_vf is not None:
        assert old_values is not None
        check_same_shape(values=values, old_values=old_values)
        values = old_values + th.clamp(values - old_values, -clip_range_vf, clip_range_vf)
    if weights is None and huber_threshold is None:
        return F.mse_loss(values, targets)
    return weighted_mean(squared_error(values, targets, huber_threshold), weights)


def clipped_value_loss(
    values: th.Tensor,
    targets: th.Tensor,
    old_values: th.Tensor,
    clip_range: float,
    weights: th.Tensor | None = None,
    huber_threshold: float | None = None,
) -> th.Tensor:
    """
    The larger of the squared errors with and without clipping, as in OpenAI's baselines:

    .. code-block:: none

        V_clip = V_old + clip(V - V_old, -ε, ε)
        loss   = E[max((V - V_targ)², (V_clip - V_targ)²)]

    ``value_loss`` with ``clip_range_vf``, as in SB3, has only the error with clipping.

    :param values: V(s), shape (B,)
    :param targets: V_targ, shape (B,)
    :param old_values: V_old(s) as predicted during the rollout, shape (B,)
    :param clip_range: ε, in the units of the values
    :param weights: see ``weighted_mean``, shape (B,), or None
    :param huber_threshold: see ``squared_error``
    :return: scalar
    """
    check_same_shape(values=values, targets=targets, old_values=old_values)
    clipped = old_values + th.clamp(values - old_values, -clip_range, clip_range)
    errors = squared_error(values, targets, huber_threshold), squared_error(clipped, targets, huber_threshold)
    return weighted_mean(th.max(*errors), weights)


def approximate_kl(log_ratio: th.Tensor) -> th.Tensor:
    """
    Low-variance, non-negative estimate of KL(π_old, π) from the taken actions: E[(ratio - 1) - log ratio]

    It is what SB3 logs as ``approx_kl`` (Schulman, http://joschu.net/blog/kl-approx.html).

    :param log_ratio: log π(a|s) - log π_old(a|s), shape (B,)
    :return: scalar, in nats
    """
    return (th.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_ratio: th.Tensor, clip_range: float) -> th.Tensor:
    """
    Fraction of the samples whose ratio is further than ``clip_range`` from one.

    :param log_ratio: log π(a|s) - log π_old(a|s), shape (B,)
    :param clip_range: ε
    :return: scalar between 0 and 1
    """
    return (th.expm1(log_ratio).abs() > clip_range).to(log_ratio.dtype).mean()
