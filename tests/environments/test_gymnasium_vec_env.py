"""Gymnasium's vector environments as SB3's: nothing is lost or added where an episode ends."""

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import (
    DictInfoToList,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TransformReward,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, RecurrentPPG, VectorRewards
from sb3_ppg.environments import GymnasiumVecEnv
from tests.helpers import DICT, MaskedEnv, RandomEnv, VectorRewardEnv, image_space

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")
CART_POLE = partial(gym.make, "CartPole-v1", max_episode_steps=25)


class EndsInBothWays(RandomEnv):
    """An end in the time limit is also a termination, which counts."""

    def __init__(self):
        super().__init__(copy.deepcopy(DICT), spaces.Discrete(2), 7)

    def step(self, action):
        *step, truncated, info = super().step(action)
        return *step[:2], truncated, truncated, info


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("vectorized", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [CART_POLE, EndsInBothWays])
def test_the_same_steps_as_in_sb3s_own(make, vectorized, mode):
    ours = GymnasiumVecEnv(TransformReward(vectorized([make] * 3, autoreset_mode=mode), np.copy))
    theirs = make_vec_env(make, 3)
    for env in (ours, theirs):
        env.seed(5)
        env.action_space.seed(0)
    np.testing.assert_equal(ours.reset(), theirs.reset())
    n_ends = 0
    for _ in range(60):
        actions = np.array([theirs.action_space.sample() for _ in range(3)])
        (observations, rewards, dones, infos), expected = ours.step(actions), theirs.step(actions)
        np.testing.assert_equal(observations, expected[0])
        np.testing.assert_array_equal(rewards, expected[1])
        np.testing.assert_array_equal(dones, expected[2])
        for index in np.flatnonzero(dones):
            n_ends += 1
            np.testing.assert_equal(infos[index]["terminal_observation"], expected[3][index]["terminal_observation"])
            assert infos[index]["TimeLimit.truncated"] == expected[3][index]["TimeLimit.truncated"]
            for name in ("r", "l"):
                assert infos[index]["episode"][name] == pytest.approx(expected[3][index]["episode"][name], abs=1e-3)
    assert n_ends >= 6
    ours.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", AutoresetMode)
def test_without_shared_memory_no_transition_leads_into_another_episode(mode):
    """Gymnasium's workers then reset a second time in the step after a reset that was asked for."""
    warning = pytest.warns(UserWarning, match="without shared memory resets in the step after")
    with warning if mode == AutoresetMode.NEXT_STEP else nullcontext():
        env = GymnasiumVecEnv(AsyncVectorEnv([CART_POLE] * 2, shared_memory=False, autoreset_mode=mode))
    before, n_ends, is_asked = env.reset(), 0, True
    dynamics = gym.make("CartPole-v1").unwrapped
    for _ in range(60):
        if n_ends == 2 and is_asked:  # while an environment is about to be reset
            before, is_asked = env.reset(), False
        actions = np.array([env.action_space.sample() for _ in range(2)])
        observations, _, dones, infos = env.step(actions)
        for index, action in enumerate(actions):
            n_ends += dones[index]
            last = infos[index]["terminal_observation"] if dones[index] else observations[index]
            dynamics.reset()
            dynamics.state = before[index]
            is_lost = mode == AutoresetMode.NEXT_STEP and dones[index] and np.array_equal(last, before[index])
            assert is_lost or np.allclose(dynamics.step(action)[0], last, atol=1e-4)
        before = observations
    assert n_ends >= 4
    env.set_options([{"other": np.zeros(2)} for _ in range(2)])
    env.reset()
    env.set_options([{"low": 0.0}, {"low": -0.1}])
    with pytest.raises(NotImplementedError, match="the same options for all environments"):
        env.reset()
    env.close()


class Forgetful(CartPoleVectorEnv):
    """Does not forget at a reset that episodes have ended, as Gymnasium's environments in JAX do not."""

    def reset(self, **kwargs):
        ended = self.prev_done.copy()
        found = super().reset(**kwargs)
        self.prev_done = ended
        return found


@pytest.mark.filterwarnings("ignore:.*resets in the step after")
def test_a_reset_that_comes_late_is_a_lost_step():
    env = GymnasiumVecEnv(Forgetful(1))
    env.reset()
    while not env.step(np.zeros(1, dtype=int))[2][0]:
        pass
    env.reset()
    _, rewards, dones, infos = env.step(np.zeros(1, dtype=int))
    assert dones[0] and rewards[0] == 0 and infos[0]["TimeLimit.truncated"]
    assert not env.step(np.zeros(1, dtype=int))[2][0]


def test_infos_may_be_lists_already():
    PPG("MlpPolicy", DictInfoToList(gym.make_vec("Pendulum-v1", num_envs=2)), **SMALL).learn(32)


def test_steps_that_reset_have_vector_rewards_too():
    """Where environments put them into their infos, and a wrapper with a state resets in the next step."""
    env = NormalizeObservation(SyncVectorEnv([lambda: VectorRewards(VectorRewardEnv())] * 2))
    with pytest.warns(UserWarning, match="which is lost for training"):
        model = PPG("MlpPolicy", env, reward_weights=[0.5, 0.5], **SMALL).learn(64)
    assert model.num_timesteps == 64


class OwnObservations(NormalizeObservation):
    """Stands for a wrapper of another package."""


WITH_A_STATE = [
    *((wrapper, AutoresetMode.SAME_STEP) for wrapper in (NormalizeReward, RecordEpisodeStatistics)),  # others refuse the mode
    *(
        (wrapper, AutoresetMode.NEXT_STEP)
        for wrapper in (NormalizeReward, RecordEpisodeStatistics, NormalizeObservation, OwnObservations)
    ),
]


@pytest.mark.parametrize(("wrapper", "mode"), WITH_A_STATE)
def test_wrappers_with_a_state_have_the_one_that_they_have_elsewhere(wrapper, mode):
    def state(env: Any) -> np.ndarray:
        if wrapper is RecordEpisodeStatistics:
            return np.hstack([env.length_queue, env.return_queue])
        rms = env.return_rms if wrapper is NormalizeReward else env.obs_rms
        return np.hstack([rms.mean, rms.var, rms.count])

    ours, theirs = (wrapper(SyncVectorEnv([CART_POLE] * 3, autoreset_mode=mode)) for _ in range(2))
    if mode == AutoresetMode.NEXT_STEP:
        with pytest.warns(UserWarning, match=f"SyncVectorEnv in {wrapper.__name__} resets in the .*VecNormalize.*SAME_STEP"):
            venv = GymnasiumVecEnv(ours)
    else:
        venv = GymnasiumVecEnv(ours)
    venv.seed(0)
    venv.reset()
    theirs.reset(seed=0)
    theirs.action_space.seed(0)
    for _ in range(100):
        actions = theirs.action_space.sample()
        venv.step(actions)
        theirs.step(actions)
    np.testing.assert_array_equal(state(ours), state(theirs))


def test_wrappers_with_a_state_are_refused_where_nothing_resets_by_itself():
    env = NormalizeReward(SyncVectorEnv([CART_POLE] * 2, autoreset_mode=AutoresetMode.DISABLED))
    with pytest.raises(ArgumentError, match=r"SyncVectorEnv in NormalizeReward may lose its state .*SAME_STEP"):
        PPG("MlpPolicy", env, **SMALL)


def test_a_class_that_resets_in_the_next_step_trains_with_a_warning():
    """Where an episode ends there is one step more, of which nothing is learned, nor counted in evaluations."""
    with pytest.warns(UserWarning, match='CartPoleVectorEnv resets in the step after.*vectorization_mode="sync"'):
        env = GymnasiumVecEnv(gym.make_vec("CartPole-v1", num_envs=2))
    env.seed(0)
    env.reset()
    last = 0.0
    for _ in range(100):
        observations, rewards, dones, infos = env.step(np.ones(2, dtype=int))
        if dones[0] and "episode" in infos[0]:
            np.testing.assert_array_equal(infos[0]["terminal_observation"], observations[0])
            assert abs(observations[0, 2]) > 0.2 and not infos[0]["TimeLimit.truncated"]
            assert 8 <= infos[0]["episode"]["l"] <= 11
        elif dones[0]:
            assert rewards[0] == 0 and infos[0]["TimeLimit.truncated"] and (infos[0]["terminal_observation"] == last).all()
            assert np.abs(observations[0]).max() <= 0.05
        last = observations[0]
    model = PPG("MlpPolicy", env, **SMALL).learn(128)
    returns, lengths = evaluate_policy(model, env, 4, return_episode_rewards=True)
    assert returns == lengths and min(lengths) >= 8


def test_images_memory_masks_vectors_and_sb3s_wrappers():
    images = SyncVectorEnv([partial(RandomEnv, image_space(36, 36, 3), spaces.Discrete(2))] * 2)
    assert PPG("CnnPolicy", images, **SMALL).observation_space.shape == (3, 36, 36)
    MaskablePPG("MlpPolicy", SyncVectorEnv([MaskedEnv] * 2), **SMALL).learn(64).set_env(SyncVectorEnv([MaskedEnv] * 2))
    assert len(RecurrentPPG("MlpLstmPolicy", SyncVectorEnv([CART_POLE] * 2), **SMALL).learn(64).ep_info_buffer) > 0
    PPG("MlpPolicy", VecNormalize(GymnasiumVecEnv(SyncVectorEnv([CART_POLE] * 2))), **SMALL).learn(64)
    model = PPG("MlpPolicy", SyncVectorEnv([lambda: VectorRewards(VectorRewardEnv())] * 2), reward_weights=[0.5, 3.0], **SMALL)
    model.env.reset()
    _, rewards, _, infos = model.env.step(np.array([1, 2]))
    np.testing.assert_allclose(rewards, [[0.5, 3] @ info["vector_reward"] for info in infos], rtol=1e-6)


def test_attributes_are_those_of_the_environments():
    env = GymnasiumVecEnv(SyncVectorEnv([CART_POLE] * 3))
    env.set_attr("mine", 5)
    env.set_attr("mine", 7, indices=[1, 2])
    assert env.get_attr("mine") == [5, 7, 7]
    assert env.get_attr("mine", indices=[2, 1]) == [7, 7] and env.get_attr("render_mode") == [None] * 3
    with pytest.raises(NotImplementedError, match="no `indices`"):
        env.env_method("render", indices=[0])


class OwnMasks(gym.vector.VectorWrapper):
    """A class of its own, which has one method for all environments."""

    unwrapped = property(lambda self: self)

    def action_masks(self) -> np.ndarray:
        return np.array([[True, False], [False, True]])

    def note(self, number: int) -> None:
        self.noted = number

    def render(self) -> np.ndarray:
        return np.zeros((2, 8, 8, 3), np.uint8)


def test_methods_of_a_class_of_its_own_are_for_all_environments():
    env = GymnasiumVecEnv(OwnMasks(SyncVectorEnv([CART_POLE] * 2, autoreset_mode=AutoresetMode.SAME_STEP)))
    model = MaskablePPG("MlpPolicy", env, **SMALL).learn(64)
    assert (model.rollout_buffer.actions.reshape(-1, 2) == [0, 1]).all()
    assert env.env_method("note", 3) == [None, None] and env.get_attr("noted") == [3, 3]
    assert [picture.shape for picture in env.get_images()] == [(8, 8, 3)] * 2


class OtherArray:
    """An array like JAX's: not NumPy's, and only for reading."""

    def __init__(self, array: np.ndarray):
        self.array = array
        array.setflags(write=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array if dtype is None else self.array.astype(dtype)


class OtherArrays(VectorEnv):
    """Resets in the next step, as Gymnasium's environments in JAX do."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs, single_observation_space, single_action_space = 2, spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return OtherArray(np.zeros((2, 2), np.float32)), {"time": OtherArray(np.zeros(2))}

    def step(self, actions):
        self.t += 1
        rewards, dones, never = np.ones(2), np.array([self.t % 5 == 0, self.t % 7 == 0]), np.zeros(2, dtype=bool)
        step = (np.full((2, 2), self.t % 5 / 5, np.float32), rewards, dones, never)
        summaries = {"n": self.t, "mean": np.array(0.5), "log": {"task": "reach", "times": OtherArray(np.full(2, self.t))}}
        return *map(OtherArray, step), {"time": OtherArray(np.full(2, self.t)), **summaries}


class HiddenLimit(OtherArrays):
    """Reports a limit of five steps as a termination."""

    def step(self, actions):
        observations, rewards, _, never, infos = super().step(actions)
        return observations, rewards, OtherArray(np.full(2, self.t % 6 == 5)), never, infos


def test_a_hidden_time_limit_is_warned_of_where_a_step_is_lost_after_it():
    with pytest.warns(UserWarning, match="10 episodes or more ended at step 5, as terminations"):
        PPG("MlpPolicy", HiddenLimit(), **SMALL).learn(128)


def test_arrays_of_another_library_are_converted():
    model = PPG("MlpPolicy", OtherArrays(), **SMALL).learn(64)
    assert {episode["r"] for episode in model.ep_info_buffer} == {5, 7, 4, 6}  # the first step of later ones has reset
    model.env.reset()
    steps = [model.env.step(np.zeros(2, dtype=int)) for _ in range(6)]
    assert [rewards.tolist() for _, rewards, _, _ in steps] == [[1, 1]] * 5 + [[0, 1]]
    # Not what is said of all environments together
    assert steps[0][3] == [{"time": 1, "log": {"times": 1}}] * 2


class Silent(VectorEnv):
    """It does not say in which step it resets."""

    num_envs, single_observation_space, single_action_space = 1, spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


class Says(Silent):
    """It says so only where ale-py's environments say it for themselves."""

    autoreset_mode = AutoresetMode.SAME_STEP


class Other(Says):
    """Its own metadata count first, as those of a wrapper may."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}


def test_ends_of_episodes_that_cannot_be_found_are_an_error(monkeypatch):
    """Metadata of the base class, in which ale-py 0.12.1 writes the mode of its own environments, say nothing."""
    monkeypatch.setitem(VectorEnv.metadata, "autoreset_mode", AutoresetMode.NEXT_STEP)
    assert GymnasiumVecEnv(Says()).mode == AutoresetMode.SAME_STEP
    assert GymnasiumVecEnv(Other()).mode == AutoresetMode.NEXT_STEP
    with pytest.raises(ValueError, match="None is not a valid AutoresetMode"):
        PPG("MlpPolicy", Silent(), **SMALL)
