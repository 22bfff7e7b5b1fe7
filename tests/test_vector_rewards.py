"""Vector rewards: one component is PPG, each keeps its own discount and unit; environments, drawn weights, MO-Gymnasium."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TransformObservation
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from sb3_ppg import PPG, ArgumentError, DrawnWeights, MaskablePPG, RecurrentPPG, RewardNormalizer, VectorRewards
from sb3_ppg.buffers.rollouts import gae
from sb3_ppg.errors import NonFiniteEnvironmentError
from sb3_ppg.optim.value_units import set_value_units
from sb3_ppg.policies import MlpPolicy, ValueHead, VectorValueHead
from tests.buffers.test_rollouts import Silent
from tests.helpers import SMALL, RandomEnv, VectorRewardEnv, collect, learn_and_log, normalized_rewards, random_envs


class FirstReward(gym.Wrapper):
    """The first component of vector rewards as the reward."""

    def step(self, action):
        obs, vector, *rest = self.env.step(action)
        return obs, float(vector[0]), *rest


class WithMasks(gym.Wrapper):
    """The first action is possible in the first steps of an episode only."""

    def action_masks(self) -> np.ndarray:
        return np.array([self.unwrapped.steps < 5, True, True])


def vector_envs(n_components: int = 2, n_envs: int = 2, wrapper: Any = VectorRewards) -> VecEnv:
    return make_vec_env(lambda: wrapper(WithMasks(VectorRewardEnv(n_components))), n_envs, seed=0)


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
    "LSTM": lambda: dict(algorithm=RecurrentPPG, policy="MlpLstmPolicy", policy_kwargs=dict(lstm_hidden_size=4)),
    "masks": lambda: dict(algorithm=MaskablePPG),
}


def make(env: VecEnv, algorithm: type[PPG] = PPG, policy: str = "MlpPolicy", **kwargs: Any) -> PPG:
    return algorithm(policy, env, **{**SMALL, "aux_batch_size": 8, **kwargs})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_copy_learns_on(normalized, copied):
    """Although the class of its rollout buffer is made for it."""
    kwargs = normalized_rewards() if normalized else {}
    model = make(vector_envs(), reward_weights=[1.0, 0.5], **kwargs).learn(32)
    other = copied(model)
    assert type(other.rollout_buffer) is type(model.rollout_buffer)
    np.testing.assert_equal(other.rollout_buffer.vector_returns, model.rollout_buffer.vector_returns)
    assert other.learn(32, reset_num_timesteps=False).num_timesteps == 64


@pytest.mark.parametrize("name", SETTINGS)
def test_one_component_of_weight_one_is_ppg_update_for_update(name):
    scalar = make(vector_envs(1, wrapper=FirstReward), **SETTINGS[name]()).learn(4 * 16)
    vector = make(vector_envs(1), reward_weights=[1.0], **SETTINGS[name]()).learn(4 * 16)  # with statistics of its own
    assert np.array_equal(scalar.policy.parameters_to_vector(), vector.policy.parameters_to_vector())
    assert scalar.n_aux_phases == vector.n_aux_phases > 1


def test_each_component_has_its_own_discount_and_unit():
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
    targets = buffer.vector_returns.reshape(-1, 2).copy()
    model.train()
    np.testing.assert_allclose(model.policy.value_net.std, np.maximum(targets.std(axis=0), 1), rtol=1e-5)
    np.testing.assert_allclose(model.policy.value_net.mean, targets.mean(axis=0), rtol=1e-4, atol=1e-6)


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
    expected = np.outer([0, 0, 1, 0, 0, 1, 0, 0], [0.5, 0.9] * value)
    np.testing.assert_allclose(model.rollout_buffer.bootstrapped[:, 0], expected, rtol=1e-5)


# ---- heads and units ----


def test_the_loss_is_the_mean_over_components_in_their_units():
    head = VectorValueHead(2, 2)
    head.change_units(np.zeros(2), np.array([1.0, 10.0]))
    with th.no_grad():  # values of 1 and 20, 3 and 40
        head.weight.copy_(th.tensor([[1.0, 0.0], [0.0, 0.1]]))
        head.bias.zero_()
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


def test_rewards_are_normalised_by_component():
    """Each component as if it were alone, so a component's scale has no effect."""
    normalizer, single = RewardNormalizer(), [RewardNormalizer(), RewardNormalizer()]
    generator, starts = np.random.default_rng(0), np.array([[1, 1], [0, 0], [0, 1]])
    for _ in range(2):
        rewards = generator.normal(size=(3, 2, 2)) * [1, 1000]
        expected = np.stack([normalizer.normalize(rewards[..., k], starts) for k, normalizer in enumerate(single)], axis=-1)
        np.testing.assert_array_equal(normalizer.normalize(rewards, starts), expected)
    assert normalizer.return_rms.var[1] > 1e4 * normalizer.return_rms.var[0]


