"""Writing files so that each is complete or not there: an error or a kill leaves the file of before as it was."""

import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """
    Yield the path of a temporary file to write to. At the end of the block it is flushed to the disk and takes the place of
    ``path`` in one step; after an error it is removed.

    :param path: its folder is made if it is not there
    :raises OSError: if it cannot be written, for instance because the disk is full
    """
    with atomic_writes([path]) as (temporary,):
        yield temporary


@contextmanager
def atomic_writes(paths: list[Path]) -> Iterator[list[Path]]:
    """
    Do the same as ``atomic_write`` for files that belong together: none takes its place before all are on the disk.

    :param paths: in one folder; they take their places in this order
    """
    paths = [path.resolve() for path in paths]  # links stay links
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        _remove_leftovers(path)
    temporaries = [path.with_name(f"{_prefix(path)}{os.getpid()}.tmp") for path in paths]
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


def _prefix(path: Path) -> str:
    """Beginning of a temporary file's name. It is short: ``path`` may have a name as long as the file system takes."""
    return f".sb3_ppg-{zlib.crc32(path.name.encode()):08x}-"


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote ``path``."""
    for leftover in path.parent.glob(f"{_prefix(path)}*.tmp"):
        match = re.fullmatch(r".*-(\d+)\.tmp", leftover.name)
        if match and not psutil.pid_exists(int(match[1])):
            leftover.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file or a folder to the disk. Windows cannot open folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
