"""Models as plain data: the same model comes back, bit for bit."""

import copy
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import msgspec
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule, set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_ppg import PPG, ArgumentError, MlpPolicy, RewardNormalizer
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.export import DeterministicPolicy
from sb3_ppg.hub import from_pretrained, save_pretrained
from sb3_ppg.hub.pretrained import DESCRIPTION
from sb3_ppg.hub.schema import Counters, Space, make_space, space_struct
from tests.helpers import (
    DICT,
    NESTED,
    SMALL,
    BatchNormExtractor,
    RandomEnv,
    changed,
    image_space,
    normalized_rewards,
    run_in_a_new_process,
)
from tests.hub.small_models import BOX, MODELS, PHASE, change, honest, refused, small_model, write
from tests.hub.watch import generator_states
from tests.policies.test_memory import OfPairs, Remembering, Two
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


def test_several_processes_number_their_environments_consecutively(small, monkeypatch):
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
        with pytest.raises(ModelFormatError, match="a new VecNormalize among them"):
            from_pretrained(tmp_path, environments(lambda venv: venv))
        loaded = from_pretrained(tmp_path, environments(partial(VecNormalize, training=False)))
    else:
        before = generator_states()
        loaded = from_pretrained(tmp_path, "Pendulum-v1")
        assert generator_states() == before  # although SB3 draws a seed for the environments that it makes
    ours, other = model.get_vec_normalize_env(), loaded.get_vec_normalize_env()
    np.testing.assert_equal(numbers_of(other), numbers_of(ours))
    settings = (other.gamma, other.clip_obs, other.clip_reward, other.norm_reward, other.training)
    assert settings == (0.9, 5.0, np.inf, True, not n_stack)
    raw = np.array([[0.3, -0.4, 2.0]], np.float32)
    assert np.array_equal(ours.normalize_obs(raw), from_pretrained(tmp_path).get_vec_normalize_env().normalize_obs(raw))
    loaded.learn(16)


def test_a_normalization_that_does_not_fit_is_refused_and_one_with_statistics_stays(tmp_path):
    save_pretrained(PPG("MlpPolicy", VecNormalize(make_vec_env("Pendulum-v1")), **SMALL).learn(16), tmp_path)
    other = VecNormalize(make_vec_env("Pendulum-v1"), norm_obs=False, gamma=0.5)
    with pytest.raises(ModelFormatError, match=r"shapes .*\(3,\).*: make it with norm_obs=True, norm_obs_keys=None"):
        from_pretrained(tmp_path, other)
    other.ret_rms.count = 2
    from_pretrained(tmp_path, other)
    assert (other.ret_rms.mean, other.gamma, other.norm_obs) == (0, 0.5, False)


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


@pytest.mark.parametrize("transpose_first", [False, True])
def test_normalization_of_images_in_a_dictionary(transpose_first, tmp_path):
    """SB3 replaces their space in the dictionary that it shares with the environment."""

    def envs(space: spaces.Space = DICT) -> DummyVecEnv:
        return DummyVecEnv([lambda: RandomEnv(copy.deepcopy(space), spaces.Discrete(2))])

    venv = VecTransposeImage(envs()) if transpose_first else envs()
    model = PPG("MultiInputPolicy", VecNormalize(venv), **SMALL).learn(16)
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, envs())
    assert same(model, loaded)
    loaded.learn(16)
    with pytest.raises(ModelFormatError, match="around observations"):
        from_pretrained(tmp_path, envs(spaces.Dict(DICT.spaces | {"vector": BOX})))


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
        with pytest.raises(ModelFormatError, match=f"custom_objects={{'{name}': ...}}"):
            from_pretrained(tmp_path, custom_objects=others)
    loaded = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2)), "cpu", custom_objects=custom)
    assert same(model, loaded)
    np.testing.assert_equal(numbers_of(loaded.env), numbers_of(venv))
    assert type(loaded.policy) is Policy and loaded.lr_schedule(0.5) == schedule(0.5)
    assert any(buffer.dtype == th.int64 and buffer > 0 for buffer in loaded.policy.buffers())


