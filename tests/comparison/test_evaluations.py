"""The same episodes at every point of a run, while its clock stands still."""

import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import psutil
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize

from sb3_ppg import PPG, MaskablePPG, PhasicCheckpointCallback, RecurrentPPG
from sb3_ppg.comparison import evaluations
from sb3_ppg.comparison.evaluations import FIRST_SEED, Evaluations
from tests.helpers import VECTOR

ROLLOUT = dict(n_steps=32, device="cpu", seed=0)


class Remembering(gym.Env):
    """The reward depends on the seed, on the global generator and on how often the environment has been reset."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    n_resets = 0

    def __init__(self, n_steps: int = 5, sleep: float = 0.0, work: float = 0.0):
        self.n_steps, self.sleep, self.work = n_steps, sleep, work

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_evaluated = seed is not None and seed >= FIRST_SEED
        self.n_resets, self.step_number = self.n_resets + 1, 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.step_number += 1
        time.sleep(self.sleep * self.is_evaluated)
        end = time.process_time() + self.work
        while time.process_time() < end:
            pass
        reward = self.n_resets + float(action) + self.np_random.uniform() + np.random.uniform()
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, self.step_number >= self.n_steps, False, {}


class Lives(gym.Env):
    """An episode has three lives of a step."""

    observation_space, action_space = VECTOR, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_lives, self.reward = 3, float(self.np_random.integers(1, 10))
        self.ale = SimpleNamespace(lives=lambda: self.n_lives)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.n_lives -= 1
        return np.zeros(3, np.float32), self.reward, self.n_lives == 0, False, {}


def recorded(model, make_env, tmp_path, n_timesteps=320, wrap=lambda env: env, n_steps=None, **attributes) -> pd.DataFrame:
    """Train with evaluations, the whole run or these steps of it, and return their rows; a model that has steps goes on."""
    callback = Evaluations(str(tmp_path / f"{type(model).__name__}.csv"), n_timesteps)
    callback.make_envs = lambda n_envs, seed: wrap(make_vec_env(make_env, n_envs, seed))
    vars(callback).update(dict(n_episodes=6, n_envs=6) | attributes)
    model.learn(n_steps or n_timesteps, callback=callback, reset_num_timesteps=model.num_timesteps == 0)
    return pd.read_csv(callback.file)


@pytest.mark.parametrize("n_envs, deterministic", [(6, True), (4, False)])
@pytest.mark.parametrize("algorithm", [A2C, PPG, RecurrentPPG])
def test_equal_weights_have_equal_returns_at_all_points(algorithm, deterministic, n_envs, tmp_path):
    """Neither the past of environments nor the random numbers that the training has drawn count."""
    policy = "MlpLstmPolicy" if "Recurrent" in algorithm.__name__ else "MlpPolicy"
    model = algorithm(policy, make_vec_env(Remembering, seed=0), learning_rate=0.0, **ROLLOUT)
    rows = recorded(model, Remembering, tmp_path, n_envs=n_envs, deterministic=deterministic)
    assert list(rows["steps"]) == [*range(0, 321, 32)] and rows["seconds"].is_monotonic_increasing
    assert rows["return"].nunique() == 1 and rows["return"][0] < 5 * 4  # n_resets is 1
    assert rows["training_return"][1:].is_monotonic_increasing and np.isnan(rows["training_return"][0])


def test_each_episode_has_its_own_seed_however_many_are_played_at_once(tmp_path):
    returns = []
    for n_envs in (1, 4, 6):
        callback = Evaluations(str(tmp_path / f"{n_envs}.csv"), 32)
        callback.n_episodes, callback.n_envs = 6, n_envs
        callback.make_envs = partial(make_vec_env, "Pendulum-v1")
        callback.init_callback(PPO("MlpPolicy", "Pendulum-v1", **ROLLOUT))
        returns.append(callback.returns())
    np.testing.assert_allclose(returns[1], returns[0], rtol=1e-5)
    np.testing.assert_allclose(returns[2], returns[0], rtol=1e-5)
    assert len({*returns[0]}) == 6


def test_evaluations_do_not_change_the_training(tmp_path):
    parameters = []
    for folder in (None, tmp_path):
        model = PPG("MlpPolicy", make_vec_env(Remembering, seed=0), **ROLLOUT)
        recorded(model, Remembering, tmp_path, deterministic=False) if folder else model.learn(320)
        parameters.append(th.cat([each.detach().flatten() for each in model.policy.parameters()]))
    assert th.equal(*parameters)


def test_episodes_end_with_the_last_life(tmp_path):
    """The return is that of all three lives, although ``EpisodicLifeEnv`` ends an episode with each of them."""
    model = PPO("MlpPolicy", make_vec_env(Lives, seed=0, wrapper_class=EpisodicLifeEnv), **ROLLOUT)
    callback = Evaluations(str(tmp_path / "evaluations.csv"), 64)
    callback.make_envs = partial(make_vec_env, Lives, wrapper_class=EpisodicLifeEnv)
    model.learn(64, callback=callback)
    rows = pd.read_csv(callback.file)
    assert rows["return"].nunique() == 1 and 9 < rows["return"][0] < 27


def test_masks_and_statistics_and_stacked_frames_are_those_of_the_training(tmp_path):
    masked = partial(InvalidActionEnvDiscrete, dim=20, n_invalid_actions=18)
    rows = recorded(MaskablePPG("MlpPolicy", make_vec_env(masked, seed=0), **ROLLOUT), masked, tmp_path)
    assert rows["return"].max() > 25  # of 100 steps with two valid actions; of all twenty actions one is right

    def wrap(env, training=False):
        return VecFrameStack(VecNormalize(env, norm_reward=training, training=training), 2)

    env = wrap(make_vec_env("Pendulum-v1", seed=0), training=True)
    seen = []
    model = PPO("MlpPolicy", env, **ROLLOUT)
    rows = recorded(model, "Pendulum-v1", tmp_path, wrap=lambda env: seen.append(wrap(env)) or seen[-1])
    np.testing.assert_array_equal(seen[-1].venv.obs_rms.mean, env.venv.obs_rms.mean)
    assert rows["return"].max() < -500  # rewards are not normalized


def test_an_episode_that_does_not_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluations, "MAX_STEPS", 50)
    model = PPO("MlpPolicy", make_vec_env(Remembering, seed=0), **ROLLOUT)
    rows = recorded(model, partial(Remembering, n_steps=10**9), tmp_path)
    assert rows["return"].between(50, 50 * 4).all() and len(rows) == 11


@pytest.mark.parametrize("clock", ["processor", "wall"])
def test_the_clock_stands_still_during_evaluations(clock, tmp_path):
    options = dict(sleep=0.02) if clock == "wall" else dict(work=0.02)
    model = PPO("MlpPolicy", make_vec_env(Remembering, seed=0), **ROLLOUT)
    callback = evaluations.CLOCKS[clock]
    before = callback()
    rows = recorded(model, partial(Remembering, **options), tmp_path, clock=callback, n_episodes=1, n_envs=1)
    assert rows["seconds"].iloc[-1] < callback() - before - 11 * 5 * 0.02 + 0.1


def test_processor_seconds_include_those_of_workers(tmp_path):
    env = make_vec_env(Remembering, 2, env_kwargs=dict(work=0.01), vec_env_cls=SubprocVecEnv)
    rows = recorded(PPO("MlpPolicy", env, **ROLLOUT), Remembering, tmp_path)
    env.close()
    assert rows["seconds"].iloc[-1] > 320 * 0.01


def test_processor_seconds_include_those_of_processes_that_have_ended(monkeypatch):
    """Such as torch's compiler. On macOS, psutil says 0 for them."""
    times = psutil.Process.cpu_times
    monkeypatch.setattr(psutil.Process, "cpu_times", lambda process: (*times(process)[:2], 0.0, 0.0))
    before = evaluations.processor_seconds()
    code = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert evaluations.processor_seconds() - before > 0.25