@pytest.mark.parametrize("kwargs", [{}, normalized_rewards(of_dictionaries=True)], ids=["raw", "normalised"])
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


def test_arguments_that_cannot_work_are_refused():
    equal = dict(reward_weights=[1.0, 1.0])
    for kwargs, complaint in (
        (dict(reward_weights=[1.0, "b"]), "a list of numbers within 1e6"),
        (dict(reward_weights=[1.0, 1e7]), "a list of numbers within 1e6"),
        (equal | dict(policy=ScalarHeads), r"value heads must be sb3_ppg.policies.VectorValueHead"),
        (dict(reward_weights="observation"), "the observations have no weights: wrap each .* in sb3_ppg.DrawnWeights"),
        (dict(gamma=[0.9, 0.9]), "`gamma`.*a list is for vector rewards: set `reward_weights`"),
        (equal | dict(gae_lambda=[0.9]), "`gae_lambda`.*a list of 2, one for each component"),
        (equal | dict(gamma=[0.9, 1.1]), "`gamma`.*from 0 to 1"),
        (equal | dict(clip_range_vf=0.2), "`clip_range_vf`.*a loss of its own"),
        (equal | dict(objective_kwargs=dict(value_clip=0.2)), "`value_clip`.*a loss of its own"),
        (equal | dict(objective_kwargs=dict(value_loss="huber")), "`value_loss`.*a loss of its own"),
        (equal | dict(rollout_buffer_class=Silent), "`reward_weights`.*own way to compute advantages"),
        (equal | dict(objective="daac", n_value_epochs=1, n_aux_epochs=0), "`clip_range`.*`value_net` has a loss of its own"),
        (equal | dict(objective="dna", n_value_epochs=1), "`reward_weights`.*`objective`='dna' has its own value targets"),
    ):
        with pytest.raises(ArgumentError, match=complaint):
            make(vector_envs(), **kwargs)


def test_statistics_of_other_rewards_are_refused():
    kwargs = normalized_rewards()
    make(vector_envs(), reward_weights=[1.0, 1.0], **kwargs).learn(16)
    for other in (dict(reward_weights=[1.0, 1.0, 1.0]), {}):
        with pytest.raises(ArgumentError, match="statistics of another number of components"):
            make(vector_envs(3), **other, **kwargs)


def test_arrays_of_weights_and_other_weights_for_a_loaded_model(tmp_path):
    model = make(vector_envs(), reward_weights=np.array([1.0, 2.0])).learn(16)
    assert model.reward_weights == [1, 2]
    model.save(tmp_path / "model")
    env = vector_envs()
    loaded = PPG.load(tmp_path / "model", env=env, reward_weights=[0.0, 5.0])
    loaded.learn(16)
    assert loaded.rollout_buffer.reward_weights == [0, 5]
    assert np.array_equal(np.unique(loaded.rollout_buffer.component_weights.reshape(-1, 2), axis=0), [[0, 5]])
    model.reward_weights = [0.0, 1.0]  # which its buffer does not have
    with pytest.raises(ArgumentError, match="this model was made with others"):
        model.learn(8)


# ---- environments ----


class BadReward(VectorRewardEnv):
    """The second component of the reward is NaN in the fifth step."""

    def step(self, action):
        obs, vector, *rest = super().step(action)
        return obs, np.array([vector[0], np.nan if self.steps == 5 else vector[1]]), False, *rest[1:]


class ListReward(VectorRewardEnv):
    """The reward is a list, and no `reward_space` says how long it is, as in lbforaging."""

    def __init__(self):
        super().__init__()
        del self.reward_space

    def step(self, action):
        obs, first, *rest = RandomEnv.step(self, action)
        return obs, [first, 0.5], *rest


