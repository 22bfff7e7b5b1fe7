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
    """
    Yield the path of a temporary file to write to. At the end of the block it is flushed to the disk and takes the place of
    ``path`` in one step; after an error it is removed. Where the file system refuses that step, as for a file that is mounted
    alone, the content is copied to the place. The folder is made if it is not there.

    :raises OSError: with the path, if the file cannot be written, for instance because the disk is full
    """
    with atomic_writes([path]) as (temporary,):
        yield temporary


@contextmanager
def atomic_writes(paths: list[Path]) -> Iterator[list[Path]]:
    """Write several files of one folder like ``atomic_write``: they take their places in order when all are on the disk."""
    paths = [path.resolve() for path in paths]  # links stay links
    folder = paths[0].parent
    temporaries: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
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


def _make_temporary(path: Path) -> Path:
    """
    Make the temporary file for ``path`` in its folder or, if that is not writable, in the system's temporary folder, and
    remove those of processes that were killed while they wrote ``path``; another machine's process may still write.
    """
    prefix = f".sb3_ppg-{zlib.crc32(path.name.encode()):08x}-"  # a name may be as long as the file system allows
    with suppress(OSError, ValueError):  # a folder that cannot be listed, or another program's file
        for leftover in path.parent.glob(f"{prefix}*.tmp"):
            is_quiet = time.time() - leftover.stat().st_mtime > QUIET
            if is_quiet and not psutil.pid_exists(int(leftover.stem.split("-")[-1])):
                leftover.unlink(missing_ok=True)
    temporary = path.with_name(f"{prefix}{os.getpid()}.tmp")
    try:
        temporary.touch()
    except OSError as error:
        if error.errno not in REFUSED or not path.exists():
            raise
        number, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp")  # SB3 adds a suffix to a name without one
        os.close(number)
        return Path(name)
    return temporary


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
