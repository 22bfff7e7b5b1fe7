"""RecurrentPPG: sequences start from their stored memory, and padding has no effect."""

from functools import partial
from unittest.mock import patch

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from torch import nn

from sb3_ppg import ArgumentError, NonFiniteLossError, NormalizedRewardRolloutBuffer, PhasicCallback, RecurrentPPG
from sb3_ppg.losses import Losses
from sb3_ppg.policies.lstm import RecurrentPhasicActorCriticPolicy, last_states, pack_states, run_lstm, unpack_states
from tests.helpers import (
    BOX,
    DICT,
    SMALL,
    assert_trains_like,
    calls_of,
    collect,
    epoch_of,
    random_envs,
)

make_env = partial(random_envs, episode_length=5)
# Names of RecurrentPPO's arguments
MODES = {
    "separate": dict(),
    "shared": dict(shared_lstm=True, enable_critic_lstm=False),
    "none": dict(enable_critic_lstm=False),
}


def make(policy: str = "MlpLstmPolicy", env=None, policy_kwargs=None, **kwargs) -> RecurrentPPG:
    policy_kwargs = {"lstm_hidden_size": 6, **(policy_kwargs or {})}
    arguments = {**SMALL, "n_aux_epochs": 2, "policy_kwargs": policy_kwargs, **kwargs}
    return RecurrentPPG(policy, env or make_env(), **arguments)


def step_by_step(lstm, features, states, starts):
    """Run sequences of equal length through an LSTM one step at a time; return outputs and last states."""
    outputs, n_sequences = [], states[0].shape[1]
    steps = features.view(n_sequences, -1, lstm.input_size).swapaxes(0, 1)
    for step, start in zip(steps, starts.view(n_sequences, -1).T, strict=True):
        output, states = lstm(step[None], tuple((1 - start)[:, None] * state for state in states))
        outputs.append(output[0])
    return th.stack(outputs, dim=1).flatten(0, 1), states


@pytest.mark.parametrize("rate", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("n_sequences", "length", "n_layers"), [(5, 1, 1), (1, 16, 2), (6, 9, 2)])
def test_sequences_at_once_are_sequences_step_by_step(n_sequences, length, rate, n_layers):
    """Outputs, gradients and last states are equal, wherever episodes begin."""
    th.manual_seed(0)
    lstm = nn.LSTM(4, 5, n_layers)
    features = th.randn(n_sequences * length, 4, requires_grad=True)
    states = tuple(th.randn(n_layers, n_sequences, 5, requires_grad=True) for _ in range(2))
    starts = (th.rand(n_sequences * length) < rate).float()
    ours, _ = run_lstm(features, states, starts, lstm)
    expected, expected_states = step_by_step(lstm, features, states, starts)
    th.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
    th.testing.assert_close(last_states(features, states, starts, lstm), expected_states, rtol=0, atol=1e-6)
    weight, inputs = th.randn_like(ours), [features, *states, *lstm.parameters()]
    gradients = [th.autograd.grad((outputs * weight).sum(), inputs) for outputs in (ours, expected)]
    th.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("policy", "its_spaces", "mode", "kwargs"),
    [
        ("MlpLstmPolicy", dict(), "separate", dict()),
        ("MlpLstmPolicy", dict(action_space=spaces.MultiDiscrete([2, 3])), "shared", dict(clip_range_vf=0.2)),
        ("MlpLstmPolicy", dict(action_space=BOX), "none", dict(use_sde=True, sde_sample_freq=4)),
        ("MultiInputLstmPolicy", dict(observation_space=DICT), "separate", dict()),
    ],
    ids=["Discrete", "MultiDiscrete", "gSDE", "Dict"],
)
def test_without_auxiliary_epochs_it_is_recurrent_ppo(policy, its_spaces, kwargs, mode, monkeypatch):
    """
    Minibatches are whole rollouts, so that their order does not matter, and SGD is used because Adam would magnify rounding.
    Time limits bootstrap from the right states. RecurrentPPO's random cut of the gradient through time is switched off.
    """
    monkeypatch.setattr(np.random, "randint", lambda n: 0)
    common = dict(n_steps=16, batch_size=32, n_epochs=2, learning_rate=0.1, normalize_advantage=False, max_grad_norm=0.5)
    common |= dict(gamma=0.99, ent_coef=0.01, device="cpu", **kwargs)
    policy_kwargs = dict(lstm_hidden_size=8, optimizer_class=th.optim.SGD, **MODES[mode])
    ppo = RecurrentPPO(policy, make_env(**its_spaces), seed=1, policy_kwargs=policy_kwargs, **common)
    if policy.startswith("Multi"):
        policy_kwargs = {**policy_kwargs, "share_features_extractor": True}
    ours = RecurrentPPG(policy, make_env(**its_spaces), seed=2, n_aux_epochs=0, policy_kwargs=policy_kwargs, **common)
    assert_trains_like(ours, ppo, 16 * 2 * 3)


