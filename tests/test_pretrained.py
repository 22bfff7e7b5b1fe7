"""Models as plain data: the same model comes back, bit for bit, and nothing else does any harm."""

import copy
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule, set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_ppg import (
    PPG,
    ArgumentError,
    ImpalaCNN,
    MaskablePPG,
    MlpPolicy,
    NormalizedRewardRolloutBuffer,
    RecurrentPPG,
    RewardNormalizer,
)
from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub import from_pretrained, load_vec_normalize, save_pretrained
from sb3_ppg.hub.plain_data import CLASSES
from sb3_ppg.hub.pretrained import ARRAYS, CHECKSUMS, COUNTERS, DESCRIPTION, _arguments, write_checksums
from sb3_ppg.saving.untrusted import parse_json
from tests.helpers import MASKED_ACTIONS, MaskedEnv, RandomEnv, image_space

pytestmark = pytest.mark.slow

SMALL = dict(n_steps=8, batch_size=8, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")
BOX = spaces.Box(-2, 2, (3,), np.float32)
DICT = spaces.Dict({"zebra": BOX, "ant": image_space(3, 36, 36), "mouse": spaces.Discrete(4)})


def small_model(**arguments: Any) -> PPG:
    """A model of a few hundred numbers, after one phase."""
    arguments = {"policy_kwargs": dict(net_arch=[4]), **SMALL, **arguments}
    return PPG("MlpPolicy", RandomEnv(BOX, spaces.Discrete(2)), **arguments).learn(16)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    save_pretrained(small_model(), folder)
    return folder


@pytest.fixture
def copied(small, tmp_path) -> Path:
    """To be changed by a test."""
    for name in (DESCRIPTION, ARRAYS, CHECKSUMS):
        (tmp_path / name).write_bytes((small / name).read_bytes())
    return tmp_path


def same_parameters(one: PPG, other: PPG) -> None:
    for name, tensor in one.policy.state_dict().items():
        assert th.equal(tensor, other.policy.state_dict()[name]), name
    for name in one._get_torch_save_params()[0]:
        states = [model.policy.optimizer if name == "policy.optimizer" else getattr(model, name) for model in (one, other)]
        if name != "policy":
            mine, theirs = (optimizer.state_dict() for optimizer in states)
            assert mine["param_groups"] == theirs["param_groups"]
            assert mine["state"].keys() == theirs["state"].keys()
            for index, values in mine["state"].items():
                for key, value in values.items():
                    assert th.equal(th.as_tensor(value), th.as_tensor(theirs["state"][index][key])), (name, index, key)


# ---- round trips ----


MODELS: dict[str, tuple[str, spaces.Space, spaces.Space, dict[str, Any]]] = {
    "discrete": ("MlpPolicy", BOX, spaces.Discrete(3), {}),
    "gSDE": ("MlpPolicy", BOX, spaces.Box(-1, 1, (2,), np.float32), dict(use_sde=True)),
    "squashed": (
        "MlpPolicy",
        BOX,
        spaces.Box(np.array([-1, -2], np.float32), np.array([1, 5], np.float32)),
        dict(use_sde=True, policy_kwargs=dict(squash_output=True, use_expln=True)),
    ),
    "multi-discrete": ("MlpPolicy", spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 5]), {}),
    "multi-binary": (
        "MlpPolicy",
        spaces.MultiBinary(5),
        spaces.MultiBinary(3),
        dict(policy_kwargs=dict(architecture="shared")),
    ),
    "images": (
        "CnnPolicy",
        image_space(36, 36, 3),
        spaces.Discrete(4),
        dict(policy_kwargs=dict(architecture="detached", features_extractor_class=ImpalaCNN)),
    ),
    "dictionary": ("MultiInputPolicy", DICT, spaces.Discrete(4), dict(policy_kwargs=dict(share_features_extractor=False))),
    "settings": (
        "MlpPolicy",
        BOX,
        spaces.Discrete(2),
        dict(
            learning_rate=LinearSchedule(1e-3, 1e-5, 0.5),
            aux_learning_rate=LinearSchedule(1e-4, 0.0, 1.0),
            clip_range_vf=0.3,
            n_value_epochs=2,
            target_kl=0.5,
            policy_kwargs=dict(
                net_arch=dict(pi=[8, 4], vf=[16]),
                activation_fn=th.nn.ELU,
                optimizer_class=th.optim.AdamW,
                optimizer_kwargs=dict(eps=1e-7, betas=(0.8, 0.99)),
            ),
        ),
    ),
    "LSTMs": (
        "MlpLstmPolicy",
        BOX,
        spaces.Discrete(3),
        dict(algorithm=RecurrentPPG, recompute_states=True, policy_kwargs=dict(lstm_hidden_size=4, n_lstm_layers=2)),
    ),
    "shared LSTM, images": (
        "CnnLstmPolicy",
        image_space(36, 36, 3),
        spaces.Box(-1, 1, (2,), np.float32),
        dict(algorithm=RecurrentPPG, use_sde=True, policy_kwargs=dict(lstm_hidden_size=4, shared_lstm=True)),
    ),
    "masks": ("MlpPolicy", BOX, MASKED_ACTIONS["Discrete"][0], dict(algorithm=MaskablePPG)),
    "masks, multi-binary": ("MultiInputPolicy", DICT, MASKED_ACTIONS["MultiBinary"][0], dict(algorithm=MaskablePPG)),
}


