"""Advantages as pure functions, and those that are recomputed before further epochs."""

from functools import partial

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, NormalizedRewardRolloutBuffer, RewardNormalizer, VectorRewards
from sb3_ppg.buffers.advantages import gae
from sb3_ppg.buffers.rollouts import order_by_environment
from sb3_ppg.training.preparing import recompute_advantages
from tests.helpers import KINDS, SMALL, VectorRewardEnv, changed, collect, make_kind, random_envs, weights


def test_worked_numbers():
    """γ = 1/2, λ = 1/2; the second environment begins an episode at step 1, the first one after the rollout."""
    rewards, values = np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[4.0, 4.0], [6.0, 6.0]])
    starts = np.array([[0.0, 0.0], [0.0, 1.0]])
    advantages = gae(rewards, values, starts, np.array([100.0, 8.0]), np.array([1.0, 0.0]), 0.5, 0.5)
    # last step: 2 - 6 = -4, and 2 + 8/2 - 6 = 0; first step: 1 + 6/2 - 4 + (-4)/4 = -1, and 1 - 4 = -3
    np.testing.assert_allclose(advantages, [[-1.0, -3.0], [-4.0, 0.0]])


def normalized_rewards(**kwargs) -> dict:
    return dict(
        rollout_buffer_class=NormalizedRewardRolloutBuffer,
        rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(**kwargs)),
    )


MODELS = {kind: partial(make_kind, kind) for kind in KINDS} | {
    "normalised rewards": lambda: make_kind("vectors", **normalized_rewards()),
    "VecNormalize": lambda: PPG("MlpPolicy", VecNormalize(random_envs()), **SMALL),
    "vector rewards": lambda: PPG(
        "MlpPolicy",
        make_vec_env(lambda: VectorRewards(VectorRewardEnv()), 2, seed=0),
        reward_weights=[1.0, 3.0],
        **SMALL | dict(gamma=[0.5, 0.99]),
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_with_the_network_that_collected_them_they_are_the_same(make):
    model = make()
    collect(model)
    buffer = model.rollout_buffer
    advantages, returns = buffer.advantages.copy(), buffer.returns.copy()
    model.normalize_advantage = False
    order_by_environment(buffer)
    recompute_advantages(model, buffer, model.rollout_end)
    np.testing.assert_allclose(buffer.advantages.reshape(2, 8).T, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffer.returns.reshape(2, 8).T, returns, rtol=1e-4, atol=1e-5)


def test_what_changes_with_the_value_function():
    """With λ = 0 the advantage is r + γ V' - V: where V rises by one everywhere it changes by γ - 1, or -1 at an end."""
    model = make_kind("vectors", gae_lambda=0.0, gamma=0.9, normalize_advantage=False)
    model.env.envs[0].unwrapped.episode_length = 4
    collect(model)
    buffer = model.rollout_buffer
    before, starts = buffer.advantages.copy(), np.vstack([buffer.episode_starts[1:], model.rollout_end.dones])
    with th.no_grad():
        model.policy.value_net.bias.add_(1.0)
    order_by_environment(buffer)
    recompute_advantages(model, buffer, model.rollout_end)
    np.testing.assert_allclose(buffer.advantages.reshape(2, 8).T - before, np.where(starts, -1.0, -0.1), atol=1e-5)
    assert starts.any() and not starts.all()


@pytest.mark.parametrize(
    ("kind", "settings", "n_epochs"),
    [("vectors", {}, 1), ("LSTM", dict(n_epochs=3), 3), ("masks", dict(n_value_epochs=1), 2)],
    ids=["once", "joint", "apart"],
)
def test_they_are_recomputed_from_the_second_epoch_on(kind, settings, n_epochs):
    models = [make_kind(kind, recompute_advantages=recompute, **settings).learn(4 * 16) for recompute in (False, True)]
    assert bool(changed(*map(weights, models))) == (n_epochs > 1)


def test_what_follows_a_time_limit_is_in_normalised_units():
    """γ V is added to the normalised reward, in whose units V is learned."""
    kwargs = normalized_rewards(gamma=0.9)
    normalizer = kwargs["rollout_buffer_kwargs"]["reward_normalizer"]
    model = PPG("MlpPolicy", random_envs(spaces.Box(1, 1, (1,))), n_steps=64, batch_size=64, gamma=0.9, device="cpu", **kwargs)
    for _ in range(2):
        collect(model)
        buffer = model.rollout_buffer
        ends = np.roll(buffer.episode_starts, -1, axis=0)[:-1].astype(bool)
        value = model.policy.predict_values(th.ones(1, 1)).item()
        expected = 1 / np.sqrt(normalizer.return_rms.var + normalizer.epsilon) + 0.9 * value * ends
        assert 0 < ends.sum() < ends.size and value != 0
        np.testing.assert_allclose(buffer.rewards[:-1], expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_is_computed_in_the_type_of_the_values(dtype):
    """Whatever the type of the dones is: SB3's are float32, those of a stored end are Booleans."""
    generator = np.random.default_rng(0)
    rewards, values = generator.normal(size=(2, 50, 3)).astype(dtype)
    starts, last = generator.random((50, 3)) < 0.1, generator.normal(size=3).astype(dtype)
    advantages = [
        gae(rewards, values, starts.astype(kind), last, starts[0].astype(kind), 0.99, 0.95)
        for kind in (bool, np.float32, float)
    ]
    assert advantages[0].dtype == dtype and all(np.array_equal(advantages[0], one) for one in advantages[1:])
