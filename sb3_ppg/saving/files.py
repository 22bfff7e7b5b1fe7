"""Files: written so that each is complete or not there, and zip files of models, which are checked before they are read."""

import errno
import io
import json
import os
import shutil
import subprocess
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.save_util import open_path

from sb3_ppg.arguments import argument_names
from sb3_ppg.errors import ModelFormatError, advise, nearest, raised_as, warn

MODEL_VERSION = 1  # of the format of models' files
SAVED_BY = "_saved_by"  # attribute in the file: the version of its format, and the writer's `_class_names`
WRITTEN_BY = "_sb3_ppg_version"  # attribute in the file: the `package_version`
# A file system may refuse to rename onto a mounted file, or to flush
REFUSED = {errno.EPERM, errno.EACCES, errno.EBUSY, errno.EXDEV, errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
PREFIX = ".sb3_ppg-"  # of temporary files
QUIET = 3600  # seconds; a temporary file to which nothing was written for so long is a leftover


@contextmanager
def atomic_writes(*paths: Path) -> Iterator[list[Path]]:
    """
    Yield the paths of temporary files to write to, one for each path. After the block, all are flushed to the disk, and then
    each replaces the file at its path in one step, in order. After an error they are removed. If the file system refuses to
    replace a file, such as one that is mounted alone, the content is copied into it. As in SB3, files in a folder that may not
    be written are overwritten, and if a path is a folder, "<path>_2" is written instead.

    :param paths: files of one folder, which is made if it is not there
    :raises OSError: with the paths, if a file cannot be written, for instance because the disk is full
    """
    places = [_no_folder(path.resolve()) for path in paths]  # links stay links
    folder = places[0].parent
    if folder.exists() and not os.access(folder, os.W_OK) and all(os.access(place, os.W_OK) for place in places):
        advise("overwriting", f"{folder} may not be written: its files are overwritten, and damaged if that is interrupted")
        yield places
        return
    temporaries = [folder / f"{PREFIX}{uuid.uuid4().hex}.tmp" for _ in places]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        for temporary in temporaries:
            temporary.touch()
        yield temporaries
        for temporary, place in zip(temporaries, places, strict=True):
            _flush(temporary)
            with suppress(OSError):  # there is no file yet, or the file system has no modes
                shutil.copymode(place, temporary)
        for temporary, place in zip(temporaries, places, strict=True):
            try:
                temporary.replace(place)
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                shutil.copyfile(temporary, place)
        with suppress(OSError):  # folders cannot be flushed everywhere
            _flush(folder)
    except OSError as error:
        names = ", ".join(map(str, places))
        raise OSError(error.errno, f"{names} could not be written: {error.strerror or error}") from error
    finally:
        for temporary in temporaries:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _no_folder(path: Path) -> Path:
    """Return a path, or another one if it is a folder's."""
    if not path.is_dir():
        return path
    warn(f"Path '{path}' is a folder. Will save instead to {path}_2")
    return _no_folder(Path(f"{path}_2"))


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote."""
    with suppress(OSError):  # a folder that cannot be listed
        for leftover in folder.glob(f"{PREFIX}*.tmp"):
            if time.time() - leftover.stat().st_mtime > QUIET:
                leftover.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file or a folder to the disk, where the file system can."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
    finally:
        os.close(descriptor)


# ---- versions ----


@cache
def package_version() -> str:
    """Return this package's version; in a clone of the repository with the commit, and "dirty" if files were changed."""
    clone, number, project = Path(__file__).parents[2], version("sb3-ppg"), "pyproject.toml"
    with suppress(OSError, subprocess.CalledProcessError):
        if 'name = "sb3-ppg"' in (clone / project).read_text():  # not somebody else's repository with a copy of the package
            git = ["git", "--no-optional-locks", f"--git-dir={clone / '.git'}", f"--work-tree={clone}"]
            describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
            commit = subprocess.check_output([*git, *describe], cwd=clone, stderr=subprocess.DEVNULL, text=True)
            return f"{number}+{commit.strip().replace('-', '.')}"
    return number


def check_version(path: Any, found: int, known: int, written_by: str | None) -> None:
    """Raise ``ModelFormatError`` if a file has a newer version of its format than is known."""
    if found > known:
        by = f" ({written_by})" if written_by else ""
        raise ModelFormatError(
            f"{path} was written by a newer sb3_ppg{by}: its format has version {found}, this sb3_ppg reads {known}. Install "
            "the newer one to read it"
        )


# ---- zip files of models ----


def _class_names(cls: type) -> list[str]:
    """Return the names of a class and of its bases, up to the algorithm of sb3_ppg."""
    n_above = next(n for n, base in enumerate(cls.__mro__) if base.__module__.split(".")[0] == "sb3_ppg")
    return [base.__name__ for base in cls.__mro__[: n_above + 1]]


def mark(model: BaseAlgorithm) -> None:
    """Give a model the attributes by which ``checked_model_file`` knows the class and the version that saved a file."""
    vars(model).update({SAVED_BY: [MODEL_VERSION, *_class_names(type(model))], WRITTEN_BY: package_version()})


@contextmanager
def checked_model_file(path: str | Path | io.BufferedIOBase, cls: type, given: Any = ()) -> Iterator[io.BufferedIOBase]:
    """
    Open a model's file for a class, and check without unpickling that it is whole, that class and version fit, and that the
    names in ``given`` are arguments or attributes. ".zip" may be left out of the path, even if a folder has that name. SB3's
    ``load`` then reads what was checked, even if another file takes its place meanwhile.
    """
    if not isinstance(path, io.BufferedIOBase) and Path(path).is_dir():
        beside = Path(f"{path}.zip")
        if not beside.is_file():
            raise ModelFormatError(
                f"{path} is a folder, and there is no {beside}; hub.from_pretrained reads plain data in folders"
            )
        path = beside
    with nullcontext(path) if isinstance(path, io.BufferedIOBase) else open_path(path, "r", suffix="zip") as file:
        path = getattr(file, "name", path)
        with raised_as(ModelFormatError, f"{path} is damaged, or no model's file"), zipfile.ZipFile(file) as archive:
            _check_archive(archive)
            attributes = json.loads(archive.read("data"))
        if SAVED_BY not in attributes:
            raise ModelFormatError(
                f"{path} is another class's file: no algorithm of sb3_ppg saved it. Use the `load` of the class that did, "
                "PPO.load for instance; PPG can go on from PPO's networks: "
                "model.policy.load_state_dict(PPO.load(path).policy.state_dict(), strict=False)"
            )
        format_version, saved_by, *bases = attributes[SAVED_BY]
        check_version(path, format_version, MODEL_VERSION, attributes[WRITTEN_BY])
        if cls.__name__ in bases:
            warn(f"{path} was saved by {saved_by}, a class derived from {cls.__name__}: what it adds is not there")
        elif saved_by not in _class_names(cls):
            raise ModelFormatError(
                f"{path} is another class's file: it was saved by {saved_by}, not by {cls.__name__}; use {saved_by}.load, "
                "in RL Zoo another --algo"
            )
        for name in {*given} - {*argument_names(cls), *attributes}:
            raise TypeError(f"{cls.__name__}.load has no argument `{name}`{nearest(name, argument_names(cls))}")
        yield file


def checkpoint_of(path: Path) -> tuple[str | None, int]:
    """
    Return the run whose ``PhasicCheckpointCallback`` wrote a model's file, and the time of writing in nanoseconds. For any
    other file, even a damaged one (``load`` will refuse it), return None and the time of modification.
    """
    checkpoint = saved_attributes(path).get("_checkpoint")
    return tuple(checkpoint) if checkpoint else (None, path.stat().st_mtime_ns)


def saved_attributes(path: Path) -> dict[str, Any]:
    """Return a model's attributes as its file has them in JSON, most of them pickled; none if it is damaged or not there."""
    with suppress(Exception), zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("data"))
    return {}


def is_whole(path: Path) -> bool:
    """Return whether a model's file or an auxiliary buffer's is there, and all its checksums are right."""
    with suppress(Exception), zipfile.ZipFile(path) as archive:  # zipfile raises errors of many kinds for a wrong byte
        _check_archive(archive)
        # In a truncated file, zipfile may find one of torch's zip files, which are inside
        return not {"data", "description.npy"}.isdisjoint(archive.namelist())
    return False


def _check_archive(archive: zipfile.ZipFile) -> None:
    """Verify all checksums, and that the table of contents has as many entries as its end says, which zipfile ignores."""
    assert archive.fp is not None
    archive.fp.seek(-22 - len(archive.comment), io.SEEK_END)
    n_entries = int.from_bytes(archive.fp.read(12)[10:], "little")
    if n_entries != len(archive.infolist()) or archive.testzip() is not None:
        raise ValueError("a checksum or the table of contents is wrong")
