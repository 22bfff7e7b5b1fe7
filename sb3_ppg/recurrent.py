"""RecurrentPPG: Phasic Policy Gradient with LSTMs. What differs from ``ppg``."""

import math
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, PyTorchObs, Schedule
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_ppg.arguments import is_count, require
from sb3_ppg.aux_buffer import AuxiliaryBatch
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies import (
    ARCHITECTURES,
    Architecture,
    MultiInputPhasicActorCriticPolicy,
    PhasicActorCriticCnnPolicy,
    PhasicActorCriticPolicy,
)
from sb3_ppg.ppg import PPG

# ---- the networks ----


def run_lstm(lstm: nn.LSTM, features: th.Tensor, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor) -> th.Tensor:
    """
    The outputs of an LSTM for sequences in which new episodes may begin. Each sequence is cut where one does; pieces of
    similar length, padded to the longest, go through together. (sb3-contrib goes step by step instead.)

    :param lstm: of any number of layers
    :param features: of sequences of equal length, one after the other, (B, features_dim)
    :param lstm_states: hidden and cell states before each sequence, (n_layers, n_sequences, hidden size)
    :param episode_starts: 1 where an episode begins, which forgets what was before, else 0, (B,)
    :return: (B, hidden size)
    """
    n_sequences = lstm_states[0].shape[1]
    starts = (episode_starts > 0.5).cpu().numpy().reshape(n_sequences, -1)
    cuts = starts.copy()
    cuts[:, 0] = True
    places = np.flatnonzero(cuts)  # where each piece begins
    lengths = np.diff(places, append=cuts.size)
    goes_on = np.flatnonzero(~starts[:, 0])  # sequences that begin amid an episode, with the states from before
    pieces_that_go_on = np.searchsorted(places, goes_on * cuts.shape[1])
    states = []
    for state in lstm_states:
        of_pieces = state.new_zeros(state.shape[0], len(places), state.shape[2])
        of_pieces[:, pieces_that_go_on] = state[:, goes_on]
        states.append(of_pieces)

    outputs, where, n_outputs = [], np.empty(cuts.size, dtype=np.int64), 0
    for group in _of_similar_length(lengths):
        steps = np.arange(lengths[group].max())[:, None]  # (longest, pieces)
        index = places[group] + np.minimum(steps, lengths[group] - 1)  # padded with a piece's last step
        real = steps < lengths[group]
        where[index[real]] = n_outputs + np.flatnonzero(real)
        n_outputs += index.size
        output, _ = lstm(features[index], (states[0][:, group], states[1][:, group]))
        outputs.append(output.flatten(0, 1))
    return th.cat(outputs)[where]


def last_states(
    lstm: nn.LSTM, features: th.Tensor, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor
) -> tuple[th.Tensor, ...]:
    """
    The states of an LSTM after sequences in which new episodes may begin: what was before the last of them does not matter.

    :param lstm: of any number of layers
    :param features: of sequences of equal length, one after the other, (B, features_dim)
    :param lstm_states: hidden and cell states before each sequence, (n_layers, n_sequences, hidden size)
    :param episode_starts: 1 where an episode begins, else 0, (B,)
    :return: hidden and cell states after each sequence
    """
    n_sequences = lstm_states[0].shape[1]
    starts = (episode_starts > 0.5).cpu().numpy().reshape(n_sequences, -1)
    by_step = features.reshape(*starts.shape, -1).transpose(0, 1)  # (length, n_sequences, features_dim)
    last_starts = np.where(starts.any(axis=1), starts.shape[1] - 1 - starts[:, ::-1].argmax(axis=1), -1)
    after = [th.empty_like(state) for state in lstm_states]
    for start in np.unique(last_starts):
        group = np.flatnonzero(last_starts == start)
        before = [state[:, group] * float(start < 0) for state in lstm_states]
        _, states = lstm(by_step[max(start, 0) :, group], (before[0], before[1]))
        for state, new in zip(after, states, strict=True):
            state[:, group] = new
    return tuple(after)


def _of_similar_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """The numbers of the pieces, in groups in which the longest is less than twice as long as the shortest."""
    order = np.argsort(-lengths, kind="stable")
    while len(order) > 0:
        n_similar = int(np.count_nonzero(2 * lengths[order] > lengths[order[0]]))
        yield order[:n_similar]
        order = order[n_similar:]


