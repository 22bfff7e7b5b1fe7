"""Collecting rollouts: which ends of episodes are bootstrapped, runs that are stopped, and unusual observations."""

import itertools
import re
from contextlib import nullcontext
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, RecurrentPPG
from sb3_ppg.family import with_preset
from tests.helpers import (
    BOX,
    KINDS,
    MIXED,
    SMALL,
    VECTOR,
    MaskedEnv,
    RandomEnv,
    Reusing,
    StepsChanged,
    changed,
    collect,
    normalized_rewards,
    saved_and_loaded,
)
from tests.helpers import make_with_papers_values as make


class Untold(gym.Wrapper):
    """Reports time limits as terminations."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


class Countdown(gym.Env):
    """Episodes have these lengths, with a reward of 1 in each step; observations are the number of steps so far."""

    observation_space, action_space = spaces.Box(0, 10, (1,)), spaces.Discrete(2)

    def __init__(self, lengths=(3,), ends=(True, False)):
        self.lengths, self.ends = itertools.cycle(lengths), ends

    def reset(self, *, seed=None, options=None):
        self.steps, self.length = 0, next(self.lengths)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        ends = self.ends if self.steps == self.length else (False, False)
        return np.full(1, self.steps, np.float32), 1.0, *ends, {}


def trained(kind: str, wrap, **kwargs) -> PPG:
    """Train on episodes of 7 steps."""
    if kind == "normalized rewards":
        kind, kwargs = "vectors", kwargs | normalized_rewards(gamma=0.99)
    algorithm, policy, _, policy_kwargs = KINDS[kind]
    inner = MaskedEnv if kind == "masks" else partial(RandomEnv, episode_length=7)
    env = make_vec_env(lambda: wrap(inner()), 2, seed=0)
    return algorithm(policy, env, **{**SMALL, "policy_kwargs": policy_kwargs, **kwargs}).learn(4 * 16)


@pytest.mark.parametrize("kind", ["vectors", "LSTM", "masks", "normalized rewards"])
def test_ends_that_are_ignored_are_time_limits(kind):
    """Update for update, with both phases; without the argument the same episodes lead to another training."""
    truncated = trained(kind, gym.Wrapper)
    ignored = trained(kind, Untold, ignore_terminations=True)
    ended = trained(kind, Untold)
    assert truncated.n_aux_phases == ignored.n_aux_phases > 0
    assert not changed(truncated, ignored)
    assert changed(truncated, ended)
    for name in ("rewards", "advantages", "returns"):
        np.testing.assert_array_equal(*(getattr(model.rollout_buffer, name) for model in (truncated, ignored)))


@pytest.mark.parametrize(("ignored", "is_limit"), [(False, [0, 0]), (True, [1, 1]), (3, [1, 0]), (4, [0, 0])])
def test_the_last_reward_has_the_discounted_value_of_the_last_observation(ignored, is_limit):
    """
    With V = 2 everywhere and a discount of 0.9, the last of three rewards of 1 is 1 + 0.9 * 2. The rewards of the environments
    are integers, which stay as they are.
    """
    ones = np.ones(1, int)
    env = StepsChanged(DummyVecEnv([lambda: Countdown([3, 2])]), lambda obs, _, *rest: (obs, ones, *rest))
    model = make(env, n_steps=5, batch_size=5, gamma=0.9, ignore_terminations=ignored)
    with th.no_grad():
        model.policy.value_net.weight.zero_()
        model.policy.value_net.bias.fill_(2.0)
    collect(model)
    last = 1 + 1.8 * np.array(is_limit)
    np.testing.assert_allclose(model.rollout_buffer.rewards.flatten(), [1, 1, last[0], 1, last[1]], rtol=1e-6)
    # A value target does not reach into the next episode
    np.testing.assert_allclose(model.rollout_buffer.returns.flatten()[[2, 4]], last, rtol=1e-6)
    assert ones == 1


class Bootstraps(BaseCallback):
    """Computes the rewards with the values of last observations, one environment after the other."""

    def _on_training_start(self):
        self.rewards = []

    def _on_step(self):
        policy, rewards = self.model.policy, np.array(self.locals["rewards"], np.float32)
        for index in np.flatnonzero(self.locals["dones"]):
            last, _ = policy.obs_to_tensor(self.locals["infos"][index]["terminal_observation"])
            memory = {name: array[[index]] for name, array in self.locals["memory"].items()}
            with th.no_grad():
                rewards[index] += self.model.gamma * policy.next_values(policy.step_batch(last, np.zeros(1), memory)).item()
        self.rewards.append(rewards)
        return True


class GivesTuples(gym.ObservationWrapper):
    def observation(self, observation):
        return tuple(observation.tolist())


@pytest.mark.parametrize("kind", ["vectors", "tuples", "Dict", "LSTM"])
def test_several_environments_are_cut_off_in_a_step(kind):
    algorithm, policy, _, policy_kwargs = KINDS["vectors" if kind == "tuples" else kind]
    space, wrap = MIXED if kind == "Dict" else VECTOR, GivesTuples if kind == "tuples" else gym.Wrapper
    envs = DummyVecEnv([lambda n=n: wrap(RandomEnv(space, BOX, episode_length=n)) for n in (3, 4, 3, 2)])
    model, callback = algorithm(policy, envs, **SMALL, policy_kwargs=policy_kwargs), Bootstraps()
    model.learn(32, callback=callback)
    np.testing.assert_allclose(model.rollout_buffer.rewards, callback.rewards, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("env", "n_steps", "ignored", "length"),
    [
        (dict(), 60, False, 3),
        (dict(ends=(True, True)), 60, False, 3),
        (dict(), 60, 4, 3),  # the wrong step
        (dict(), 15, False, None),  # too few episodes
        (dict(), 60, 3, None),
        (dict(), 60, True, None),
        (dict(lengths=[1]), 60, False, None),
        (dict(lengths=[2] * 9 + [3]), 290, False, None),  # most of the late ends are earlier
        (dict(lengths=[3] * 9 + [2]), 60, False, 3),
        (dict(lengths=[3] * 9 + [9]), 60, False, None),
        (dict(ends=(False, True)), 60, False, None),
    ],
)
def test_time_limits_that_seem_to_be_reported_as_terminations_are_warned_of_once(env, n_steps, ignored, length, recwarn):
    model = make(DummyVecEnv([lambda: Countdown(**env)]), n_steps=5, batch_size=5, ignore_terminations=ignored)
    for _ in range(n_steps // 5):  # episodes go on in the next call
        model.learn(5, reset_num_timesteps=False)
    messages = [str(warning.message) for warning in recwarn if "ignore_terminations" in str(warning.message)]
    expected = f"10 episodes or more ended at step {length}, .* use `ignore_terminations`={length};"
    assert len(messages) == (length is not None) and all(re.match(expected, message) for message in messages)


def test_another_environment_may_hide_its_limits(recwarn):
    model = make(DummyVecEnv([lambda: Countdown(ends=(False, True))]), n_steps=5, batch_size=5).learn(60)
    model.set_env(DummyVecEnv([Countdown]))
    for _ in range(2):
        model.learn(60)
        model.set_env(model.get_env())
    assert sum("ignore_terminations" in str(warning.message) for warning in recwarn) == 1


@pytest.mark.parametrize("n_steps, observation, is_start", [(3, 0, True), (4, 1, False)])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_after_a_callback_stopped_a_run_it_goes_on_from_the_latest_observation(n_steps, observation, is_start, error):
    """SB3 goes on from the one before, which the environment has left. IDAAC counts the steps of an episode."""

    def stops(found, _):
        if error is not None and found["self"].num_timesteps == n_steps:
            raise error
        return found["self"].num_timesteps < n_steps

    model = make(DummyVecEnv([Countdown]), **with_preset("idaac", {}))
    with nullcontext() if error is None else pytest.raises(error):
        model.learn(100, callback=stops)
    assert model.objective.episode_steps[-1].item() == model._last_obs.item() == observation
    buffer = model.learn(16, reset_num_timesteps=False).rollout_buffer
    assert buffer.observations[0].item() == observation and buffer.episode_starts[0].item() == is_start


@pytest.mark.parametrize("kind", ["vectors", "images", "Dict", "LSTM", "masks"])
def test_environments_may_write_each_step_into_the_same_arrays(kind):
    algorithm, policy, make_envs, policy_kwargs = KINDS[kind]
    fresh, reusing = (
        algorithm(policy, env, **SMALL, policy_kwargs=policy_kwargs).learn(64) for env in (make_envs(), Reusing(make_envs()))
    )
    assert fresh.n_aux_phases == reusing.n_aux_phases > 0 and not changed(fresh, reusing)


def test_ends_without_a_last_observation_are_not_silently_zero():
    env = StepsChanged(DummyVecEnv([Countdown]), lambda obs, rewards, dones, infos: (obs, rewards, dones, [{}]))
    make(env).learn(16)
    message = "`ignore_terminations`=True cannot work: the info of environment 0 has no 'terminal_observation'.*use False"
    with pytest.raises(ArgumentError, match=message):
        make(env, ignore_terminations=True).learn(16)


PARTS = spaces.Dict(
    position=spaces.Box(-1, 1, (2,), np.float64),
    table=spaces.Box(-1, 1, (2, 2)),
    height=spaces.Box(-1, 1, ()),
    activation=spaces.Box(-1, 1, (0,)),
    mode=spaces.Discrete(3),
    flag=spaces.Discrete(2),
    flags=spaces.MultiBinary(2),
    choices=spaces.MultiDiscrete([2, 3]),
    level=spaces.Discrete(4),
)


class InPython(gym.Wrapper):
    """The same observations in Python's types, which Gymnasium's ``check_env`` accepts, but for one NumPy scalar."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.converted(obs), info

    def step(self, action):
        obs, *rest = self.env.step(action)
        return self.converted(obs), *rest

    def converted(self, obs):
        python = {key: part.tolist() for key, part in obs.items()}
        return python | {"flag": bool(obs["flag"]), "position": tuple(python["position"]), "level": obs["level"]}


