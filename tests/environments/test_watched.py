"""Bad numbers and dead workers are named, and spoil nothing."""

import copy
import itertools
import os
import pickle
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize
from torch import nn

from sb3_ppg import PPG, NonFiniteLossError, PhasicCallback, PhasicCheckpointCallback, RewardNormalizer
from sb3_ppg.errors import ArgumentError, NonFiniteEnvironmentError, NonFiniteError, WorkerError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Objective
from sb3_ppg.optim.update import Update
from tests.helpers import THREE_ACTIONS, VECTOR, RandomEnv, StepsChanged, random_envs, run_in_a_new_process
from tests.saving.small_models import numbers_of, small


class Spoiled(gym.Wrapper):
    """CartPole with a bad number in one place of its observations, or as its reward, at one step."""

    def __init__(self, at: int, what: str, value: float):
        super().__init__(gym.make("CartPole-v1", max_episode_steps=5))
        self.at, self.what, self.value, self.steps = at, what, value, 0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        self.steps += 1
        if self.steps == self.at and self.what == "observation":
            obs[2] = self.value
        elif self.steps == self.at:
            reward = self.value
        return obs, reward, *rest


class Diverging(RandomEnv):
    """A simulation that ends an episode where it diverges, with a last observation that is not finite."""

    def __init__(self, is_cut_off: bool):
        super().__init__(episode_length=5)
        self.is_cut_off = is_cut_off

    def step(self, action):
        obs, reward, _, is_over, info = super().step(action)
        obs = obs * np.float32(np.nan) if is_over else obs
        return obs, reward, is_over and not self.is_cut_off, is_over and self.is_cut_off, info


@pytest.mark.parametrize("wrap", [lambda venv: venv, VecNormalize], ids=["plain", "VecNormalize"])
def test_a_bad_last_observation_matters_only_where_its_value_is_asked_for(wrap):
    """Where an episode is cut off, the value of its last observation is a part of the last reward."""
    small(env=wrap(DummyVecEnv([lambda: Diverging(False)] * 2))).learn(64)
    with pytest.raises(NonFiniteEnvironmentError, match="last observation of an episode of environment 0 is nan after step 5"):
        small(env=wrap(DummyVecEnv([lambda: Diverging(True)] * 2))).learn(64)
    with pytest.raises(NonFiniteEnvironmentError, match="last observation of an episode of environment 0 is nan after step 5"):
        small(env=wrap(DummyVecEnv([lambda: Diverging(False)] * 2)), ignore_terminations=True).learn(64)


class Foreign(VecEnv):
    """Environments like SuperSuit's and Isaac Lab's, without the attributes that SB3's constructor sets."""

    num_envs, render_mode, unwrapped = 2, None, Diverging(False)
    observation_space, action_space = VECTOR, THREE_ACTIONS

    def __init__(self):
        pass

    def reset(self):
        return np.zeros((2, 3), np.float32)

    def step_wait(self):
        return np.zeros((2, 3), np.float32), np.zeros(2, np.float32), np.zeros(2, bool), [{}, {}]

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name)] * 2

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * 2

    def others(self, *args, **kwargs):
        return [None] * 2

    step_async = close = set_attr = env_method = seed = others


@pytest.mark.parametrize("wrap", [lambda venv: venv, VecNormalize], ids=["plain", "VecNormalize"])
def test_vectorised_environments_of_others(wrap):
    model = small(env=wrap(Foreign())).learn(64)
    assert model.num_timesteps == 64 and model.n_aux_phases == 1


def spoiled_above(venv: VecEnv, at: int) -> VecEnv:
    """Put a bad number into the normalized observations of one step."""
    steps = itertools.count(1)

    def change(obs, *rest):
        obs[2, 1] = np.nan if next(steps) == at else obs[2, 1]
        return obs, *rest

    return StepsChanged(venv, change)


def spoiled(at: int, what: str, value: float):
    return DummyVecEnv([partial(gym.make, "CartPole-v1")] * 2 + [partial(Spoiled, at, what, value)])


class Remember(BaseCallback):
    """Remembers VecNormalize's statistics, if there are some, after each step, where it can be pickled, too."""

    def _on_step(self) -> bool:
        pickle.dumps(self.model.get_vec_normalize_env())
        self.numbers = numbers_of(self.model.get_vec_normalize_env())
        return True


