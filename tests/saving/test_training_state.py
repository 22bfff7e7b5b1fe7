"""Files of a training in progress: whole, or refused; and what a full disk or a killed process leaves."""

import errno
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, ModelFormatError, RecurrentPPG
from sb3_ppg.export import DeterministicPolicy
from sb3_ppg.hub import save_pretrained
from sb3_ppg.saving.files import atomic_write
from tests.helpers import run_in_a_new_process
from tests.saving.small_models import change_data, discrete, masked, numbers_of, same, saved, small

pytestmark = pytest.mark.slow


def test_damaged_files_are_refused(tmp_path):
    """Truncated anywhere, a byte flipped anywhere: an error that names the file, and the model is as before."""
    model, path = saved(tmp_path)
    content = path.read_bytes()
    before = [targets.copy() for targets in model.aux_buffer.value_targets]
    damaged = tmp_path / "damaged.npz"
    with zipfile.ZipFile(path) as file:  # the arrays' own bytes; the zip's padding is nobody's
        spans = [(info.header_offset + 30 + len(info.filename) + 20, info.file_size) for info in file.infolist()]
    flips = [start + size // 2 for start, size in spans]
    for position in flips:
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        damaged.write_bytes(flipped)
        with pytest.raises(ModelFormatError, match=r"damaged.npz"):
            model.load_aux_buffer(damaged)
    for length in np.linspace(0, len(content) - 1, 20).astype(int):
        damaged.write_bytes(content[:length])
        with pytest.raises(ModelFormatError, match=r"damaged.npz"):
            model.load_aux_buffer(damaged)
    for ours, theirs in zip(model.aux_buffer.value_targets, before, strict=True):
        assert np.array_equal(ours, theirs)
    model.load_aux_buffer(path)


def rewrite(path: Path, **arrays) -> None:
    """The npz with other arrays in the place of some."""
    with np.load(path) as file:
        before = {name: file[name] for name in file.files}
    np.savez(path, **{**before, **{name.replace("__", "/"): array for name, array in arrays.items()}})


def described(path: Path, **changes) -> np.ndarray:
    with np.load(path) as file:
        description = json.loads(file["description"].tobytes())
    description = {name: value for name, value in {**description, **changes}.items() if value is not ...}
    return np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)


WORDS = list(range(1, 625))


@pytest.mark.parametrize(
    "state",
    [
        *(dict(numpy__rest=np.array(rest)) for rest in ([1e8, 0, 0], [700.0, 0, 0], [-1.0, 0, 0], [3.5, 0, 0], [np.nan] * 3)),
        dict(numpy__keys=np.zeros(624, dtype=np.uint32)),
        *(dict(python=[version, words, None]) for version, words in ((2, [*WORDS, 1]), (3, WORDS), (3, [*WORDS, 625]))),
        *(
            dict(python=python)
            for python in (None, 3, [3, [*WORDS[1:], -1, 1], None], [3, [*WORDS, 1], "0"], [3, [0.0] * 625, None])
        ),
        dict(torch__cpu=np.zeros(5056, dtype=np.uint8)),
        dict(torch_next=624),
    ],
)
def test_generators_are_not_put_into_states_that_cannot_be(tmp_path, state):
    """NumPy would read, and torch, too, memory that is not its own, or end the process."""
    model, path = saved(tmp_path)
    if "torch_next" in state:
        numbers = th.get_rng_state().numpy().copy()
        numbers[8:12] = np.frombuffer((624).to_bytes(4, "little"), dtype=np.uint8)  # as many left as there are
        numbers[16:24] = np.frombuffer((624).to_bytes(8, "little"), dtype=np.uint8)  # and at the end
        state = dict(torch__cpu=numbers)
    rewrite(path, **(dict(description=described(path, **state)) if "python" in state else state))
    states = random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()
    before = model.aux_buffer
    with pytest.raises(ModelFormatError, match=r"buffer\.npz is damaged.* generator is none that it can be in"):
        model.load_aux_buffer(path)
    assert model.aux_buffer is before
    assert (random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()) == states


def bad_statistics(**changes) -> dict[str, np.ndarray]:
    return {f"normalize__obs_rms__{part}": np.asarray(value, dtype=np.float64) for part, value in changes.items()}


