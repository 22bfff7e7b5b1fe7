"""Models as plain data: the same model comes back, bit for bit."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import msgspec
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_ppg import PPG, ArgumentError, MlpPolicy
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub import from_pretrained, load_vec_normalize, save_pretrained
from sb3_ppg.hub.pretrained import DESCRIPTION
from sb3_ppg.hub.schema import Counters, Space, make_space, space_struct
from tests.helpers import NESTED, SMALL, BatchNormExtractor, RandomEnv, image_space, normalized_rewards
from tests.hub.small_models import BOX, MODELS, PHASE, change, honest, refused, small_model, write
from tests.hub.watch import generator_states
from tests.saving.small_models import numbers_of, same

# ---- round trips ----


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name, tmp_path):
    """Predictions, parameters, optimizers and counters are the same, bit for bit, and so is the training that follows."""
    model, files, make_env = honest(name)
    loaded = from_pretrained(write(files, tmp_path), make_env(), "cpu")
    assert same(model, loaded)
    assert loaded.observation_space == model.observation_space and loaded.action_space == model.action_space
    assert type(loaded) is type(model) and type(loaded.policy) is type(model.policy)
    for counter in Counters.__struct_fields__:
        assert getattr(loaded, counter) == getattr(model, counter), counter
    np.testing.assert_equal(*(numbers_of(agent.get_vec_normalize_env()) for agent in (loaded, model)))
    batch = model.env.reset()
    np.testing.assert_equal(model.predict(batch, deterministic=True)[0], loaded.predict(batch, deterministic=True)[0])

    model.save(tmp_path / "model.zip")
    ways = [type(model).load(tmp_path / "model.zip", loaded.env, "cpu"), from_pretrained(tmp_path, make_env(), "cpu")]
    for again in ways:
        again.env.seed(1)
        set_random_seed(1)
        again.learn(PHASE, reset_num_timesteps=False)
    assert same(*ways)
    assert ways[0].n_aux_phases == ways[1].n_aux_phases
    assert ways[0].num_timesteps == model.num_timesteps + PHASE


def test_without_an_environment_and_normalization(small):
    model = from_pretrained(small, device="cpu")
    assert model.env is None and model.predict(np.zeros(3, np.float32))[0] in (0, 1)
    model.set_env(RandomEnv(BOX, spaces.Discrete(2)))
    model.learn(16)
    with pytest.raises(ModelFormatError, match="trained without"):
        load_vec_normalize(small)


def test_several_processes_number_their_environments_consecutively(small, monkeypatch):
    """A new model and one from a zip file do the same."""
    seeds = []
    for number in (0, 1):
        monkeypatch.setattr("sb3_ppg.phasic_algorithm.rank", lambda number=number: number)
        seeds.append(from_pretrained(small, RandomEnv(BOX, spaces.Discrete(2)), "cpu").env._seeds)
    assert seeds == [[0], [1]]


def test_environments_are_those_that_the_constructor_takes(small):
    def make() -> RandomEnv:
        return RandomEnv(BOX, spaces.Discrete(2))

    assert from_pretrained(small, SyncVectorEnv([make, make]), "cpu").learn(32).n_envs == 2
    with pytest.raises(ArgumentError, match="give an environment, not what makes it"):
        from_pretrained(small, make)


@pytest.mark.parametrize("n_stack", [0, 2])
def test_normalization_comes_with_the_model(n_stack, tmp_path):
    def environments(wrap: Callable[[Any], Any]) -> Any:
        venv = wrap(make_vec_env("Pendulum-v1", 2, seed=0))
        return VecFrameStack(venv, n_stack) if n_stack else venv

    wrap = partial(VecNormalize, gamma=0.9, clip_obs=5.0, clip_reward=np.inf)
    model = PPG("MlpPolicy", environments(wrap), **SMALL).learn(64)
    save_pretrained(model, tmp_path)
    if n_stack:
        with pytest.raises(ModelFormatError, match="load_vec_normalize"):
            from_pretrained(tmp_path, environments(lambda venv: venv))
        loaded = from_pretrained(tmp_path, environments(partial(load_vec_normalize, tmp_path)))
    else:
        before = generator_states()
        loaded = from_pretrained(tmp_path, "Pendulum-v1")
        assert generator_states() == before  # although SB3 draws a seed for the environments that it makes
    ours, other = model.get_vec_normalize_env(), loaded.get_vec_normalize_env()
    np.testing.assert_equal(numbers_of(other), numbers_of(ours))
    settings = (other.gamma, other.clip_obs, other.clip_reward, other.norm_reward, other.training)
    assert settings == (0.9, 5.0, np.inf, True, True)
    raw = np.array([[0.3, -0.4, 2.0]], np.float32)
    assert np.array_equal(ours.normalize_obs(raw), load_vec_normalize(tmp_path).normalize_obs(raw))
    loaded.learn(16)


@pytest.mark.parametrize(("norm_obs", "transpose_first"), [(False, False), (True, True)])
def test_normalization_of_images(norm_obs, transpose_first, tmp_path):
    """Where the images are transposed, before or after normalization, is found out."""

    def env() -> RandomEnv:
        return RandomEnv(image_space(36, 36, 3), spaces.Discrete(2))

    venv = DummyVecEnv([env])
    venv = VecNormalize(VecTransposeImage(venv) if transpose_first else venv, norm_obs=norm_obs)
    extractor = dict(features_dim=4, normalized_image=norm_obs)
    policy_kwargs = dict(normalize_images=not norm_obs, features_extractor_kwargs=extractor)
    model = PPG("CnnPolicy", venv, **SMALL, policy_kwargs=policy_kwargs).learn(16)
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, env())
    assert loaded.get_vec_normalize_env().ret_rms.mean == venv.ret_rms.mean
    assert same(model, loaded)
    loaded.learn(16)


def test_malicious_normalization(tmp_path):
    save_pretrained(PPG("MlpPolicy", VecNormalize(make_vec_env("Pendulum-v1", 1)), **SMALL), tmp_path)
    before = (tmp_path / DESCRIPTION).read_bytes()
    for place, value, complaint in [
        ("gamma", "x", r"Expected `float`, got `str` - at `\$.vec_normalize.gamma`"),
        ("venv", 3, "unknown field `venv`"),
        ("norm_obs", False, "no part of the model is for"),
        ("observation_space.shape", [4], "no model can be made"),
        ("norm_obs_keys", ["key"], "no model can be made"),
    ]:
        change(tmp_path, f"vec_normalize.{place}", value)
        refused(tmp_path, complaint)
        (tmp_path / DESCRIPTION).write_bytes(before)


# ---- what is not plain data ----


class Policy(MlpPolicy):
    """A user's own."""


