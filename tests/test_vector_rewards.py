"""Vector rewards: one component is PPG, and each component keeps its own discount and unit."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_ppg import (
    PPG,
    ArgumentError,
    DrawnWeights,
    MaskablePPG,
    NormalizedRewardDictRolloutBuffer,
    RecurrentPPG,
    RewardNormalizer,
    VectorRewards,
)
from sb3_ppg.buffers.rollouts import gae
from sb3_ppg.optim.value_units import set_value_units
from sb3_ppg.policies import VectorValueHead
from tests.helpers import SMALL, FirstReward, VectorRewardEnv, collect, learn_and_log, normalized_rewards, saved_and_loaded


class WithMasks(gym.Wrapper):
    """The first action is possible in the first steps of an episode only."""

    def action_masks(self) -> np.ndarray:
        return np.array([self.unwrapped.steps < 5, True, True])


def vector_envs(n_components: int = 2, n_envs: int = 2, wrapper: Any = VectorRewards) -> VecEnv:
    return make_vec_env(lambda: wrapper(WithMasks(VectorRewardEnv(n_components))), n_envs, seed=0)


LSTM = dict(algorithm=RecurrentPPG, policy="MlpLstmPolicy", policy_kwargs=dict(lstm_hidden_size=4))
SETTINGS: dict[str, Any] = {
    "joint": lambda: {},
    "two optimizers": lambda: dict(n_value_epochs=2, n_epochs=2),
    "detached": lambda: dict(policy_kwargs=dict(architecture="detached")),
    "raw values": lambda: dict(normalize_value_targets=False, micro_batch_size=3),
    "recomputed": lambda: dict(recompute_advantages=True, n_epochs=3),
    "replay": lambda: dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2)),
    "EWMA": lambda: dict(objective="ewma", normalize_value_targets="running"),
    "DDCPG": lambda: dict(objective="ddcpg", policy_kwargs=dict(architecture="shared")),
    "normalised": normalized_rewards,
    "LSTM": lambda: LSTM,
    "masks": lambda: dict(algorithm=MaskablePPG),
}


def make(env: VecEnv, algorithm: type[PPG] = PPG, policy: str = "MlpPolicy", **kwargs: Any) -> PPG:
    return algorithm(policy, env, **{**SMALL, "aux_batch_size": 8, **kwargs})


@pytest.mark.parametrize("name", SETTINGS)
def test_one_component_of_weight_one_is_ppg_update_for_update(name):
    kwargs = SETTINGS[name]()
    scalar = make(vector_envs(1, wrapper=FirstReward), **kwargs).learn(4 * 16)
    kwargs = SETTINGS[name]()  # with statistics of its own
    vector = make(vector_envs(1), reward_weights=[1.0], **kwargs).learn(4 * 16)
    assert np.array_equal(scalar.policy.parameters_to_vector(), vector.policy.parameters_to_vector())
    assert scalar.n_aux_phases == vector.n_aux_phases > 1


def test_each_component_has_its_own_discount():
    model = make(vector_envs(), reward_weights=[1.0, 3.0], n_steps=32, gamma=[0.5, 0.99], gae_lambda=[0.9, 0.7])
    collect(model)
    buffer, end = model.rollout_buffer, model.rollout_end
    total, weights = 0, np.float32([1, 3])
    for k, (gamma, gae_lambda, weight) in enumerate([(0.5, 0.9, 1), (0.99, 0.7, 3)]):
        rewards, values = buffer.vector_rewards[..., k], buffer.vector_values[..., k]
        advantages = gae(rewards, values, buffer.episode_starts, end.values[:, k], end.dones, gamma, gae_lambda)
        np.testing.assert_allclose(buffer.vector_returns[..., k], advantages + values, rtol=1e-5, atol=1e-5)
        total = total + weight * advantages
    np.testing.assert_allclose(buffer.advantages, total, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffer.values, buffer.vector_values @ weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(buffer.returns, total + buffer.values, rtol=1e-4, atol=1e-4)
    assert buffer.episode_starts[1:].any() and buffer.bootstrapped.any()


def test_time_limits_are_bootstrapped_by_each_component():
    """γ V(last observation), by the discount of the component."""

    class Short(VectorRewardEnv):
        def step(self, action):
            _, vector, _, _, info = super().step(action)
            return np.ones(3, np.float32), vector, False, self.steps == 3, info

    env = make_vec_env(lambda: VectorRewards(Short()), 1, seed=0)
    model = make(env, reward_weights=[1.0, 1.0], gamma=[0.5, 0.9])
    collect(model)
    with th.no_grad():
        value = model.policy.predict_values(th.ones(1, 3))[0].numpy()
    np.testing.assert_allclose(
        model.rollout_buffer.bootstrapped[:, 0], np.outer([0, 0, 1, 0, 0, 1, 0, 0], [0.5, 0.9] * value), rtol=1e-5
    )


# ---- heads and units ----


def test_the_loss_is_the_mean_over_components_in_their_units():
    head = VectorValueHead(2, 2)
    with th.no_grad():
        head.weight.copy_(th.eye(2))
        head.bias.zero_()
    head.change_units(np.zeros(2), np.array([1.0, 10.0]))
    latent, targets = th.tensor([[1.0, 20.0], [3.0, 40.0]]), th.tensor([[0.0, 0.0], [3.0, 60.0]])
    # errors 1 and 20, 0 and 20; in units 1 and 2, 0 and 2
    th.testing.assert_close(head.loss(latent, targets), th.tensor((1 + 4 + 0 + 4) / 4))
    th.testing.assert_close(head.loss(latent, targets, weights=th.tensor([2.0, 0.0])), th.tensor(2 * (1 + 4) / 4))
    with pytest.raises(ValueError, match="same shape"):
        head.loss(latent, targets[:, 0])


def test_changing_units_changes_no_value_and_no_step():
    model = make(vector_envs(), reward_weights=[1.0, 1.0]).learn(32)
    observations, _ = model.policy.obs_to_tensor(np.ones((1, 3), np.float32))
    optimizers = (model.policy.optimizer, model.value_optimizer, model.aux_optimizer)
    before, moments = model.policy.predict_values(observations), model.policy.optimizer.state[model.policy.value_net.weight]
    factor, squares = model.policy.value_net.std / th.tensor([2.0, 50.0]), moments["exp_avg_sq"].clone()
    set_value_units(model.policy, optimizers, np.array([1.0, -3.0]), np.array([2.0, 50.0]))
    th.testing.assert_close(model.policy.predict_values(observations), before, rtol=1e-4, atol=1e-4)
    th.testing.assert_close(moments["exp_avg_sq"], squares * factor[:, None] ** 2, rtol=1e-4, atol=0)
    assert squares.all()
    assert model.policy.value_net.std.tolist() == model.policy.aux_value_net.std.tolist() == [2, 50]


def test_units_are_standard_deviations_of_each_components_targets():
    model = make(vector_envs(), reward_weights=[1.0, 1.0], n_policy_iterations=2)
    collect(model)
    targets = model.rollout_buffer.vector_returns.reshape(-1, 2).copy()
    model.train()
    np.testing.assert_allclose(model.policy.value_net.std, np.maximum(targets.std(axis=0), 1), rtol=1e-5)
    np.testing.assert_allclose(model.policy.value_net.mean, targets.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_rewards_are_normalised_by_component():
    """Each component as if it were alone, so a component's scale has no effect."""
    normalizer, single = RewardNormalizer(), [RewardNormalizer(), RewardNormalizer()]
    generator, starts = np.random.default_rng(0), np.array([[1, 1], [0, 0], [0, 1]])
    for _ in range(2):
        rewards = generator.normal(size=(3, 2, 2)) * [1, 1000]
        expected = np.stack([one.normalize(rewards[..., k], starts) for k, one in enumerate(single)], axis=-1)
        np.testing.assert_array_equal(normalizer.normalize(rewards, starts), expected)
    assert normalizer.return_rms.var[1] > 1e4 * normalizer.return_rms.var[0]