def make_env(observations: spaces.Space, actions: spaces.Space) -> gym.Env:
    """One with masks, where there can be."""
    for name, (space, _) in MASKED_ACTIONS.items():
        if space is actions:
            return MaskedEnv(observations, name)
    return RandomEnv(observations, actions)


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name, tmp_path):
    """Predictions, parameters, optimizers and counters are the same, bit for bit, and so is the training that follows."""
    policy, observations, actions, arguments = MODELS[name]
    arguments = {**SMALL, **arguments}
    algorithm = arguments.pop("algorithm", PPG)
    env = DummyVecEnv([lambda: make_env(observations, actions)] * 2)
    model = algorithm(policy, env, **arguments).learn(2 * 2 * 16)
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, env, "cpu")

    same_parameters(model, loaded)
    assert loaded.observation_space == model.observation_space and loaded.action_space == model.action_space
    assert type(loaded) is algorithm and type(loaded.policy) is type(model.policy)
    assert {counter: getattr(loaded, counter) for counter in COUNTERS} == {
        counter: getattr(model, counter) for counter in COUNTERS
    }
    batch = env.reset()
    assert np.array_equal(model.predict(batch, deterministic=True)[0], loaded.predict(batch, deterministic=True)[0])

    model.save(tmp_path / "model.zip")
    ways = [algorithm.load(tmp_path / "model.zip", env, "cpu"), from_pretrained(tmp_path, env, "cpu")]
    for again in ways:
        env.seed(1)
        set_random_seed(1)
        again.learn(2 * 16, reset_num_timesteps=False)
    same_parameters(*ways)
    assert ways[0]._n_aux_phases == ways[1]._n_aux_phases == model._n_aux_phases + 1


@pytest.mark.parametrize("name", ["discrete", "LSTMs", "masks"])
def test_everything_that_a_zip_holds_is_kept_or_known_not_to_matter(name):
    """If an attribute is added to an algorithm, somebody has to decide."""
    policy, observations, actions, arguments = MODELS[name]
    algorithm = arguments.get("algorithm", PPG)
    arguments = {**SMALL, **{key: value for key, value in arguments.items() if key != "algorithm"}}
    model = algorithm(policy, make_env(observations, actions), **arguments).learn(16)
    in_a_zip = set(model.__dict__) - set(model._excluded_save_params())
    arguments = in_a_zip & set(_arguments(algorithm))
    made_again = {"lr_schedule", "aux_lr_schedule", "value_optimizer", "aux_optimizer", "policy_class", "observation_space"}
    of_a_run = {"verbose", "start_time", "tensorboard_log", "_last_obs", "_last_episode_starts", "_last_original_obs"}
    of_a_run |= {"ep_info_buffer", "ep_success_buffer", "_stats_window_size", "action_noise", "aux_buffer_kwargs"}
    assert in_a_zip == arguments | set(COUNTERS) | made_again | of_a_run | {"action_space", "n_envs"}