def values_of(policy: RecurrentPhasicActorCriticPolicy, inputs: tuple) -> th.Tensor:
    return policy.value_net(policy.evaluate(*inputs, reads=("latent_vf",)).latent_vf).flatten()


@pytest.mark.parametrize("mode", MODES)
def test_sequences_start_from_what_was_remembered(mode):
    """With the network that collected them, samples have the rollout's log-probabilities and values."""
    model = make(policy_kwargs=MODES[mode], learning_rate=0.0, n_policy_iterations=3, normalize_value_targets=False)
    model.learn(2 * 8 * 2)  # the second rollout begins within an episode
    assert (model.rollout_buffer.episode_starts[0] == 0).all() and model.rollout_buffer.episode_starts.sum() > 2
    batches = [batch for batch_size in (2, 8, 16) for batch in epoch_of(model, batch_size)]
    assert [len(batch.actions) for batch in batches] == [2] * 8 + [8] * 2 + [16]
    for batch in batches:
        observations, *memory = inputs = model.policy.network_inputs(batch)
        actions = model.policy.actions.from_buffer(batch.actions)
        values, log_prob, _ = model.policy.evaluate_actions(observations, actions, *memory)
        th.testing.assert_close(log_prob, batch.old_log_prob, rtol=0, atol=1e-6)
        th.testing.assert_close(values.flatten(), batch.old_values, rtol=0, atol=1e-6)
        th.testing.assert_close(values_of(model.policy, inputs), batch.old_values, rtol=0, atol=1e-6)
        th.testing.assert_close(model.policy.evaluate(*inputs).distribution.log_prob(actions), log_prob)


@pytest.mark.parametrize(
    ("n_steps", "batch_size", "length", "n_samples"),
    [(50, 64, 50, [50, 50]), (8, 12, 8, [8, 8]), (12, 8, 6, [6, 6, 6, 6]), (8, 24, 8, [16]), (30, 14, 10, [10] * 6)],
)
def test_any_batch_size_of_whole_sequences(n_steps, batch_size, length, n_samples):
    """Minibatches have at most ``batch_size`` samples and consist of equal parts of a rollout."""
    model = make(n_steps=n_steps, batch_size=batch_size)
    collect(model)
    batches = list(epoch_of(model, batch_size))
    assert [len(batch.actions) for batch in batches] == n_samples
    assert all(len(batch.lstm_states) * length == len(batch.actions) for batch in batches)


def test_micro_batches_are_whole_sequences_and_the_same_step():
    policies = []
    for micro_batch_size, samples in ((None, 32), (9, 8), (1, 8)):
        model = make(micro_batch_size=micro_batch_size, aux_batch_size=32)
        calls = calls_of(model.objective, "auxiliary_losses")
        model.learn(8 * 2 * 2)
        assert {len(batch.targets) for (_, batch, _), _ in calls} == {samples}
        policies.append([*model.policy.parameters()])
    for other in policies[1:]:
        th.testing.assert_close(other, policies[0], rtol=0, atol=2e-6)


def test_auxiliary_minibatches_are_a_sixteenth_of_the_phase():
    """With memory it is a sixteenth of the phase (128 samples here), not of a rollout (8)."""
    model = make(env=make_env(n_envs=4), n_policy_iterations=16, n_aux_epochs=1, n_steps=2, batch_size=8)
    calls = calls_of(model.objective, "auxiliary_losses")
    model.learn(2 * 4 * 16)
    assert [len(batch.targets) for (_, batch, _), _ in calls] == [8] * 16