class RecurrentPhasicActorCriticPolicy(PhasicActorCriticPolicy, RecurrentActorCriticPolicy):  # type: ignore[misc] # SB3's
    """
    sb3-contrib's recurrent policy (features extractor, LSTM, layers of ``net_arch``, heads) with what PPG adds. Its methods
    take B samples: whole sequences of equal length, one after the other.

    ============ ================================= =====================================================
    architecture the value function reads          its gradient in the policy phase
    ============ ================================= =====================================================
    "dual"       an LSTM of its own, or none       stays in its own network
    "detached"   the policy's LSTM                 stops there, as with RecurrentPPO's ``shared_lstm``
    "shared"     the policy's LSTM                 goes through
    ============ ================================= =====================================================

    In the auxiliary phase "detached" lets it through, unless ``detach_value_in_aux_phase``. The layers of ``net_arch`` come
    after the LSTM and are each function's own. Arguments that are not listed here are those of ``PhasicActorCriticPolicy``.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule (could be constant)
    :param architecture: Default: "detached" with ``shared_lstm``, else "dual"
    :param lstm_hidden_size: Number of hidden units for each LSTM layer
    :param n_lstm_layers: Number of LSTM layers
    :param shared_lstm: Whether the value function reads the policy's LSTM. Default: as the architecture says
    :param enable_critic_lstm: Whether it has an LSTM of its own. Default: as the architecture says. False with "dual": a
        dense layer takes its place
    :param lstm_kwargs: ``bias`` and ``dropout`` of ``torch.nn.LSTM``
    :raises ArgumentError: (a ``ValueError``) for a combination that contradicts itself
    """

    algorithm: ClassVar[str] = "RecurrentPPG"
    lstm_critic: nn.LSTM | None
    critic: nn.Linear | None

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        lr_schedule: Schedule,
        *,
        architecture: Architecture | None = None,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool | None = None,
        enable_critic_lstm: bool | None = None,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        architecture = architecture or ("detached" if shared_lstm else "dual")
        shared_lstm, enable_critic_lstm = _lstm_of_the_value_function(architecture, shared_lstm, enable_critic_lstm)
        _check_lstm(lstm_hidden_size, n_lstm_layers, lstm_kwargs)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            architecture=architecture,
            lstm_hidden_size=lstm_hidden_size,
            n_lstm_layers=n_lstm_layers,
            lstm_kwargs=lstm_kwargs,
            shared_lstm=shared_lstm,
            enable_critic_lstm=enable_critic_lstm,
            **kwargs,
        )
        # Anew, for it to know the LSTMs
        self.optimizer = self.make_optimizer(lr_schedule(1))

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            lstm_hidden_size=self.lstm_actor.hidden_size,
            n_lstm_layers=self.lstm_actor.num_layers,
            shared_lstm=self.shared_lstm,
            enable_critic_lstm=self.enable_critic_lstm,
            lstm_kwargs=self.lstm_kwargs,
        )
        return data

    def _build_mlp_extractor(self) -> None:
        RecurrentActorCriticPolicy._build_mlp_extractor(self)

    def _check_trunk(self) -> None:
        """Not needed: the network that policy and value function share ends at the LSTM."""

    def _latents(
        self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: th.Tensor, detach_value: bool
    ) -> tuple[th.Tensor, th.Tensor]:
        """What the heads of the policy and of the value function read. Each network is run once."""
        pi_features = self._policy_features(obs)
        pi_memory = run_lstm(self.lstm_actor, pi_features, lstm_states.pi, episode_starts)
        if self.architecture == "dual":
            vf_features = pi_features if self.share_features_extractor else self._value_features(obs)
            vf_memory = self._value_memory(vf_features, lstm_states.vf, episode_starts)
        else:
            vf_memory = pi_memory.detach() if detach_value else pi_memory
        return self.mlp_extractor.forward_actor(pi_memory), self.mlp_extractor.forward_critic(vf_memory)

    def _value_memory(self, features: th.Tensor, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor) -> th.Tensor:
        if self.critic is not None:
            return self.critic(features)
        return run_lstm(self.lstm_critic or self.lstm_actor, features, lstm_states, episode_starts)

    def evaluate_actions(  # type: ignore[override]
        self, obs: PyTorchObs, actions: th.Tensor, lstm_states: RNNStates, episode_starts: th.Tensor
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """
        As in sb3-contrib.

        :param obs: Observation
        :param actions: (B, ...)
        :param lstm_states: before each sequence
        :param episode_starts: 1 where an episode begins, else 0, (B,)
        :return: V(s), (B, 1); log π(a|s), (B,); H(π(.|s)), (B,), or None where it has no closed form
        """
        latent_pi, latent_vf = self._latents(obs, lstm_states, episode_starts, self.architecture == "detached")
        distribution = self._get_action_dist_from_latent(latent_pi)
        return self.value_net(latent_vf), distribution.log_prob(actions), distribution.entropy()

    def evaluate_distribution(self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: th.Tensor) -> Distribution:
        """
        As ``get_distribution``, for training: without the states after each sequence, which take longer.

        :param obs: Observation
        :param lstm_states: before each sequence
        :param episode_starts: 1 where an episode begins, else 0, (B,)
        :return: π(.|s)
        """
        memory = run_lstm(self.lstm_actor, self._policy_features(obs), lstm_states.pi, episode_starts)
        return self._get_action_dist_from_latent(self.mlp_extractor.forward_actor(memory))

    def predict_values(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor
    ) -> th.Tensor:
        """
        The true value function V(s). No gradient passes a detached LSTM.

        :param obs: Observation
        :param lstm_states: of the value function, before each sequence
        :param episode_starts: 1 where an episode begins, else 0, (B,)
        :return: (B, 1)
        """
        with th.set_grad_enabled(th.is_grad_enabled() and self.architecture != "detached"):
            memory = self._value_memory(self._value_features(obs), lstm_states, episode_starts)
        return self.value_net(self.mlp_extractor.forward_critic(memory))

    def evaluate_auxiliary(
        self, obs: PyTorchObs, lstm_states: RNNStates | None = None, episode_starts: th.Tensor | None = None
    ) -> tuple[Distribution, th.Tensor, th.Tensor]:
        """
        What the auxiliary phase trains. Each network is run once.

        :param obs: Observation
        :param lstm_states: before each sequence. None: each observation is the first of an episode
        :param episode_starts: 1 where an episode begins, else 0, (B,)
        :return: π(.|s); the auxiliary head's value, (B,); the true value function V(s), (B,)
        """
        if lstm_states is None or episode_starts is None:
            n_samples = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
            lstm_states, episode_starts = self.no_states(n_samples), th.ones(n_samples, device=self.device)
        latent_pi, latent_vf = self._latents(obs, lstm_states, episode_starts, self.detach_value_in_aux_phase)
        distribution = self._get_action_dist_from_latent(latent_pi)
        return distribution, self.aux_value_net(latent_pi).flatten(), self.value_net(latent_vf).flatten()

    @th.no_grad()
    def states_after(self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: th.Tensor) -> RNNStates:
        """
        :param obs: Observation
        :param lstm_states: before each sequence
        :param episode_starts: 1 where an episode begins, else 0, (B,)
        :return: the states after each sequence
        """
        pi = last_states(self.lstm_actor, self._policy_features(obs), lstm_states.pi, episode_starts)
        if self.lstm_critic is None:
            return RNNStates(pi, pi)
        return RNNStates(pi, last_states(self.lstm_critic, self._value_features(obs), lstm_states.vf, episode_starts))

    def no_states(self, n_sequences: int) -> RNNStates:
        """
        :param n_sequences: which begin with an episode
        :return: the states before them, zeros
        """
        shape = (self.lstm_actor.num_layers, n_sequences, self.lstm_actor.hidden_size)
        zeros = th.zeros(shape, device=self.device)
        return RNNStates((zeros, zeros), (zeros, zeros))


class RecurrentPhasicActorCriticCnnPolicy(PhasicActorCriticCnnPolicy, RecurrentPhasicActorCriticPolicy):  # type: ignore[misc]
    """``RecurrentPhasicActorCriticPolicy`` for images, by default through SB3's ``NatureCNN``."""


class RecurrentMultiInputPhasicActorCriticPolicy(MultiInputPhasicActorCriticPolicy, RecurrentPhasicActorCriticPolicy):  # type: ignore[misc]
    """``RecurrentPhasicActorCriticPolicy`` for dictionaries, by default through SB3's ``CombinedExtractor``."""


def _lstm_of_the_value_function(
    architecture: str, shared_lstm: bool | None, enable_critic_lstm: bool | None
) -> tuple[bool, bool]:
    """RecurrentPPO's arguments for it, once they do not contradict the architecture."""
    one_network = architecture != "dual"
    shared = one_network if shared_lstm is None else shared_lstm
    if shared != one_network and architecture in ARCHITECTURES:  # else refused anyway
        other = "'dual'" if one_network else "'detached' or 'shared'"
        raise ArgumentError(
            f"`shared_lstm`={shared_lstm} contradicts `architecture`={architecture!r}: leave it out, or use {other}"
        )
    if shared and enable_critic_lstm:
        raise ArgumentError(
            f"`enable_critic_lstm`=True contradicts `architecture`={architecture!r}, where the value function reads the "
            "policy's LSTM: leave it out, or use 'dual'"
        )
    return shared, not shared if enable_critic_lstm is None else enable_critic_lstm


def _check_lstm(lstm_hidden_size: Any, n_lstm_layers: Any, lstm_kwargs: Any) -> None:
    for name, value in (("lstm_hidden_size", lstm_hidden_size), ("n_lstm_layers", n_lstm_layers)):
        if not is_count(value):
            raise ArgumentError(f"`{name}`={value!r} cannot work: use an integer of at least 1")
    if unknown := set(lstm_kwargs or {}) - {"bias", "dropout"}:
        raise ArgumentError(f"`lstm_kwargs`={lstm_kwargs} cannot work: leave out {', '.join(sorted(unknown))}")


# ---- the data ----


def pack_states(lstm_states: RNNStates) -> th.Tensor:
    """
    :param lstm_states: of the policy's and the value function's LSTM, hidden and cell, (n_layers, n_sequences, hidden size)
    :return: all four, (n_sequences, 4, n_layers, hidden size)
    """
    return th.stack([*lstm_states.pi, *lstm_states.vf]).movedim(2, 0)


def unpack_states(packed: th.Tensor) -> RNNStates:
    """
    :param packed: (n_sequences, 4, n_layers, hidden size)
    :return: as they were before ``pack_states``
    """
    pi_hidden, pi_cell, vf_hidden, vf_cell = packed.movedim(0, 2).contiguous()
    return RNNStates((pi_hidden, pi_cell), (vf_hidden, vf_cell))


class SequenceSamples(NamedTuple):
    """SB3's samples of a rollout buffer, in sequences of equal length, B = n_sequences x length, with what LSTMs need."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: th.Tensor  # before each sequence, (n_sequences, 4, n_layers, hidden size)
    episode_starts: th.Tensor  # (B,)


def largest_part(whole: int, at_most: int) -> int:
    """
    The length of sequences, equal parts of a rollout of ``n_steps``, for instance: the longest that a minibatch has room for.

    :param whole: how much there is
    :param at_most: the limit
    :return: the largest divisor of the whole within the limit
    """
    pairs = ((part, whole // part) for part in range(1, math.isqrt(whole) + 1) if whole % part == 0)
    return max(part for pair in pairs for part in pair if part <= at_most)


class SequenceRolloutBuffer(RolloutBuffer):
    """
    A rollout buffer that keeps the LSTMs' states of each step, and gives whole sequences, see ``largest_part``.
    """

    states_shape: tuple[int, ...] = (4, 0, 0)  # (4, n_layers, hidden size), once the network is there

    def reset(self) -> None:
        super().reset()
        self.lstm_states = np.zeros((self.buffer_size, self.n_envs, *self.states_shape), dtype=np.float32)

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:  # type: ignore[override]
        """
        :param lstm_states: before this step
        """
        self.lstm_states[self.pos] = pack_states(lstm_states).cpu().numpy()
        super().add(*args, **kwargs)

    def get(self, batch_size: int | None = None) -> Iterator[SequenceSamples]:  # type: ignore[override]
        """
        :param batch_size: the most samples in a minibatch. None: everything
        :return: minibatches, of shuffled sequences
        """
        assert self.full, "Rollout buffer must be full before sampling from it"
        if not self.generator_ready:
            self._order_by_environment()
        n_samples = self.buffer_size * self.n_envs
        batch_size = batch_size or n_samples
        length = largest_part(self.buffer_size, batch_size)
        firsts = length * np.random.permutation(n_samples // length)
        n_sequences = batch_size // length
        for start in range(0, len(firsts), n_sequences):
            some = firsts[start : start + n_sequences]
            indices = (some[:, None] + np.arange(length)).ravel()
            yield SequenceSamples(
                *self._get_samples(indices),
                lstm_states=self.to_torch(self.lstm_states[some]),
                episode_starts=self.to_torch(self.episode_starts[indices].ravel()),
            )

    def _order_by_environment(self) -> None:
        """From (n_steps, n_envs, ...) to (n_envs * n_steps, ...)."""
        if isinstance(self.observations, dict):
            for key, array in self.observations.items():
                self.observations[key] = self.swap_and_flatten(array)
        else:
            self.observations = self.swap_and_flatten(self.observations)
        for name in ("actions", "values", "log_probs", "advantages", "returns", "lstm_states", "episode_starts"):
            setattr(self, name, self.swap_and_flatten(getattr(self, name)))
        self.generator_ready = True


class SequenceDictRolloutBuffer(SequenceRolloutBuffer, DictRolloutBuffer):  # type: ignore[misc]
    """``SequenceRolloutBuffer`` for dictionaries of observations."""


# ---- the algorithm ----


class RecurrentPPG(PPG):
    """
    Phasic Policy Gradient with LSTMs, in the networks of sb3-contrib's ``RecurrentPPO``, for environments that do not show
    all of their state.

    Minibatches are made of whole sequences: rollouts of ``n_steps``, or, in the policy phase, equal parts of them, if
    ``batch_size`` is smaller. Each starts from the LSTM states that were stored with it.

    The arguments are those of ``PPG``, and:

    :param policy: "MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy", or a subclass of
        ``RecurrentPhasicActorCriticPolicy``
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param recompute_states: Whether the auxiliary phase starts from what the present network remembers at the beginning of
        each sequence: the rollouts of the phase are run through it, in order, from the states stored with the first. False:
        from the states of the networks that collected the rollouts, up to ``n_policy_iterations`` updates ago
    :param micro_batch_size: of whole sequences, at least one
    :raises ArgumentError: (a ``ValueError``) if arguments cannot work, alone or together
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": RecurrentPhasicActorCriticPolicy,
        "CnnLstmPolicy": RecurrentPhasicActorCriticCnnPolicy,
        "MultiInputLstmPolicy": RecurrentMultiInputPhasicActorCriticPolicy,
    }
    rollout_buffer_classes: ClassVar[tuple[type[RolloutBuffer], type[DictRolloutBuffer]]] = (
        SequenceRolloutBuffer,
        SequenceDictRolloutBuffer,
    )
    policy: RecurrentPhasicActorCriticPolicy
    rollout_buffer: SequenceRolloutBuffer
    _last_lstm_states: RNNStates  # before the next step
    _next_lstm_states: RNNStates  # after it, once the policy has acted
    _goes_on: bool = False  # whether the latest rollout began where the one that was stored before it ended
    _is_whole: bool = False  # whether the latest rollout was not cut short

    def __init__(
        self,
        policy: str | type[RecurrentPhasicActorCriticPolicy],
        env: GymEnv | str,
        *args: Any,
        recompute_states: bool = True,
        **kwargs: Any,
    ):
        self.recompute_states = recompute_states
        super().__init__(policy, env, *args, **kwargs)
        length = largest_part(self.n_steps, self.batch_size) if self.env is not None else 1
        if self.batch_size % length > 0:
            warnings.warn(
                f"With `n_steps`={self.n_steps} and `batch_size`={self.batch_size}, minibatches are made of sequences of "
                f"{length} steps: they have {self.batch_size // length * length} samples. We recommend that one is a multiple "
                "of the other.",
                stacklevel=2,
            )

    def _setup_model(self) -> None:
        super()._setup_model()
        self._last_lstm_states = self.policy.no_states(self.n_envs)
        self.rollout_buffer.states_shape = tuple(pack_states(self._last_lstm_states).shape[1:])
        self.rollout_buffer.reset()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        require(self, isinstance(self.recompute_states, bool), "recompute_states", "use True or False")
        length = largest_part(self.n_steps, self.batch_size)
        require(
            self,
            2 * length >= min(self.n_steps, self.batch_size),
            "batch_size",
            f"sequences are equal parts of `n_steps`={self.n_steps} steps, and here of {length} at most; use a divisor or a "
            "multiple of it",
        )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_last_lstm_states", "_next_lstm_states", "_goes_on", "_is_whole"]

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        self._goes_on, self._is_whole = self._is_whole, False
        self._is_whole = super().collect_rollouts(*args, **kwargs)
        return self._is_whole

    def _auxiliary_phase(self) -> None:
        if self.recompute_states:
            self._recompute_states()
        super()._auxiliary_phase()

    def _recompute_states(self) -> None:
        """Replace the states that were stored at the beginning of each sequence, where the rollout before it is there, too."""
        self.policy.set_training_mode(False)
        context = self.aux_buffer.context
        for rollout in context:
            rollout["lstm_states"] = rollout["lstm_states"].copy()
        # Parts of one rollout at a time: each gives the states with which the next rollout begins
        n_sequences = largest_part(self.n_envs, self._aux_sequences_per_batch())
        for numbers, batch in self.aux_buffer.batches(np.arange(self.n_envs * (len(context) - 1)), n_sequences):
            following = context[numbers[0] // self.n_envs + 1]
            if following["goes_on"].all():
                states = pack_states(self.policy.states_after(batch.observations, *_memory(batch)))
                following["lstm_states"][numbers % self.n_envs] = states.cpu().numpy()[:, None]

    # ---- what the policy needs to know beside an observation ----

    def _act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        states = self._last_lstm_states
        starts = th.as_tensor(self._last_episode_starts, dtype=th.float32, device=self.device)
        actions, values, log_probs, self._next_lstm_states = self.policy(observations, states, starts)
        return actions, values, log_probs, {"lstm_states": states}

    def _remember(self) -> None:
        self._last_lstm_states = self._next_lstm_states

    def _next_values(self, observations: PyTorchObs, episode_starts: np.ndarray, env: int | None = None) -> th.Tensor:
        states = self._last_lstm_states.vf if env is None else tuple(state[:, [env]] for state in self._last_lstm_states.vf)
        starts = th.as_tensor(episode_starts, dtype=th.float32, device=self.device)
        return self.policy.predict_values(observations, states, starts)

    def _context(self) -> dict[str, np.ndarray]:
        buffer, sizes = self.rollout_buffer, (self.n_envs, self.n_steps)
        return {
            "lstm_states": buffer.lstm_states.reshape(*sizes, *buffer.states_shape)[:, :1].copy(),
            "episode_starts": buffer.episode_starts.reshape(sizes),
            "goes_on": np.full((self.n_envs, 1), self._goes_on),
        }

    def _is_context(self, context: dict[str, np.ndarray]) -> bool:
        return bool(np.isin(context["episode_starts"], (0, 1)).all())

    def _evaluate_actions(self, batch: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        return self.policy.evaluate_actions(batch.observations, self._taken_actions(batch), *_memory(batch))

    def _distribution(self, batch: Any) -> Distribution:
        return self.policy.evaluate_distribution(batch.observations, *_memory(batch))

    def _values(self, batch: Any) -> th.Tensor:
        states, episode_starts = _memory(batch)
        return self.policy.predict_values(batch.observations, states.vf, episode_starts)

    def _evaluate_auxiliary(self, batch: AuxiliaryBatch) -> tuple[Distribution, th.Tensor, th.Tensor]:
        return self.policy.evaluate_auxiliary(batch.observations, *_memory(batch))


def _memory(batch: SequenceSamples | AuxiliaryBatch) -> tuple[RNNStates, th.Tensor]:
    """The states before each sequence, and where episodes begin, (B,)."""
    if isinstance(batch, AuxiliaryBatch):
        return unpack_states(batch.context["lstm_states"]), batch.context["episode_starts"]
    return unpack_states(batch.lstm_states), batch.episode_starts
