"""Base class of objectives: the losses of both phases, and the networks and data that they need."""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from torch import nn

from sb3_ppg.buffers.aux_buffer import AuxiliaryBatch
from sb3_ppg.buffers.rollouts import RolloutEnd, by_environment
from sb3_ppg.buffers.sample_data import SampleData
from sb3_ppg.distributed.collectives import moments, n_processes
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.protocols import PhasicModel


class Coefficients(NamedTuple):
    """
    Weights and limits of the losses' terms, the same for all minibatches of an update: numbers, or, in compiled updates,
    scalar tensors.

    :param clip_range: ε, or None for no clipping
    :param clip_range_vf: in value units, or None for no clipping
    :param value_unit: unit in which value errors are measured, in the units of the (normalized) return
    :param ent_coef: weight of the entropy bonus
    :param vf_coef: weight of the value loss of the policy phase
    :param kl_coef: weight of the KL penalty of the policy phase, or None for no penalty
    :param beta_clone: β_clone, weight of the KL term of the auxiliary phase
    """

    clip_range: float | None
    clip_range_vf: float | None
    value_unit: float
    ent_coef: float
    vf_coef: float
    kl_coef: float | None
    beta_clone: float


MAX_WEIGHT = 1e6


class Objective(nn.Module):
    """
    The losses that the epochs of both phases minimize. To write an objective, derive from ``PaperObjective`` and override what
    differs, or derive from this class.

    An objective uses policies, their inputs and batches, but no algorithm: observations, memory and masks are in ``inputs``,
    which it passes on to the policy's ``evaluate``. Its own networks are attributes, as in every ``nn.Module``: the policy's
    optimizers train their parameters, which are saved, shared and restored with the model.

    :param policy: policy in training, to make networks of matching sizes or copies of it. Do not keep it: each method gets it
    """

    # Class of ``aux_data``. The fields that it adds to ``SampleData`` have the names of arrays of the rollout buffer
    aux_data_class: ClassVar[type[SampleData]] = SampleData
    # The only architecture of the policy that can work. None: any
    architecture: ClassVar[str | None] = None
    # Whether the value function's epochs come before the policy's, where the two are not joint
    values_first: ClassVar[bool] = True
    # Minibatch size of the value function's own epochs, in samples. None: the policy's
    value_batch_size: int | None = None
    # Whether the auxiliary phase shuffles whole sequences of ``n_steps`` samples; False: single samples, without memory
    shuffles_sequences: ClassVar[bool] = True
    # Whether auxiliary minibatches must consist of whole sequences, because a loss uses the samples that follow a sample
    needs_whole_sequences: ClassVar[bool] = False
    # Whether it needs the state after a rollout
    needs_rollout_end: ClassVar[bool] = False
    # Whether micro-batches would change the losses by more than rounding
    needs_whole_minibatches: ClassVar[bool] = False
    # Whether the policy may learn from data of older policies
    corrects_for_staleness: ClassVar[bool] = False
    # ``ddof`` of the standard deviation that advantages are divided by, and the number that is added to it
    degrees_of_freedom: ClassVar[int] = 0
    epsilon: ClassVar[float] = 1e-8
    # Optimizer of the parameters that only ``adversary_losses`` trains. None: no adversary
    adversary_optimizer: th.optim.Optimizer | None = None

    def __init__(self, policy: PhasicActorCriticPolicy) -> None:
        super().__init__()

    def check(self, model: PhasicModel) -> None:
        """
        :param model: complete
        :raises ArgumentError: for what this objective cannot work with
        """
        if self.architecture not in (None, model.policy.architecture):
            raise ArgumentError(
                f"`architecture`={model.policy.architecture!r} cannot work with {type(self).__name__}: use "
                f"policy_kwargs=dict(architecture={self.architecture!r})"
            )

    # ---- losses ----

    def joint_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        """
        Return the losses of the policy phase if policy and value function share their epochs.

        :param policy: policy in training
        :param inputs: arguments of its ``evaluate``: observations, and memory or masks
        :param batch: B samples of a rollout, as SB3's buffers return them; ``SampleData.of`` returns those of ``extras``
        :param coefficients: weights of the terms
        :return: sum of the terms, and each term
        """
        raise NotImplementedError

    def policy_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        """Return the losses of the policy phase's epochs on the policy alone; see ``joint_losses``."""
        raise NotImplementedError

    def value_losses(self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients) -> Losses:
        """Return the losses of the policy phase's epochs on the value function alone; see ``joint_losses``."""
        raise NotImplementedError

    def adversary_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: Any, coefficients: Coefficients
    ) -> Losses:
        """Return the losses of ``adversary_optimizer``, which steps before the policy's does; see ``joint_losses``."""
        raise NotImplementedError

    def auxiliary_losses(
        self, policy: PhasicActorCriticPolicy, inputs: tuple, batch: AuxiliaryBatch, coefficients: Coefficients
    ) -> Losses:
        """
        Return the losses of the auxiliary phase.

        :param policy: policy in training
        :param inputs: arguments of its ``evaluate``
        :param batch: B samples of the phase; its field ``recorded`` has those of ``recorded``, and ``SampleData.of`` returns
            those of ``aux_data``
        :param coefficients: weights of the terms
        :return: sum of the terms, and each term
        """
        raise NotImplementedError

    # ---- data ----

    def value_targets(self, rollout_buffer: RolloutBuffer, end: RolloutEnd) -> np.ndarray:
        """
        :param rollout_buffer: the rollout, environment by environment, (n_envs * n_steps, ...)
        :param end: state after the rollout
        :return: V_targ, (n_envs * n_steps, 1), in the units of the (normalized) return
        """
        return rollout_buffer.returns

    def normalized_advantages(self, advantages: np.ndarray, device: th.device | str = "cpu") -> np.ndarray:
        """
        Normalize the advantages of a rollout, if ``normalize_advantage`` is set: once, over the samples of all processes.

        :param advantages: advantages of a rollout, of any shape, in the units of the (normalized) reward
        :param device: device of the process group's backend
        :return: advantages of mean 0 and standard deviation 1
        """
        mean, std = moments(advantages, device)
        n_samples = advantages.size * n_processes()
        return (advantages - mean) / (std * (n_samples / (n_samples - self.degrees_of_freedom)) ** 0.5 + self.epsilon)

    def extras(self, policy: PhasicActorCriticPolicy, rollout_buffer: RolloutBuffer, end: RolloutEnd) -> SampleData:
        """
        Return further data of each sample for the losses of the policy phase.

        :param policy: policy before the update
        :param rollout_buffer: the rollout, environment by environment, (n_envs * n_steps, ...)
        :param end: state after the rollout
        :return: arrays, (n_envs * n_steps, ...), environment by environment
        """
        return SampleData()

    def aux_data(self, rollout_buffer: RolloutBuffer, end: RolloutEnd) -> SampleData:
        """
        Return the arrays of a rollout that the auxiliary phase keeps for its losses.

        :param rollout_buffer: the rollout, environment by environment, (n_envs * n_steps, ...)
        :param end: state after the rollout
        :return: arrays, (n_envs, n_steps, ...), or (n_envs, 1, ...) for data that a sequence has once
        :raises ArgumentError: if the rollout buffer has no array with the name of a field of ``aux_data_class``
        """
        known = {name: array for name, array in vars(rollout_buffer).items() if isinstance(array, np.ndarray)}
        names = self.aux_data_class.__dataclass_fields__.keys() - SampleData.__dataclass_fields__.keys()
        if unknown := names - known.keys():
            of_class = f"`aux_data_class` of {type(self).__name__} has {sorted(unknown)}"
            raise ArgumentError(f"{of_class}: a rollout buffer's arrays are {sorted(known)}")
        return self.aux_data_class(**{name: by_environment(rollout_buffer, known[name]) for name in names})

    def recorded(self, policy: PhasicActorCriticPolicy, inputs: tuple) -> th.Tensor:
        """
        Compute the data that the auxiliary losses refer to, for all samples of a phase, once before its epochs.

        :param policy: policy before the epochs
        :param inputs: arguments of its ``evaluate``
        :return: the parameters of π_old(.|s), (B, P)
        """
        return policy.actions.parameters(policy.evaluate(*inputs, reads=("distribution",)).distribution)

    def kl_to_recorded(self, policy: PhasicActorCriticPolicy, distribution: Distribution, recorded: th.Tensor) -> th.Tensor:
        """
        :param policy: policy in training
        :param distribution: π(.|s)
        :param recorded: result of ``recorded``, (B, P)
        :return: KL(π_old(.|s), π(.|s)), (B,), in nats
        """
        return policy.actions.kl_divergence(distribution, recorded)

    # ---- moments ----

    def n_value_epochs(self, n_value_epochs: int) -> int:
        """Return the number of value epochs on this rollout, given the algorithm's argument, which is not None here."""
        return n_value_epochs

    def is_due(self, n_samples: int) -> bool:
        """Return whether to run the auxiliary phase, after a rollout before which ``n_samples`` samples were collected."""
        return True

    def before_rollout(self, episode_starts: np.ndarray) -> None:
        """Called before a rollout; ``episode_starts``, (n_envs,), says whether the latest observations begin an episode."""

    def after_environment_step(
        self, dones: np.ndarray, infos: list[dict[str, Any]], reset_infos: list[dict[str, Any]]
    ) -> None:
        """
        :param dones: whether an episode has ended, (n_envs,)
        :param infos: infos of the step
        :param reset_infos: infos of the reset of each environment that has started a new episode
        """

    def before_policy_phase(self, policy: PhasicActorCriticPolicy) -> None:
        """Called before the update on a rollout."""

    def after_policy_step(self, policy: PhasicActorCriticPolicy) -> None:
        """Called after each optimizer step on the policy's loss, alone or joint with the value function's."""

    def after_auxiliary_phase(self, policy: PhasicActorCriticPolicy) -> None:
        """Called after the epochs of the auxiliary phase."""

    # ---- parameters ----

    def trained_with_policy(self) -> list[nn.Parameter]:
        """Return the parameters that the policy's optimizers train in addition to the policy's: all but the adversary's."""
        of_adversary = [] if self.adversary_optimizer is None else self.adversary_optimizer.param_groups[0]["params"]
        others = {id(parameter) for parameter in of_adversary}
        return [parameter for parameter in self.parameters() if parameter.requires_grad and id(parameter) not in others]
