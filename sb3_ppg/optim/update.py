"""The epochs of an update on one kind of losses."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import numpy as np
from stable_baselines3.common.utils import update_learning_rate

from sb3_ppg.losses import Losses
from sb3_ppg.optim.epoch import Epoch, optimize_epoch
from sb3_ppg.optim.steps import minibatch_losses
from sb3_ppg.protocols import PhasicModel


class Update:
    """
    Epochs with one method of the objective, which have the same optimizer, learning rate and coefficients.

    :param kind: "policy" (alone, or with the value function), "value" or "auxiliary"
    :param losses: method of the objective
    """

    def __init__(self, model: PhasicModel, kind: Literal["policy", "value", "auxiliary"], losses: Callable[..., Losses]):
        self.model, self.kind = model, kind
        self.optimizer, schedule = {
            "policy": (model.policy.optimizer, model.lr_schedule),
            "value": (model.value_optimizer, model.value_lr_schedule),
            "auxiliary": (model.aux_optimizer, model.aux_lr_schedule),
        }[kind]
        progress = model._current_progress_remaining
        if kind == "auxiliary" and model.aux_buffer.progress:  # at its end, the last phase may have a learning rate of 0
            progress = float(np.mean(model.aux_buffer.progress))
        self.learning_rate: float = schedule(progress)
        update_learning_rate(self.optimizer, self.learning_rate)
        self.coefficients = model.coefficients(progress)
        self.history: list[Epoch] = []
        self._losses = partial(minibatch_losses, model, losses, self.coefficients)
        self._compiled = model.compiled_training.begin_update(kind, losses, self.optimizer, self.coefficients)
        self._of_policy: dict[str, Any] = {} if kind != "policy" else self._policy_arguments()

    def _policy_arguments(self) -> dict[str, Any]:
        """Return the arguments of ``optimize_epoch`` for epochs on the policy's loss alone."""
        model, objective = self.model, self.model.objective
        arguments = dict(target_kl=model.target_kl, after_step=partial(objective.after_policy_step, model.policy))
        if objective.adversary_optimizer is None:
            return arguments
        update_learning_rate(objective.adversary_optimizer, self.learning_rate)
        losses = partial(minibatch_losses, model, objective.adversary_losses, self.coefficients)
        return {**arguments, "adversary": (objective.adversary_optimizer, losses)}

    def epoch(self, minibatches: Iterable[Any]) -> Epoch:
        """Take one optimizer step per minibatch, see ``optimize_epoch``; ``history`` gets the record of the epoch."""
        model = self.model
        epoch = optimize_epoch(
            "auxiliary" if self.kind == "auxiliary" else "policy",
            [model.policy, model.objective],
            self.optimizer,
            minibatches,
            self._losses,
            model.resolved_micro_batch_size(),
            model.max_grad_norm,
            compiled=self._compiled,
            **self._of_policy,
        )
        self.history.append(epoch)
        if epoch.stopped and model.verbose >= 1:
            print(f"Early stopping at step {len(self.history) - 1} due to reaching max kl")
        return epoch
