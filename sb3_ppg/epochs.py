"""What the epochs of both phases need: losses of a minibatch, sizes, coefficients, and what is logged of them."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch as th
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppg.base import PhasicAlgorithm
from sb3_ppg.buffers.aux_buffer import AuxiliaryBatch
from sb3_ppg.buffers.replay import KINDS, Kind, Rollout
from sb3_ppg.buffers.rollouts import one_observation
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients
from sb3_ppg.optim.diagnostics import auxiliary_outcome, policy_phase_summary
from sb3_ppg.optim.epoch import Epoch, optimize_epoch, split, unvalidated_distributions
from sb3_ppg.optim.micro_batches import fitting_micro_batch_size

# What an auxiliary phase has led to is evaluated on about so many of its samples
EVALUATED_SAMPLES = 4096


class PhasicEpochs(PhasicAlgorithm):
    """``PhasicAlgorithm`` with what its phases are made of."""

    value_optimizer: th.optim.Optimizer
    max_grad_norm: float | None  # type: ignore[assignment]
    _n_epochs_of_update: int = 0
    _fitting_micro_batch_size: tuple[int | None] | None = None  # once it is known

    def _policy_phase_optimizers(self) -> list[th.optim.Optimizer]:
        of_adversary = self.objective.adversary_optimizer
        return [self.policy.optimizer, self.value_optimizer, *([] if of_adversary is None else [of_adversary])]

    def _prepare_to_learn(self, total_timesteps: int) -> None:
        super()._prepare_to_learn(total_timesteps)
        self._fitting_micro_batch_size = None

    def _epochs(self, kind: Kind, n_epochs: int, batch_size: int) -> Iterator[Iterator[Any]]:
        """
        The minibatches of epochs of the policy phase, as long as rollouts are due. All but the first epoch of an update may
        have advantages of the present value function.
        """
        for _ in range(n_epochs):
            due = self.replay.due(kind)
            if not due:
                return
            for rollout in due if self.recompute_advantages and self._n_epochs_of_update > 0 else ():
                self._bring_up_to_date(rollout)
            self._n_epochs_of_update += 1
            yield self.replay.epoch(kind, batch_size)

    def _older_rollouts(self) -> list[Rollout]:
        """That epochs of this update may use."""
        return self.replay.older(("policy",) if self.n_value_epochs is None else KINDS)

    def _bring_older_rollouts_up_to_date(self) -> None:
        older = self._older_rollouts()
        for rollout in older:
            self._bring_up_to_date(rollout)
        if self.replay.capacity > 1:
            self.logger.record("train/older_rollouts", len(older))

    def _bring_up_to_date(self, rollout: Rollout) -> None:
        assert rollout.end is not None
        self.bring_up_to_date(rollout.buffer, rollout.end)

    def _epoch(
        self,
        phase: str,
        optimizer: th.optim.Optimizer,
        batches: Iterable[Any],
        losses: Callable[[Any], Losses],
        **options: Any,
    ) -> Epoch:
        self.policy.set_training_mode(True)  # a callback between two epochs may have evaluated it
        networks, micro_batch_size = [self.policy, self.objective], self._micro_batch_size()
        return optimize_epoch(phase, networks, optimizer, batches, losses, micro_batch_size, self.max_grad_norm, **options)

    def _losses(self, losses: Callable[..., Losses], coefficients: Coefficients, batch: Any) -> Losses:
        """Those of the objective, of a minibatch of either phase."""
        return losses(self.policy, self.network_inputs(batch), batch, coefficients)

    def _coefficients(self) -> Coefficients:
        """The present ones: clip ranges may be schedules, or plain numbers if somebody has set the attributes to such."""
        clip_range, clip_range_vf = (
            schedule(self._current_progress_remaining) if callable(schedule) else schedule
            for schedule in (self.clip_range, self.clip_range_vf)
        )
        weights = {name: getattr(self, name) for name in ("ent_coef", "vf_coef", "kl_coef", "beta_clone")}
        return Coefficients(clip_range, clip_range_vf, self.policy.value_unit, **weights)

    @th.no_grad()
    @unvalidated_distributions()
    def _recorded(self, batch: AuxiliaryBatch) -> th.Tensor:
        """In the micro-batches of the epochs that follow, for rounding to be the same: KL(π_old, π) starts at zero."""
        inputs = map(self.network_inputs, split(batch, self._micro_batch_size()))
        return th.cat([self.objective.recorded(self.policy, part) for part in inputs])

    def _outcome(self, n_sequences: int) -> dict[str, float]:
        """Of an auxiliary phase, from a part of its samples, evenly spread."""
        self.policy.set_training_mode(False)
        some = self.aux_buffer.evenly_spread(max(1, EVALUATED_SAMPLES // self.aux_buffer.sequence_length))
        batches = (batch for _, batch in self.aux_buffer.batches(some, n_sequences))
        parts = (part for batch in batches for part in split(batch, self._micro_batch_size()))
        outcome = auxiliary_outcome(
            self.policy,
            self.objective.kl_to_recorded,
            ((self.network_inputs(part), part.value_targets, part.recorded) for part in parts),
        )
        self.policy.set_training_mode(True)
        return outcome

    def _aux_samples_per_batch(self) -> int:
        """
        As asked for; or a sixteenth of a rollout, but not less than a minibatch of the policy phase has. With memory, where
        the samples of a sequence are much alike, a sixteenth of the phase.
        """
        n_samples = self.aux_buffer.n_samples if self.has_memory else self.n_steps * self.n_envs
        return self.aux_batch_size or max(math.ceil(n_samples / 16), self.batch_size)

    def _aux_sequences_per_batch(self) -> int:
        return math.ceil(self._aux_samples_per_batch() / self.aux_buffer.sequence_length)

    def _micro_batch_size(self) -> int | None:
        if self.micro_batch_size != "auto" or self.objective.needs_whole_minibatches:
            return None if self.micro_batch_size == "auto" else self.micro_batch_size
        if self._fitting_micro_batch_size is None:  # asked once per training: the network stays as it is
            observation = obs_as_tensor(one_observation(self.rollout_buffer), self.device)
            self._fitting_micro_batch_size = (fitting_micro_batch_size(self.policy, observation),)
        return self._fitting_micro_batch_size[0]

    def _record(self, group: str, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.logger.record(f"{group}/{name}", value)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_fitting_micro_batch_size", "_n_epochs_of_update"]

    def _log_policy_phase(self, history: list[Epoch], value_history: list[Epoch], coefficients: Coefficients) -> None:
        if not history:
            return  # all rollouts are too new, or used up
        summary = policy_phase_summary(self.policy, self.rollout_buffer, history, value_history, coefficients.clip_range)
        self._record("train", summary)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        scales = {name: getattr(coefficients, name) for name in ("clip_range", "clip_range_vf", "value_unit")}
        self._record("train", {name: value for name, value in scales.items() if value is not None})
