"""Ends of episodes: which of them are bootstrapped."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_ppg import PPG, ArgumentError, NormalizedRewardRolloutBuffer, RewardNormalizer
from tests.helpers import KINDS, SMALL, THREE_ACTIONS, VECTOR, MaskedEnv, RandomEnv, StepsChanged, changed, collect, weights
from tests.helpers import make_with_papers_values as make


class Untold(gym.Wrapper):
    """Reports time limits as terminations."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


class Countdown(gym.Env):
    """An episode is three steps with a reward of 1 each; observations are the number of steps so far."""

    observation_space, action_space = spaces.Box(0, 10, (1,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps == 3, False, {}


def trained(kind: str, wrap, **kwargs) -> PPG:
    """Train on episodes of 7 steps."""
    if kind == "normalized rewards":
        kind, buffer_kwargs = "vectors", dict(reward_normalizer=RewardNormalizer(gamma=0.99))
        kwargs |= dict(rollout_buffer_class=NormalizedRewardRolloutBuffer, rollout_buffer_kwargs=buffer_kwargs)
    algorithm, policy, _, policy_kwargs = KINDS[kind]
    inner = MaskedEnv if kind == "masks" else partial(RandomEnv, VECTOR, THREE_ACTIONS, episode_length=7)
    env = make_vec_env(lambda: wrap(inner()), 2, seed=0)
    return algorithm(policy, env, **{**SMALL, "policy_kwargs": policy_kwargs, **kwargs}).learn(4 * 16)


@pytest.mark.parametrize("kind", ["vectors", "LSTM", "masks", "normalized rewards"])
def test_ends_that_are_ignored_are_time_limits(kind):
    """Update for update, with both phases; without the argument the same episodes lead to another training."""
    truncated = trained(kind, gym.Wrapper)
    ignored = trained(kind, Untold, ignore_terminations=True)
    ended = trained(kind, Untold)
    assert truncated.n_aux_phases == ignored.n_aux_phases > 0
    assert not changed(weights(truncated), weights(ignored))
    assert changed(weights(truncated), weights(ended))
    for name in ("rewards", "advantages", "returns"):
        np.testing.assert_array_equal(*(getattr(model.rollout_buffer, name) for model in (truncated, ignored)))


@pytest.mark.parametrize("ignores", [False, True])
def test_the_last_reward_has_the_discounted_value_of_the_last_observation(ignores):
    """With V = 2 everywhere and a discount of 0.9, the last of three rewards of 1 is 1 + 0.9 * 2."""
    model = make(DummyVecEnv([Countdown]), n_steps=6, batch_size=6, gamma=0.9, ignore_terminations=ignores)
    with th.no_grad():
        model.policy.value_net.weight.zero_()
        model.policy.value_net.bias.fill_(2.0)
    collect(model)
    last = 2.8 if ignores else 1.0
    np.testing.assert_allclose(model.rollout_buffer.rewards.flatten(), [1, 1, last, 1, 1, last], rtol=1e-6)
    # A value target does not reach into the next episode
    np.testing.assert_allclose(model.rollout_buffer.returns.flatten()[[2, 5]], last, rtol=1e-6)


def test_ends_without_a_last_observation_are_not_silently_zero():
    env = StepsChanged(DummyVecEnv([Countdown]), lambda obs, rewards, dones, infos: (obs, rewards, dones, [{}]))
    make(env).learn(16)
    message = "`ignore_terminations`=True cannot work: the info of environment 0 has no 'terminal_observation'.*use False"
    with pytest.raises(ArgumentError, match=message):
        make(env, ignore_terminations=True).learn(16)
