"""Files are complete or not there, on every file system; models' that are damaged, another class's or newer are refused."""

import copy
import errno
import io
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import numpy as np
import pytest
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg import PPG, ArgumentError, MaskablePPG, ModelFormatError, RecurrentPPG, aux_buffer_path
from sb3_ppg.hub import save_pretrained
from sb3_ppg.objectives import Objective
from sb3_ppg.saving.files import atomic_writes, package_version
from tests.helpers import ROOT, run_in_a_new_process
from tests.hub.watch import generator_states
from tests.saving.small_models import everything, same, small


def test_a_file_appears_when_it_is_complete_and_on_the_disk(tmp_path, monkeypatch):
    path, fsync, flushed = tmp_path / "folder" / "file", os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(path.exists()) or fsync(descriptor))
    with atomic_writes(path) as (temporary,):
        temporary.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one" and flushed == [False, True]  # itself, before it takes its place, and the folder
    with pytest.raises(RuntimeError), atomic_writes(path) as (temporary,):
        temporary.write_text("two")
        raise RuntimeError
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    """A file to which something was written lately may belong to another process."""
    with atomic_writes(tmp_path / "model.zip") as (temporary,):
        old, recent = (f"{temporary.name.removesuffix('.tmp')}{number}.tmp" for number in (1, 2))
        temporary.write_text("")
    for name, age in ((old, 7200), (recent, 600)):
        (tmp_path / name).write_text("half, or somebody is writing it")
        os.utime(tmp_path / name, (0, time.time() - age))
    small().save(tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"model.zip", recent}


REFUSED = {
    "chmod": [(os, "chmod")],
    "fsync": [(os, "fsync")],
    "replace": [(Path, "replace")],
    "listing": [(os, "listdir"), (os, "scandir")],
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_are_saved_where_the_system_refuses(what, tmp_path, monkeypatch):
    """Buckets and shared folders that are mounted do."""
    model = small().learn(8)
    model.save(tmp_path / "model")
    model.learn(8, reset_num_timesteps=False)
    with monkeypatch.context() as patched:
        for owner, name in REFUSED[what]:
            patched.setattr(owner, name, Mock(side_effect=OSError(errno.EBUSY, "Device or resource busy")))
        model.save(tmp_path / "model")
    assert PPG.load(tmp_path / "model").num_timesteps == 16
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]


def test_files_are_saved_beside_folders_of_their_names(tmp_path, monkeypatch):
    """SB3 warns and takes another name, too."""
    (tmp_path / "model.zip").mkdir()
    (tmp_path / "model.aux_buffer.npz").mkdir()
    model = small().learn(8)
    with pytest.warns(UserWarning, match=r"model.zip' is a folder. Will save instead to .*model.zip_2"):
        model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model.zip_2", device="cpu")
    assert same(loaded, model)
    with pytest.warns(UserWarning, match=r"npz' is a folder. Will save instead to .*npz_2"):
        model.save_aux_buffer(aux_buffer_path(tmp_path / "model"))
    loaded.load_aux_buffer(tmp_path / "model.aux_buffer.npz_2")
    assert len(loaded.aux_buffer) == 1
    monkeypatch.chdir(tmp_path)
    model.save(".")
    assert (tmp_path / "..zip").is_file()  # as SB3 names it


def save_as_another_user(path: Path) -> list[str]:
    """Save twice where an ordinary user may write the file, but not the folder; return the warnings."""
    model = small().learn(8)
    model.save(path)
    path.chmod(0o666)
    path.parent.chmod(0o555)
    model.learn(8, reset_num_timesteps=False)
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            model.save(path)
        return [str(warning.message) for warning in caught]


def test_a_file_is_overwritten_in_a_folder_that_may_not_be_written():
    with TemporaryDirectory(dir="/tmp") as folder:  # which any user may enter
        os.chmod(folder, 0o755)
        (message,) = run_in_a_new_process(save_as_another_user, Path(folder, "model.zip"))
        assert PPG.load(Path(folder, "model.zip"), device="cpu").num_timesteps == 16
    assert "may not be written: its files are overwritten" in message


