"""Files that are complete or not there: whatever happens while one is written, the one before it is left as it was."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """
    A file to write to, beside ``path``. At the end it is flushed to the disk and takes the place of ``path``, in one step;
    after an error it is removed.

    :param path: its folder is made if it is not there
    :raises OSError: if it cannot be written, for instance because the disk is full
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        before = "; the file that was there before is as it was" if path.exists() else ""
        raise OSError(error.errno, f"{path} could not be written: {error.strerror or error}{before}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _flush(path: Path) -> None:
    """To the disk. Windows cannot open folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    """Of processes that were killed while they wrote this file."""
    name = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.tmp")
    for leftover in path.parent.iterdir():
        match = name.fullmatch(leftover.name)
        if match and not psutil.pid_exists(int(match[1])):
            with suppress(FileNotFoundError):
                leftover.unlink()