@pytest.mark.parametrize(
    "arrays",
    [
        bad_statistics(mean=[0, np.nan, 0, 0]),
        bad_statistics(var=[1, -1, 1, 1]),
        bad_statistics(var=[1, np.inf, 1, 1]),
        bad_statistics(count=0),
        bad_statistics(count=np.nan),
        dict(value_targets__1=np.full((1, 8), np.nan, dtype=np.float32)),
        dict(observations__1__=np.full((1, 8, 4), np.inf, dtype=np.float32)),
        dict(trojan=np.zeros(3)),
    ],
)
def test_numbers_that_cannot_be_are_refused_and_change_nothing(tmp_path, arrays):
    model = small(env=VecNormalize(make_vec_env("CartPole-v1"))).learn(16)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    rewrite(tmp_path / "buffer.npz", **arrays)
    before, numbers = model.aux_buffer, numbers_of(model.get_vec_normalize_env())
    random_state = random.getstate()
    random.seed(0)
    with pytest.raises(ModelFormatError, match=r"numbers that cannot be|it has 'trojan'"):
        model.load_aux_buffer(tmp_path / "buffer.npz")
    random.setstate(random_state)
    assert model.aux_buffer is before
    assert all(
        np.array_equal(one, other) for one, other in zip(numbers_of(model.get_vec_normalize_env()), numbers, strict=True)
    )


def test_an_environment_that_was_normalised_has_to_be_again(tmp_path):
    model = small(env=VecNormalize(make_vec_env("CartPole-v1"))).learn(16)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    with pytest.raises(ModelFormatError, match=r"Was its environment in VecNormalize\?"):
        small().learn(16).load_aux_buffer(tmp_path / "buffer.npz")


def test_contexts_that_no_rollout_has_are_refused(tmp_path):
    for model, arrays in (
        (
            MaskablePPG("MlpPolicy", masked(), n_steps=8, batch_size=8),
            dict(context__0__action_masks=np.zeros((2, 8, 5), bool)),
        ),
        (
            RecurrentPPG("MlpLstmPolicy", discrete(), n_steps=8, batch_size=8),
            dict(context__0__episode_starts=np.full((2, 8), 0.5, np.float32)),
        ),
        (
            PPG("MlpPolicy", discrete(spaces.Discrete(3)), n_steps=8, batch_size=8),
            dict(observations__0__=np.full((2, 8, 1), 3)),
        ),
    ):
        model.learn(16)
        model.save_aux_buffer(tmp_path / "buffer.npz")
        model.load_aux_buffer(tmp_path / "buffer.npz")
        rewrite(tmp_path / "buffer.npz", **arrays)
        with pytest.raises(ModelFormatError, match="has numbers that cannot be"):
            model.load_aux_buffer(tmp_path / "buffer.npz")


def test_files_of_before_are_read(tmp_path):
    """Which do not say from which checkpoint they are, nor whose class it was."""
    model, path = saved(tmp_path)
    rewrite(path, description=described(path, checkpoint=...))
    model.load_aux_buffer(path)
    model.save(tmp_path / "model.zip")
    before = change_data(
        tmp_path / "model.zip", lambda data: data.update(_saved_by=data["_saved_by"][:3]) or data.pop("_guard")
    )
    assert same(PPG.load(before), model)


@pytest.mark.parametrize("changes", [dict(n_stored_rollouts=2.0), dict(n_envs=True), dict(surprise=1), dict(n_steps=...)])
def test_a_description_is_taken_to_the_letter(tmp_path, changes):
    model, path = saved(tmp_path)
    rewrite(path, description=described(path, **changes))
    with pytest.raises(ModelFormatError, match=r"buffer\.npz (does not belong|is damaged)"):
        model.load_aux_buffer(path)


def test_what_is_no_file_is_not_opened(tmp_path):
    model = small()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ModelFormatError, match=f"{path} is no file with content"):
            model.load_aux_buffer(path)
        with pytest.raises(ModelFormatError, match=f"{path} is no file with content"):
            PPG.load(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    model, _ = saved(tmp_path)
    other = tmp_path / "other.npz"
    np.savez(other, x=np.zeros(3))
    with pytest.raises(ModelFormatError, match=r"other.npz is damaged, or no auxiliary buffer"):
        model.load_aux_buffer(other)
    model.save(tmp_path / "model.zip")
    with pytest.raises(ModelFormatError, match=r"model.zip"):
        model.load_aux_buffer(tmp_path / "model.zip")
    np.savez(other, description=np.array([object()], dtype=object))
    with pytest.raises(ModelFormatError, match=r"other.npz"):  # never unpickled
        model.load_aux_buffer(other)


def test_a_newer_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sb3_ppg.saving.training_state.STATE_FORMAT_VERSION", 2)
    model, path = saved(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ModelFormatError, match="version 2 of its format, this sb3_ppg reads 1"):
        model.load_aux_buffer(path)


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda: small(n_steps=4, aux_batch_size=8).learn(16), "n steps is 8, the model's 4"),
        (lambda: small().learn(8), "num timesteps is 16, the model's 8"),
        (lambda: small(n_policy_iterations=2).learn(16), "n aux phases is 0, the model's 1"),
    ],
)
def test_another_models_file_is_refused(tmp_path, other, message):
    _, path = saved(tmp_path)
    with pytest.raises(ModelFormatError, match=f"buffer.npz does not belong to this model: its {message}"):
        other().load_aux_buffer(path)


