"""Advantages that are recomputed before further epochs, in worked numbers."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_ppg import PPG
from sb3_ppg.objectives import OBJECTIVES
from tests.helpers import calls_of


class Four(gym.Env):
    """Episodes of four steps, whose observations are one-hot. With γ = 1/2 the returns are 1, 2, 3 and 4."""

    observation_space, action_space = spaces.Box(0, 1, (4,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return np.eye(4, dtype=np.float32)[0], {}

    def step(self, action):
        reward = [0.0, 0.5, 1.0, 4.0][self.step_number]
        self.step_number += 1
        return np.eye(4, dtype=np.float32)[self.step_number % 4], reward, self.step_number == 4, False, {}


def set_values(policy, values: list[float]) -> None:
    """Let the value function have these values at the four steps."""
    head = policy.value_net
    with th.no_grad():
        head.bias.zero_()
        head.weight.copy_((th.tensor([values]) - head.mean) / head.std)


class WithKnownValues(OBJECTIVES["decoupled"]):
    """After each optimizer step the values are 0, 1, 3 and 3, so the advantages are 1, 1, 0 and 1."""

    def after_policy_step(self, policy):
        super().after_policy_step(policy)
        set_values(policy, [0.0, 1.0, 3.0, 3.0])


class Dropping(FlattenExtractor):
    """Everything is dropped in training mode, where all values are then equal."""

    def forward(self, observations):
        return th.nn.functional.dropout(super().forward(observations), 1.0, self.training)


AGAIN = [
    dict(batch_size=4, n_epochs=2, recompute_advantages=True),
    dict(batch_size=8, n_epochs=1, replay_kwargs=dict(policy_rollouts=2)),
]


@pytest.mark.parametrize("extractor", [FlattenExtractor, Dropping])
@pytest.mark.parametrize("again", AGAIN)
def test_advantages_of_the_present_values_are_normalized_and_computed_in_evaluation_mode(again, extractor):
    """At first 1, 2, 3, 4 become -3, -1, 1, 3, divided by the square root of 5; later 1, 1, 0, 1 have a mean of 3/4."""
    network = dict(net_arch=[], features_extractor_class=extractor)
    sizes = dict(n_steps=4, gamma=0.5, gae_lambda=1.0, seed=0, device="cpu")
    model = PPG("MlpPolicy", Four(), objective=WithKnownValues, policy_kwargs=network, **sizes | again)
    set_values(model.policy, [0.0] * 4)
    calls = calls_of(model.objective, "joint_losses")
    model.learn(8)
    first, second = (np.sort(batch.advantages) for (_, batch, _), _ in calls[:2])
    np.testing.assert_allclose(first, np.array([-3, -1, 1, 3]) / 5**0.5, rtol=1e-5)
    expected = np.array([-3, 1, 1, 1]) / 3**0.5
    np.testing.assert_allclose(second, np.sort(np.repeat(expected, len(second) // 4)), rtol=1e-5)
