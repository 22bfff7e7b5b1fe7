"""A policy with a memory of its own, which is neither LSTMs nor in the package."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_ppg import PPG, ArgumentError, MlpPolicy
from sb3_ppg.export import DeterministicPolicy
from sb3_ppg.family import with_preset
from tests.helpers import changed


class Two(FlattenExtractor):
    def __init__(self, space):
        super().__init__(space)
        self._features_dim *= 2


class Remembering(MlpPolicy):
    """Sees the previous observation as well, zeros when an episode begins."""

    input_keys = ("previous", "episode_starts")

    def evaluate(self, obs, previous, episode_starts, **options):
        return super().evaluate(th.cat([previous * (1 - episode_starts[:, None]), obs], dim=1), **options)

    def initial_memory(self, n_envs):
        return {"previous": th.zeros(n_envs, *self.observation_space.shape)}

    def act(self, batch):
        *result, _ = super().act(batch)
        return *result, {"previous": batch.observations}


class OfPairs(RolloutBuffer):
    def reset(self):
        super().reset()
        self.previous = np.zeros_like(self.observations)

    def add(self, *args, previous, **kwargs):
        self.previous[self.pos] = previous
        super().add(*args, **kwargs)


def test_a_memory_that_the_buffer_does_not_store_is_refused():
    with pytest.raises(ArgumentError, match=r"`rollout_buffer_class`=.*RolloutBuffer.*does not store the policy's previous;"):
        PPG(Remembering, "Pendulum-v1", policy_kwargs=dict(features_extractor_class=Two), device="cpu")


def test_what_only_predict_knows_is_refused_by_priors_and_exports():
    policy = dict(policy_kwargs=dict(features_extractor_class=Two), rollout_buffer_class=OfPairs, device="cpu")
    model = PPG(Remembering, "Pendulum-v1", **policy)
    with pytest.raises(ArgumentError, match="the agent's policy takes previous, episode_starts"):
        model.set_prior("self")
    with pytest.raises(ArgumentError, match="the policy takes previous, episode_starts"):
        DeterministicPolicy(model)


@pytest.mark.parametrize("again", [{}, dict(replay_kwargs=dict(policy_rollouts=2), objective="decoupled")])
def test_a_memory_of_the_previous_observation_is_a_stack_of_two(again):
    """Time limits, ends of rollouts and both phases: all weights are the same to the last bit."""
    sizes = dict(n_steps=64, batch_size=32, n_epochs=2, n_policy_iterations=2, n_aux_epochs=2, seed=0, device="cpu")
    env = [make_vec_env("Pendulum-v1", 2, seed=0, env_kwargs=dict(max_episode_steps=20)) for _ in range(2)]
    remembering = dict(policy_kwargs=dict(features_extractor_class=Two), rollout_buffer_class=OfPairs)
    ours = PPG(Remembering, env[0], **remembering, **sizes, **again).learn(512)
    expected = PPG("MlpPolicy", VecFrameStack(env[1], 2), **sizes, **again)
    expected.policy.numpy_actor = lambda: None  # both act through torch
    expected.learn(512)
    assert ours.n_aux_phases == 2
    assert not changed(ours, expected)


class Convolving(Two):
    def __init__(self, space):
        super().__init__(space)
        self.convolution = th.nn.Conv1d(1, 1, 1)

    def forward(self, observations):
        return super().forward(self.convolution(observations[:, None])[:, 0])


def test_a_network_with_convolutions_is_measured_with_the_inputs_of_its_own():
    """For the largest micro-batches that are fast on a CPU."""
    policy = dict(policy_kwargs=dict(features_extractor_class=Convolving), rollout_buffer_class=OfPairs, device="cpu")
    sizes = dict(n_steps=8, batch_size=8, n_policy_iterations=1)
    assert PPG(Remembering, "Pendulum-v1", **policy, **sizes, n_aux_epochs=1).learn(8).n_aux_phases == 1
    for objective, others in (("ddcpg", {}), ("idaac", dict(n_value_epochs=1))):
        with pytest.raises(ArgumentError, match="cannot work with LSTMs and other policies that take episode_starts"):
            PPG(Remembering, "Pendulum-v1", **with_preset(objective, policy | sizes | others))
