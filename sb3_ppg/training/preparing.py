"""Prepare rollouts for the epochs of both phases: value targets, advantages, value units, the objective's data, π_old."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arrays import split
from sb3_ppg.buffers.replay import Kind, Rollout
from sb3_ppg.buffers.rollout_buffers import VectorRewardBuffer, component_samples
from sb3_ppg.buffers.rollouts import RolloutEnd, ordered_gae, samples
from sb3_ppg.errors import ArgumentError
from sb3_ppg.objectives import objective_name
from sb3_ppg.optim.value_units import change_value_units, set_value_units
from sb3_ppg.protocols import PhasicModel


def prepare_rollouts(model: PhasicModel, kinds: Sequence[Kind]) -> None:
    """Compute what the epochs of an update need of the latest rollout, and of older ones that they use again."""
    objective, replay, latest = model.objective, model.replay, model.replay.rollouts[-1]
    buffer, end = latest.buffer, latest.end  # the end is None for rollouts from elsewhere
    if end is None and (objective.needs_rollout_end or replay.capacity > 1 or model.recompute_advantages):
        raise ArgumentError(
            f"`objective`={objective_name(type(objective))!r}, `replay_kwargs` or `recompute_advantages` as they are need "
            f"the end of the rollout, which `{type(model).__name__}.collect_rollouts` has not stored: set "
            "`self.rollout_end` to a sb3_ppg.buffers.rollouts.RolloutEnd there"
        )
    buffer.returns = objective.value_targets(buffer, end)
    if model.normalize_advantage:
        buffer.advantages = objective.normalized_advantages(buffer.advantages, model.device)
    model._n_rollouts += 1
    _update_value_units(model, latest)
    older = replay.older(kinds)
    for rollout in older:
        recompute_advantages(model, rollout.buffer, rollout.end)
    if replay.capacity > 1:
        model.logger.record("train/older_rollouts", len(older))
    objective.before_policy_phase(model.policy)
    for rollout in [*older, latest]:
        extras = objective.extras(model.policy, rollout.buffer, rollout.end)
        of_prior = {} if model.prior is None else {"prior": vars(rollout.buffer)["prior"]}
        rollout.extras = {**component_samples(rollout.buffer), **of_prior, **extras.by_name()}


def _update_value_units(model: PhasicModel, latest: Rollout) -> None:
    """Set the value unit from the latest value targets, or back to that of the return if value units have been turned off."""
    optimizers = (model.policy.optimizer, model.value_optimizer, model.aux_optimizer)
    if model.normalize_value_targets and model.n_aux_epochs > 0:
        n_averaged = model._n_rollouts if model.normalize_value_targets == "running" else model.n_policy_iterations
        weight = 1 / min(model._n_rollouts, n_averaged)  # at first all rollouts weigh the same
        targets = component_samples(latest.buffer).get("component_targets", latest.buffer.returns)
        change_value_units(model.policy, optimizers, targets, weight)
    elif model.policy.value_unit != 1.0:
        set_value_units(model.policy, optimizers, 0.0, 1.0)


@th.no_grad()
def recompute_advantages(model: PhasicModel, buffer: RolloutBuffer, end: RolloutEnd) -> None:
    """
    Recompute a rollout's advantages and value targets with the current value function. The values that were predicted when
    the rollout was collected stay, and so do the rewards, including the bootstrapped values at time limits.
    """
    batch_size = model.resolved_micro_batch_size() or max(model.batch_size, 1024)
    model.policy.set_training_mode(False)
    parts = samples(buffer, batch_size, np.arange)
    values = th.cat([model.policy.evaluate_values(*model.network_inputs(part)) for _, part in parts])
    last_values = model.next_values(obs_as_tensor(end.observations, model.device), end.dones, memory=end.memory)
    model.policy.set_training_mode(True)
    current, last = values.cpu().numpy(), last_values.squeeze(1).cpu().numpy()
    if isinstance(buffer, VectorRewardBuffer):
        buffer.recompute(current, last, end.dones)
    else:
        buffer.advantages = ordered_gae(buffer, current, last, end.dones, buffer.gamma, buffer.gae_lambda)
        buffer.returns = buffer.advantages + current.reshape(-1, 1)
    if model.normalize_advantage:
        buffer.advantages = model.objective.normalized_advantages(buffer.advantages, model.device)


# ---- the auxiliary phase ----


def has_single_samples(model: PhasicModel, aux_batch_size: int) -> bool:
    """Return whether auxiliary minibatches of so many samples consist of single samples instead of whole sequences."""
    if model.has_memory or model.objective.needs_whole_sequences:
        return False
    return not model.objective.shuffles_sequences or aux_batch_size < model.n_steps


def prepare_sequences(model: PhasicModel) -> int:
    """Choose the sequences of an auxiliary phase, whole ones or single samples; return their number in a minibatch."""
    size = model.aux_samples_per_batch()
    model.aux_buffer.single_samples = has_single_samples(model, size)
    return math.ceil(size / model.aux_buffer.sequence_length)


@th.no_grad()
@unvalidated_distributions()
def record(model: PhasicModel, n_sequences: int) -> None:
    """
    Record π_old, or other data that the auxiliary losses refer to, before the epochs. The micro-batches are the same as in the
    epochs, so that rounding is the same and KL(π_old, π) starts at zero.
    """

    def recorded(batch: Any) -> th.Tensor:
        inputs = map(model.network_inputs, split(batch, model.resolved_micro_batch_size()))
        return th.cat([model.objective.recorded(model.policy, part) for part in inputs])

    model.policy.set_training_mode(False)
    model.aux_buffer.record(recorded, n_sequences)
