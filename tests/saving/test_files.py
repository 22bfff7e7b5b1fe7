"""Files are complete or not there, on every file system."""

import errno
import os
import re
import resource
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from sb3_ppg import PPG
from sb3_ppg.export import to_torchscript
from sb3_ppg.hub import save_pretrained
from sb3_ppg.saving.files import atomic_writes
from tests.helpers import run_in_a_new_process
from tests.saving.small_models import small

pytestmark = pytest.mark.slow


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


def refused(*args, **kwargs) -> None:
    raise OSError(errno.EBUSY, "Device or resource busy")


@pytest.mark.parametrize("what", REFUSED)
def test_models_are_saved_where_the_system_refuses(what, tmp_path, monkeypatch):
    """Buckets and shared folders that are mounted do."""
    model = small().learn(8)
    model.save(tmp_path / "model")
    model.learn(8, reset_num_timesteps=False)
    with monkeypatch.context() as patched:
        for owner, name in REFUSED[what]:
            patched.setattr(owner, name, refused)
        model.save(tmp_path / "model")
    assert PPG.load(tmp_path / "model").num_timesteps == 16
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]


def test_an_error_between_two_files_leaves_complete_ones(tmp_path, monkeypatch):
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        path.write_text("old")
    replace = Path.replace

    def full(path, target):
        if target == paths[1]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="second could not be written: No space"):
        patched.setattr(Path, "replace", full)
        with atomic_writes(*paths) as temporaries:
            for temporary in temporaries:
                temporary.write_text("new")
    assert [path.read_text() for path in paths] == ["new", "old"] and len([*tmp_path.iterdir()]) == 2


def fill_the_disk(folder: Path, results) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = small().learn(8)
    large = small(policy_kwargs=dict(net_arch=[256, 256])).learn(8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # as a full disk, writing fails half-way
    messages = {}
    for name, save in (
        ("model.zip", model.save),
        ("large.zip", large.save),
        ("policy.pt", partial(to_torchscript, large)),  # which torch writes
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
    model.save(tmp_path / "large.zip")
    model.save_aux_buffer(tmp_path / "model.aux_buffer.npz")
    to_torchscript(model, tmp_path / "policy.pt")
    save_pretrained(model, tmp_path / "shared")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    messages = run_in_a_new_process(fill_the_disk, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert messages.keys() == {"model.zip", "large.zip", "policy.pt", "model.aux_buffer.npz", "shared"}
    for name, message in messages.items():
        assert re.search(rf"{name}.* could not be written: {os.strerror(errno.EFBIG)}", message)
