"""Diagnostics that are logged in addition to the losses of both phases, over all processes."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution

from sb3_ppg import losses
from sb3_ppg.actions import leaves
from sb3_ppg.distributed.collectives import average_over_processes, moments
from sb3_ppg.optim.epoch import Epoch, mean_losses
from sb3_ppg.optim.precision import unvalidated_distributions
from sb3_ppg.policies import PhasicActorCriticPolicy


def policy_phase_summary(
    policy: PhasicActorCriticPolicy,
    rollout_buffer: RolloutBuffer,
    history: list[Epoch],
    value_history: list[Epoch],
    clip_range: float | None,
) -> dict[str, float]:
    """
    Summarize an update for the log.

    :param policy: policy after the update
    :param rollout_buffer: rollout that it was trained on
    :param history: epochs on the policy's loss, or the joint one
    :param value_history: epochs on the value loss alone, if there were any
    :param clip_range: ε, or None if nothing is clipped
    :return: values by PPO's names: means over samples and epochs; ``approx_kl``, in nats, of the last epoch; ``loss`` of the
        last step
    """
    summary = {**(mean_losses(value_history) if value_history else {}), **mean_losses(history)}
    summary["loss"] = float(history[-1].losses["loss"][-1])
    change = {"approx_kl": losses.approximate_kl(history[-1].log_ratio)}
    if clip_range is not None:
        change["clip_fraction"] = losses.clip_fraction(th.cat([epoch.log_ratio for epoch in history]), clip_range)
    average_over_processes(list(change.values()))
    summary |= {name: value.item() for name, value in change.items()}
    summary["explained_variance"] = explained_variance(rollout_buffer.values, rollout_buffer.returns, policy.device)
    if hasattr(policy, "log_std"):
        summary["std"] = th.exp(policy.log_std).mean().item()
    return summary


@th.no_grad()
def leaf_summary(policy: PhasicActorCriticPolicy, batches: Iterable[tuple[tuple, th.Tensor]]) -> dict[str, float]:
    """
    Evaluate each leaf of a nested action space.

    :param policy: policy after an update
    :param batches: inputs of the policy's ``evaluate``; actions as buffers give them, (B, n)
    :return: for each leaf, under "log_prob/path" and "entropy/path", the mean of log π of its part of the actions and the mean
        of its entropy, or of an estimate, in nats
    """
    columns = []
    with unvalidated_distributions():
        for inputs, actions in batches:
            distribution: Any = policy.evaluate(*inputs, reads=("distribution",)).distribution
            columns.append(th.stack([distribution.leaf_log_probs(actions), distribution.leaf_entropies(actions)]))
    means = th.cat(columns, dim=2).mean(dim=2)
    average_over_processes([means])
    of_space, rows = leaves(policy.action_space), zip(("log_prob", "entropy"), means.tolist(), strict=True)
    return {f"{name}/{leaf.path}": mean for name, row in rows for leaf, mean in zip(of_space, row, strict=True)}


def explained_variance(values: np.ndarray, value_targets: np.ndarray, device: th.device) -> float:
    """
    Compute the explained variance as SB3 does, over all processes.

    :param values: V, of any shape
    :param value_targets: V_targ, of the same shape
    :param device: device of the process group's backend
    :return: 1 - Var(V_targ - V) / Var(V_targ); NaN if all targets are equal
    """
    (_, of_targets), (_, of_errors) = (moments(array, device) for array in (value_targets, value_targets - values))
    return 1 - (of_errors / of_targets) ** 2 if of_targets > 0 else float("nan")


@th.no_grad()
def auxiliary_outcome(
    policy: PhasicActorCriticPolicy,
    kl_to_recorded: Callable[[PhasicActorCriticPolicy, Distribution, th.Tensor], th.Tensor],
    batches: Iterable[tuple[tuple, th.Tensor, th.Tensor]],
) -> dict[str, float]:
    """
    Evaluate the result of an auxiliary phase.

    :param policy: policy after the phase
    :param kl_to_recorded: method of the objective
    :param batches: inputs of the policy's ``evaluate_auxiliary``; V_targ, (B,), or (B, K) for vector rewards; recorded data,
        (B, P)
    :return: KL(π_old, π), in nats, and the explained variance of both value heads (NaN if all targets are equal), for vector
        rewards the mean over the components
    """
    kls, errors, targets = [], [], []
    with unvalidated_distributions():
        for inputs, value_targets, recorded in batches:
            evaluation = policy.evaluate_auxiliary(*inputs)
            kls.append(kl_to_recorded(policy, evaluation.distribution, recorded))
            values = th.stack([evaluation.values, evaluation.aux_values])
            errors.append((value_targets - values.reshape(2, *value_targets.shape)).reshape(2, len(value_targets), -1))
            targets.append(value_targets.reshape(1, len(value_targets), -1))
    columns = th.cat([th.cat(errors, dim=1), th.cat(targets, dim=1)])  # (3, number of samples, number of components)
    centers = columns.mean(dim=1, keepdim=True)
    average_over_processes([centers])
    kl, variances = th.cat(kls).mean(), (columns - centers).square().mean(dim=1)
    average_over_processes([kl, variances])
    of_errors, of_targets = variances[:2], variances[2]
    explained = th.where(of_targets > 0, 1 - of_errors / of_targets, th.nan).mean(dim=1)
    numbers = th.stack([kl, *explained])
    return dict(zip(("final_kl", "explained_variance", "aux_explained_variance"), numbers.tolist(), strict=True))