def test_monitors_files_have_the_return_of_each_component(tmp_path):
    env = Monitor(VectorRewards(VectorRewardEnv(), [1.0, 10.0]), str(tmp_path / "log"), info_keywords=("return_0", "return_1"))
    log = learn_and_log(PPG("MlpPolicy", env, reward_weights=[1.0, 10.0], **SMALL), 64)
    env.close()
    episodes = pd.read_csv(tmp_path / "log.monitor.csv", comment="#")
    assert len(episodes) >= 5
    np.testing.assert_allclose(episodes["r"], episodes["return_0"] + 10 * episodes["return_1"], atol=1e-4)
    for k in range(2):
        np.testing.assert_allclose(log[f"rollout/ep_rew_mean/{k}"], episodes[f"return_{k}"].mean(), rtol=1e-5)
        assert {f"train/explained_variance/{k}", f"train/value_unit/{k}"} <= log.keys()
    assert {"aux/explained_variance", "aux/aux_explained_variance"} <= log.keys()


def test_returns_of_components_begin_again_with_the_episodes():
    """Also with those that ``learn`` begins; ``VecMonitor`` counts the episodes."""
    env = VecMonitor(DummyVecEnv([lambda: VectorRewards(VectorRewardEnv())] * 2))
    model = PPG("MlpPolicy", env, reward_weights=[1.0, 10.0], **SMALL).learn(16).learn(64)
    assert len(model.ep_info_buffer) >= 5
    for episode in model.ep_info_buffer:
        np.testing.assert_allclose(np.dot([1, 10], episode["vector_return"]), episode["r"], atol=1e-4)


SINGLE = [VectorRewardEnv, ListReward, lambda: Monitor(ListReward()), lambda: FlattenObservation(Monitor(ListReward()))]


@pytest.mark.parametrize("make", SINGLE)
def test_a_single_environment_is_wrapped(make, tmp_path):
    model = PPG("MlpPolicy", make(), reward_weights=[1.0, 2.0], **SMALL)
    model.save(tmp_path / "model")
    for each in (model, PPG.load(tmp_path / "model", env=make())):
        assert each.env.get_attr("weights")[0].tolist() == [1, 2]
    model.set_env(make())
    assert model.env.get_attr("weights")[0].tolist() == [1, 2]
    assert np.isfinite(evaluate_policy(model.learn(16), model.env, 2, warn=False)[0])
    _, rewards, _, infos = model.env.step([1])
    np.testing.assert_allclose(rewards, [[1, 2] @ infos[0]["vector_reward"]], rtol=1e-6)


def test_rewards_that_are_combined_inside_stay_as_they_are():
    """MO-Gymnasium's LinearReward needs no ``reward_weights``, and its vectors can be learned from."""

    class Combined(FirstReward):
        def step(self, action):
            obs, vector, *rest, info = self.env.step(action)
            return obs, float(vector.sum()), *rest, {**info, "vector_reward": vector}

    for given, used in ((None, [1, 1]), ([1.0, 3.0], [1, 3])):
        model = PPG("MlpPolicy", Combined(VectorRewardEnv()), reward_weights=given, **SMALL).learn(16)
        _, rewards, _, infos = model.env.step([1])
        np.testing.assert_allclose(rewards, [used @ infos[0]["vector_reward"]], rtol=1e-6)


def test_a_bad_component_is_named():
    model = PPG("MlpPolicy", make_vec_env(lambda: VectorRewards(BadReward()), 1), reward_weights=[1.0, 0.0], **SMALL)
    with pytest.raises(NonFiniteEnvironmentError, match="reward component 1 of environment 0 is nan after step 5"):
        model.learn(16)


class ScalarHeads(MlpPolicy):
    def make_heads(self):
        return {name: ValueHead(64) for name in ("value_net", "aux_value_net")}


