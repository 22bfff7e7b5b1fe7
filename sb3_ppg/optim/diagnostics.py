"""The logger of a run, and summaries of both phases for it, in addition to the losses, over all processes."""

import importlib
import math
import os
from itertools import repeat
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.utils import configure_logger
from typing_extensions import override

from sb3_ppg import losses
from sb3_ppg.actions import NestedActions, leaves, unvalidated_distributions
from sb3_ppg.arrays import split_each
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.rollout_buffers import component_summary
from sb3_ppg.buffers.rollouts import Rollout, batches
from sb3_ppg.distributed import average_over_processes, explained_variance
from sb3_ppg.objectives import Objective
from sb3_ppg.optim.update import Update, mean_losses
from sb3_ppg.policies import PhasicActorCriticPolicy

# The number of samples, about, on which the outcome of an auxiliary phase, and the leaves of nested actions, are evaluated
EVALUATED_SAMPLES = 4096


def set_logger_of_run(model: Any, name: str, is_new: bool) -> None:
    """
    Give a model SB3's logger for a run, unless the user has set one. If the run continues an earlier one of the model under
    the same name, it writes into that run's TensorBoard folder; SB3 would take the newest folder, which may be another run's.
    """
    if model._custom_logger:
        return
    folder, parent, verbose = model._log_folder, model.tensorboard_log, model.verbose
    if parent is not None:
        importlib.import_module("tensorboard")  # SB3's own error does not say which module is missing
    if parent is not None and not is_new and folder.rpartition("_")[0] == os.path.join(parent, name):
        model._logger = configure(folder, ["stdout", "tensorboard"] if verbose >= 1 else ["tensorboard"])
    else:
        model._logger = configure_logger(verbose, parent, name)
    model._log_folder = model._logger.dir or ""


class Everywhere(tuple):
    """The argument ``exclude`` of a value that no output writes, whatever its name."""

    @override
    def __contains__(self, name: object) -> bool:
        return True


def forget_written(logger: Logger) -> None:
    """Remove the values that were excluded everywhere, because a user's own outputs may ignore the exclusion."""
    for name in [name for name, excluded in logger.name_to_excluded.items() if isinstance(excluded, Everywhere)]:
        for table in (logger.name_to_value, logger.name_to_count, logger.name_to_excluded):
            table.pop(name, None)


def record_all(logger: Logger, group: str, values: dict[str, float]) -> None:
    """Record several values for the log, under "group/name"."""
    for name, value in values.items():
        logger.record(f"{group}/{name}", value)


def policy_summary(policy: PhasicActorCriticPolicy, rollout: Rollout, updates: list[Update]) -> dict[str, float]:
    """
    Return the values that PPO logs for an update; ``rollout`` is as it was collected. Losses are means over samples and
    epochs; ``approx_kl``, in nats, is of the last epoch, and ``loss`` of the last step.
    """
    value_update = next((update for update in updates if update.kind == "value"), None)
    update = next((update for update in updates if update.kind == "policy"), updates[0])  # that of values in their warm-up
    summary, epochs = dict[str, float](), update.epochs
    if value_update is not None and value_update.epochs:
        summary |= mean_losses(value_update.epochs)
    summary |= mean_losses(epochs)
    summary["loss"] = float(epochs[-1].losses["loss"][-1])
    coefficients, change = update.coefficients, dict[str, th.Tensor]()
    if update.kind == "policy":
        change["approx_kl"] = losses.approximate_kl(epochs[-1].log_ratio)
        if coefficients.clip_range is not None:
            all_ratios = th.cat([epoch.log_ratio for epoch in epochs])
            change["clip_fraction"] = losses.clip_fraction(all_ratios, coefficients.clip_range)
    average_over_processes(list(change.values()))
    summary |= {name: value.item() for name, value in change.items()}
    values, targets = (rollout.combined(rollout.arrays[name]) for name in ("old_values", "targets"))
    summary["explained_variance"] = explained_variance(values, targets, policy.device)
    if hasattr(policy, "log_std"):
        summary["std"] = th.exp(policy.log_std).mean().item()
    scales = {name: getattr(coefficients, name) for name in ("clip_range", "clip_range_vf", "value_unit", "prior_coef")}
    summary |= {name: value for name, value in scales.items() if value is not None}
    return {**summary, **component_summary(rollout, policy)}


@th.no_grad()
@unvalidated_distributions()
def leaf_summary(
    policy: PhasicActorCriticPolicy, rollout: Rollout, batch_size: int, micro_batch_size: int | None
) -> dict[str, float]:
    """
    Return two means for each leaf of a nested action space, in nats, over an evenly spread part of the rollout: log π of the
    leaf's action under "log_prob/path", and its entropy, or an estimate, under "entropy/path". Return nothing for other
    spaces.
    """
    if not isinstance(policy.actions, NestedActions):
        return {}
    stride = math.ceil(rollout.n_samples / EVALUATED_SAMPLES)
    rollout = rollout.select(["observations", "actions", *policy.input_keys])
    length, parts = rollout.parts(batch_size, lambda n: np.arange(0, n, stride))
    columns = []
    policy.set_training_mode(False)
    for part in split_each(batches([rollout], parts, length, policy.device), micro_batch_size):
        distribution: Any = policy.evaluate_batch(part, reads=("distribution",)).distribution
        columns.append(th.stack([distribution.leaf_log_probs(part.actions), distribution.leaf_entropies(part.actions)]))
    policy.set_training_mode(True)
    means = th.cat(columns, dim=2).mean(dim=2)
    average_over_processes([means])
    paths = [path for path, _ in leaves(policy.action_space)]
    rows = zip(("log_prob", "entropy"), means.tolist(), strict=True)
    return {f"{name}/{path}": mean for name, row in rows for path, mean in zip(paths, row, strict=True)}


@th.no_grad()
@unvalidated_distributions()
def auxiliary_summary(
    policy: PhasicActorCriticPolicy,
    objective: Objective,
    aux_buffer: AuxBuffer,
    n_sequences: int,
    micro_batch_size: int | None,
) -> dict[str, float]:
    """
    Evaluate the result of an auxiliary phase on an evenly spread part of its samples: KL(π_old, π), in nats, and the explained
    variance of both value heads (NaN if all targets are equal), for vector rewards the mean over the components.
    """
    spread = aux_buffer.evenly_spread(max(1, EVALUATED_SAMPLES // aux_buffer.sequence_length))
    kls, columns = [], []
    policy.set_training_mode(False)
    for part in split_each((batch for _, batch in aux_buffer.batches(spread, n_sequences)), micro_batch_size):
        distribution, latent_pi, latent_vf, _ = policy.evaluate_batch(part, auxiliary=True)
        kls.append(objective.kl_to_recorded(policy, distribution, part.recorded))
        values = (part.targets, policy.value_net(latent_vf), policy.aux_value_net(latent_pi))
        columns.append(th.stack([each.reshape(len(each), -1) for each in values]))
    policy.set_training_mode(True)
    kl = th.cat(kls).mean()
    average_over_processes([kl])
    targets, *heads = th.cat(columns, dim=1).transpose(1, 2).cpu().numpy()  # (number of components, number of samples) each
    variances = [list(map(explained_variance, head, targets, repeat(policy.device))) for head in heads]
    numbers = (kl.item(), *(float(np.mean(components)) for components in variances))
    return dict(zip(("final_kl", "explained_variance", "aux_explained_variance"), numbers, strict=True))
