"""Reading what a stranger has made: once, within bounds, and without any trace in this process."""

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sb3_ppg.errors import ModelFormatError

MAX_TEXT_BYTES = 2**22
MAX_VALUES = 200_000  # in JSON; a model of a thousand tensors has a tenth of it
MAX_DEPTH = 100
MAX_INTEGER = 2**63 - 1
MAX_KEY = 1000
# Of JSON, once and without going back, also where it has no end
TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


@contextmanager
def regular_file(path: Path) -> Iterator[BinaryIO]:
    """
    Open a file to read, if it is a regular one. Links, pipes and devices are not even opened, but for a link of the Hugging
    Face Hub's client, see ``_place``.

    :param path: of the file
    :raises ModelFormatError: if there is none, or it is something else
    """
    place = _place(path)
    try:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise ModelFormatError(f"{path} is not a regular file: put the file itself there, not a link or a device")
        # What takes its place at this moment is not followed, and not waited for
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(place, flags)
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path.parent}: {path.name} is missing") from error
    except OSError as error:
        raise ModelFormatError(f"{path} cannot be read ({error})") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ModelFormatError(f"{path} is not a regular file any more")
        yield file


def _place(path: Path) -> Path:
    """
    Where a file is: in its folder, or where the Hub's client keeps contents: it puts links to ``repository/blobs/...`` into
    ``repository/snapshots/commit/...``. A link that leads anywhere else is left as it is, for the reader to refuse.
    """
    if path.is_symlink():
        for snapshot in (path.parent.resolve() / path.name).parents:
            if snapshot.parent.name == "snapshots":
                blob = Path(os.path.realpath(path))
                if blob.parent == (snapshot.parent.parent / "blobs").resolve():
                    return blob
    return path


def read_bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """
    All of a file, in one read.

    :param path: of the file
    :param limit: the most bytes that it may have
    :raises ModelFormatError: if it has more, is none, or is not there
    """
    with regular_file(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ModelFormatError(f"{path} is larger than {limit} bytes")
    return content


def parse_json(content: bytes, name: str | Path, max_depth: int = MAX_DEPTH) -> Any:
    """
    :param content: of a file
    :param name: of it, for errors
    :param max_depth: how deep it may be nested
    :return: what it says
    :raises ModelFormatError: if that is not JSON, too much, too deep, has a key twice or a number that is none
    """
    try:
        if len(content) > MAX_TEXT_BYTES:
            raise ValueError(f"larger than {MAX_TEXT_BYTES} bytes")
        if sum(content.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:  # one of them is before each value or key
            raise ValueError(f"more than {MAX_VALUES} values")
        _check_depth(content, max_depth)
        return json.loads(
            content.decode("utf-8"),
            parse_constant=_no_constant,
            parse_int=_integer,
            parse_float=_float,
            object_pairs_hook=_no_key_twice,
        )
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{name} cannot be read ({type(error).__name__}: {error})") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int:
    if len(text) > 20 or abs(number := int(text)) > MAX_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits")
    return number


def _float(text: str) -> float:
    if len(text) > 400 or math.isinf(number := float(text)):
        raise ValueError("a number that is too large, or has too many digits")
    return number


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("a key is there twice")
    if any(len(key) > MAX_KEY for key in data):  # errors say where they are, which would take long for each value below
        raise ValueError(f"a key of more than {MAX_KEY} characters")
    return data


def _check_depth(content: bytes, max_depth: int) -> None:
    """Before it is read: Python's recursion limit is raised by other packages (torch's compiler does), the stack is not."""
    signs = np.frombuffer(TEXT.sub(b"", content), dtype=np.uint8)
    steps = np.isin(signs, [*b"[{"]).astype(np.int8) - np.isin(signs, [*b"]}"])
    if np.cumsum(steps, dtype=np.int64).max(initial=0) > max_depth:
        raise ValueError(f"nested more than {max_depth} deep")
