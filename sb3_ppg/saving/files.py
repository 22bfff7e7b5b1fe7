"""Files that are complete or not there: whatever happens while one is written, the one before it is left as it was."""

import io
import os
import platform
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from sb3_ppg.errors import ModelFormatError


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """
    :param path: of a file, or a link to one
    :return: it, open for reading
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if it is something else: a folder, a device, a pipe that would wait for ever
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ModelFormatError(f"{path} is no file with content of its own")
    with path.open("rb") as file:
        yield file


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """
    A file to write to, beside ``path``. At the end it is flushed to the disk and takes the place of ``path``, in one step;
    after an error it is removed.

    :param path: its folder is made if it is not there
    :raises OSError: if it cannot be written, for instance because the disk is full
    """
    with atomic_writes([path]) as (temporary,):
        yield temporary


@contextmanager
def atomic_writes(paths: list[Path]) -> Iterator[list[Path]]:
    """
    As ``atomic_write``, for files that belong together: none takes its place before all are on the disk.

    :param paths: in one folder
    """
    paths = [path.resolve() for path in paths]  # where a link leads to
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        _remove_leftovers(path)
    temporaries = [path.with_name(f".{_stem(path)}.{_machine()}-{os.getpid()}.tmp") for path in paths]
    try:
        yield temporaries
        for temporary, path in zip(temporaries, paths, strict=True):
            _flush(temporary)
            with suppress(FileNotFoundError):
                shutil.copymode(path, temporary)
        for temporary, path in zip(temporaries, paths, strict=True):
            temporary.replace(path)
        _flush(folder)
    except OSError as error:
        before = "; what was there before is as it was" if all(path.exists() for path in paths) else ""
        names = ", ".join(map(str, paths))
        raise OSError(error.errno, f"{names} could not be written: {error.strerror or error}{before}") from error
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def _stem(path: Path) -> str:
    """Of the temporary file's name, whose end needs room, too: file systems allow 255 bytes."""
    name = path.name.encode()
    return path.name if len(name) <= 200 else f"{zlib.crc32(name):08x}"


def _flush(path: Path) -> None:
    """To the disk. Windows cannot open folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _machine() -> str:
    """Which of several on a network, where the numbers of processes are each one's own."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _remove_leftovers(path: Path) -> None:
    """Of processes of this machine that were killed while they wrote this file."""
    name = re.compile(rf"\.{re.escape(_stem(path))}\.{_machine()}-(\d+)\.tmp")
    for leftover in path.parent.iterdir():
        match = name.fullmatch(leftover.name)
        if match and not psutil.pid_exists(int(match[1])):
            with suppress(FileNotFoundError):
                leftover.unlink()
