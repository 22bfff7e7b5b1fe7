"""What an objective is: the losses of both phases, and what it owns beside the policy."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch import nn

from sb3_ppg.buffers.aux_buffer import AuxiliaryBatch
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.training.optimization import Losses
from sb3_ppg.training.processes import moments


class Coefficients(NamedTuple):
    """
    What weighs the terms of the losses; the same for all minibatches of an update.

    :param clip_range: ε, or None for no clipping
    :param clip_range_vf: in value units, or None for no clipping
    :param value_unit: in which value errors are measured, in the units of the (normalised) return
    :param ent_coef: of the entropy bonus
    :param vf_coef: of the value loss of the policy phase
    :param kl_coef: of the KL penalty of the policy phase
    :param beta_clone: β_clone, of the KL term of the auxiliary phase
    """

    clip_range: float | None
    clip_range_vf: float | None
    value_unit: float
    ent_coef: float
    vf_coef: float
    kl_coef: float
    beta_clone: float


class Objective(nn.Module):
    """
    What the epochs of both phases minimise. Derive from ``PaperObjective`` and override what differs, or from this class.

    An objective knows policies, their inputs and batches, but no algorithm: memory, masks and observations of all kinds are
    in ``inputs``, which it hands on to the policy's ``evaluate_...`` methods. Networks of its own are attributes, as of every
    ``nn.Module``: the algorithm's optimizers train their parameters, and they are saved, shared and restored with the policy.

    :param policy: in training, to make networks of matching sizes or copies of it. It is given again to each method: do not
        keep it
    """

    # What the auxiliary phase needs of a rollout beside observations and value targets: attributes of the rollout buffer
    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, policy: PhasicActorCriticPolicy) -> None:
        super().__init__()

    def normalized_advantages(self, advantages: np.ndarray, device: th.device | str = "cpu") -> np.ndarray:
        """
        The advantages of a rollout as ``normalize_advantage`` asks for them: once, over all samples of all processes.

        :param advantages: of a rollout, of any shape, in the units of the (normalised) reward
        :param device: of the process group's backend
        :return: of mean 0 and standard deviation 1 (of the population)
        """
        mean, std = moments(advantages, device)
        return (advantages - mean) / (std + 1e-8)

    def joint_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: RolloutBufferSamples, coefficients: Coefficients
    ) -> Losses:
        """
        Of the policy phase, where policy and value function share their epochs.

        :param policy: in training
        :param inputs: of its ``evaluate_...`` methods: observations, and what belongs to them
        :param batch: B samples of a rollout
        :param coefficients: of the terms
        :return: their sum, and each term
        """
        raise NotImplementedError

    def policy_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: RolloutBufferSamples, coefficients: Coefficients
    ) -> Losses:
        """Of the policy phase's epochs on the policy alone; see ``joint_losses``."""
        raise NotImplementedError

    def value_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: RolloutBufferSamples, coefficients: Coefficients
    ) -> Losses:
        """Of the policy phase's epochs on the value function alone; see ``joint_losses``."""
        raise NotImplementedError

    def auxiliary_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: AuxiliaryBatch, coefficients: Coefficients
    ) -> Losses:
        """
        Of the auxiliary phase.

        :param policy: in training
        :param inputs: of its ``evaluate_...`` methods
        :param batch: B samples of the phase, with π_old, and what was ``kept`` in its context
        :param coefficients: of the terms
        :return: their sum, and each term
        """
        raise NotImplementedError

    def before_policy_phase(self, policy: PhasicActorCriticPolicy) -> None:
        """
        A rollout is about to be used.

        :param policy: as it is before the update
        """

    def after_policy_step(self, policy: PhasicActorCriticPolicy) -> None:
        """
        An optimizer step has been taken on a loss that contains the policy's.

        :param policy: after it
        """

    def after_auxiliary_phase(self, policy: PhasicActorCriticPolicy) -> None:
        """
        :param policy: after its epochs
        """

    def kept_of(self, rollout_buffer: RolloutBuffer) -> dict[str, np.ndarray]:
        """
        :param rollout_buffer: whose samples are ordered by environment
        :return: by name, what the auxiliary phase needs of it, (n_envs, n_steps, ...)
        """
        sizes = (rollout_buffer.n_envs, rollout_buffer.buffer_size)
        arrays: dict[str, Any] = {name: getattr(rollout_buffer, name) for name in self.kept}
        return {name: array.reshape(*sizes, *array.shape[1:]) for name, array in arrays.items()}