# ---- one policy for all weights ----


@pytest.mark.parametrize("kwargs", [{}, normalized_rewards(NormalizedRewardDictRolloutBuffer)], ids=["raw", "normalised"])
def test_advantages_are_combined_by_the_weights_of_each_step(kwargs):
    env = vector_envs(wrapper=DrawnWeights)
    model = make(env, policy="MultiInputPolicy", reward_weights="observation", n_steps=32, gamma=[0.9, 0.5], **kwargs)
    collect(model)
    buffer = model.rollout_buffer
    weights = buffer.observations["weights"]
    advantages = buffer.vector_returns - buffer.vector_values
    np.testing.assert_allclose(buffer.advantages, (weights * advantages).sum(axis=-1), rtol=1e-4, atol=1e-4)
    assert len({tuple(row) for row in weights.reshape(-1, 2)}) == 2 + buffer.episode_starts[1:].sum()


# ---- arguments and files ----


def test_logs_have_each_component():
    log = learn_and_log(make(vector_envs(3), reward_weights=[1.0, 1.0, 1.0], n_steps=32), 128)
    for k in range(3):
        assert {f"rollout/ep_rew_mean/{k}", f"train/explained_variance/{k}", f"train/value_unit/{k}"} <= log.keys()
    assert {"aux/explained_variance", "aux/aux_explained_variance"} <= log.keys()