def test_looking_at_the_processes_of_a_machine_costs_a_run_nothing(tmp_path, monkeypatch):
    def of_a_large_machine(*args: Any, **kwargs: Any) -> list:
        start = time.process_time()
        while time.process_time() - start < 0.05:
            pass
        return []

    monkeypatch.setattr(psutil.Process, "children", of_a_large_machine)
    short = dict(n_steps=8, device="cpu", seed=0)
    ppg = PPG("MlpPolicy", make_vec_env(Remembering), batch_size=8, n_epochs=1, n_aux_epochs=0, **short)
    for model in (A2C("MlpPolicy", make_vec_env(Remembering), **short), ppg):
        rows = recorded(model, Remembering, tmp_path, n_episodes=1, n_envs=1)
        assert rows["seconds"].iloc[-1] < 0.05 * 320 / 8


def test_a_checkpoint_knows_the_seconds_until_then(tmp_path):
    model = PPG("MlpPolicy", make_vec_env(Remembering, seed=0, env_kwargs=dict(work=0.01)), **ROLLOUT)
    callback = Evaluations(str(tmp_path / "PPG.csv"), 320)
    callback.make_envs = partial(make_vec_env, Remembering)
    model.learn(64, callback=[callback, PhasicCheckpointCallback(1, tmp_path, keep=None)])
    seconds = [PPG.load(tmp_path / f"ppg_model_{n}_steps.zip")._taken[0] for n in (32, 64)]
    assert 0.32 < seconds[0] < seconds[1] - 0.3


def test_a_run_that_starts_again_keeps_no_rows(tmp_path):
    for n_steps in (64, 320):  # the first is killed, without a checkpoint
        model = PPO("MlpPolicy", make_vec_env(Remembering, seed=0), **ROLLOUT)
        rows = recorded(model, Remembering, tmp_path, n_steps=n_steps)
    assert list(rows["steps"]) == [*range(0, 321, 32)]


def test_the_clock_is_not_asked_at_each_step_of_an_off_policy_algorithm(tmp_path, monkeypatch):
    asked: list[int] = []
    monkeypatch.setitem(evaluations.CLOCKS, "processor", lambda: asked.append(0) or time.perf_counter())
    model = DQN("MlpPolicy", make_vec_env(Remembering, seed=0), train_freq=1, device="cpu")
    recorded(model, Remembering, tmp_path, 100, n_episodes=1, n_envs=1)
    assert len(asked) <= 2 + 2 * 11


def test_a_run_that_continues_keeps_the_rows_until_its_checkpoint(tmp_path):
    model = PPG("MlpPolicy", make_vec_env(Remembering, seed=0, env_kwargs=dict(work=0.002)), **ROLLOUT)
    before = recorded(model, Remembering, tmp_path)
    model.num_timesteps, model._taken = 176, (100.0, 7.0)  # as in a checkpoint, with what its process had compiled
    after = recorded(model, Remembering, tmp_path, n_steps=144)
    pd.testing.assert_frame_equal(after[:6], before[:6])
    assert list(after["steps"])[6:] == [192, 224, 256, 288, 320] and after["seconds"].is_monotonic_increasing
    assert 100 < after["seconds"][6] < 110 and after["compile_seconds"][6] >= 7 > after["compile_seconds"][5]