def falling(progress: float) -> float:
    return 1e-3 * progress


def line(start: float) -> Callable[[float], float]:
    def schedule(progress: float) -> float:
        return start * progress

    return schedule


class Optimizer(th.optim.Adam):
    """A user's own."""


class Extractor(BatchNormExtractor):
    """A user's own."""


def save_from_a_script(path: Path) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as what a script defines
    kinds = dict(features_extractor_class=Extractor, optimizer_class=Optimizer)
    schedules = dict(clip_range=line(0.2), aux_learning_rate=partial(line(1e-3)), value_learning_rate=falling)
    arguments = dict(learning_rate=line(1e-3), policy_kwargs=kinds, micro_batch_size=None, n_value_epochs=1, **SMALL)
    Subclass(Policy, RandomEnv(BOX, spaces.Discrete(2)), **schedules, **arguments).learn(16).save(path)


def test_what_was_loaded_is_shared_as_before(tmp_path):
    """Objects of a script are copies in a model from an SB3 zip file; functions with other variables are others."""
    run_in_a_new_process(save_from_a_script, tmp_path / "model.zip")
    loaded = Subclass.load(tmp_path / "model.zip", device="cpu")
    assert loaded.policy_class is not Policy and loaded.value_learning_rate is not falling
    functions = {"lr": line(1e-3), "clip": line(0.2), "aux": partial(line(1e-3)), "falling": falling}
    custom = functions | {cls.__name__: cls for cls in (Subclass, Policy, Extractor, Optimizer)}
    save_pretrained(loaded, tmp_path / "shared", custom)
    again = from_pretrained(tmp_path / "shared", custom_objects=custom, device="cpu")
    assert same(again, loaded) and again.learning_rate is custom["lr"] and type(again.policy.optimizer) is Optimizer
    with pytest.raises(ModelFormatError, match=r"learning_rate=<function .*: name the model's object here"):
        save_pretrained(loaded, tmp_path / "shared", {**custom, "lr": line(2e-3)})


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


def test_the_callers_own_mistakes_are_not_the_files(small):
    with pytest.raises(ModelFormatError, match=r"^`env` is not what the model was trained in .*: Observation spaces"):
        from_pretrained(small, RandomEnv(spaces.Box(-1, 1, (5,)), spaces.Discrete(2)))
    with pytest.raises(gym.error.NameNotFound, match="CartPole"):
        from_pretrained(small, "CartPol-v1")
    with pytest.raises(RuntimeError, match="cudaa"):
        from_pretrained(small, device="cudaa")
    with pytest.raises(ModelFormatError, match=rf"user/name holds no model: there is no {DESCRIPTION}\. hub\.load fetches"):
        from_pretrained("user/name")


def test_functions_may_read_variables_that_are_not_set(tmp_path):
    def schedule(progress: float) -> float:
        return 1e-3 if progress >= 0 else unset

    model = PPG("MlpPolicy", RandomEnv(BOX, spaces.Discrete(2)), learning_rate=schedule, **SMALL)
    save_pretrained(model, tmp_path, {"schedule": schedule})
    assert from_pretrained(tmp_path, custom_objects={"schedule": schedule}).learning_rate is schedule
    if False:
        unset = 1e-3


