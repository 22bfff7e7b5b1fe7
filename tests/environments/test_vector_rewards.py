"""Environments with vector rewards: carriers of the vectors, drawn weights, bad numbers, MO-Gymnasium."""

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize

from sb3_ppg import PPG, ArgumentError, DrawnWeights, VectorRewards
from sb3_ppg.errors import NonFiniteEnvironmentError
from tests.helpers import SMALL, FirstReward, RandomEnv, VectorRewardEnv, learn_and_log


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


def test_vectors_are_in_the_infos_of_vec_envs():
    """SB3's array of rewards has the weighted sums, and each info its vector."""
    env = SubprocVecEnv([lambda: VectorRewards(VectorRewardEnv(), [2.0, -1.0])] * 2, start_method="fork")
    env.seed(0)
    twin = VectorRewardEnv()
    twin.reset(seed=0)
    env.reset()
    for _ in range(3):
        _, rewards, _, infos = env.step(np.array([1, 2]))
        vector = twin.step(1)[1]
        np.testing.assert_array_equal(infos[0]["vector_reward"], vector)
        np.testing.assert_allclose(rewards, [[2, -1] @ info["vector_reward"] for info in infos], rtol=1e-6)
    model = PPG("MlpPolicy", env, reward_weights=[0.5, 3.0], **SMALL)  # tells the environments its weights
    _, rewards, _, infos = env.step(np.array([1, 2]))
    np.testing.assert_allclose(rewards, [[0.5, 3] @ info["vector_reward"] for info in infos], rtol=1e-6)
    model.learn(16)
    env.close()
    assert model.num_timesteps == 16


def test_monitors_files_have_the_return_of_each_component(tmp_path):
    env = Monitor(VectorRewards(VectorRewardEnv(), [1.0, 10.0]), str(tmp_path / "log"), info_keywords=("return_0", "return_1"))
    log = learn_and_log(PPG("MlpPolicy", env, reward_weights=[1.0, 10.0], **SMALL), 64)
    env.close()
    episodes = pd.read_csv(tmp_path / "log.monitor.csv", comment="#")
    assert len(episodes) >= 5
    np.testing.assert_allclose(episodes["r"], episodes["return_0"] + 10 * episodes["return_1"], atol=1e-4)
    for k in range(2):
        np.testing.assert_allclose(log[f"rollout/ep_rew_mean/{k}"], episodes[f"return_{k}"].mean(), rtol=1e-5)


def test_returns_of_components_begin_again_with_the_episodes():
    """Also with those that ``learn`` begins; ``VecMonitor`` counts the episodes."""
    env = VecMonitor(DummyVecEnv([lambda: VectorRewards(VectorRewardEnv())] * 2))
    model = PPG("MlpPolicy", env, reward_weights=[1.0, 10.0], **SMALL).learn(16).learn(64)
    assert len(model.ep_info_buffer) >= 5
    for episode in model.ep_info_buffer:
        np.testing.assert_allclose(np.dot([1, 10], episode["vector_return"]), episode["r"], atol=1e-4)


@pytest.mark.parametrize("make", [VectorRewardEnv, ListReward, lambda: Monitor(ListReward())])
def test_a_single_environment_is_wrapped(make, tmp_path):
    model = PPG("MlpPolicy", make(), reward_weights=[1.0, 2.0], **SMALL)
    model.save(tmp_path / "model")
    for one in (model, PPG.load(tmp_path / "model", env=make())):
        assert one.env.get_attr("weights")[0].tolist() == [1, 2]
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

    PPG("MlpPolicy", Combined(VectorRewardEnv()), **SMALL).learn(16)
    log = learn_and_log(PPG("MlpPolicy", Combined(VectorRewardEnv()), reward_weights=[1.0, 1.0], **SMALL), 64)
    assert "train/explained_variance/1" in log


def test_a_bad_component_is_named():
    model = PPG("MlpPolicy", make_vec_env(lambda: VectorRewards(BadReward()), 1), reward_weights=[1.0, 0.0], **SMALL)
    with pytest.raises(NonFiniteEnvironmentError, match="reward component 1 of environment 0 is nan after step 5"):
        model.learn(16)


@pytest.mark.parametrize(
    ("env", "weights", "complaint"),
    [
        (lambda: VectorRewardEnv(), None, r"gives vectors as rewards.*use PPG\(..., reward_weights"),
        (ListReward, None, r"gives vectors as rewards.*use PPG\(..., reward_weights"),
        (ListReward, [1.0, 2.0, 3.0], r"gives the reward \[.*array of 3 numbers"),
        (lambda: DummyVecEnv([ListReward] * 2), [1.0, 2.0], "wrap each environment in sb3_ppg.VectorRewards"),
        (lambda: make_vec_env(ListReward, 2), [1.0, 2.0], "wrap each environment in sb3_ppg.VectorRewards"),
        (lambda: gym.vector.SyncVectorEnv([ListReward] * 2), [1.0, 2.0], "wrap each environment in sb3_ppg.VectorRewards"),
        (lambda: DrawnWeights(ListReward()), "observation", "no `reward_space` to say how many weights"),
        (lambda: VectorRewardEnv(), [1.0, 2.0, 3.0], "has 2 components of rewards"),
        (
            lambda: RandomEnv(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)),
            [1.0, 2.0],
            "'vector_reward'=None.*array of 2 numbers",
        ),
        (lambda: make_vec_env(VectorRewardEnv, 1, wrapper_class=VectorRewards), [1.0, 2.0], "must be inside Monitor"),
    ],
)
def test_environments_that_do_not_fit_are_refused(env, weights, complaint):
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
    class DictEnv(gym.ObservationWrapper):
        observation_space = spaces.Dict(position=spaces.Box(-1, 1, (3,)))

        def observation(self, observation):
            return {"position": observation}

    env = DrawnWeights(DictEnv(VectorRewardEnv()))
    assert env.observation_space.spaces.keys() == {"position", "weights"} == env.reset()[0].keys()


def test_normalised_weights_are_refused():
    def make(**kwargs):
        env = VecNormalize(make_vec_env(lambda: DrawnWeights(VectorRewardEnv()), 1), norm_reward=False, **kwargs)
        return PPG("MultiInputPolicy", env, reward_weights="observation", **SMALL)

    with pytest.raises(ArgumentError, match="would normalize the weights"):
        make()
    make(norm_obs_keys=["observation"]).learn(16)


# ---- MO-Gymnasium ----


@pytest.mark.parametrize("env_id", ["deep-sea-treasure-v0", "four-room-v0", "mo-mountaincarcontinuous-v0"])
def test_mo_gymnasiums_environments(env_id):
    pytest.importorskip("mo_gymnasium")
    env = gym.make(f"mo_gymnasium:{env_id}", disable_env_checker=True)
    n_components = env.unwrapped.reward_space.shape[0]
    log = learn_and_log(PPG("MlpPolicy", env, reward_weights=[1.0] * n_components, **SMALL), 32)
    assert f"train/value_unit/{n_components - 1}" in log


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
