"""PPG's start from recorded data: its losses, what it converges to, and that training goes on from it."""

from dataclasses import replace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer
from sb3_ppg.offline import BCQ, Dataset
from tests.helpers import BOX, SMALL, VECTOR, RandomEnv, evaluate_auxiliary, masked_envs, random_envs, saved_and_loaded
from tests.offline.test_bcq import THREE, TINY, random_data
from tests.saving.small_models import same

STATES = spaces.Discrete(2)


def two_states(n: int = 400) -> Dataset:
    """Episodes of one step. In the first state, a quarter of the actions are 2 and the rest 4; in the second all are 3."""
    states, step = np.arange(n) % 2, np.arange(n)
    actions = np.where(states == 0, np.where(step % 8 == 0, 2, 4), 3)
    ends = np.ones(n, dtype=bool)
    return Dataset(states, actions, 10.0 * states, states, ends, ~ends)


def test_the_policy_takes_actions_as_often_as_the_data_does_and_both_heads_learn_its_returns():
    model = PPG("MlpPolicy", RandomEnv(STATES, THREE), **SMALL, aux_learning_rate=3e-3)
    assert model.warm_start(two_states(), n_epochs=60, batch_size=100) is model
    states = th.tensor([0, 1])
    probabilities = model.policy.get_distribution(states).distribution.probs.detach().numpy()
    np.testing.assert_allclose(probabilities, [[0.25, 0, 0.75], [0, 1, 0]], atol=0.05)
    _, *of_heads = evaluate_auxiliary(model.policy, states)
    for values in of_heads:
        np.testing.assert_allclose(values.detach().numpy(), [0, 10], atol=1)
    assert model.policy.value_unit == pytest.approx(5, rel=1e-3)  # the standard deviation of 0, 10, 0, 10, ...


def test_its_losses_are_those_of_the_data_before_the_first_step():
    """
    One minibatch of all: -E[log π(a|s)], and half the squared errors of both heads, in value units; new heads begin at the
    mean.
    """
    data = random_data(VECTOR, BOX, 50)
    model = PPG("MlpPolicy", RandomEnv(VECTOR, BOX), **SMALL, gamma=0.9)
    observations = th.as_tensor(data.observations)
    with th.no_grad():
        _, log_prob, _ = model.policy.evaluate_actions(observations, th.as_tensor(data.actions))
        last = model.policy.predict_values(th.as_tensor(data.next_observations[data.ends])).flatten()
        _, aux_values, values = evaluate_auxiliary(model.policy, observations)
    returns = data.returns(0.9, last.numpy())
    logged = warm_start_and_log(model, data, n_epochs=1, batch_size=50)
    assert logged["imitation_loss"] == pytest.approx(-log_prob.mean().item(), rel=1e-5)
    unit = max(returns.std(), 1)
    for name, predicted in (("value_loss", values), ("aux_value_loss", aux_values)):
        expected = 0.5 * ((predicted.numpy() + (returns.mean() - returns) / unit) ** 2).mean()
        assert logged[name] == pytest.approx(expected, rel=1e-4), name
    total = logged["imitation_loss"] + logged["value_loss"] + logged["aux_value_loss"]
    assert logged["loss"] == pytest.approx(total, rel=1e-5)


def warm_start_and_log(model: PPG, *args, **kwargs) -> dict[str, float]:
    """Start from data; the latest values in the log."""
    logger = Logger(None, [])
    logger.dump = lambda step: None  # otherwise they are gone once they are written
    model.set_logger(logger)
    model.warm_start(*args, **kwargs)
    return {name.removeprefix("warm_start/"): value for name, value in logger.name_to_value.items()}