def test_custom_objects_replace_arguments_as_in_load(tmp_path):
    """Also those that a file may not decide."""

    def schedule(progress: float) -> float:
        return 1e-3

    save_pretrained(small_model(learning_rate=schedule), tmp_path, {"schedule": schedule, "compile_updates": True})
    assert from_pretrained(tmp_path, custom_objects={"schedule": schedule}).normalize_advantage is True
    mine = dict(compile_updates="auto", aux_buffer_kwargs=dict(storage="mmap", path=tmp_path / "phase"))
    loaded = from_pretrained(tmp_path, custom_objects={"learning_rate": 1e-5, "clip_range": 0.1, **mine})
    assert (loaded.learning_rate, loaded.lr_schedule(1), loaded.clip_range(1)) == (1e-5, 1e-5, 0.1)
    assert loaded.compile_updates == "auto" and loaded.aux_buffer_kwargs == mine["aux_buffer_kwargs"]
    with pytest.raises(ModelFormatError, match="gamma"):
        from_pretrained(tmp_path, custom_objects={"schedule": schedule, "gamma": 7.0})


EMPTY = spaces.Dict(a=BOX, nothing=spaces.Box(-1, 1, (0,), np.float32))
PARTS = spaces.Tuple([spaces.Discrete(2), spaces.Tuple([spaces.Tuple([spaces.Discrete(3)])])])
WIDE: dict[str, tuple] = {
    "an empty part": (EMPTY, spaces.Discrete(2), {}, {}),
    "NumPy's numbers": (
        BOX,
        spaces.Discrete(2),
        dict(gamma=np.float32(0.9), norm_reward=np.bool_(True)),
        dict(gamma=np.float32(0.5)),
    ),
    "nothing added, nothing left": (BOX, spaces.Discrete(2), dict(epsilon=0, clip_reward=0), {}),
    "coefficients of a Tuple": (BOX, PARTS, {}, dict(ent_coef={0: 0.1, 1: {0: {0: np.float32(0.0)}}})),
    "coefficients of odd keys": (BOX, spaces.Dict({"$a": BOX, "b": BOX}), {}, dict(ent_coef={"$a": 0.1, "b": 0.0})),
}


def test_subclasses_are_not_shared_as_their_bases(tmp_path):
    schedule, normalizer = (type("Mine", (cls,), {}) for cls in (LinearSchedule, RewardNormalizer))
    normalized = normalized_rewards() | dict(rollout_buffer_kwargs=dict(reward_normalizer=normalizer()))
    for arguments in (dict(learning_rate=schedule(1e-3, 0, 1)), normalized):
        with pytest.raises(ModelFormatError, match=r"is not plain data .* custom_objects="):
            save_pretrained(small_model(**arguments), tmp_path)


def test_statistics_that_are_missing_are_warned_of(tmp_path):
    model = PPG("MlpPolicy", VecNormalize(make_vec_env("CartPole-v1")), **SMALL).learn(16)
    model.save(tmp_path / "model.zip")
    with pytest.warns(UserWarning, match="was trained in a VecNormalize, whose statistics are not here"):
        save_pretrained(PPG.load(tmp_path / "model.zip"), tmp_path / "without")


class TwoNormalized(Two):
    def __init__(self, space):
        super().__init__(space)
        self.norm = th.nn.BatchNorm1d(self.features_dim)

    def forward(self, observations):
        return self.norm(super().forward(observations))


@pytest.mark.parametrize("extractor", [Two, TwoNormalized])
def test_a_policy_with_inputs_of_its_own_is_shared(extractor, tmp_path):
    custom = dict(Remembering=Remembering, OfPairs=OfPairs, extractor=extractor)
    kwargs = dict(policy_kwargs=dict(features_extractor_class=extractor), rollout_buffer_class=OfPairs, device="cpu")
    model = PPG(Remembering, "Pendulum-v1", **SMALL | kwargs).learn(16)
    save_pretrained(model, tmp_path, custom)
    assert not changed(model, from_pretrained(tmp_path, custom_objects=custom, device="cpu").policy.state_dict())


