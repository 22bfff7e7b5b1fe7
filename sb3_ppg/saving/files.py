"""Write files so that each is complete or not there: an error or a kill leaves the previous file as it was."""

import errno
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

# A file system may refuse these: renaming onto a mounted file, making a file in a folder, flushing
REFUSED = {errno.EPERM, errno.EACCES, errno.EBUSY, errno.EXDEV, errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
QUIET = 60  # seconds; a temporary file to which nothing was written for so long may be a leftover


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Do the same as ``atomic_writes`` for one file."""
    with atomic_writes([path]) as (temporary,):
        yield temporary


@contextmanager
def atomic_writes(paths: list[Path]) -> Iterator[list[Path]]:
    """
    Yield paths of temporary files to write to, for files that belong together in one folder, which is made if it is not there.
    At the end of the block they are flushed to the disk and take their places in this order, each in one step; after an error
    they are removed. Where the file system refuses that step, as for a file that is mounted alone, the content is copied.

    :raises OSError: if a file cannot be written, for instance because the disk is full
    """
    paths = [path.resolve() for path in paths]  # links stay links
    folder = paths[0].parent
    temporaries: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            _remove_leftovers(path)
            temporaries.append(_make_temporary(path))
        yield temporaries
        for temporary, path in zip(temporaries, paths, strict=True):
            _flush(temporary)
            with suppress(OSError):  # there is no file yet, or the file system has no modes
                shutil.copymode(path, temporary)
        for temporary, path in zip(temporaries, paths, strict=True):
            try:
                temporary.replace(path)
            except OSError as error:
                if error.errno not in REFUSED:
                    raise
                shutil.copyfile(temporary, path)
        with suppress(OSError):  # folders cannot be flushed everywhere
            _flush(folder)
    except OSError as error:
        names = ", ".join(map(str, paths))
        raise OSError(error.errno, f"{names} could not be written: {error.strerror or error}") from error
    finally:
        for temporary in temporaries:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    """Return the beginning of a temporary file's name, short because a name may be as long as the file system allows."""
    return f".sb3_ppg-{zlib.crc32(path.name.encode()):08x}-"


def _make_temporary(path: Path) -> Path:
    """Make the temporary file for ``path`` in its folder or, if that is not writable, in the system's temporary folder."""
    temporary = path.with_name(f"{_prefix(path)}{os.getpid()}.tmp")
    try:
        temporary.touch()
    except OSError as error:
        if error.errno not in REFUSED or not path.exists():
            raise
        number, name = tempfile.mkstemp(prefix=_prefix(path), suffix=".tmp")  # SB3 adds a suffix to a name without one
        os.close(number)
        return Path(name)
    return temporary


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of processes that were killed while they wrote ``path``; another machine's may still write."""
    with suppress(OSError, ValueError):  # a folder that cannot be listed, or another program's file
        for leftover in path.parent.glob(f"{_prefix(path)}*.tmp"):
            is_quiet = time.time() - leftover.stat().st_mtime > QUIET
            if is_quiet and not psutil.pid_exists(int(leftover.stem.split("-")[-1])):
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