def test_the_files_are_what_others_can_read(small):
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    description = json.loads((small / DESCRIPTION).read_text(), parse_constant=refuse)
    assert description["schema_version"] == 1 and description["versions"]["torch"] == th.__version__
    arrays = safetensors.torch.load_file(small / ARRAYS)
    assert {"policy.action_net.weight", "policy.optimizer.state.0.exp_avg", "observation_space.low"} <= arrays.keys()
    for line in (small / CHECKSUMS).read_text().splitlines():
        digest, name = line.split("  ")
        assert digest == hashlib.sha256((small / name).read_bytes()).hexdigest()


def test_without_an_environment(small):
    model = from_pretrained(small, device="cpu")
    assert model.env is None and model.predict(np.zeros(3, np.float32))[0] in (0, 1)
    model.set_env(RandomEnv(BOX, spaces.Discrete(2)))
    model.learn(16)


def test_another_environment_than_the_models(small):
    with pytest.raises(ModelFormatError, match="Observation spaces do not match"):
        from_pretrained(small, RandomEnv(spaces.Box(-1, 1, (5,)), spaces.Discrete(2)))


@pytest.mark.parametrize("n_stack", [0, 2])
def test_normalisation_comes_with_the_model(n_stack, tmp_path):
    def environments(wrap: Callable[[Any], Any]) -> Any:
        venv = wrap(make_vec_env("Pendulum-v1", 2, seed=0))
        return VecFrameStack(venv, n_stack) if n_stack else venv

    model = PPG("MlpPolicy", environments(partial(VecNormalize, gamma=0.9, clip_obs=5.0)), **SMALL).learn(64)
    save_pretrained(model, tmp_path)
    if n_stack:
        with pytest.raises(ModelFormatError, match="load_vec_normalize"):
            from_pretrained(tmp_path, environments(lambda venv: venv))
        loaded = from_pretrained(tmp_path, environments(partial(load_vec_normalize, tmp_path)))
    else:
        loaded = from_pretrained(tmp_path, "Pendulum-v1")
    one, other = model.get_vec_normalize_env(), loaded.get_vec_normalize_env()
    for statistics in ("obs_rms", "ret_rms"):
        for number in ("mean", "var", "count"):
            assert np.array_equal(getattr(getattr(one, statistics), number), getattr(getattr(other, statistics), number))
    assert (other.gamma, other.clip_obs, other.norm_reward, other.training) == (0.9, 5.0, True, True)
    raw = np.array([[0.3, -0.4, 2.0]], np.float32)
    assert np.array_equal(one.normalize_obs(raw), load_vec_normalize(tmp_path).normalize_obs(raw))
    loaded.learn(16)


def test_normalisation_of_dictionaries(tmp_path):
    space = spaces.Dict({"one": BOX, "returns": spaces.Box(-1, 1, (2,))})
    venv = VecNormalize(DummyVecEnv([lambda: RandomEnv(space, spaces.Discrete(2))]), norm_obs_keys=["returns"])
    save_pretrained(PPG("MultiInputPolicy", venv, **SMALL).learn(16), tmp_path)
    loaded = load_vec_normalize(tmp_path)
    assert loaded.obs_rms.keys() == {"returns"}
    assert np.array_equal(loaded.obs_rms["returns"].mean, venv.obs_rms["returns"].mean)
    assert loaded.ret_rms.var == venv.ret_rms.var