@pytest.mark.parametrize(
    ("kwargs", "complaint"),
    [
        (dict(reward_weights=[1.0, "b"]), "a list of numbers within 1e6"),
        (dict(reward_weights=[1.0, 1e7]), "a list of numbers within 1e6"),
        (dict(reward_weights="observation"), "the observations have no weights: wrap each .* in sb3_ppg.DrawnWeights"),
        (dict(gamma=[0.9, 0.9]), "`gamma`.*one for each component of the rewards, of which there are 1"),
        (dict(reward_weights=[1.0, 1.0], gae_lambda=[0.9]), "`gae_lambda`.*of which there are 2"),
        (dict(reward_weights=[1.0, 1.0], gamma=[0.9, 1.1]), "`gamma`.*from 0 to 1"),
        (dict(reward_weights=[1.0, 1.0], clip_range_vf=0.2), "`clip_range_vf`.*a loss of its own"),
        (dict(reward_weights=[1.0, 1.0], objective_kwargs=dict(value_clip=0.2)), "`value_clip`.*a loss of its own"),
        (
            dict(reward_weights=[1.0, 1.0], objective="daac", n_value_epochs=1, n_aux_epochs=0),
            "`clip_range`.*`value_net` has a loss of its own",
        ),
        (
            dict(reward_weights=[1.0, 1.0], objective="dna", n_value_epochs=1),
            "`reward_weights`.*DistillationObjective has its own value targets",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused(kwargs, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        make(vector_envs(), **kwargs)


def test_rewards_that_vec_normalize_changes_are_refused():
    with pytest.raises(ArgumentError, match=r"norm_reward=False.*NormalizedRewardRolloutBuffer"):
        make(VecNormalize(vector_envs()), reward_weights=[1.0, 1.0])
    make(VecNormalize(vector_envs(), norm_reward=False), reward_weights=[1.0, 1.0]).learn(16)


def test_statistics_of_other_rewards_are_refused():
    kwargs = normalized_rewards()
    make(vector_envs(), reward_weights=[1.0, 1.0], **kwargs).learn(16)
    for other in (dict(reward_weights=[1.0, 1.0, 1.0]), {}):
        with pytest.raises(ArgumentError, match="statistics of another number of components"):
            make(vector_envs(3), **other, **kwargs)


def test_scalar_value_heads_are_refused():
    from sb3_ppg.policies import MlpPolicy, ValueHead

    class ScalarHeads(MlpPolicy):
        def make_heads(self):
            return {name: ValueHead(64) for name in ("value_net", "aux_value_net")}

    with pytest.raises(ArgumentError, match=r"both value heads must be sb3_ppg.policies.VectorValueHead"):
        make(vector_envs(), policy=ScalarHeads, reward_weights=[1.0, 1.0])


def test_arrays_of_weights_and_other_weights_for_a_loaded_model(tmp_path):
    model = make(vector_envs(), reward_weights=np.array([1.0, 2.0])).learn(16)
    assert model.reward_weights == [1, 2]
    model.save(tmp_path / "model")
    env = vector_envs()
    loaded = PPG.load(tmp_path / "model", env=env, reward_weights=[0.0, 5.0])
    loaded.learn(16)
    assert loaded.rollout_buffer.reward_weights == [0, 5]
    assert np.array_equal(np.unique(loaded.rollout_buffer.weights.reshape(-1, 2), axis=0), [[0, 5]])
    model.reward_weights = [0.0, 1.0]  # which its buffer does not have
    with pytest.raises(ArgumentError, match="this model was made with others"):
        model.learn(8)


@pytest.mark.parametrize("kwargs", [{}, LSTM, dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2))])
def test_what_is_saved_within_a_phase_is_the_same(kwargs, tmp_path):
    model = make(vector_envs(), reward_weights=[1.0, 3.0], n_policy_iterations=3, **kwargs).learn(32)
    loaded = saved_and_loaded(model, tmp_path)
    for ours, theirs in zip(loaded.aux_buffer.rollouts, model.aux_buffer.rollouts, strict=True):
        one, other = ours.context, theirs.context
        assert one.keys() == other.keys() and "component_targets" in one
        assert all(np.array_equal(one[name], other[name]) for name in one)
    for one, other in zip(loaded.replay.rollouts, model.replay.rollouts if model.replay.capacity > 1 else [], strict=True):
        assert np.array_equal(one.buffer.vector_rewards, other.buffer.vector_rewards)
        assert np.array_equal(one.end.values, other.end.values)