def test_what_is_not_plain_data_is_named_and_given_again(tmp_path):
    schedule = lambda progress: 1e-3 * progress**2  # noqa: E731
    policy_kwargs = dict(features_extractor_class=BatchNormExtractor)
    venv = VecNormalize(DummyVecEnv([lambda: RandomEnv(BOX, spaces.Discrete(2))]))
    model = PPG(Policy, venv, schedule, **SMALL, micro_batch_size=None, policy_kwargs=policy_kwargs).learn(16)
    custom = {"Policy": Policy, "schedule": schedule, "extractor": BatchNormExtractor}
    complaints = ("policy=<class", "learning_rate=<function", "policy_kwargs.features_extractor_class=<class .*BatchNorm")
    save_pretrained(model, tmp_path, custom)
    for name, complaint in zip(custom, complaints, strict=True):
        others = {key: value for key, value in custom.items() if key != name}
        with pytest.raises(ModelFormatError, match=complaint):
            save_pretrained(model, tmp_path, others)
        for load in (from_pretrained, load_vec_normalize):
            with pytest.raises(ModelFormatError, match=f"custom_objects={{'{name}': ...}}"):
                load(tmp_path, custom_objects=others)
    np.testing.assert_equal(numbers_of(load_vec_normalize(tmp_path, custom_objects=custom)), numbers_of(venv))
    loaded = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2)), "cpu", custom_objects=custom)
    assert same(model, loaded)
    assert type(loaded.policy) is Policy and loaded.lr_schedule(0.5) == schedule(0.5)
    assert any(buffer.dtype == th.int64 and buffer > 0 for buffer in loaded.policy.buffers())


