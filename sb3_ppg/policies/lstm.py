"""Policies with LSTMs, in the networks of sb3-contrib's ``RecurrentPPO``."""

from collections.abc import Collection
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.torch_layers import MlpExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn
from typing_extensions import override

from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import n_samples, parameters_of
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies.mlp import (
    ALL_FIELDS,
    Architecture,
    Evaluation,
    MultiInputPhasicActorCriticPolicy,
    PhasicActorCriticCnnPolicy,
    PhasicActorCriticPolicy,
)


def pack_states(lstm_states: RNNStates) -> th.Tensor:
    """Return all four states, each (n_layers, n_sequences, hidden size), as one: (n_sequences, 4, n_layers, hidden size)."""
    return th.stack([*lstm_states.pi, *lstm_states.vf]).movedim(2, 0)


def unpack_states(packed: th.Tensor) -> RNNStates:
    """Return the states that ``pack_states`` has packed, from (n_sequences, 4, n_layers, hidden size)."""
    pi_hidden, pi_cell, vf_hidden, vf_cell = packed.movedim(0, 2).contiguous()
    return RNNStates((pi_hidden, pi_cell), (vf_hidden, vf_cell))


def run_lstm(
    features: th.Tensor, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor, lstm: nn.LSTM
) -> tuple[th.Tensor, None]:
    """
    Run an LSTM on sequences in which new episodes may begin. Each sequence is cut at the beginnings of episodes, and pieces of
    similar length are padded to the longest and run together. (sb3-contrib's ``_process_sequence``, with the same arguments,
    runs step by step, and also returns the states.)

    :param features: features of sequences of equal length, one after the other, (B, features_dim)
    :param lstm_states: hidden and cell states before each sequence, (n_layers, n_sequences, hidden size)
    :param episode_starts: 1 where an episode begins, with states of zero, else 0, (B,)
    :param lstm: an LSTM of any number of layers
    :return: outputs, (B, hidden size), and None
    """
    n_sequences = lstm_states[0].shape[1]
    starts = (episode_starts > 0.5).cpu().numpy().reshape(n_sequences, -1)
    cuts = starts.copy()
    cuts[:, 0] = True
    places = np.flatnonzero(cuts)  # where each piece begins
    lengths = np.diff(places, append=cuts.size)
    continued = np.flatnonzero(~starts[:, 0])  # sequences that begin inside an episode, with the states from before
    continued_pieces = np.searchsorted(places, continued * cuts.shape[1])
    states = []
    for state in lstm_states:
        of_pieces = state.new_zeros(state.shape[0], len(places), state.shape[2])
        of_pieces[:, continued_pieces] = state[:, continued]
        states.append(of_pieces)

    outputs, where, n_outputs = [], np.empty(cuts.size, dtype=np.int64), 0
    order = np.argsort(-lengths, kind="stable")
    while len(order) > 0:  # the next pieces in order: those that are longer than half of the first
        n_similar = int(np.count_nonzero(2 * lengths[order] > lengths[order[0]]))
        group, order = order[:n_similar], order[n_similar:]
        steps = np.arange(lengths[group].max())[:, None]  # (longest, pieces)
        index = places[group] + np.minimum(steps, lengths[group] - 1)  # padded with a piece's last step
        real = steps < lengths[group]
        where[index[real]] = n_outputs + np.flatnonzero(real)
        n_outputs += index.size
        output, _ = lstm(features[index], (states[0][:, group], states[1][:, group]))
        outputs.append(output.flatten(0, 1))
    return th.cat(outputs)[where], None


def last_states(
    features: th.Tensor, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor, lstm: nn.LSTM
) -> tuple[th.Tensor, ...]:
    """Return the states of an LSTM after sequences, from the arguments of ``run_lstm``."""
    n_sequences = lstm_states[0].shape[1]
    starts = (episode_starts > 0.5).cpu().numpy().reshape(n_sequences, -1)
    by_step = features.reshape(*starts.shape, -1).transpose(0, 1)  # (length, n_sequences, features_dim)
    # Only the steps since the last episode began in a sequence matter
    last_starts = np.where(starts.any(axis=1), starts.shape[1] - 1 - starts[:, ::-1].argmax(axis=1), -1)
    after = [th.empty_like(state) for state in lstm_states]
    for start in np.unique(last_starts):
        group = np.flatnonzero(last_starts == start)
        before = [state[:, group] * float(start < 0) for state in lstm_states]
        _, states = lstm(by_step[max(start, 0) :, group], (before[0], before[1]))
        for state, new in zip(after, states, strict=True):
            state[:, group] = new
    return tuple(after)