def test_the_divergence_from_itself_is_zero_and_from_another_shrinks():
    data = random_data(VECTOR, BOX, 200)
    model = PPG("MlpPolicy", RandomEnv(VECTOR, BOX), **SMALL, aux_learning_rate=3e-3)
    logged = warm_start_and_log(model, data, agent=model, n_epochs=1, batch_size=200)
    assert logged["kl"] == pytest.approx(0, abs=1e-6) and "imitation_loss" not in logged

    agent = PPO("MlpPolicy", RandomEnv(VECTOR, BOX), seed=7, device="cpu", policy_kwargs=dict(log_std_init=-0.5))
    agent.policy.action_net.bias.data += th.tensor([0.5, 1.0])
    first, last = (warm_start_and_log(model, data, agent=agent, n_epochs=n, batch_size=50)["kl"] for n in (1, 120))
    assert last < 0.1 * first
    np.testing.assert_allclose(model.policy.log_std.detach(), -0.5, atol=0.1)


def test_an_agent_without_a_distribution_is_imitated_in_its_actions():
    data = random_data(VECTOR, BOX)
    agent = BCQ("MlpPolicy", RandomEnv(VECTOR, BOX), **TINY)
    model = PPG("MlpPolicy", RandomEnv(VECTOR, BOX), **SMALL, aux_learning_rate=3e-3)
    log_std = model.policy.log_std.detach().clone()
    model.warm_start(data, agent=agent, n_epochs=100, batch_size=8)
    actions = agent.predict(data.observations, deterministic=True)[0]
    played = model.predict(data.observations, deterministic=True)[0]
    assert (played - actions).std() < 0.5 * actions.std()
    assert (played - data.actions).std() > 1.5 * (played - actions).std()
    assert th.equal(model.policy.log_std, log_std) and model.policy.log_std.requires_grad


@pytest.mark.parametrize("fit_std", [True, False])
def test_the_standard_deviation_is_fitted_if_asked_unless_a_user_has_frozen_it(fit_std):
    model = PPG("MlpPolicy", RandomEnv(VECTOR, BOX), **SMALL, aux_learning_rate=1e-2)
    model.warm_start(random_data(VECTOR, BOX), n_epochs=10, fit_std=fit_std)
    assert (model.policy.log_std.abs().max() > 0.05) == fit_std
    before = model.policy.log_std.requires_grad_(False).clone()
    model.warm_start(random_data(VECTOR, BOX), n_epochs=1)
    assert not model.policy.log_std.requires_grad and th.equal(model.policy.log_std, before)


def test_training_goes_on_and_a_saved_model_is_the_same(tmp_path):
    model = PPG("MlpPolicy", random_envs(VECTOR, BOX), **SMALL).warm_start(random_data(VECTOR, BOX), n_epochs=2)
    assert model.aux_optimizer.state and same(model, saved_and_loaded(model, tmp_path))
    assert model.learn(32).num_timesteps == 32 and model.n_aux_phases == 1


def test_data_is_normalized_as_the_environment_will_be_and_a_second_data_set_leaves_the_statistics():
    """The networks have been trained with them."""
    env = VecNormalize(random_envs(VECTOR, BOX))
    data = random_data(VECTOR, BOX)
    model = PPG("MlpPolicy", env, **SMALL, gamma=0.9)
    normalized = []
    model.policy.features_extractor.register_forward_pre_hook(lambda _, args: normalized.append(args[0]))
    model.warm_start(data, n_epochs=1, batch_size=64)
    np.testing.assert_allclose(normalized[-1].mean(dim=0), 0, atol=1e-3)
    assert env.ret_rms.count > 64 - 1e-6 and env.ret_rms.var != 1
    other = replace(data, observations=data.observations + 10, next_observations=data.next_observations + 10)
    model.warm_start(other, n_epochs=1)
    np.testing.assert_allclose(env.obs_rms.mean, data.observations.mean(axis=0), atol=1e-5)
    assert env.obs_rms.count == len(data)