@pytest.mark.parametrize(("norm_obs", "transpose_first"), [(False, False), (False, True), (True, True)])
def test_normalisation_of_images(norm_obs, transpose_first, tmp_path):
    """Where the images are transposed, before or after normalisation, is found out."""

    def env() -> RandomEnv:
        return RandomEnv(image_space(36, 36, 3), spaces.Discrete(2))

    venv = DummyVecEnv([env])
    venv = VecNormalize(VecTransposeImage(venv) if transpose_first else venv, norm_obs=norm_obs)
    policy_kwargs = dict(normalize_images=False, features_extractor_kwargs=dict(normalized_image=True)) if norm_obs else {}
    model = PPG("CnnPolicy", venv, **SMALL, policy_kwargs=policy_kwargs).learn(16)
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path, env())
    assert loaded.get_vec_normalize_env().ret_rms.mean == venv.ret_rms.mean
    same_parameters(model, loaded)
    loaded.learn(16)


VEC_NORMALIZE_MALICE = [
    (("settings", "gamma"), "x", "gamma: 'x' cannot work"),
    (("settings", "venv"), 3, r"\['venv'\] are not known"),
    (("statistics",), [], "nothing says what|no model can be made"),
    (("statistics", 0, 1, "count"), "x", "statistics of None: statistics of .* are finite"),
    (("statistics", 1, 1, "mean"), {"$array": "policy.log_std"}, "somebody else's, too|statistics of None"),
    (("statistics", 1, 0), "key", "statistics of key"),
    (("observation_space",), 3, "is not a space"),
]


@pytest.mark.parametrize(("path", "value", "complaint"), VEC_NORMALIZE_MALICE)
def test_malicious_normalisation(path, value, complaint, tmp_path):
    env = VecNormalize(make_vec_env("Pendulum-v1", 1))
    save_pretrained(PPG("MlpPolicy", env, **SMALL), tmp_path)
    change(tmp_path, put("vec_normalize", *path, value=value))
    for load in (
        partial(from_pretrained, env="Pendulum-v1"),
        partial(load_vec_normalize, venv=make_vec_env("Pendulum-v1", 1)),
    ):
        with pytest.raises(ModelFormatError, match=complaint):
            load(tmp_path)


# ---- what is not plain data ----


class Features(FlattenExtractor):
    """A user's own."""


class Policy(MlpPolicy):
    """A user's own."""


def test_what_is_not_plain_data_is_named_and_given_again(tmp_path):
    schedule = lambda progress: 1e-3 * progress**2  # noqa: E731
    arguments = dict(learning_rate=schedule, policy_kwargs=dict(features_extractor_class=Features))
    model = PPG(Policy, RandomEnv(BOX, spaces.Discrete(2)), **SMALL, **arguments)
    custom: dict[str, Any] = {}
    for complaint, name, value in [
        ("policy=<class .*Policy'>", "Policy", Policy),
        ("learning_rate=<function", "schedule", schedule),
        (r"policy_kwargs.features_extractor_class=<class .*Features'>", "Features", Features),
    ]:
        with pytest.raises(ModelFormatError, match=complaint):
            save_pretrained(model, tmp_path, custom)
        custom[name] = value
    save_pretrained(model, tmp_path, custom)

    for name in custom:
        with pytest.raises(ModelFormatError, match=f"custom_objects={{'{name}': ...}}"):
            from_pretrained(tmp_path, custom_objects={key: value for key, value in custom.items() if key != name})
    loaded = from_pretrained(tmp_path, custom_objects=custom)
    same_parameters(model, loaded)
    assert type(loaded.policy) is Policy and loaded.lr_schedule(0.5) == schedule(0.5)


def test_normalisation_of_a_model_with_a_users_own_class(tmp_path):
    venv = VecNormalize(DummyVecEnv([lambda: RandomEnv(BOX, spaces.Discrete(2))]))
    model = PPG("MlpPolicy", venv, **SMALL, policy_kwargs=dict(features_extractor_class=Features)).learn(16)
    save_pretrained(model, tmp_path, {"Features": Features})
    with pytest.raises(ModelFormatError, match=r"custom_objects={'Features': \.\.\.}"):
        load_vec_normalize(tmp_path)
    loaded = load_vec_normalize(tmp_path, custom_objects={"Features": Features})
    assert np.array_equal(loaded.obs_rms.mean, venv.obs_rms.mean)


