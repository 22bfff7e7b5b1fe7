"""RecurrentPPG: Phasic Policy Gradient with LSTMs, as changes to ``ppg``."""

import math
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium.vector import VectorEnv
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from typing_extensions import override

from sb3_ppg.arguments import made_from
from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.buffers.rollout_buffers import SequenceDictRolloutBuffer, SequenceRolloutBuffer
from sb3_ppg.buffers.rollouts import Rollout, batches, longest_equal_part
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies.lstm import (
    RecurrentMultiInputPhasicActorCriticPolicy,
    RecurrentPhasicActorCriticCnnPolicy,
    RecurrentPhasicActorCriticPolicy,
    pack_states,
)
from sb3_ppg.ppg import PPG


class RecurrentPPG(PPG):
    """
    Phasic Policy Gradient with the LSTM networks of sb3-contrib's ``RecurrentPPO``, for environments that do not show all of
    their state.

    Minibatches are made of whole sequences: rollouts of ``n_steps`` or, in the policy phase with a smaller ``batch_size``,
    equal parts of them. Each sequence starts from the LSTM states stored with it.

    Example::

        from sb3_ppg import RecurrentPPG

        model = RecurrentPPG("MlpLstmPolicy", "CartPole-v1").learn(100_000)

    Arguments are those of ``PPG``, with the defaults of ``RecurrentPPO`` and an auxiliary phase after every four rollouts.
    These differ:

    :param policy: "MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy", or a subclass of
        ``RecurrentPhasicActorCriticPolicy``
    :param recompute_states: Whether the auxiliary phase recomputes the LSTM states at the beginning of each sequence, by
        running the rollouts of the phase through the current network in order, from the states stored with the first rollout.
        After the phase, it runs the rollouts once more, and episodes continue with the resulting states. False: use the states
        of the networks that collected the rollouts, up to ``n_policy_iterations`` updates ago
    :param micro_batch_size: as in ``PPG``, in whole sequences, at least one
    :raises ArgumentError: (a ``ValueError``) if arguments cannot work, alone or together
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": RecurrentPhasicActorCriticPolicy,
        "CnnLstmPolicy": RecurrentPhasicActorCriticCnnPolicy,
        "MultiInputLstmPolicy": RecurrentMultiInputPhasicActorCriticPolicy,
    }
    rollout_buffer_classes = (SequenceRolloutBuffer, SequenceDictRolloutBuffer)
    policy: RecurrentPhasicActorCriticPolicy
    rollout_buffer: SequenceRolloutBuffer
    _n_begun_rollouts: int = 0

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: GymEnv | VectorEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 128,
        batch_size: int = 128,
        n_epochs: int = 10,
        gamma: float | list[float] = 0.99,
        gae_lambda: float | list[float] = 0.95,
        clip_range: float | Schedule | None = 0.2,
        *args: Any,
        recompute_states: bool = True,
        **kwargs: Any,
    ):
        self.recompute_states = recompute_states
        positional = (learning_rate, n_steps, batch_size, n_epochs, gamma, gae_lambda, clip_range, *args)
        super().__init__(policy, env, *positional, **kwargs)

    @override
    def _setup_model(self) -> None:
        super()._setup_model()
        self.rollout_buffer.states_shape = tuple(self.memory["lstm_states"].shape[1:])
        self.rollout_buffer.reset()

    @override
    def check_arguments(self) -> None:
        super().check_arguments()
        # Rollouts of the replay share a minibatch
        for n in range(1, made_from(self.replay_kwargs, RolloutReplay).capacity + 1):
            self._check_sequences("batch_size", self.batch_size, math.ceil(self.batch_size / n))
        if hasattr(self, "objective") and self.objective.value_batch_size is not None:
            self._check_sequences("value_batch_size", self.objective.value_batch_size, self.objective.value_batch_size)

    def _check_sequences(self, argument: str, value: int, size: int) -> None:
        """Refuse an argument if ``size`` samples of a rollout in a minibatch would have to be much shorter sequences."""
        length = longest_equal_part(self.n_steps, size)
        if 2 * length < min(self.n_steps, size):
            raise ArgumentError(
                f"`{argument}`={value} cannot work: sequences are equal parts of `n_steps`={self.n_steps} steps, and here of "
                f"{length} at most; use a divisor or a multiple of `n_steps`, with `replay_kwargs` a multiple of `n_steps` "
                "times the number of rollouts that it keeps"
            )

    @override
    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        self._n_begun_rollouts += 1
        return super().collect_rollouts(*args, **kwargs)

    @override
    def auxiliary_phase(self) -> None:
        if self.recompute_states:
            self._recompute_states()
        super().auxiliary_phase()
        if self.recompute_states:
            self.memory = {"lstm_states": self._recompute_states()}

    def _recompute_states(self) -> th.Tensor:
        """
        Recompute the stored states at the beginning of each sequence whose preceding rollout is stored as well. Return the
        states of the current network after the last rollout, (n_envs, 4, n_layers, hidden size).
        """
        self.policy.set_training_mode(False)
        rollouts, (_, n_sequences) = self.aux_buffer.rollouts, self.aux_sequences()
        n_batches = self.n_envs // longest_equal_part(self.n_envs, n_sequences)
        for rollout in rollouts:
            rollout.arrays["lstm_states"] = rollout.arrays["lstm_states"].copy()  # files are read-only
        # Each rollout yields the states with which the next one begins
        for rollout, following in zip_longest(rollouts, rollouts[1:]):
            parts = np.split(np.arange(self.n_envs), n_batches)
            states = [
                pack_states(self.policy.states_after(*self.policy.network_inputs(batch))).cpu().numpy()
                for batch in batches([rollout], parts, self.n_steps, self.device)
            ]
            last = np.concatenate(states)
            if following is not None and (following.arrays["number"] == rollout.arrays["number"] + 1).all():
                following.arrays["lstm_states"][:] = last[:, None]
        return th.as_tensor(last, device=self.device)

    @property
    @override
    def stored_keys(self) -> tuple[str, ...]:
        return (*super().stored_keys, "number")

    @override
    def latest_rollout(self) -> Rollout:
        rollout = super().latest_rollout()
        # The rollout that is stored before this one may not be the previous one: that may have failed, or not been stored
        rollout.arrays["number"] = np.full((self.n_envs, 1), self._n_begun_rollouts)
        return rollout