OBSERVATION, REWARD = "observation of environment 2 is nan", "reward of environment 2 is nan"
BAD_ENVIRONMENTS = {
    "plain": (lambda at: spoiled(at, "observation", np.inf), "observation of environment 2 is inf"),
    "plain reward": (lambda at: spoiled(at, "reward", np.nan), REWARD),
    "reward": (lambda at: VecNormalize(spoiled(at, "reward", np.nan)), REWARD),
    "last observation": (lambda at: VecNormalize(spoiled(at, "observation", np.nan)), "episode of environment 2 is nan"),
    "clipped": (lambda at: VecNormalize(spoiled(at, "observation", np.inf), training=False), "environment 2 is inf"),
    "inside of other wrappers": (
        lambda at: VecMonitor(VecNormalize(VecFrameStack(spoiled(at, "observation", np.nan), 2))),
        OBSERVATION,
    ),
    "normalised twice": (
        lambda at: VecNormalize(VecNormalize(spoiled(at, "observation", np.nan), norm_reward=False), norm_obs=False),
        OBSERVATION,
    ),
    "too large for a variance": (
        lambda at: VecNormalize(spoiled(at, "observation", 1e30)),
        "VecNormalize's statistics `obs_rms` are not finite",
    ),
    "from a wrapper further out": (
        lambda at: spoiled_above(VecNormalize(spoiled(0, "reward", 0)), at),
        "environment 2 is nan",
    ),
}


@pytest.mark.parametrize("place", BAD_ENVIRONMENTS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_bad_numbers_do_not_reach_statistics(place):
    """The error says where; the statistics are those of the step before."""
    make_env, message = BAD_ENVIRONMENTS[place]
    at = 10 if place == "last observation" else 11  # episodes have five steps
    model, remember = small(env=make_env(at)), Remember()
    with pytest.raises(NonFiniteEnvironmentError, match=f"{message}.* after step {(at - 1) % 8 + 1} of the rollout"):
        model.learn(10_000, callback=remember)
    now = numbers_of(model.get_vec_normalize_env())
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(now, remember.numbers, strict=True))


@pytest.mark.parametrize(("policy", "key"), [("MlpPolicy", ""), ("MultiInputPolicy", r" \(key 'a'\)")])
def test_a_bad_first_observation_is_named_and_does_not_reach_statistics(policy, key, tmp_path):
    vector = spaces.Box(-1, 1, (2,))

    class Bad(RandomEnv):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return {**obs, "a": obs["a"] * np.nan} if key else obs * np.nan, info

    venv = DummyVecEnv([lambda: Bad(spaces.Dict(a=vector, b=vector) if key else vector, spaces.Discrete(2))])
    for env in (VecNormalize(venv), venv):
        normalizer = env if env is not venv else None
        before = numbers_of(normalizer)
        with pytest.raises(NonFiniteEnvironmentError, match=f"first observation{key} of environment 0 is nan"):
            model = PPG(policy, env, n_steps=8, batch_size=8, device="cpu")
            model.learn(8, callback=PhasicCheckpointCallback(1, tmp_path), progress_bar=True)
        assert not list(tmp_path.iterdir())
        assert all(np.array_equal(ours, theirs) for ours, theirs in zip(numbers_of(normalizer), before, strict=True))

    class Sets(PhasicCallback):
        def _on_rollout_end(self) -> None:
            self.model.set_env(env)

    env = VecNormalize(venv)
    model = PPG(
        policy, random_envs(venv.observation_space, venv.action_space, n_envs=1), n_steps=8, batch_size=8, device="cpu"
    )
    with pytest.raises(NonFiniteEnvironmentError, match=f"first observation{key} of environment 0 is nan"):
        model.learn(16, callback=Sets())
    assert all(np.isfinite(number).all() for number in numbers_of(env))