def test_an_error_between_two_files_leaves_complete_ones(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    paths[0].write_text("old")
    with pytest.raises(OSError, match="second could not be written: Is a directory"), atomic_writes(*paths) as temporaries:
        paths[1].mkdir()
        for temporary in temporaries:
            temporary.write_text("new")
    assert paths[0].read_text() == "new" and {*tmp_path.iterdir()} == {*paths} and not any(paths[1].iterdir())


def fill_the_disk(folder: Path) -> dict[str, str]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = small().learn(8)
    large = small(policy_kwargs=dict(net_arch=[256, 256])).learn(8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # as a full disk, writing fails half-way
    messages = {}
    for name, save in (
        ("model.zip", model.save),
        ("large.zip", large.save),
        ("model.aux_buffer.npz", model.save_aux_buffer),
        ("shared", partial(save_pretrained, model)),
    ):
        try:
            save(folder / name)
        except Exception as error:
            messages[name] = str(error)
    return messages


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    model = small().learn(8 * 2)
    model.save(tmp_path / "model.zip")
    model.save(tmp_path / "large.zip")
    model.save_aux_buffer(tmp_path / "model.aux_buffer.npz")
    save_pretrained(model, tmp_path / "shared")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    messages = run_in_a_new_process(fill_the_disk, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert messages.keys() == {"model.zip", "large.zip", "model.aux_buffer.npz", "shared"}
    for name, message in messages.items():
        assert re.search(rf"{name}.* could not be written: {os.strerror(errno.EFBIG)}", message)


# ---- zip files of models ----


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
    places = [*rng.integers(len(content), size=40), *rng.integers(directory, len(content), size=40)]
    places += [entry.start() + 33 for entry in re.finditer(b"PK\1\2", content)]  # a length, so entries seem to end later
    bad, refused, other = tmp_path / "bad.zip", 0, small(policy_kwargs=dict(net_arch=[4]))
    before = everything(other)
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        bad.write_bytes(flipped)
        try:
            assert same(PPG.load(bad), model)
        except ModelFormatError as error:
            assert f"{bad} is damaged" in str(error)
            with pytest.raises(ModelFormatError, match="is damaged"):
                other.set_parameters(str(bad))
            refused += 1
    assert refused > 48 and all(th.equal(value, before[name]) for name, value in everything(other).items())


def test_a_truncated_model_is_refused(model_file, tmp_path):
    content = model_file.read_bytes()
    for part in (content[: int(part * len(content))] for part in (0.0, 0.1, 0.5, 0.9, 0.999)):
        (tmp_path / "bad.zip").write_bytes(part)
        with pytest.raises(ModelFormatError, match=r"bad\.zip is damaged, or no model's file"):
            PPG.load(tmp_path / "bad")
        with pytest.raises(ModelFormatError, match="is damaged"):
            PPG.load(io.BytesIO(part))
    assert PPG.load(io.BytesIO(content)).num_timesteps == 16


def test_another_classs_model_is_refused(model_file, tmp_path):
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


def test_a_users_class_is_loaded_by_itself(model_file, tmp_path):
    mine, others = type("Mine", (PPG,), {}), type("Others", (PPG,), {})
    mine("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "mine.zip")
    further = type("Further", (mine,), {})
    elsewhere = type("Mine", (PPG,), {"__module__": "another_script"})  # it was __main__, say
    for cls in (mine, further, elsewhere):
        assert type(cls.load(tmp_path / "mine")) is cls
    assert type(mine.load(model_file)) is mine
    with pytest.warns(UserWarning, match="was saved by Mine, a class derived from PPG"):
        assert type(PPG.load(tmp_path / "mine")) is PPG
    for cls in (others, RecurrentPPG):
        message = f"it was saved by Mine, not by {cls.__name__}; use Mine.load"
        with pytest.raises(ModelFormatError, match=message):
            cls.load(tmp_path / "mine.zip")


def test_what_to_do_with_a_file_of_ppo_works(tmp_path):
    ppo = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    ppo.save(tmp_path / "ppo.zip")
    with pytest.raises(ModelFormatError, match=r"ppo\.zip is another class's file: no algorithm of sb3_ppg") as caught:
        PPG.load(tmp_path / "ppo")
    assert "model.policy.load_state_dict(PPO.load(path).policy.state_dict()" in str(caught.value)
    observations = np.random.default_rng(0).normal(size=(20, 4))
    for model in (PPG("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32).learn(n) for n in (0, 64)):
        assert (model.policy.value_unit > 1) == (model.num_timesteps > 0)
        model.policy.load_state_dict(PPO.load(tmp_path / "ppo.zip").policy.state_dict(), strict=False)
        actions, expected = (agent.predict(observations, deterministic=True)[0] for agent in (model, ppo))
        assert np.array_equal(actions, expected)
        values, expected = (agent.policy.predict_values(th.tensor(observations).float()) for agent in (model, ppo))
        th.testing.assert_close(values, expected)


def test_loading_leaves_the_generators_alone_unless_asked(model_file, monkeypatch):
    """
    Also when it fails, or in many threads. Generators of GPUs are given a seed before they are in use: the last one that
    anybody has asked for.
    """
    env, other = make_vec_env("CartPole-v1"), make_vec_env("Acrobot-v1")
    of_gpus: list[int] = []
    monkeypatch.setattr(th.cuda, "manual_seed_all", of_gpus.append)
    th.manual_seed(5)
    before = generator_states()
    PPG.load(model_file, env=env)
    assert generator_states() == before
    for options in ({}, dict(objective="ewma")):
        with pytest.raises(ValueError, match="spaces do not match"):
            PPG.load(model_file, env=other, **options)
    assert generator_states() == before and len(of_gpus) > 1 and of_gpus[-1] == 5
    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(lambda _: PPG.load(model_file), range(16))
    assert all(same(first, model) for model in others) and generator_states() == before
    PPG.load(model_file, seed=7)
    asked = generator_states()
    assert asked != before
    PPG.load(model_file, seed=7)
    assert generator_states() == asked


def test_a_folder_of_the_same_name_is_beside_the_file(tmp_path):
    """RL Zoo saves X.zip beside a folder X; a folder alone is of another kind."""
    model = small().learn(8)
    model.save(tmp_path / "model.zip")
    (tmp_path / "model").mkdir()
    assert same(PPG.load(tmp_path / "model", device="cpu"), model) and same(PPG.load(str(tmp_path / "model")), model)
    (tmp_path / "model.zip").unlink()
    with pytest.raises(ModelFormatError, match=r"model is a folder, and there is no .*model\.zip; hub\.from_pretrained reads"):
        PPG.load(tmp_path / "model")


def test_newer_files_are_refused(tmp_path, monkeypatch):
    model = small().learn(8)
    with monkeypatch.context() as patched:
        for name in ("files.MODEL_VERSION", "training_state.FORMAT_VERSION"):
            patched.setattr(f"sb3_ppg.saving.{name}", 2)
        model.save(tmp_path / "newer.zip")
        model.save_aux_buffer(tmp_path / "newer.npz")
    for load, name in ((PPG.load, "newer.zip"), (model.load_aux_buffer, "newer.npz")):
        writer = rf"\({version('sb3-ppg')}.*\)"
        match = f"{name} was written by a newer sb3_ppg {writer}: .* has version 2, this sb3_ppg reads 1"
        with pytest.raises(ModelFormatError, match=match):
            load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        PPG.load(tmp_path / "none.zip")


def test_the_version_has_the_commit_in_the_packages_own_clone_alone(tmp_path, monkeypatch):
    """Not in the repository of somebody who has copied the package there."""
    module, version_here = tmp_path / "sb3_ppg" / "saving" / "files.py", package_version.__wrapped__  # without its cache
    monkeypatch.setattr("sb3_ppg.saving.files.__file__", str(module))

    def git(*words: str) -> str:
        names = [word for name in ("user.name", "user.email") for word in ("-c", f"{name}=x@example.org")]
        return subprocess.check_output(["git", *names, *words], cwd=tmp_path, text=True).strip()

    module.parent.mkdir(parents=True)
    module.write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "a copy")
    number = version("sb3-ppg")
    assert version_here() == number
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    git("add", "pyproject.toml")
    git("commit", "-qm", "the project")
    assert version_here() == f"{number}+{git('rev-parse', '--short=12', 'HEAD')}"
    module.write_text("changed")
    assert version_here().endswith(".dirty")
    shutil.rmtree(tmp_path / ".git")
    assert version_here() == number


class Predicts(Objective):
    """Has a network that the policy's optimizers train."""

    def __init__(self, policy, **kwargs):
        super().__init__(policy, **kwargs)
        self.head = th.nn.Linear(4, 1)


def test_an_objective_with_other_parameters_is_refused_by_name(model_file, tmp_path):
    """The remedy that the message names works."""
    for objective in ("ewma", Predicts):
        with pytest.raises(ArgumentError, match="cannot take the file's parameters"):
            PPG.load(model_file, objective=objective)
    policy = PPG.load(model_file).get_parameters()["policy"]
    model = small(policy_kwargs=dict(net_arch=[4]), objective="ewma")
    model.set_parameters({"policy": policy}, exact_match=False)
    assert all(th.equal(weight, policy[name]) for name, weight in model.policy.state_dict().items())
    model.save(tmp_path / "ewma")
    with pytest.raises(ArgumentError, match="`objective`='ppg' cannot take the file's parameters"):
        PPG.load(tmp_path / "ewma", objective="ppg")


def test_parameters_that_do_not_fit_change_nothing(model_file):
    """SB3 would have copied those that do."""
    model = small(policy_kwargs=dict(net_arch=[4, 4])).learn(8 * 3)
    before = everything(model)
    with pytest.raises((RuntimeError, ValueError)):
        model.set_parameters(str(model_file))
    assert all(th.equal(value, before[name]) for name, value in everything(model).items())