def test_environments_that_do_not_fit_are_refused():
    for env, weights, complaint in (
        (lambda: VectorRewardEnv(), None, r"gives vectors as rewards.*use PPG\(..., reward_weights"),
        (ListReward, None, r"gives vectors as rewards.*use PPG\(..., reward_weights"),
        (ListReward, [1.0, 2.0, 3.0], r"gives the reward \[.*array of 3 numbers"),
        (lambda: DummyVecEnv([ListReward] * 2), [1.0, 2.0], "wrap each environment in sb3_ppg.VectorRewards"),
        (lambda: make_vec_env(ListReward, 2), [1.0, 2.0], "wrap each environment in sb3_ppg.VectorRewards"),
        (lambda: gym.vector.SyncVectorEnv([ListReward] * 2), [1.0, 2.0], "wrap each environment in sb3_ppg.VectorRewards"),
        (lambda: DrawnWeights(ListReward()), "observation", "no `reward_space` to say how many weights"),
        (lambda: VectorRewardEnv(), [1.0, 2.0, 3.0], "array of 3 numbers: use a weight for each component"),
        (random_envs, [1.0, 2.0], "'vector_reward'=None.*array of 2 numbers"),
        (lambda: make_vec_env(VectorRewardEnv, 1, wrapper_class=VectorRewards), [1.0, 2.0], "VectorRewards, by make_vec_env"),
        (lambda: VecNormalize(vector_envs()), [1.0, 1.0], r"norm_reward=False.*NormalizedRewardRolloutBuffer"),
    ):
        with pytest.raises(ArgumentError, match=complaint):
            PPG("MlpPolicy", env(), reward_weights=weights, **SMALL).learn(16)


# ---- drawn weights ----


def test_weights_are_drawn_for_each_episode_and_observed_unless_they_are_set():
    env = DrawnWeights(VectorRewardEnv())
    drawn = []
    for seed in (0, None, None):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        weights = observation["weights"]
        drawn.append(weights)
        for _ in range(3):
            observation, reward, _, _, info = env.step(1)
            assert env.observation_space.contains(observation) and np.array_equal(observation["weights"], weights)
            np.testing.assert_allclose(reward, weights @ info["vector_reward"], rtol=1e-6)
    assert len({tuple(weights) for weights in drawn}) == 3
    np.testing.assert_allclose(np.sum(drawn, axis=1), 1, rtol=1e-6)
    env.set_reward_weights([0.25, 0.75])
    assert np.array_equal(env.step(0)[0]["weights"], weights)
    assert env.reset()[0]["weights"].tolist() == [0.25, 0.75]
    env.set_reward_weights(None)
    np.testing.assert_array_equal(env.reset(seed=0)[0]["weights"], drawn[0])


def test_drawn_weights_are_added_to_a_dictionary():
    space = spaces.Dict(position=spaces.Box(-1, 1, (3,)))
    env = DrawnWeights(TransformObservation(VectorRewardEnv(), lambda observation: {"position": observation}, space))
    assert env.observation_space.spaces.keys() == {"position", "weights"} == env.reset()[0].keys()


def test_normalised_weights_are_refused():
    def make(**kwargs):
        env = VecNormalize(make_vec_env(lambda: DrawnWeights(VectorRewardEnv()), 1), norm_reward=False, **kwargs)
        return PPG("MultiInputPolicy", env, reward_weights="observation", **SMALL)

    with pytest.raises(ArgumentError, match="would normalize the weights"):
        make()
    make(norm_obs_keys=["observation"]).learn(16)


def test_mo_gymnasiums_vector_environments_need_weights():
    mo = pytest.importorskip("mo_gymnasium")
    from mo_gymnasium.wrappers.vector import MOSyncVectorEnv

    env = MOSyncVectorEnv([lambda: mo.make("deep-sea-treasure-v0")] * 2)
    model = PPG("MlpPolicy", env, reward_weights=[1.0, 0.5], **{**SMALL, "n_steps": 256})
    log = learn_and_log(model, 512)
    _, rewards, _, infos = model.env.step(np.array([1, 3]))
    np.testing.assert_allclose(rewards, [[1, 0.5] @ info["vector_reward"] for info in infos], rtol=1e-6)
    treasure, steps = (log[f"rollout/ep_rew_mean/{k}"] for k in range(2))
    assert treasure > 0 > steps
    with pytest.raises(ArgumentError, match="gives vectors of 2 numbers"):
        PPG("MlpPolicy", MOSyncVectorEnv([lambda: mo.make("deep-sea-treasure-v0")]), **SMALL).learn(8)
