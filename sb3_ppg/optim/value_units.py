"""The unit in which both value heads work: the standard deviation of the value targets, as in Pop-Art."""

from collections.abc import Iterable

import numpy as np
import torch as th

from sb3_ppg.distributed.collectives import moments
from sb3_ppg.optim.epoch import rescale_moments
from sb3_ppg.policies import PhasicActorCriticPolicy


def change_value_units(
    policy: PhasicActorCriticPolicy, optimizers: Iterable[th.optim.Optimizer], value_targets: np.ndarray, weight: float
) -> None:
    """
    Let both value heads work in standard deviations of the value targets, averaged over rollouts. What their optimizers
    remember of gradients changes with the unit.

    The unit is at least one: targets that are small or constant, as before the first reward, are left as they are.

    :param policy: with its heads
    :param optimizers: of its parameters
    :param value_targets: of the latest rollout, in the units of the (normalised) return, of any shape; with several components
        (..., K), each of which has its own unit
    :param weight: of this rollout in the average, from 0 to 1
    """
    old_mean, old_std = (np.atleast_1d(one.double().cpu().numpy()) for one in (policy.value_net.mean, policy.value_net.std))
    columns = value_targets.reshape(-1, len(old_mean)).T
    mean, std = np.array([moments(column, policy.device) for column in columns]).T
    if not np.isfinite(std).all():
        return  # the losses are not finite, and say so
    shift = mean - old_mean
    variance = (1 - weight) * old_std**2 + weight * std**2 + weight * (1 - weight) * shift**2
    units = (old_mean + weight * shift, np.maximum(variance**0.5, 1.0))
    set_value_units(policy, optimizers, *(one if len(one) > 1 else one.item() for one in units))


def set_value_units(
    policy: PhasicActorCriticPolicy,
    optimizers: Iterable[th.optim.Optimizer],
    mean: float | np.ndarray,
    std: float | np.ndarray,
) -> None:
    """
    Change the units; the values that the heads predict stay as they are.

    :param policy: with its heads
    :param optimizers: of its parameters
    :param mean: where values are zero in the new unit; one number, or one for each component
    :param std: the new unit; one number, or one for each component; both in the units of the (normalised) return
    """
    for head in (policy.value_net, policy.aux_value_net):
        factor = head.change_units(mean, std)
        for optimizer in optimizers:
            rescale_moments(optimizer, head.parameters(recurse=False), factor)