class SideBySide(BaseFeaturesExtractor):
    """All numbers, also those of parts of shape () or (0,), which SB3's ``CombinedExtractor`` cannot flatten."""

    def __init__(self, space: spaces.Dict):
        super().__init__(space, spaces.flatdim(space))

    def forward(self, observations):
        parts = {**observations, "height": observations["height"][:, None]}
        return th.cat([part.flatten(1) for part in parts.values()], dim=1)


MODELS = {
    "ppg": (PPG, {}),
    "on disk": (PPG, dict(aux_buffer_kwargs=dict(storage="mmap"), ignore_terminations=True)),
    "replay": (PPG, dict(replay_kwargs=dict(policy_rollouts=2))),
    "LSTM": (RecurrentPPG, dict(policy="MultiInputLstmPolicy", policy_kwargs=dict(lstm_hidden_size=4))),
    "masks": (MaskablePPG, dict(ignore_terminations=True)),
    "DDCPG": (PPG, with_preset("ddcpg", {})),
    "IDAAC": (PPG, with_preset("idaac", {})),
}


@pytest.mark.parametrize("name", MODELS)
def test_observations_of_pythons_numbers_and_of_any_shape_are_those_of_arrays(name, tmp_path):
    """They train the same parameters, through time limits, both phases and exact resumption."""
    cls, arguments = MODELS[name]
    sizes = {**SMALL, "n_aux_epochs": min(1, arguments.get("n_aux_epochs", 1))}
    networks = dict(net_arch=[8], features_extractor_class=SideBySide) | arguments.get("policy_kwargs", {})
    arguments = {"policy": "MultiInputPolicy", **arguments, **sizes, "policy_kwargs": networks}
    trained = []
    for wrapper in (gym.Wrapper, InPython):
        inner = MaskedEnv if cls is MaskablePPG else partial(RandomEnv, episode_length=7)
        envs = make_vec_env(lambda make=inner, wrap=wrapper: wrap(make(PARTS)), 2, seed=0)
        model = cls(env=VecNormalize(envs, norm_obs_keys=["position", "height", "activation"]), **arguments)
        model.learn(3 * 16)
        trained.append(saved_and_loaded(model, tmp_path).learn(3 * 16, reset_num_timesteps=False))
    assert not changed(*trained)
    observation = InPython(MaskedEnv(PARTS)).reset(seed=0)[0]
    action, _ = trained[0].predict(observation, deterministic=True, epsilon=0.5)
    assert trained[0].action_space.contains(action)