class NormalizedFeatures(FlattenExtractor):
    """A user's own, with a buffer of integers."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__(observation_space)
        self.norm = th.nn.BatchNorm1d(self.features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.norm(super().forward(observations))


def test_networks_with_integers_in_them(tmp_path):
    model = small_model(policy_kwargs=dict(features_extractor_class=NormalizedFeatures), micro_batch_size=None)
    save_pretrained(model, tmp_path, {"Features": NormalizedFeatures})
    loaded = from_pretrained(tmp_path, device="cpu", custom_objects={"Features": NormalizedFeatures})
    same_parameters(model, loaded)
    assert loaded.policy.features_extractor.norm.num_batches_tracked > 0


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
    with pytest.raises(ModelFormatError, match="Subclass has no attribute 'temperature'"):
        save_pretrained(model, tmp_path, {"Subclass": Subclass})


def test_the_authors_reward_normaliser(tmp_path):
    normalizer = RewardNormalizer(gamma=0.9)
    buffer = dict(rollout_buffer_class=NormalizedRewardRolloutBuffer, rollout_buffer_kwargs=dict(reward_normalizer=normalizer))
    save_pretrained(small_model(**buffer), tmp_path)
    loaded = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2)))
    again = loaded.rollout_buffer.reward_normalizer
    assert again.return_rms.var == normalizer.return_rms.var != 1 and again.return_rms.count == normalizer.return_rms.count
    assert np.array_equal(again.last_returns, normalizer.last_returns) and again.gamma == 0.9
    loaded.learn(16)


def test_arguments_that_only_work_with_the_environments_of_the_training(tmp_path):
    """As with SB3's zip files, a model for eight environments can predict for one; ``learn()`` says what does not fit."""
    venv = DummyVecEnv([lambda: RandomEnv(BOX, spaces.Discrete(2))] * 8)
    save_pretrained(PPG("MlpPolicy", venv, **SMALL, aux_batch_size=64), tmp_path)
    loaded = from_pretrained(tmp_path, RandomEnv(BOX, spaces.Discrete(2)))
    loaded.predict(np.zeros(3, np.float32))
    with pytest.raises(ArgumentError, match="aux_batch_size"):
        loaded.learn(16)
    from_pretrained(tmp_path, venv).learn(64)


def test_the_callers_own_mistakes_are_not_the_files(small):
    with pytest.raises(gym.error.NameNotFound, match="CartPole"):
        from_pretrained(small, "CartPol-v1")
    with pytest.raises(RuntimeError, match="cudaa"):
        from_pretrained(small, device="cudaa")


def test_nothing_is_written_that_cannot_be_shared(tmp_path):
    with pytest.raises(ModelFormatError, match="learning_rate"):
        save_pretrained(small_model(learning_rate=lambda progress: 1e-3), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# ---- damage ----


def refused(folder: Path, complaint: str = "") -> None:
    with pytest.raises(ModelFormatError, match=complaint):
        from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS, CHECKSUMS])
@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_flipped_bytes(copied, name, mask):
    """Every range of 16 bytes in turn."""
    original = (copied / name).read_bytes()
    for start in range(0, len(original), 16):
        flipped = bytes(byte ^ mask for byte in original[start : start + 16])
        (copied / name).write_bytes(original[:start] + flipped + original[start + 16 :])
        refused(copied, "damaged")


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS])
def test_flipped_bytes_with_checksums_to_match(copied, name):
    """Whoever changes the files can change the checksums, too: a model or a clear error comes of it, never anything else."""
    original = (copied / name).read_bytes()
    generator = np.random.default_rng(0)
    outcomes = {"model": 0, "error": 0}
    for start in range(0, min(len(original), 10000), 40):
        changed = bytearray(original)
        changed[start + int(generator.integers(min(40, len(original) - start)))] ^= 1 << int(generator.integers(8))
        (copied / name).write_bytes(changed)
        write_checksums(copied, [DESCRIPTION, ARRAYS])
        try:
            assert isinstance(from_pretrained(copied, device="cpu"), PPG)
            outcomes["model"] += 1
        except ModelFormatError:
            outcomes["error"] += 1
    assert outcomes["error"] > 20


