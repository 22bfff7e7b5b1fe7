"""Models in SB3's zip files: damaged, another class's or a newer version's."""

import copy
import io
import random
import shutil
import tracemalloc
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch as th
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import PPG, ArgumentError, MaskablePPG, ModelFormatError, RecurrentPPG
from tests.saving.small_models import change_data, everything, same, saved, small

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.zip"
    small(policy_kwargs=dict(net_arch=[4])).learn(8 * 2).save(path)
    return path


def test_a_model_is_whole_or_refused_whatever_byte_is_flipped(model_file, tmp_path):
    """Bytes that carry nothing, such as a date in the archive, may be anything."""
    model, content = PPG.load(model_file), model_file.read_bytes()
    rng = np.random.default_rng(0)
    directory = len(content) - 2000  # where the archive's table of contents is
    places = [*rng.integers(len(content), size=100), *rng.integers(directory, len(content), size=100)]
    bad, refused = tmp_path / "bad.zip", 0
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        bad.write_bytes(flipped)
        before = small(policy_kwargs=dict(net_arch=[4]))
        loaded = copy.deepcopy(before.policy.state_dict())
        try:
            assert same(PPG.load(bad), model)
            before.set_parameters(str(bad))
        except ModelFormatError as error:
            assert f"{bad} is damaged" in str(error)
            with pytest.raises(ModelFormatError, match="is damaged"):
                before.set_parameters(str(bad))
            assert all(th.equal(value, loaded[name]) for name, value in before.policy.state_dict().items())
            refused += 1
    assert refused > 120


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_refused(model_file, tmp_path, part):
    content = model_file.read_bytes()
    (tmp_path / "bad.zip").write_bytes(content[: int(part * len(content))])
    with pytest.raises(ModelFormatError, match=r"bad\.zip is damaged, or no model's file"):
        PPG.load(tmp_path / "bad")
    with pytest.raises(ModelFormatError, match="is damaged"):
        PPG.load(io.BytesIO(content[: int(part * len(content))]))
    assert PPG.load(io.BytesIO(content)).num_timesteps == 16


