"""Data of an agent: as the environment gave it, with the exploration that was asked for, and as a Minari data set."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG
from sb3_ppg.offline import load_dataset, record, save_as_minari
from tests.helpers import BOX, DICT, SMALL, VECTOR, RandomEnv, Reusing, image_space, masked_envs, random_envs
from tests.offline.test_bcq import THREE, random_data
from tests.offline.test_data import assert_same


@pytest.fixture
def minari(tmp_path, monkeypatch):
    """Minari with an empty local store."""
    pytest.importorskip("h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


def test_a_recording_is_the_environments_before_normalization():
    env = VecNormalize(make_vec_env("CartPole-v1", 3, seed=0))
    agent = PPG("MlpPolicy", env, **SMALL).learn(200)
    before, count = env.obs_rms.mean.copy(), env.obs_rms.count
    data = record(agent, env, 301, seed=3)
    assert len(data) == 303 and (data.rewards == 1).all()  # equally many of each environment
    assert env.obs_rms.count == count and (env.obs_rms.mean == before).all()
    inside = np.setdiff1d(np.arange(302), data.ends)
    np.testing.assert_array_equal(data.next_observations[inside], data.observations[inside + 1])
    terminal = data.next_observations[data.terminations]
    assert (data.terminations.sum() > 3) and ((abs(terminal[:, 0]) > 2.4) | (abs(terminal[:, 2]) > 0.2)).all()
    assert set(data.ends[data.truncations[data.ends]]) <= {100, 201, 302}  # where the recording ends


def test_time_limits_are_truncations_and_environments_do_not_run_into_each_other():
    agent = PPG("MlpPolicy", random_envs(VECTOR, BOX), **SMALL)
    data = record(agent, random_envs(VECTOR, BOX, n_envs=1, episode_length=10), 35)
    assert data.ends.tolist() == [9, 19, 29, 34] and not data.terminations.any()
    assert record(agent, random_envs(VECTOR, BOX), n_steps=6).truncations.tolist() == [False, False, True] * 2


def test_environments_that_reuse_their_arrays_are_recorded_as_others():
    agent = PPG("MultiInputPolicy", random_envs(DICT, BOX), **SMALL)
    envs = (random_envs(DICT, BOX), Reusing(random_envs(DICT, BOX)))
    assert_same(*(record(agent, env, 50, deterministic=True, seed=1) for env in envs))


def test_noise_and_random_episodes_are_as_asked():
    """The agent always takes action 2 of 2, 3 and 4, or the middle of the box."""

    class Still:
        def predict(self, observations, state, starts, deterministic):
            action = np.full(2, 2) if is_discrete else np.tile((BOX.low + BOX.high) / 2, (2, 1))
            return action, state

    is_discrete = True
    env = random_envs(VECTOR, THREE, episode_length=10)
    assert (record(Still(), env, 200).actions == 2).all()
    assert np.mean(record(Still(), env, 2000, noise=0.3, seed=0).actions == 2) == pytest.approx(0.7 + 0.1, abs=0.03)
    episodes = record(Still(), env, 2000, random_episodes=0.25, seed=0).actions.reshape(-1, 10)
    assert np.mean((episodes == 2).all(axis=1)) == pytest.approx(0.75, abs=0.05)

    is_discrete, env = False, random_envs(VECTOR, BOX, episode_length=10)
    actions = record(Still(), env, 2000, noise=0.2, seed=0).actions
    np.testing.assert_allclose(actions.std(axis=0), 0.2 * 1.5, rtol=0.05)
    assert record(Still(), env, 20, noise=5, seed=0).actions.max() == 2
    with pytest.raises(ArgumentError, match="`random_episodes`=2 cannot work"):
        record(Still(), env, 10, random_episodes=2)


def test_a_normalizer_that_is_not_outermost_is_refused():
    env = VecFrameStack(VecNormalize(random_envs(VECTOR, BOX)), 2)
    with pytest.raises(ArgumentError, match="outermost"):
        record(PPG("MlpPolicy", env, **SMALL), env, 10)


def test_a_normalizer_that_changes_nothing_may_be_anywhere():
    """RL Zoo evaluates so agents that were trained on images with normalized rewards."""
    env = VecNormalize(random_envs(image_space(36, 36, 1), THREE), norm_obs=False)
    agent = PPG("CnnPolicy", env, **SMALL)
    assert agent.get_env() is not env  # which SB3 has transposed
    with pytest.raises(ArgumentError, match="outermost"):
        record(agent, agent.get_env(), 10)
    env.training = env.norm_reward = False
    data = record(agent, agent.get_env(), 10)
    np.testing.assert_array_equal(data.rewards, data.next_observations[:, 0, 0, 0])


@pytest.mark.parametrize(
    ("policy", "space", "actions"),
    [("MlpPolicy", VECTOR, BOX), ("MultiInputPolicy", DICT, THREE), ("CnnPolicy", image_space(40, 36, 3), THREE)],
    ids=["vectors", "Dict", "images"],
)
def test_a_recording_survives_minari(policy, space, actions, minari):
    env = random_envs(space, actions)
    agent = PPG(policy, env, **SMALL)
    data = record(agent, agent.get_env(), 50, seed=0)
    places = agent.observation_space, agent.action_space
    save_as_minari(data, "test/recorded-v0", *places)
    loaded = load_dataset("test/recorded-v0").fitted_to(*places)
    assert_same(loaded, data.fitted_to(*places))


def test_a_name_that_cannot_be_saved_under_is_refused_and_leaves_nothing(minari):
    """An environment that a function makes is saved without its description, in which Minari stores names of classes."""
    data = random_data(VECTOR, BOX, 10)
    gym.register("MadeByAFunction-v0", entry_point=lambda: RandomEnv(VECTOR, BOX))
    try:
        save_as_minari(data, "test/there-v0", VECTOR, BOX, env_id="MadeByAFunction-v0")
    finally:
        del gym.registry["MadeByAFunction-v0"]
    for name in ("test/no_version", "not a name-v0", "test/there-v0"):
        with pytest.raises(ArgumentError, match=f"cannot be saved as '{name}'"):
            save_as_minari(data, name, VECTOR, BOX)
    assert list(minari.list_local_datasets()) == ["test/there-v0"] and len(load_dataset("test/there-v0")) == 10


def test_agents_that_need_masks_and_nested_actions_are_refused():
    with pytest.raises(ArgumentError, match="`agent` cannot be recorded: MaskablePPG needs action masks"):
        record(MaskablePPG("MlpPolicy", masked_envs(), **SMALL), masked_envs(), 10)
    env = random_envs(VECTOR, spaces.Dict(a=THREE))
    with pytest.raises(ArgumentError, match="recorded actions are arrays of numbers, these are Dict"):
        record(PPG("MlpPolicy", env, **SMALL), env, 10)