class RecurrentPhasicActorCriticPolicy(PhasicActorCriticPolicy, RecurrentActorCriticPolicy):
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

    In the auxiliary phase, "detached" lets this gradient through unless ``detach_value_in_aux_phase`` is set. The layers of
    ``net_arch`` come after the LSTM, and policy and value function have their own. Arguments that are not listed here are
    those of ``PhasicActorCriticPolicy``.

    :param architecture: Default: "detached" with ``shared_lstm``, else "dual"
    :param lstm_hidden_size: Number of hidden units for each LSTM layer
    :param n_lstm_layers: Number of LSTM layers
    :param shared_lstm: Whether the value function reads the policy's LSTM. Default: determined by the architecture
    :param enable_critic_lstm: Whether the value function has its own LSTM. Default: determined by the architecture. False with
        "dual": it has a dense layer instead
    :param lstm_kwargs: ``bias`` and ``dropout`` of ``torch.nn.LSTM``
    :raises ArgumentError: (a ``ValueError``) for a combination that contradicts itself
    """

    algorithm: ClassVar[str] = "RecurrentPPG"
    input_keys = ("lstm_states", "episode_starts")
    state_keys = ("lstm_states",)
    trunk_class: ClassVar[type[MlpExtractor]] = MlpExtractor  # policy and value function share the network up to the LSTM
    lstm_critic: nn.LSTM | None
    critic: nn.Linear | None
    if TYPE_CHECKING:  # else a type checker refuses the mixins of users, because SB3 and sb3-contrib disagree
        _predict: Any
        evaluate_actions: Any

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
        check_values(shared_lstm=shared_lstm, enable_critic_lstm=enable_critic_lstm, lstm_kwargs=lstm_kwargs)
        architecture = architecture or ("detached" if shared_lstm else "dual")
        one_network = architecture != "dual"
        shared_lstm = one_network if shared_lstm is None else shared_lstm
        if shared_lstm != one_network:
            other = "'dual'" if one_network else "'detached' or 'shared'"
            raise ArgumentError(
                f"`shared_lstm`={shared_lstm} contradicts `architecture`={architecture!r}: leave it out, or use {other}"
            )
        enable_critic_lstm = not shared_lstm if enable_critic_lstm is None else enable_critic_lstm
        if shared_lstm and enable_critic_lstm:
            raise ArgumentError(
                f"`enable_critic_lstm`=True contradicts `architecture`={architecture!r}, whose value function reads the "
                "policy's LSTM: leave it out, or use architecture='dual' without `shared_lstm`"
            )
        if unknown := set(lstm_kwargs or {}) - {"bias", "dropout"}:
            raise ArgumentError(f"`lstm_kwargs`={lstm_kwargs} cannot work: leave out {', '.join(sorted(unknown))}")
        optimizers: list[Any] = []

        def schedule(progress_remaining: float) -> float:  # sb3-contrib's constructor calls it last, to replace the optimizer
            optimizers.append(vars(self).get("optimizer"))
            return lr_schedule(progress_remaining)

        super().__init__(
            observation_space,
            action_space,
            schedule,
            architecture=architecture,
            lstm_hidden_size=lstm_hidden_size,
            n_lstm_layers=n_lstm_layers,
            lstm_kwargs=lstm_kwargs,
            shared_lstm=shared_lstm,
            enable_critic_lstm=enable_critic_lstm,
            **kwargs,
        )
        self.optimizer = optimizers[-1]  # that of `_build`, which does not know the LSTMs
        added = [network.parameters() for network in (self.lstm_actor, self.critic, self.lstm_critic) if network is not None]
        self.optimizer = self.make_optimizer(lr_schedule(1), chain(parameters_of(self.optimizer), *added))

    @override
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

    @override
    def _build_mlp_extractor(self) -> None:
        RecurrentActorCriticPolicy._build_mlp_extractor(self)

    @override
    def evaluate(
        self,
        obs: PyTorchObs,
        lstm_states: RNNStates | None = None,
        episode_starts: th.Tensor | None = None,
        *,
        reads: Collection[str] = ALL_FIELDS,
        auxiliary: bool = False,
    ) -> Evaluation:
        """
        Run the networks on sequences, see ``PhasicActorCriticPolicy.evaluate``.

        :param lstm_states: states before each sequence. None: each observation is the first of an episode
        :param episode_starts: 1 where an episode begins, else 0, (B,)
        :param reads: with "lstm_states", sequences run step by step, as in sb3-contrib
        """
        if lstm_states is None or episode_starts is None:
            batch_size = n_samples(obs)
            lstm_states, episode_starts = self.initial_states(batch_size), th.ones(batch_size, device=self.device)
        detach = self.detach_value_in_aux_phase if auxiliary else self.architecture == "detached"
        run: Any = self._process_sequence if "lstm_states" in reads else run_lstm
        unread: Any = None
        distribution = latent_pi = latent_vf = states_pi = states_vf = unread
        if "distribution" in reads or "latent_pi" in reads:
            pi_features = self.extract_features(obs, self.pi_features_extractor)
            memory, states_pi = run(pi_features, lstm_states.pi, episode_starts, self.lstm_actor)
            latent_pi, states_vf = self.mlp_extractor.forward_actor(memory), states_pi
        if "latent_vf" in reads:
            if self.architecture != "dual" and latent_pi is not None:
                memory = memory.detach() if detach else memory
            else:
                shared = latent_pi is not None and self.share_features_extractor
                with th.set_grad_enabled(th.is_grad_enabled() and not detach):
                    features = pi_features if shared else self.extract_features(obs, self.vf_features_extractor)
                    if self.critic is not None:
                        memory = self.critic(features)
                    else:
                        lstm = self.lstm_critic or self.lstm_actor
                        memory, states_vf = run(features, lstm_states.vf, episode_starts, lstm)
            latent_vf = self.mlp_extractor.forward_critic(memory)
        if "distribution" in reads:
            distribution = self._get_action_dist_from_latent(latent_pi)
        return Evaluation(distribution, latent_pi, latent_vf, RNNStates(states_pi, states_vf))

    @override
    def network_inputs(self, batch: Any) -> tuple:
        return batch.observations, unpack_states(batch.lstm_states), batch.episode_starts

    @override
    def initial_memory(self, n_envs: int) -> dict[str, th.Tensor]:
        return {"lstm_states": pack_states(self.initial_states(n_envs))}

    @override
    def act(self, batch: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        *result, states = self(*self.network_inputs(batch))
        return *result, {"lstm_states": pack_states(states)}

    @override
    def forward(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: th.Tensor, deterministic: bool = False
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor, RNNStates]:
        """Return actions, (B, ...); V(s), (B, 1); log π(a|s), (B,); the states after each sequence. See ``evaluate``."""
        evaluation = self.evaluate(obs, lstm_states, episode_starts, reads=(*ALL_FIELDS, "lstm_states"))
        return *self._act(evaluation, deterministic), evaluation.lstm_states

    @override
    def get_distribution(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor
    ) -> tuple[Distribution, tuple[th.Tensor, ...]]:
        """Return π(.|s), and the states of the policy's LSTM after each sequence, from those before it."""
        states = RNNStates(lstm_states, lstm_states)
        evaluation = self.evaluate(obs, states, episode_starts, reads=("distribution", "lstm_states"))
        return evaluation.distribution, evaluation.lstm_states.pi

    @override
    def predict_values(  # type: ignore[override]
        self, obs: PyTorchObs, lstm_states: tuple[th.Tensor, ...], episode_starts: th.Tensor
    ) -> th.Tensor:
        """Return V(s), (B, 1), from the states of the value function's LSTM before each sequence."""
        return super().predict_values(obs, RNNStates(lstm_states, lstm_states), episode_starts)

    @override
    def _predict_next(  # type: ignore[override]
        self, obs: PyTorchObs, state: Any, starts: np.ndarray | None, deterministic: bool = False
    ) -> tuple[th.Tensor, tuple[np.ndarray, ...]]:
        """
        Return actions, and hidden and cell states of the policy's LSTM after them.

        :param state: these states before, (n_layers, n_envs, hidden size) each. None: zeros
        :param starts: whether an episode begins, with states of zero, (n_envs,). None: no episode begins
        """
        n_envs = n_samples(obs)
        as_floats = partial(th.tensor, dtype=th.float32, device=self.device)
        states: Any = self.initial_states(n_envs).pi if state is None else tuple(map(as_floats, state))
        distribution, states = self.get_distribution(obs, states, as_floats(np.zeros(n_envs) if starts is None else starts))
        return self._chosen(distribution, deterministic), tuple(state.cpu().numpy() for state in states)

    @th.no_grad()
    def states_after(self, obs: PyTorchObs, lstm_states: RNNStates, episode_starts: th.Tensor) -> RNNStates:
        """Return the states after each sequence; takes the arguments of ``evaluate``."""
        features = self.extract_features(obs, self.pi_features_extractor)
        pi = vf = last_states(features, lstm_states.pi, episode_starts, self.lstm_actor)
        if self.lstm_critic is not None:
            features = self.extract_features(obs, self.vf_features_extractor)
            vf = last_states(features, lstm_states.vf, episode_starts, self.lstm_critic)
        return RNNStates(pi, vf)

    def initial_states(self, n_sequences: int) -> RNNStates:
        """Return the states before sequences that begin with an episode: zeros, (n_layers, n_sequences, hidden size) each."""
        shape = (self.lstm_actor.num_layers, n_sequences, self.lstm_actor.hidden_size)
        zeros = th.zeros(shape, device=self.device)
        return RNNStates((zeros, zeros), (zeros, zeros))


class RecurrentPhasicActorCriticCnnPolicy(PhasicActorCriticCnnPolicy, RecurrentPhasicActorCriticPolicy):
    """``RecurrentPhasicActorCriticPolicy`` for images, by default with SB3's ``NatureCNN``; "dual", unlike ``CnnPolicy``."""


class RecurrentMultiInputPhasicActorCriticPolicy(MultiInputPhasicActorCriticPolicy, RecurrentPhasicActorCriticPolicy):
    """``RecurrentPhasicActorCriticPolicy`` for dictionaries, by default with SB3's ``CombinedExtractor``."""