def test_terminations_that_are_ignored_are_cut_off():
    """Each episode of one step has a reward of 1; if the value goes on, it approaches 1 / (1 - 0.5)."""
    data = Dataset(np.zeros(50, int), np.full(50, 2), np.ones(50), np.zeros(50, int), np.ones(50), np.zeros(50))
    values = []
    for ignored in (2, True, 1):  # 1 and 2: the step of a time limit
        options = dict(gamma=0.5, ignore_terminations=ignored, aux_learning_rate=1e-2)
        model = PPG("MlpPolicy", RandomEnv(STATES, THREE), **SMALL, **options).warm_start(data, n_epochs=150)
        values.append(model.policy.predict_values(th.tensor([0])).item())
    assert values == pytest.approx([1, 2, 2], abs=0.1)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2], start=[1, 5]), spaces.MultiBinary(3), BOX], ids=str)
def test_actions_of_every_kind_are_cloned(space):
    """All actions are the same; the policy's most likely one becomes it."""
    action = np.array([1.0, -0.5]) if space is BOX else space.sample()
    data = replace(random_data(VECTOR, space, 40), actions=np.tile(action, (40, 1)))
    squashed = dict(use_sde=True, policy_kwargs=dict(squash_output=True)) if space is BOX else {}
    model = PPG("MlpPolicy", RandomEnv(VECTOR, space), **SMALL, **squashed, aux_learning_rate=1e-2)
    model.warm_start(data, n_epochs=60)
    played = model.predict(data.observations, deterministic=True)[0]
    np.testing.assert_allclose(played, np.tile(action, (40, 1)), atol=0.2)


def test_what_it_is_not_for_is_refused():
    data = random_data(VECTOR, THREE)
    stacked = VecFrameStack(VecNormalize(random_envs(VECTOR, THREE)), 2)
    with pytest.raises(ArgumentError, match="a wrapper around VecNormalize changes the observations"):
        PPG("MlpPolicy", stacked, **SMALL).warm_start(random_data(stacked.observation_space, THREE))
    for model in (MaskablePPG("MlpPolicy", masked_envs(), **SMALL), RecurrentPPG("MlpLstmPolicy", random_envs(), **SMALL)):
        with pytest.raises(ArgumentError, match=r"`warm_start` is for .* algorithms without memory and masks"):
            model.warm_start(data)
    model = PPG("MlpPolicy", random_envs(VECTOR, THREE), **SMALL)
    other = PPO("MlpPolicy", RandomEnv(VECTOR, BOX), device="cpu")
    recurrent = RecurrentPPO("MlpLstmPolicy", RandomEnv(VECTOR, THREE), device="cpu")
    dqn = DQN("MlpPolicy", RandomEnv(VECTOR, spaces.Discrete(4)), buffer_size=9)
    for dataset, options, message in (
        (data, dict(agent=dqn), r"the agent acts in Discrete\(4\), the model in Discrete\(3, start=2\): use one like it"),
        (random_data(VECTOR, BOX), {}, "`actions` have shape"),
        (data, dict(n_epochs=0), "`n_epochs`=0 cannot work"),
        (data, dict(agent=other), "the agent has a DiagGaussianDistribution.*the model a Categorical"),
        (data, dict(agent=recurrent), "the agent is a RecurrentPPO, which needs earlier observations"),
    ):
        with pytest.raises(ArgumentError, match=message):
            model.warm_start(dataset, **options)
    normalized = dict(rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer()))
    model = PPG("MlpPolicy", random_envs(), rollout_buffer_class=NormalizedRewardRolloutBuffer, **normalized, **SMALL)
    with pytest.raises(ArgumentError, match="use VecNormalize"):
        model.warm_start(random_data(VECTOR, spaces.Discrete(3)))


def test_an_averaged_policy_starts_again_from_the_fitted_one():
    """Also in the middle of a phase, where the average would go on."""
    model = PPG("MlpPolicy", random_envs(VECTOR, BOX), objective="ewma", **SMALL)
    model.learn(16).warm_start(random_data(VECTOR, BOX), n_epochs=2)
    for averaged, parameter in zip(model.objective.proximal.module.parameters(), model.policy.parameters(), strict=True):
        assert th.equal(averaged, parameter)