def test_another_classs_model_is_refused(model_file, tmp_path):
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8).save(tmp_path / "ppo")
    with pytest.raises(ModelFormatError, match=r"ppo\.zip is another class's file: it does not say"):
        PPG.load(tmp_path / "ppo")
    recurrent = RecurrentPPG("MlpLstmPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    recurrent.save(tmp_path / "recurrent")
    with pytest.raises(ModelFormatError, match=r"recurrent\.zip is another class's file: it was saved by RecurrentPPG"):
        PPG.load(tmp_path / "recurrent.zip")
    with pytest.raises(ModelFormatError, match=r"it was saved by PPG, not by MaskablePPG; use PPG\.load"):
        MaskablePPG.load(model_file)
    before = copy.deepcopy(recurrent.policy.state_dict())
    with pytest.raises(ModelFormatError, match="it was saved by PPG, not by RecurrentPPG"):
        recurrent.set_parameters(str(model_file))
    assert all(th.equal(value, before[name]) for name, value in recurrent.policy.state_dict().items())

    assert type(Mine.load(model_file)) is Mine


class Mine(PPG):
    """Somebody's algorithm."""


class Others(PPG):
    """Somebody else's."""


def test_a_users_class_is_loaded_by_itself(tmp_path):
    Mine("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "mine.zip")
    assert type(Mine.load(tmp_path / "mine")) is Mine

    class Further(Mine):
        """Derived from it."""

    assert type(Further.load(tmp_path / "mine.zip")) is Further
    name = r"tests\.saving\.test_model_file\.Mine"
    for cls in (PPG, Others):
        with pytest.raises(ModelFormatError, match=rf"it was saved by {name}, which is derived from PPG; use {name}\.load"):
            cls.load(tmp_path / "mine.zip")
    with pytest.raises(ModelFormatError, match=rf"it was saved by {name}, not by RecurrentPPG; use {name}\.load"):
        RecurrentPPG.load(tmp_path / "mine.zip")
    elsewhere = type("Mine", (PPG,), {"__module__": "another_script", "__qualname__": "Mine"})  # it was __main__, say
    assert type(elsewhere.load(tmp_path / "mine.zip")) is elsewhere


@pytest.mark.parametrize("other", [PPO, A2C, DQN, MaskablePPO, RecurrentPPO])
def test_other_algorithms_are_told_what_loads_our_file(model_file, tmp_path, other):
    with pytest.raises(ModelFormatError, match=r"file of sb3_ppg\.PPG, .*use sb3_ppg\.PPG\.load"):
        other.load(model_file)
    Mine("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "mine.zip")
    with pytest.raises(ModelFormatError, match=r"use tests\.saving\.test_model_file\.Mine\.load"):
        other.load(tmp_path / "mine.zip")
    assert not {"_guard", "_saved_by"} & vars(PPG.load(model_file)).keys()


def test_what_to_do_with_a_file_of_ppo_works(tmp_path):
    ppo = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    ppo.save(tmp_path / "ppo.zip")
    with pytest.raises(ModelFormatError, match=r"model\.policy\.load_state_dict\(PPO\.load\(path\)\.policy\.state_dict\(\)"):
        PPG.load(tmp_path / "ppo.zip")
    model = PPG("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    model.policy.load_state_dict(PPO.load(tmp_path / "ppo.zip").policy.state_dict(), strict=False)
    observations = np.random.default_rng(0).normal(size=(20, 4))
    assert np.array_equal(model.predict(observations, deterministic=True)[0], ppo.predict(observations, deterministic=True)[0])


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            3,
            "PPG",
            [],
            {},
            ["PPG"],
            ["PPG", "1", []],
            ["PPG", 1, 5],
            ["PPG", 1, [5]],
            ["PPG", 1, [], 5],
            [["PPG"], 1, []],
        ),
        *(
            ["PPG", True, []],
            ["PPG", 1.0, []],
            ["PPG", 1, [], None, None],
            ["PPG", 1, ["\x1b[2J\ud800"]],
            ["\x1b[31m\n", 1, []],
        ),
        *(["PPG", 1, [], "\x1b[2Jtrojan"], ["PPG", 1, ["policy"] * 50, "\u202e"]),
    ],
)
def test_whatever_a_file_says_that_saved_it(model_file, value):
    bad = change_data(model_file, lambda data: data.update(_saved_by=value))
    with pytest.raises(ModelFormatError, match=r"changed\.zip") as error:
        PPG.load(bad)
    assert str(error.value).isprintable()


def compressed(path: Path, name: str, content: bytes) -> Path:
    """A copy of an archive, with one more member."""
    bomb = path.with_name("bomb.zip")
    shutil.copyfile(path, bomb)
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return bomb


def test_archives_that_unpack_to_very_much_are_refused(model_file, tmp_path):
    tracemalloc.start()
    zeros, before = bytes(2**27), tracemalloc.get_traced_memory()[0]
    with pytest.raises(ModelFormatError, match=r"bomb\.zip .* it is compressed"):
        PPG.load(compressed(model_file, "another", zeros))
    with zipfile.ZipFile(model_file) as archive:
        (tmp_path / "policy.pth").write_bytes(archive.read("policy.pth"))
    inner = compressed(tmp_path / "policy.pth", "archive/data/999", zeros).read_bytes()
    with pytest.raises(ModelFormatError, match=r"changed\.zip .* it is compressed"):
        PPG.load(change_data(model_file, lambda data: None, **{"policy.pth": inner}))
    with pytest.raises(ModelFormatError, match="more than 1048576 values"):
        PPG.load(change_data(model_file, lambda data: None, data=b"[" + b"[]," * 2**20 + b"[]]"))
    _, path = saved(tmp_path)
    with pytest.raises(ModelFormatError, match="it has 'bomb', which this model does not need"):
        small().learn(16).load_aux_buffer(compressed(path, "bomb.npy", zeros))
    peak = tracemalloc.get_traced_memory()[1] - before - len(zeros)
    tracemalloc.stop()
    assert peak < 2**26


def test_a_member_that_is_longer_than_it_claims_is_not_unpacked(tmp_path):
    model, path = saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "numpy/keys.npy"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, content in members.items():
            archive.writestr(one, content + bytes(2**27) if one == name else content)
        archive.getinfo(name).file_size, archive.getinfo(name).CRC = len(members[name]), zlib.crc32(members[name])
    tracemalloc.start()
    model.load_aux_buffer(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_settings_may_be_numpys(tmp_path):
    model = small(n_steps=np.int64(8)).learn(16)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    stored = model.aux_buffer
    model.load_aux_buffer(tmp_path / "buffer.npz")
    assert model.aux_buffer is not stored and len(model.aux_buffer) == len(stored) > 0


def test_loading_leaves_the_generators_alone_unless_asked(model_file):
    def states():
        return random.getstate(), np.random.get_state()[1:], th.get_rng_state()

    def equal(one, other):
        return one[0] == other[0] and np.array_equal(one[1][0], other[1][0]) and th.equal(one[2], other[2])

    before = states()
    PPG.load(model_file, env=make_vec_env("CartPole-v1"))
    assert equal(states(), before)
    with pytest.raises(ValueError, match="spaces do not match"):
        PPG.load(model_file, env=make_vec_env("Acrobot-v1"))
    assert equal(states(), before)
    PPG.load(model_file, seed=7)
    assert not equal(states(), before)
    asked = states()
    PPG.load(model_file, seed=7)
    assert equal(states(), asked)


def test_what_was_checked_is_what_is_loaded(model_file, tmp_path, monkeypatch):
    """Another file takes its place meanwhile."""
    path = tmp_path / "model.zip"
    shutil.copyfile(model_file, path)

    original = BaseAlgorithm.load.__func__

    def load(cls, *args, **kwargs):
        small(policy_kwargs=dict(net_arch=[8])).save(path)
        return original(cls, *args, **kwargs)

    expected = PPG.load(model_file)
    monkeypatch.setattr(BaseAlgorithm, "load", classmethod(load))
    assert same(PPG.load(path), expected)


def test_a_newer_or_incomplete_model_is_refused(model_file, tmp_path, monkeypatch):
    with zipfile.ZipFile(model_file) as archive, zipfile.ZipFile(tmp_path / "without.zip", "w") as without:
        for name in archive.namelist():
            if name != "aux_optimizer.pth":
                without.writestr(name, archive.read(name))
    with pytest.raises(ModelFormatError, match=r"without\.zip is damaged: it has no aux_optimizer\.pth"):
        PPG.load(tmp_path / "without.zip")
    monkeypatch.setattr("sb3_ppg.saving.model_file.ZIP_FORMAT_VERSION", 2)
    small().save(tmp_path / "newer.zip")
    monkeypatch.undo()
    with pytest.raises(ModelFormatError, match=r"newer\.zip has version 2 of its format, this sb3_ppg reads 1"):
        PPG.load(tmp_path / "newer.zip")
    with pytest.raises(FileNotFoundError):
        PPG.load(tmp_path / "none.zip")


def test_models_are_loaded_in_threads(model_file):
    with ThreadPoolExecutor(8) as pool:
        models = list(pool.map(lambda _: PPG.load(model_file), range(32)))
    assert all(same(model, models[0]) for model in models)


@pytest.mark.parametrize("objective", ["ewma", "daac"])
def test_an_objective_with_other_parameters_is_refused_by_name(objective, tmp_path):
    """What the message says to do works."""
    saved_model = small(policy_kwargs=dict(architecture="dual")).learn(8 * 2)
    saved_model.save(tmp_path / "model.zip")
    without_phase = dict(n_aux_epochs=0, n_value_epochs=1) if objective == "daac" else {}
    with pytest.raises(ArgumentError, match=f"`objective`='{objective}' cannot take the file's parameters"):
        PPG.load(tmp_path / "model.zip", objective=objective, **without_phase)
    policy = PPG.load(tmp_path / "model.zip").get_parameters()["policy"]
    model = small(policy_kwargs=dict(architecture="dual"), objective=objective, **without_phase)
    model.set_parameters({"policy": policy}, exact_match=False)
    assert all(th.equal(weight, policy[name]) for name, weight in model.policy.state_dict().items())


def test_parameters_that_do_not_fit_change_nothing(model_file):
    """SB3 would have copied those that do."""
    model = small(policy_kwargs=dict(net_arch=[4, 4])).learn(8 * 3)
    before = everything(model)
    with pytest.raises((RuntimeError, ValueError)):
        model.set_parameters(str(model_file))
    assert all(th.equal(value, before[name]) for name, value in everything(model).items())