def states_by_the_present_network(model: RecurrentPPG) -> list[np.ndarray]:
    """Compute states step by step over all stored rollouts, and return those before each rollout, (n_envs, 4, ...)."""
    rollouts = model.aux_buffer.rollouts
    states = unpack_states(th.as_tensor(rollouts[0].arrays["lstm_states"][:, 0]))
    before = []
    for arrays in (rollout.arrays for rollout in rollouts):
        observations = arrays["observations"]
        before.append(pack_states(states).numpy())
        for step in range(observations.shape[1]):
            starts = th.as_tensor(arrays["episode_starts"][:, step])
            with th.no_grad():
                *_, states = model.policy(th.as_tensor(observations[:, step]), states, starts)
    return [*before, pack_states(states).numpy()]


class Memories(PhasicCallback):
    """Looks at stored states and the present network's at the beginning of an auxiliary phase, and at the end."""

    def on_aux_phase_start(self) -> None:
        self.stored = [rollout.arrays["lstm_states"][:, 0].copy() for rollout in self.model.aux_buffer.rollouts]
        self.collected, self.present = self.model.memory["lstm_states"].numpy(), states_by_the_present_network(self.model)

    def on_aux_phase_end(self) -> None:
        self.final = states_by_the_present_network(self.model)[-1]


@pytest.mark.parametrize("recompute_states", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_states_are_those_that_were_stored_or_those_of_the_present_network(mode, recompute_states):
    """
    Sequences begin with recomputed states where asked for, and episodes go on with what the network remembers after the phase,
    which preserves the policy's behavior given its own memory (the KL divergence begins at zero), not that memory's meaning.
    """
    phases = dict(n_policy_iterations=3, n_aux_epochs=1, learning_rate=3e-2, recompute_states=recompute_states)
    model, seen = make(policy_kwargs=MODES[mode], env=make_env(episode_length=11), **phases), Memories()
    calls = calls_of(model.objective, "auxiliary_losses")
    model.learn(8 * 2 * 3, callback=seen)
    assert len(seen.stored) == 3
    assert np.abs(seen.stored[0]).max() == 0 and np.abs(seen.stored[1]).max() > 0.01  # training began with an episode
    used = 2 if mode == "shared" else 4
    if recompute_states:
        np.testing.assert_allclose(seen.stored, seen.present[:3], rtol=0, atol=1e-6)
        np.testing.assert_allclose(model.memory["lstm_states"], seen.final, rtol=0, atol=1e-6)
    else:
        assert np.abs(seen.stored[2] - seen.present[2])[:, :used].max() > 1e-3  # the network has learned since
        np.testing.assert_array_equal(model.memory["lstm_states"], seen.collected)
    assert np.abs(seen.collected - seen.final)[:, :used].max() > 1e-3
    kls = [losses.terms["kl"].item() for _, losses in calls]
    assert len(kls) == 6 and kls[0] == pytest.approx(0, abs=1e-7) and kls[-1] > 1e-6
    inputs = np.concatenate([batch.lstm_states for (_, batch, *_), _ in calls])
    np.testing.assert_array_equal(np.unique(inputs, axis=0), np.unique(np.concatenate(seen.stored), axis=0))


def test_a_rollout_that_was_cut_short_is_neither_remembered_twice_nor_skipped():
    """A callback ends training within the second rollout. With a constant network, stored states equal recomputed ones."""
    stored = []
    for recompute_states in (False, True):
        env = make_env(episode_length=100)
        model = make(learning_rate=0.0, n_policy_iterations=4, env=env, recompute_states=recompute_states)
        steps, acts = iter(range(1, 12)), calls_of(model.policy, "act")
        model.learn(10**6, callback=lambda *_, steps=steps: next(steps) < 8 + 3)
        assert len(model.aux_buffer) == 1 and model.num_timesteps == 2 * 11
        before, seen = model.memory["lstm_states"], Memories()
        np.testing.assert_array_equal(acts.pop()[1][3]["lstm_states"], before)  # after the step that is not stored
        acts.clear()
        model.learn(8 * 2 * 3, reset_num_timesteps=False, callback=seen)
        (first,), _ = acts[0]
        np.testing.assert_array_equal(first.lstm_states, before)
        stored.append(seen.stored)
    assert len(stored[0]) == 4 and np.abs(stored[0][1]).max() > 0.01
    np.testing.assert_allclose(*stored, rtol=0, atol=1e-6)


def test_what_follows_a_rollout_that_could_not_be_learned_from_follows_no_stored_one():
    model = make(n_policy_iterations=8, env=make_env(episode_length=100)).learn(2 * 8)
    bad_losses = patch.object(model.objective, "surrogate", lambda *_: Losses(th.tensor(np.nan), {}))
    with bad_losses, pytest.raises(NonFiniteLossError):
        model.learn(2 * 8, reset_num_timesteps=False)
    model.learn(2 * 8 * 2, reset_num_timesteps=False)
    numbers = [rollout.arrays["number"][0, 0] for rollout in model.aux_buffer.rollouts]
    assert np.diff(numbers).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("kwargs", "policy_phase", "auxiliary_phase"),
    [
        (dict(architecture="detached"), False, True),
        (dict(architecture="detached", detach_value_in_aux_phase=True), False, False),
        (dict(architecture="shared"), True, True),
        (dict(architecture="dual", share_features_extractor=False), False, False),
        (dict(shared_lstm=True), False, True),
    ],
)
def test_where_the_value_functions_gradient_goes(kwargs, policy_phase, auxiliary_phase):
    """Check whether it reaches the policy's LSTM from each loss of the policy phase and in the auxiliary phase."""
    model = make(policy_kwargs=kwargs)
    collect(model)
    batch = next(epoch_of(model, 8))
    model.aux_buffer.add(model.latest_rollout().kept(model.stored_keys))
    _, aux_batch = next(model.aux_buffer.batches(np.arange(2), 2))

    def reaches(values: th.Tensor) -> bool:
        weight = model.policy.lstm_actor.weight_hh_l0
        (gradient,) = th.autograd.grad(values.sum(), [weight], allow_unused=True, retain_graph=True)
        return gradient is not None and bool(gradient.abs().sum() > 0)

    observations, *memory = inputs = model.policy.network_inputs(batch)
    actions = model.policy.actions.from_buffer(batch.actions)
    assert reaches(model.policy.evaluate_actions(observations, actions, *memory)[0]) == policy_phase
    assert reaches(values_of(model.policy, inputs)) == policy_phase
    evaluation = model.policy.evaluate_batch(aux_batch, auxiliary=True)
    assert reaches(model.policy.value_net(evaluation.latent_vf)) == auxiliary_phase
    assert reaches(model.policy.aux_value_net(evaluation.latent_pi))