def test_bounds_that_say_nothing_do_not_keep_a_model_from_being_shared_and_exported(tmp_path):
    """They are the largest numbers, between which Gymnasium cannot draw a sample."""
    largest = spaces.Box(-np.finfo(np.float64).max, np.finfo(np.float64).max, BOX.shape, np.float64)
    env = TransformObservation(RandomEnv(BOX, spaces.Discrete(2)), lambda obs: obs.astype(np.float64), largest)
    model = PPG("MlpPolicy", env, **SMALL).learn(10)
    save_pretrained(model, tmp_path)
    assert same(from_pretrained(tmp_path, device="cpu"), model)
    (inputs,) = DeterministicPolicy(model).example_inputs()
    assert inputs.isfinite().all()


def test_a_model_that_was_loaded_without_an_environment_is_shared_with_its_statistics(tmp_path):
    model = PPG("MlpPolicy", VecNormalize(DummyVecEnv([lambda: RandomEnv(BOX, spaces.Discrete(2))])), **SMALL).learn(10)
    save_pretrained(model, tmp_path / "first")
    save_pretrained(from_pretrained(tmp_path / "first"), tmp_path / "second")
    first, second = (from_pretrained(tmp_path / name).get_vec_normalize_env() for name in ("first", "second"))
    assert np.array_equal(first.obs_rms.mean, second.obs_rms.mean) and first.obs_rms.mean.any()


@pytest.mark.parametrize(("observations", "actions", "normalization", "arguments"), WIDE.values(), ids=WIDE)
def test_what_trains_is_shared(observations, actions, normalization, arguments, tmp_path):
    def env() -> RandomEnv:
        return RandomEnv(observations, actions)

    venv = VecNormalize(DummyVecEnv([env]), **normalization)
    policy = "MultiInputPolicy" if isinstance(observations, spaces.Dict) else "MlpPolicy"
    model = PPG(policy, venv, **{**SMALL, **arguments}).learn(1e1)  # SB3 takes floats
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, env(), "cpu")
    assert same(loaded, model) and (loaded.gamma, loaded.ent_coef) == (model.gamma, model.ent_coef)
    other = loaded.get_vec_normalize_env()
    assert all(getattr(other, name) == getattr(venv, name) for name in ("gamma", "epsilon", "clip_reward"))


def test_an_error_of_writing_names_the_argument_or_the_space(tmp_path):
    many = spaces.MultiDiscrete([2] * 1001)
    kwargs = dict(optimizer_kwargs=dict(weight_decay=10**30))
    for model, complaint in (
        (PPG("MlpPolicy", RandomEnv(many), **SMALL), r"model.json cannot be read .* at `\$.observation_space.nvec`"),
        (PPG("MlpPolicy", VecNormalize(make_vec_env("CartPole-v1"), gamma=1.5), **SMALL), r"at `\$.vec_normalize.gamma`"),
        (small_model(policy_kwargs=kwargs), r"policy_kwargs.optimizer_kwargs.weight_decay=1000"),
    ):
        with pytest.raises(ModelFormatError, match=complaint) as caught:
            save_pretrained(model, tmp_path / "new")
        assert str(tmp_path) not in str(caught.value)


def test_a_model_that_was_shared_within_a_phase_says_that_the_phase_starts_over(tmp_path):
    """A model that was shared after its phase says nothing."""
    env = RandomEnv(BOX, spaces.Discrete(2))
    for n_steps, n_warnings in ((8, 1), (16, 0)):
        save_pretrained(PPG("MlpPolicy", env, **SMALL).learn(n_steps), tmp_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from_pretrained(tmp_path, env, "cpu").learn(8, reset_num_timesteps=False)
        assert sum("The phase starts over, without 1 of the 2" in str(one.message) for one in caught) == n_warnings


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
        spaces.Box(0, 2**64 - 1, (2,), np.uint64),
        spaces.Box(-1, 1, (2, 0)),
    ],
    ids=str,
)
def test_spaces_come_back_as_they_were(space):
    made = make_space(msgspec.json.decode(msgspec.json.encode(space_struct(space, "it")), type=Space))
    assert made == space and made.dtype == space.dtype and str(made) == str(space)
