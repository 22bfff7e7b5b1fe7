"""The unit in which both value heads work: the standard deviation of the value targets, as in Pop-Art."""

from collections.abc import Collection, Iterable

import numpy as np
import torch as th
from torch import nn

from sb3_ppg.distributed import moments
from sb3_ppg.policies import PhasicActorCriticPolicy


def change_value_units(
    policy: PhasicActorCriticPolicy, optimizers: Collection[th.optim.Optimizer], value_targets: np.ndarray, weight: float
) -> None:
    """
    Set the unit of both value heads to the standard deviation of the value targets of this rollout and earlier ones together.
    The optimizers' moments of the heads are rescaled with it.

    The unit is at least one, so that targets that are small or constant, as before the first reward, are not scaled up.

    :param value_targets: V_targ of the latest rollout, in the units of the (normalized) return, of any shape; for vector
        rewards (..., K), and each component has its own unit
    :param weight: weight of this rollout among them, from 0 to 1; if the heads have had no unit yet, it is 1
    """
    head = policy.value_net
    old_mean, old_std = (unit.cpu().numpy().astype(np.float64).ravel() for unit in (head.mean, head.std))
    columns = value_targets.reshape(-1, len(old_mean)).T
    mean, std = np.array([moments(column, policy.device) for column in columns]).T
    if not np.isfinite(std).all():
        return  # the losses are not finite either, and raise an error
    if not old_mean.any() and (old_std == 1).all():
        weight = 1.0
    shift = mean - old_mean
    variance = (1 - weight) * old_std**2 + weight * std**2 + weight * (1 - weight) * shift**2
    units = (old_mean + weight * shift, np.maximum(variance**0.5, 1.0))
    set_value_units(policy, optimizers, *map(np.squeeze, units))


def set_value_units(
    policy: PhasicActorCriticPolicy,
    optimizers: Collection[th.optim.Optimizer],
    mean: float | np.ndarray,
    std: float | np.ndarray,
) -> None:
    """Change the units of both heads, see ``ValueHead``; the values that they predict stay the same."""
    for head in (policy.value_net, policy.aux_value_net):
        factor = head.change_units(mean, std)
        for optimizer in optimizers:
            rescale_moments(optimizer, head.parameters(recurse=False), factor)


# Powers by which the states of torch's optimizers scale with the gradient (not RMSprop's momentum and Adadelta's steps)
FIRST_MOMENTS = ("exp_avg", "grad_avg", "exp_inf", "prev")
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "row_var", "col_var", "variance")
MOMENT_POWERS = {**dict.fromkeys(FIRST_MOMENTS, 1), **dict.fromkeys(SECOND_MOMENTS, 2)}


@th.no_grad()
def rescale_moments(optimizer: th.optim.Optimizer, parameters: Iterable[nn.Parameter], factor: th.Tensor) -> None:
    """Rescale an optimizer's moments when all gradients change by a factor, (1,), or one for each row, (n,)."""
    powers = {**MOMENT_POWERS, "momentum_buffer": 1} if isinstance(optimizer, th.optim.SGD) else MOMENT_POWERS
    for parameter in parameters:
        state, row_factors = optimizer.state.get(parameter, {}), factor.reshape(-1, *[1] * (parameter.dim() - 1))
        for name, power in powers.items():
            if name in state:  # Adafactor's column variances have no rows
                has_rows = len(state[name]) == len(row_factors) or len(row_factors) == 1
                state[name].mul_((row_factors if has_rows else row_factors.mean()) ** power)
