"""The logger of a run, and summaries of both phases for it, in addition to the losses, over all processes."""

import importlib
import math
import os
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.utils import configure_logger

from sb3_ppg import losses
from sb3_ppg.actions import NestedActions, leaves, unvalidated_distributions
from sb3_ppg.arrays import split
from sb3_ppg.buffers.rollout_buffers import component_summary
from sb3_ppg.buffers.rollouts import batches
from sb3_ppg.distributed import average_over_processes, explained_variance
from sb3_ppg.optim.update import Update, mean_losses
from sb3_ppg.protocols import PhasicModel

# The number of samples, about, on which the outcome of an auxiliary phase, and the leaves of nested actions, are evaluated
EVALUATED_SAMPLES = 4096


def logger_of_run(model: Any, name: str, is_new: bool) -> Logger:
    """
    Make SB3's logger for a run. If it continues an earlier run of the model under the same name, it writes into that run's
    TensorBoard folder; SB3 would take the newest folder, which may be another run's.
    """
    folder, log = vars(model).get("_log_folder", ""), model.tensorboard_log
    if log is None:
        return configure_logger(model.verbose)
    importlib.import_module("tensorboard")  # SB3's own error does not say which module is missing
    if not is_new and folder.rpartition("_")[0] == os.path.join(log, name):
        return configure(folder, ["stdout", "tensorboard"] if model.verbose >= 1 else ["tensorboard"])
    logger = configure_logger(model.verbose, log, name)
    model._log_folder = logger.dir
    return logger


def record_all(model: PhasicModel, group: str, values: dict[str, float]) -> None:
    """Record several values for the log, under "group/name"."""
    for name, value in values.items():
        model.logger.record(f"{group}/{name}", value)


def log_policy_phase(model: PhasicModel, updates: list[Update]) -> None:
    """
    Record an update by PPO's names: means over samples and epochs; ``approx_kl``, in nats, of the last epoch; ``loss`` of the
    last step.
    """
    of_values = [one for one in updates if one.kind == "value"]
    of_policy = next((one for one in updates if one.kind == "policy"), updates[0])  # the value function's in its warm-up
    record_all(model, "train", {"learning_rate": of_policy.learning_rate})
    if model.value_learning_rate is not None:
        record_all(model, "train", {"value_learning_rate": of_values[0].learning_rate})
    history = of_policy.history
    if not history:
        return  # all rollouts are too new, or used up
    summary = {**(mean_losses(of_values[0].history) if of_values and of_values[0].history else {}), **mean_losses(history)}
    summary["loss"] = float(history[-1].losses["loss"][-1])
    coefficients, policy, rollout = of_policy.coefficients, model.policy, model.replay.rollouts[-1]
    has_policy, change = of_policy.kind == "policy", {}
    if has_policy:
        change["approx_kl"] = losses.approximate_kl(history[-1].log_ratio)
    if has_policy and coefficients.clip_range is not None:
        all_ratios = th.cat([epoch.log_ratio for epoch in history])
        change["clip_fraction"] = losses.clip_fraction(all_ratios, coefficients.clip_range)
    average_over_processes(list(change.values()))
    summary |= {name: value.item() for name, value in change.items()}
    values, targets = (rollout.combined(rollout.arrays[name]) for name in ("old_values", "targets"))
    summary["explained_variance"] = explained_variance(values, targets, policy.device)
    if hasattr(policy, "log_std"):
        summary["std"] = th.exp(policy.log_std).mean().item()
    scales = {name: getattr(coefficients, name) for name in ("clip_range", "clip_range_vf", "value_unit", "prior_coef")}
    summary |= {name: value for name, value in scales.items() if value is not None}
    record_all(model, "train", {**summary, **component_summary(rollout, policy)})
    model.logger.record("train/n_updates", model._n_updates, exclude="tensorboard")
    model.logger.record("train/compiled", int(model.compiled_training.is_enabled))
    if isinstance(policy.actions, NestedActions):
        for name, value in leaf_summary(model).items():
            model.logger.record(f"train/{name}", value, exclude=("stdout", "log"))  # which cut long names off


@th.no_grad()
@unvalidated_distributions()
def leaf_summary(model: PhasicModel) -> dict[str, float]:
    """
    Evaluate each leaf of a nested action space on an evenly spread part of the rollout: under "log_prob/path" and
    "entropy/path", the mean of log π of its part of the actions and the mean of its entropy, or of an estimate, in nats.
    """
    stride = math.ceil(model.n_steps * model.n_envs / EVALUATED_SAMPLES)
    rollout = model.replay.rollouts[-1].select(["observations", "actions", *model.policy.input_keys])
    length, parts = rollout.parts(model.batch_size, lambda n: np.arange(0, n, stride))
    columns = []
    model.policy.set_training_mode(False)
    for part in _micro_batches(model, batches([rollout], parts, length, model.device)):
        distribution: Any = model.policy.evaluate_batch(part, reads=("distribution",)).distribution
        columns.append(th.stack([distribution.leaf_log_probs(part.actions), distribution.leaf_entropies(part.actions)]))
    model.policy.set_training_mode(True)
    means = th.cat(columns, dim=2).mean(dim=2)
    average_over_processes([means])
    of_space, rows = leaves(model.action_space), zip(("log_prob", "entropy"), means.tolist(), strict=True)
    return {f"{name}/{leaf.path}": mean for name, row in rows for leaf, mean in zip(of_space, row, strict=True)}


@th.no_grad()
@unvalidated_distributions()
def auxiliary_outcome(model: PhasicModel, n_sequences: int) -> dict[str, float]:
    """
    Evaluate the result of an auxiliary phase on an evenly spread part of its samples: KL(π_old, π), in nats, and the explained
    variance of both value heads (NaN if all targets are equal), for vector rewards the mean over the components.
    """
    policy, buffer = model.policy, model.aux_buffer
    some = buffer.evenly_spread(max(1, EVALUATED_SAMPLES // buffer.sequence_length))
    kls, columns = [], []
    policy.set_training_mode(False)
    for part in _micro_batches(model, (batch for _, batch in buffer.batches(some, n_sequences))):
        evaluation = policy.evaluate_auxiliary(*policy.network_inputs(part))
        kls.append(model.objective.kl_to_recorded(policy, evaluation.distribution, part.recorded))
        values = (part.targets, evaluation.values, evaluation.aux_values)
        columns.append(th.stack([one.reshape(len(one), -1) for one in values]))
    policy.set_training_mode(True)
    kl = th.cat(kls).mean()
    average_over_processes([kl])
    targets, *heads = th.cat(columns, dim=1).transpose(1, 2).cpu().numpy()  # (number of components, number of samples) each
    of_components = [list(map(explained_variance, head, targets, repeat(policy.device))) for head in heads]
    numbers = (kl.item(), *(float(np.mean(one)) for one in of_components))
    return dict(zip(("final_kl", "explained_variance", "aux_explained_variance"), numbers, strict=True))


def _micro_batches(model: PhasicModel, batches: Iterable[Any]) -> Iterable[Any]:
    return (part for batch in batches for part in split(batch, model.resolved_micro_batch_size()))