@pytest.mark.parametrize("name", [DESCRIPTION, ARRAYS, CHECKSUMS])
def test_truncated_files(copied, name):
    original = (copied / name).read_bytes()
    for length in {0, 1, 7, len(original) // 2, len(original) - 1}:
        (copied / name).write_bytes(original[:length])
        refused(copied, "damaged")
        if name != CHECKSUMS:
            write_checksums(copied, [DESCRIPTION, ARRAYS])
            refused(copied)


@pytest.mark.parametrize("name", [ARRAYS, CHECKSUMS])
def test_missing_files(copied, name):
    (copied / name).unlink()
    refused(copied, f"{name} is missing")


def test_no_model_at_all(tmp_path):
    refused(tmp_path, "holds no model: there is no model.json")
    refused(tmp_path / "nowhere", "holds no model")
    refused(tmp_path / "nothing.zip", "holds no model")


# ---- malice ----


def change(folder: Path, change_description: Callable[[dict[str, Any]], Any]) -> None:
    """With checksums to match."""
    description = json.loads((folder / DESCRIPTION).read_text())
    replaced = change_description(description)
    (folder / DESCRIPTION).write_text(json.dumps(description if replaced is None else replaced))
    write_checksums(folder, [DESCRIPTION, ARRAYS])


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Something at a place of the description."""

    def set_(description: dict[str, Any]) -> None:
        for key in path[:-1]:
            description = description[key]
        description[path[-1]] = value

    return set_


def test_what_is_too_deep_is_refused_whatever_the_recursion_limit():
    limit = sys.getrecursionlimit()
    for depth, raised in ((98, limit), (101, limit), (101, 5000), (900, 5000)):
        content = json.dumps(nested(depth)).encode()
        sys.setrecursionlimit(raised)
        try:
            if depth < 100:
                assert parse_json(content, "data.json") == nested(depth)
                continue
            with pytest.raises(ModelFormatError, match="nested more than 100 deep"):
                parse_json(content, "data.json")
        finally:
            sys.setrecursionlimit(limit)


def nested(depth: int) -> Any:
    data: Any = 0
    for _ in range(depth):
        data = [data]
    return data


MALICE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown class": (put("algorithm", value={"$class": "os.system"}), "'os.system' is not on the list"),
    "builtin": (put("policy", value={"$class": "builtins.eval"}), "'builtins.eval' is not on the list"),
    "class by import": (
        put("arguments", "policy_kwargs", value={"activation_fn": {"$class": "antigravity.geohash"}}),
        "policy_kwargs.activation_fn: the class 'antigravity.geohash' is not on the list",
    ),
    "another class of ours": (put("algorithm", value={"$class": "torch.nn.modules.activation.ReLU"}), "is not PPG"),
    "no policy": (put("policy", value={"$class": "torch.nn.modules.activation.ReLU"}), "no auxiliary value head"),
    "class that is no string": (put("algorithm", value={"$class": ["a"]}), "algorithm"),
    "string to evaluate": (put("arguments", "policy_kwargs", value="dict(net_arch=[1])"), "policy_kwargs"),
    "unknown kind": (put("arguments", "gamma", value={"$reduce": "x"}), "a newer sb3_ppg may know it"),
    "two kinds": (put("arguments", "gamma", value={"$float": "inf", "$class": "x"}), "is not known"),
    "custom object": (put("arguments", "gamma", value={"$custom": "mine"}), "custom_objects={'mine': ...}"),
    "unknown argument": (put("arguments", "shell", value="rm"), r"PPG has no \['shell'\]"),
    "argument of a machine": (put("arguments", "tensorboard_log", value="../../home"), r"PPG has no \['tensorboard_log'\]"),
    "argument out of range": (put("arguments", "gamma", value=7), "gamma"),
    "schedule": (put("arguments", "learning_rate", value={"$schedule": ["constant", "1"]}), "made of numbers"),
    "unknown schedule": (put("arguments", "learning_rate", value={"$schedule": ["eval", 1]}), "learning_rate"),
    "no number": (put("counters", "num_timesteps", value="many"), "num_timesteps: 'many' is not an integer"),
    "no space": (put("spaces", "action", value=3), "is not a space"),
    "unknown space": (put("spaces", "action", value={"$space": ["Text", {}]}), "spaces.action"),
    "space of a path": (
        put("spaces", "action", value={"$space": ["Discrete", {"n": 2, "start": 0, "seed": 1}]}),
        r"\['seed'\] are not known",
    ),
    "missing array": (put("spaces", "observation", "$space", 1, "low", value={"$array": "../../x"}), "no array '../../x'"),
    "rollout of a petabyte": (put("arguments", "n_steps", value=10**15), "claims"),
    "environments": (put("n_envs", value=10**15), "claims"),
    "network of a petabyte": (
        put("arguments", "policy_kwargs", value={"net_arch": [10**7, 10**8]}),
        "larger than its arrays",
    ),
    "actions": (
        put("spaces", "action", value={"$space": ["Discrete", {"n": 10**12, "start": 0}]}),
        "claims|larger than its arrays",
    ),
    "another network": (
        put("arguments", "policy_kwargs", value={"net_arch": [3]}),
        "is not a number for each of the parameter",
    ),
    "optimizer's missing array": (
        put("optimizers", "aux_optimizer", "state", "0", "exp_avg", value={"$array": "action_space.bias"}),
        "there is no array",
    ),
    "one array for two": (
        put("optimizers", "aux_optimizer", "state", "0", "exp_avg", value={"$array": "policy.action_net.bias"}),
        "is somebody else's, too",
    ),
    "one array for many": (
        put("arguments", "policy_kwargs", value={"x": [{"$array": "policy.log_std"}] * 1000}),
        "no array|somebody else's",
    ),
    "optimizer's class": (
        put("optimizers", "aux_optimizer", "state", "0", "step", value={"$class": "torch.optim.adam.Adam"}),
        r"in place of a dictionary of|are missing there",
    ),
    "too many states": (put("optimizers", "aux_optimizer", "state", "999", value={}), "it is for parameters 0 to"),
    "negative state": (put("optimizers", "aux_optimizer", "state", "-1", value={}), "it is for parameters 0 to"),
    "optimizer's option": (put("optimizers", "aux_optimizer", "groups", 0, "betas", value="x"), "'x' in place of"),
    "optimizer's parameters": (put("optimizers", "aux_optimizer", "groups", value=[]), "there have to be 1"),
    "negative counter": (put("counters", "num_timesteps", value=-5), "is not an integer of at least 0"),
    "broken counter": (put("counters", "_n_updates", value=1.5), "is not an integer of at least 0"),
    "schema that is no number": (put("schema_version", value=True), "schema version True"),
    "many layers": (put("arguments", "policy_kwargs", value={"net_arch": [1] * 20_000}), "larger than its arrays"),
    "newer schema": (put("schema_version", value=2), "schema version 2"),
    "no schema": (lambda description: description.pop("schema_version") and None, "schema version None"),
    "something else": (put("format", value="keras"), "is not a model of sb3_ppg"),
    "a list": (lambda description: [description], "is not a model of sb3_ppg"),
    "missing part": (lambda description: description.pop("counters") and None, r"\['counters'\] are missing"),
    "deep": (lambda description: {**description, "format": nested(900)}, "cannot be read|is not a model"),
    "large": (lambda description: {**description, "x": "x" * 2**24}, "is larger than"),
}


@pytest.mark.parametrize("name", MALICE)
def test_a_malicious_description(copied, name, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("it was run"))
    change_description, complaint = MALICE[name]
    change(copied, change_description)
    start = time.perf_counter()
    refused(copied, complaint)
    assert time.perf_counter() - start < 5


def test_json_that_is_none(copied):
    for text in (
        "{",
        "[" * 100_000,
        '{"format": NaN}',
        '{"format": Infinity}',
        "1" * 10_000,
        "\ud800".encode("utf-8", "surrogatepass"),
    ):
        (copied / DESCRIPTION).write_bytes(text if isinstance(text, bytes) else text.encode())
        write_checksums(copied, [DESCRIPTION, ARRAYS])
        refused(copied, "cannot be read")


@pytest.mark.parametrize(
    "header",
    [
        {"policy.action_net.bias": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [2**64 - 1, 0], "data_offsets": [0, 0]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**60]}},
        {"policy.action_net.bias": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"policy.action_net.bias": {"dtype": "PICKLE", "shape": [2], "data_offsets": [0, 8]}},
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
    ],
)
def test_arrays_that_claim_what_is_not_there(copied, header):
    text = json.dumps(header).encode()
    (copied / ARRAYS).write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, "cannot be read")


def test_states_of_another_shape(copied):
    arrays = safetensors.torch.load_file(copied / ARRAYS)
    arrays["aux_optimizer.state.0.exp_avg"] = th.zeros(3, 17)
    safetensors.torch.save_file(arrays, copied / ARRAYS)
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, "aux_optimizer.state.0.exp_avg is not a number for each of the parameter")


def test_a_file_of_zeros_without_end(copied):
    os.truncate(copied / DESCRIPTION, 200 * 2**30)  # it takes no space on the disk
    refused(copied, "is larger than")


def test_a_header_that_claims_to_be_huge(copied):
    (copied / ARRAYS).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, "cannot be read")


def test_arrays_that_nobody_asked_for(copied):
    arrays = safetensors.torch.load_file(copied / ARRAYS)
    safetensors.torch.save_file({**arrays, "policy.trojan": th.zeros(3)}, copied / ARRAYS)
    write_checksums(copied, [DESCRIPTION, ARRAYS])
    refused(copied, r"nothing says what \['policy.trojan'\] is for")


def test_loading_writes_nothing(copied):
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    from_pretrained(copied)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


class Payload:
    """Pickled, it creates a file where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def malicious_zip(folder: Path) -> Path:
    """An SB3 zip file whose loading creates the file "ran"; the path of that file."""
    model = small_model()
    model.innocent = Payload(folder / "ran")  # type: ignore[attr-defined]
    model.save(folder / "model.zip")
    return folder / "ran"


@pytest.mark.parametrize("name", ["", "model.zip"])
def test_an_sb3_zip_is_only_loaded_if_it_is_trusted(tmp_path, name):
    ran = malicious_zip(tmp_path)
    refused(tmp_path / name, "runs whatever code its author put in.*trust_pickle=True")
    assert not ran.exists()
    assert isinstance(from_pretrained(tmp_path / name, trust_pickle=True), PPG)
    assert ran.exists()  # so the payload was alive


def test_pickles_beside_a_model_are_not_opened(copied):
    ran = malicious_zip(copied)
    (copied / "vec_normalize.pkl").write_bytes((copied / "model.zip").read_bytes())
    from_pretrained(copied, RandomEnv(BOX, spaces.Discrete(2)), trust_pickle=True)
    assert not ran.exists()


def test_no_class_that_a_file_may_name_does_anything_when_made_but_build():
    """The list is of networks, optimizers, buffers and algorithms."""
    for name, cls in CLASSES.items():
        assert re.match(r"(sb3_ppg|stable_baselines3|sb3_contrib|torch\.(nn|optim))\.", name) and isinstance(cls, type)


def test_numbers_that_json_has_not(tmp_path):
    model = small_model(target_kl=None)
    model.ent_coef = math.inf
    save_pretrained(model, tmp_path)
    refused(tmp_path, "ent_coef")  # read as infinity, and refused as that
    space = spaces.Box(-np.inf, np.inf, (3,))
    model = PPG("MlpPolicy", RandomEnv(space, spaces.Discrete(2)), **SMALL)
    model.observation_space = copy.deepcopy(space)
    save_pretrained(model, tmp_path)
    assert from_pretrained(tmp_path).observation_space == space
