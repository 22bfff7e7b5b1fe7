"""Prepare rollouts for the epochs of both phases: value targets, advantages, value units, the objective's data, π_old."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arrays import map_arrays, split
from sb3_ppg.buffers.rollouts import Kind, Rollout, batches
from sb3_ppg.errors import ArgumentError
from sb3_ppg.objectives import objective_name
from sb3_ppg.optim.value_units import change_value_units, set_value_units
from sb3_ppg.protocols import PhasicModel


def prepare_rollouts(model: PhasicModel, kinds: Sequence[Kind]) -> None:
    """Compute what the epochs of an update need of the latest rollout, and of older ones that they use again."""
    objective, replay, latest = model.objective, model.replay, model.replay.rollouts[-1]
    is_end_known = "last_dones" in latest.arrays  # not for rollouts from elsewhere
    if not is_end_known and (objective.needs_rollout_end or replay.capacity > 1 or model.recompute_advantages):
        raise ArgumentError(
            f"`objective`={objective_name(type(objective))!r}, `replay_kwargs` or `recompute_advantages` as they are need "
            f"the end of the rollout, which `{type(model).__name__}.collect_rollouts` has not stored: set "
            "`self.rollout_end` to a sb3_ppg.buffers.rollouts.RolloutEnd there"
        )
    own = {*latest.arrays}
    latest.arrays["targets"] = objective.value_targets(latest, model.gamma)
    if model.normalize_advantage:
        latest.arrays["advantages"] = objective.normalized_advantages(latest.arrays["advantages"], model.device)
    model._n_rollouts += 1
    _update_value_units(model, latest)
    older = replay.older(kinds)
    for rollout in older:
        recompute_advantages(model, rollout)
    if replay.capacity > 1:
        model.logger.record("train/older_rollouts", len(older))
    objective.before_policy_phase(model.policy)
    for rollout in [*older, latest]:
        extras = objective.extras(model.policy, rollout)
        if taken := extras.keys() & own:
            raise ArgumentError(
                f"`objective`={objective_name(type(objective))!r} has extras under names of the rollout's own arrays: rename "
                f"{', '.join(sorted(taken))}"
            )
        rollout.arrays |= extras


def _update_value_units(model: PhasicModel, latest: Rollout) -> None:
    """Set the value unit from the latest value targets, or back to that of the return if value units have been turned off."""
    optimizers = (model.policy.optimizer, model.value_optimizer, model.aux_optimizer)
    if model.normalize_value_targets and model.n_aux_epochs > 0:
        n_averaged = model._n_rollouts if model.normalize_value_targets == "running" else model.n_policy_iterations
        weight = 1 / min(model._n_rollouts, n_averaged)  # at first all rollouts weigh the same
        change_value_units(model.policy, optimizers, latest.arrays["targets"], weight)
    elif model.policy.value_unit != 1.0:
        set_value_units(model.policy, optimizers, 0.0, 1.0)


@th.no_grad()
def recompute_advantages(model: PhasicModel, rollout: Rollout) -> None:
    """
    Recompute a rollout's advantages and value targets with the current value function. The values that were predicted when
    the rollout was collected stay, and so do the rewards, including the bootstrapped values at time limits.
    """
    batch_size = model.resolved_micro_batch_size() or max(model.batch_size, 1024)
    model.policy.set_training_mode(False)
    length, parts = rollout.parts(batch_size, np.arange)
    inputs = rollout.select(["observations", *model.policy.input_keys])
    of_parts = batches([inputs], parts, length, model.device)
    values = th.cat([model.policy.evaluate_values(*model.policy.network_inputs(part)) for part in of_parts])
    names = ("last_observations", "last_dones", "last_memory")
    last = {name: map_arrays(lambda array: array[:, 0], rollout.arrays[name]) for name in names if name in rollout.arrays}
    observations, dones, *memory = last.values()
    last_values = model.next_values(obs_as_tensor(observations, model.device), dones, None, *memory)
    model.policy.set_training_mode(True)
    n_envs, _, *components = rollout.arrays["old_values"].shape
    current = values.cpu().numpy().reshape(rollout.arrays["old_values"].shape)
    rollout.recompute(current, last_values.cpu().numpy().reshape(n_envs, *components), model.gamma, model.gae_lambda)
    if model.normalize_advantage:
        advantages = model.objective.normalized_advantages(rollout.arrays["advantages"], model.device)
        rollout.arrays["advantages"] = advantages


# ---- the auxiliary phase ----


def has_single_samples(model: PhasicModel, aux_batch_size: int) -> bool:
    """Return whether auxiliary minibatches of so many samples consist of single samples instead of whole sequences."""
    if model.policy.has_memory or model.objective.needs_whole_sequences:
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
        parts = split(batch, model.resolved_micro_batch_size())
        return th.cat([model.objective.recorded(model.policy, part) for part in parts])

    model.policy.set_training_mode(False)
    model.aux_buffer.record(recorded, n_sequences)