@pytest.mark.parametrize("name, value", [("replay_kwargs", dict(policy_rollouts=2)), ("aux_buffer_kwargs", dict(capacity=4))])
@pytest.mark.parametrize("before", [True, False])
def test_a_file_of_a_training_with_other_arguments_names_them(name, value, before, tmp_path):
    """It is not damaged."""
    model, path = saved(tmp_path, **({name: value} if before else {}))
    model.save(tmp_path / "model.zip")
    other = PPG.load(tmp_path / "model.zip", **{name: None if before else value})
    with pytest.raises(ModelFormatError, match=f"buffer.npz is of a training with other `{name}`: use those"):
        other.load_aux_buffer(path)


def test_other_observations_are_refused(tmp_path):
    _, path = saved(tmp_path)
    acrobot = small()
    acrobot = PPG("MlpPolicy", "Acrobot-v1", n_steps=8, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, device="cpu")
    acrobot.learn(16)
    with pytest.raises(ModelFormatError, match=r"observations/0/ is float32 \(1, 8, 4\), not float32 \(1, 8, 6\)"):
        acrobot.load_aux_buffer(path)


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "folder" / "file"
    with atomic_write(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        temporary.write_text("two")
        raise RuntimeError
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_leftovers_of_processes_that_were_killed_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with atomic_write(tmp_path / "model.zip") as temporary:
        of_this_machine, ending = temporary.name.split(str(os.getpid()))
        temporary.write_text("")
    living, elsewhere = f"{of_this_machine}{os.getppid()}{ending}", f".model.zip.00000000-{dead.pid}.tmp"
    for name in (living, elsewhere, f"{of_this_machine}{dead.pid}{ending}"):
        (tmp_path / name).write_text("half, or somebody is writing it")
    small().save(tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"model.zip", living, elsewhere}


def fill_the_disk(folder: Path, results) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = small().learn(8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # as a full disk, writing fails half-way
    messages = {}
    for name, save in (
        ("model.zip", model.save),
        ("model.aux_buffer.npz", model.save_aux_buffer),
        ("shared", partial(save_pretrained, model)),
    ):
        try:
            save(folder / name)
        except Exception as error:
            messages[name] = str(error)
    results.put(messages)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    model = small().learn(8 * 2)
    model.save(tmp_path / "model.zip")
    model.save_aux_buffer(tmp_path / "model.aux_buffer.npz")
    save_pretrained(model, tmp_path / "shared")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    messages = run_in_a_new_process(fill_the_disk, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert messages.keys() == {"model.zip", "model.aux_buffer.npz", "shared"}
    for name, message in messages.items():
        assert re.search(
            rf"{name}.* could not be written: {os.strerror(errno.EFBIG)}; what was there .* is as it was", message
        )


def test_statistics_of_each_normalisation_come_back(tmp_path):
    """Of one inside of the other: observations by one, rewards by the other."""

    def environments():
        return VecNormalize(VecNormalize(make_vec_env("CartPole-v1", 2, seed=0), norm_reward=False), norm_obs=False)

    model = small(env=environments()).learn(100)
    model.save(tmp_path / "model.zip")
    model.save_aux_buffer(tmp_path / "state.npz")
    env = environments()
    loaded = PPG.load(tmp_path / "model.zip", env=env)
    loaded.load_aux_buffer(tmp_path / "state.npz")
    assert model.env.venv.obs_rms.count > 100 and model.env.ret_rms.count > 100
    for ours, theirs in ((env.ret_rms, model.env.ret_rms), (env.venv.obs_rms, model.env.venv.obs_rms)):
        assert np.array_equal(ours.mean, theirs.mean) and np.array_equal(ours.var, theirs.var) and ours.count == theirs.count
    with pytest.raises(ModelFormatError, match=r"normalize\.1/obs_rms.*VecNormalize"):
        PPG.load(tmp_path / "model.zip", env=env.venv.venv).load_aux_buffer(tmp_path / "state.npz")
    with pytest.raises(ArgumentError, match="wrapped in 2 VecNormalize"):
        save_pretrained(model, tmp_path / "shared")
    with pytest.raises(ArgumentError, match="wrapped in 2 VecNormalize"):
        DeterministicPolicy(model)