class Subclass(PPG):
    """A user's own, which passes on what it does not know."""

    def __init__(self, *args: Any, temperature: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.temperature = temperature


def test_a_users_own_algorithm(tmp_path):
    model = Subclass("MlpPolicy", RandomEnv(BOX, spaces.Discrete(2)), temperature=0.25, gamma=0.5, **SMALL)
    save_pretrained(model, tmp_path, {"Subclass": Subclass})
    loaded = from_pretrained(tmp_path, custom_objects={"Subclass": Subclass})
    assert type(loaded) is Subclass and (loaded.temperature, loaded.gamma) == (0.25, 0.5)
    del model.temperature
    with pytest.raises(ModelFormatError, match="no attribute 'temperature'"):
        save_pretrained(model, tmp_path, {"Subclass": Subclass})


def test_a_reward_normalizer_without_clipping(tmp_path):
    model = small_model(**normalized_rewards(gamma=0.9, clip=np.inf))
    save_pretrained(model, tmp_path)
    again = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2))).rollout_buffer.reward_normalizer
    before = model.rollout_buffer.reward_normalizer
    assert (again.clip, again.gamma, again.return_rms.count) == (np.inf, 0.9, before.return_rms.count)
    assert again.return_rms.var == before.return_rms.var != 1 and np.array_equal(again.last_returns, before.last_returns)
    change(tmp_path, "arguments.rollout_buffer_kwargs.reward_normalizer", None)
    refused(tmp_path, "`reward_normalizer=None` cannot work")


def test_a_model_for_eight_environments_plays_and_learns_in_one(tmp_path):
    venv = DummyVecEnv([lambda: RandomEnv(BOX, spaces.Discrete(2))] * 8)
    model = PPG("MlpPolicy", venv, **SMALL, aux_batch_size=64)
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2)))
    loaded.predict(np.zeros(3, np.float32))
    loaded.learn(16)
    from_pretrained(tmp_path, venv).learn(64)


def test_the_callers_own_mistakes_are_not_the_files(small):
    with pytest.raises(ModelFormatError, match=r"^`env` is not what the model was trained in .*: Observation spaces"):
        from_pretrained(small, RandomEnv(spaces.Box(-1, 1, (5,)), spaces.Discrete(2)))
    with pytest.raises(gym.error.NameNotFound, match="CartPole"):
        from_pretrained(small, "CartPol-v1")
    with pytest.raises(RuntimeError, match="cudaa"):
        from_pretrained(small, device="cudaa")
    with pytest.raises(ModelFormatError, match=rf"user/name holds no model: there is no {DESCRIPTION}\. hub\.load fetches"):
        from_pretrained("user/name")


def test_nothing_is_written_that_cannot_be_shared(tmp_path):
    with pytest.raises(ModelFormatError, match="learning_rate"):
        save_pretrained(small_model(learning_rate=lambda progress: 1e-3), tmp_path / "new")
    for name, value in (("n_steps", 2 * 10**7), ("num_timesteps", 2**70)):  # more than readers accept
        model = small_model()
        setattr(model, name, value)
        with pytest.raises(ModelFormatError, match=f"A model that nobody could load.*{name}"):
            save_pretrained(model, tmp_path / "new")
    assert list(tmp_path.rglob("*.*")) == []


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-1, -np.inf, 0.1], np.float32), np.array([np.inf, 3, 0.3], np.float32)),
        spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        spaces.Box(0, 1, (4, 4), np.bool_),
        spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
        spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32),
        spaces.MultiBinary([2, 3]),
        spaces.Discrete(3, start=2, dtype=np.int8),
        spaces.Dict({"b": BOX, "a": spaces.MultiBinary(4)}),
        spaces.Tuple([NESTED, spaces.Discrete(2)]),
    ],
    ids=str,
)
def test_spaces_come_back_as_they_were(space):
    made = make_space(msgspec.json.decode(msgspec.json.encode(space_struct(space, "it")), type=Space))
    assert made == space and made.dtype == space.dtype and str(made) == str(space)