def test_errors_that_are_not_about_results_stay_as_they_are():
    """A function without a module, and ``Monitor``, which asks ``reset`` and infos for keywords."""

    class Formula(RandomEnv):
        def step(self, action):
            names: dict[str, Any] = {}
            exec("def formula(): raise ValueError('mine')", names)
            del names["__builtins__"]
            return names["formula"]()

    for env, error, message in (
        (Formula(), ValueError, "mine"),
        (Monitor(RandomEnv(), reset_keywords=("level",)), ValueError, "Expected you to pass keyword argument level"),
        (Monitor(RandomEnv(episode_length=5), info_keywords=("goals",)), KeyError, "goals"),
    ):
        with pytest.raises(error, match=message) as caught:
            PPG("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(8)
        assert type(caught.value) is error


@pytest.mark.parametrize("reward", [np.nan, 1e300])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_bad_rewards_do_not_reach_the_authors_normaliser(reward):
    normalizer, starts = RewardNormalizer(), np.zeros((4, 2))
    normalizer.normalize(np.ones((4, 2)), starts)
    before = copy.deepcopy(vars(normalizer))
    with pytest.raises(NonFiniteError, match=r"The reward of environment 1 at step 2|too large"):
        normalizer.normalize(np.array([[1, 1], [1, 1], [1, reward], [1, 1]]), starts)
    assert np.array_equal(normalizer.last_returns, before["last_returns"])
    assert vars(normalizer.return_rms) == vars(before["return_rms"])


@pytest.mark.parametrize("vectorized", [DummyVecEnv, SyncVectorEnv])
@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Discrete(4), np.array([1])),
        (VECTOR, np.zeros((3, 1), np.float32)),
        (VECTOR, [[1, 2], [3]]),
        (spaces.Dict(a=VECTOR, b=VECTOR), {"a": np.zeros(3, np.float32)}),
    ],
    ids=["number in an array", "column", "rows of different lengths", "missing key"],
)
def test_an_observation_that_does_not_fit_its_space_is_named(space, observation, vectorized):
    envs = [lambda: TransformObservation(RandomEnv(space), lambda _: observation, space)] * 2
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"
    with pytest.raises(ArgumentError, match=r"an observation.* that does not fit its `observation_space`, (Disc|Box|Dict)"):
        PPG(policy, vectorized(envs), n_steps=8, batch_size=8, device="cpu").learn(8)


def test_a_gradient_that_is_not_finite_or_whose_norm_overflows_is_named_and_leaves_the_weights():
    """d sqrt(x)/dx at 0 is infinite; in the other case, only the norm is."""
    networks = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(2))
    parameters = [network.weight for network in networks]
    before = [weight.detach().clone() for weight in parameters]

    def fails(message: str, function, **options) -> None:
        def losses(networks, batch, coefficients):
            error = function(*(network(batch[0]) for network in networks))
            return Losses(error, {"error": error})

        optimizer = th.optim.Adam(parameters, fused=True)
        with pytest.raises(NonFiniteLossError, match=message):
            update = Update("policy", networks, Objective(networks), losses, optimizer, 1e-3, None, **options)
            update.epoch([(th.ones(3, 2),)])
        assert all(th.equal(weight, was) for weight, was in zip(parameters, before, strict=True)) and not optimizer.state

    fails(r"policy phase met a gradient that is not finite, that of 0.weight", lambda one, _: (one * 0).abs().sqrt().mean())
    fails(r"gradient whose norm is not finite\.", lambda one, two: 1e30 * one.mean() + two.mean(), max_grad_norm=0.5)


class Dying(gym.Wrapper):
    """Kills its own process at the given step; 0 is the first reset."""

    def __init__(self, at: int):
        super().__init__(gym.make("CartPole-v1"))
        self.at, self.steps = at, 0

    def reset(self, **kwargs):
        if self.at == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def lose_a_worker(start_method: str, at: int, folder: Path, is_set_later: bool = False) -> None:
    env = VecNormalize(SubprocVecEnv([partial(Dying, steps) for steps in (1000, at, 1000)], start_method=start_method))
    asked = "step" if at else "reset"
    message = rf"A worker.* died when it was asked to {asked}: environment 1 \(\d+, exit code -9\)"
    sets = PhasicCallback()
    if is_set_later:
        sets._on_rollout_end = lambda: sets.model.env is env or sets.model.set_env(env)
    with pytest.raises(WorkerError, match=message):
        model = small(env=VecNormalize(make_vec_env("CartPole-v1", 3)) if is_set_later else env)
        model.learn(10_000, callback=[PhasicCheckpointCallback(100, folder), sets])
    env.close()
    assert bool([*folder.glob("*.zip")]) == (at > 0)


@pytest.mark.slow
def test_a_worker_that_dies_is_named(tmp_path):
    """With fork, its siblings hold the other end of its pipe: SB3 would wait forever."""
    for at, is_set_later in ((0, False), (11, False), (11, True)):
        run_in_a_new_process(lose_a_worker, "fork", at, tmp_path / f"{at}_{is_set_later}", is_set_later)
    lose_a_worker("forkserver", 11, tmp_path / "forkserver")