def test_the_policy_alone_is_saved_and_loaded(tmp_path):
    policy = make(policy_kwargs=dict(architecture="shared", n_lstm_layers=2, lstm_kwargs=dict(bias=False))).policy
    policy.save(tmp_path / "policy.pt")
    loaded = RecurrentPhasicActorCriticPolicy.load(tmp_path / "policy.pt")
    assert loaded.architecture == "shared" and loaded.shared_lstm and not loaded.lstm_actor.bias
    obs = np.zeros((1, 3), dtype=np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[1], policy.predict(obs, deterministic=True)[1])


def test_what_cannot_work_is_refused_by_name():
    networks = dict(architecture="dual", shared_lstm=True), dict(architecture="shared", shared_lstm=False)
    for kwargs, message in (
        (dict(policy_kwargs=networks[0]), "shared_lstm.*contradicts.*'dual'.*'detached'"),
        (dict(policy_kwargs=networks[1]), "shared_lstm.*contradicts.*'shared'.*'dual'"),
        (dict(policy_kwargs=dict(shared_lstm=True, enable_critic_lstm=True)), "enable_critic_lstm.*contradicts.*'dual'"),
        (dict(policy_kwargs=dict(lstm_kwargs=dict(bidirectional=True))), "lstm_kwargs.*bidirectional"),
        (dict(n_steps=7, batch_size=6), "`batch_size`=6 cannot work.*equal parts of `n_steps`=7 steps, and here of 1 at most"),
        (dict(recompute_states="yes"), "`recompute_states`='yes' cannot work"),
        (dict(rollout_buffer_class=NormalizedRewardRolloutBuffer), "rollout_buffer_class.*SequenceRolloutBuffer"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make(**kwargs)


def test_only_the_first_states_of_a_sequence_are_kept(tmp_path):
    """The buffer does not keep the states of each step, not even through a view, in memory or on a disk."""
    for storage in (dict(), dict(aux_buffer_kwargs=dict(storage="mmap", path=tmp_path))):
        model = make(n_policy_iterations=5, **storage)
        model.learn(16)
        states = model.aux_buffer.rollouts[0].arrays["lstm_states"]
        assert states.shape == (2, 1, 4, 1, 6)
        assert states.base is None or states.base.nbytes == states.nbytes
        arrays = [each.rollouts[0].arrays["observations"] for each in (model.aux_buffer, model.replay)]
        assert np.shares_memory(*arrays) == (not storage)
