"""
The arrays of a stranger's safetensors file. What it claims to hold is known, and can be compared with what is needed, before
any of it is read; each byte is read once, into memory of our own, and the checksum is that of what was read.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch as th

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.untrusted import MAX_TEXT_BYTES, parse_json

DTYPES = {
    "F64": th.float64,
    "F32": th.float32,
    "F16": th.float16,
    "BF16": th.bfloat16,
    "I64": th.int64,
    "I32": th.int32,
    "I16": th.int16,
    "I8": th.int8,
    "U64": th.uint64,
    "U32": th.uint32,
    "U16": th.uint16,
    "U8": th.uint8,
    "BOOL": th.bool,
}
MAX_DIMENSIONS, MAX_SIZE = 32, 2**48
CHECKED_FIRST = 2**26  # bytes: a file of at most this size is read and its checksum compared at once


class Entry(NamedTuple):
    """
    What the header says of an array.

    :param dtype: its type
    :param shape: its shape
    :param start: where it begins, in bytes after the header
    :param stop: where it ends
    """

    dtype: th.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class ArrayFile(Mapping[str, th.Tensor]):
    """
    Arrays by name, each read when it is asked for. They are not to be changed before ``check`` has compared the checksum.

    :param path: of the file, for errors
    :param file: the file, open
    :param digest: what its SHA-256 has to be
    :raises ModelFormatError: if the header is not what safetensors writes, for exactly these bytes
    """

    def __init__(self, path: Path, file: BinaryIO, digest: str):
        self._path, self._file, self._digest = path, file, digest
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, MAX_TEXT_BYTES):
            raise self._damaged(f"a header of {length} bytes in a file of {size}")
        self._header = start + file.read(length)
        self._end_of_header = 8 + length
        self.entries = self._entries(size)
        self._contents: dict[str, bytearray] = {}
        if size <= CHECKED_FIRST:
            self.check()

    def _entries(self, size: int) -> dict[str, Entry]:
        header = parse_json(self._header[8:], f"{self._path}, which is damaged or not safetensors,")
        try:
            entries = {name: _entry(**described) for name, described in header.items()}
        except Exception as error:  # whatever else a header can be
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        place = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
            if entry.start != place or entry.stop - entry.start != math.prod(entry.shape) * entry.dtype.itemsize:
                raise self._damaged(f"{name!r} is not as long as its shape says, or not where the one before it ends")
            place = entry.stop
        if place != size - self._end_of_header:
            raise self._damaged("its arrays do not take all of it")
        return entries

    def _damaged(self, why: str) -> ModelFormatError:
        return ModelFormatError(f"{self._path} is damaged, it cannot be read as safetensors ({why})")

    def __getitem__(self, name: str) -> th.Tensor:
        entry = self.entries[name]
        content = self._read(name)
        if entry.dtype == th.bool:
            return _as_tensor(content, th.uint8, entry.shape) != 0  # a stranger's truth may have any bits
        return _as_tensor(content, entry.dtype, entry.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # without reading it, as a mapping does else

    def _read(self, name: str) -> bytearray:
        if name not in self._contents:
            entry = self.entries[name]
            content = bytearray(entry.stop - entry.start)
            self._file.seek(self._end_of_header + entry.start)
            if self._file.readinto(content) != len(content):  # type: ignore[attr-defined]
                raise self._damaged("it became shorter while it was read")
            self._contents[name] = content
        return self._contents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def check(self) -> None:
        """
        Read what has not been read, and compare the checksum.

        :raises ModelFormatError: if it is another one
        """
        digest = hashlib.sha256(self._header)
        for name in sorted(self.entries, key=lambda name: self.entries[name][2:]):
            digest.update(self._read(name))
        if digest.hexdigest() != self._digest:
            raise ModelFormatError(f"{self._path} is damaged, or the file of its checksum is: they do not agree")


def _entry(dtype: Any, shape: Any, data_offsets: Any) -> Entry:
    start, stop = data_offsets
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"an array of {len(shape)} dimensions")
    for number in (*shape, start, stop):
        if type(number) is not int or not 0 <= number < MAX_SIZE:
            raise ValueError(f"{number!r} is not a size")
    return Entry(DTYPES[dtype], tuple(shape), start, stop)


def _as_tensor(content: bytearray, dtype: th.dtype, shape: tuple[int, ...]) -> th.Tensor:
    return th.frombuffer(content, dtype=dtype).reshape(shape) if content else th.zeros(shape, dtype=dtype)
