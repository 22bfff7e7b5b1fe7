"""NumPy's npz files, read as files of strangers: nothing is allocated or decompressed that the reader did not ask for."""

import re
import zipfile
from typing import BinaryIO

import numpy as np

# The header of a npy member as NumPy writes it
MAGIC = b"\x93NUMPY"
HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf]\d{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,15}, ?){0,32}(?:\d{1,15})?)\), \} *\n"
)
LARGEST_HEADER = 4096  # bytes
CHUNK = 2**20  # bytes that are decompressed at a time
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class NpzReader:
    """
    The arrays in a npz file, one at a time. Each error is an exception of some kind, zipfile's own among them: the caller,
    who knows the file's name, makes one kind of them.

    :param file: open for reading
    :raises ValueError: if a member is there twice, is encrypted or compressed in another way than NumPy does
    """

    def __init__(self, file: BinaryIO):
        self._archive = zipfile.ZipFile(file)
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in self._members:
                raise ValueError(f"{member.filename!r} is no array, or is there twice")
            if member.flag_bits & 1 or member.compress_type not in METHODS:
                raise ValueError(f"{name!r} is encrypted, or compressed in a way that NumPy does not use")
            self._members[name] = member

    @property
    def names(self) -> set[str]:
        """The names of the arrays."""
        return set(self._members)

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """
        :param name: of an array
        :param shape: that it has to have
        :param dtype: that it has to have
        :return: the array, a copy of what is in the file
        :raises ValueError: if it is not there, or another; and others if the file is damaged
        """
        with self._open(name) as file:
            found, fortran_order, n_bytes = self._header(name, file)
            if found != (dtype, shape):
                raise ValueError(f"{name} is {found[0]} {found[1]}, not {dtype} {shape}")
            array = np.empty(shape, dtype, order="F" if fortran_order else "C")
            content = memoryview(array.reshape(-1, order="A").view(np.uint8).data)
            if n_bytes != len(content):
                raise ValueError(f"{name} has {n_bytes} bytes, not {len(content)}")
            _fill(content, file)
        if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            raise ValueError(f"{name} has truth values that are neither true nor false")
        return array

    def bytes(self, name: str, at_most: int) -> bytes:
        """
        :param name: of a vector of uint8
        :param at_most: that it may hold
        :return: its content
        :raises ValueError: if it is not there, or another; and others if the file is damaged
        """
        with self._open(name) as file:
            (dtype, shape), _, n_bytes = self._header(name, file)
            if dtype != np.uint8 or shape != (n_bytes,) or n_bytes > at_most:
                raise ValueError(f"{name} is {dtype} {shape}, not uint8 of at most {at_most}")
            content = bytearray(n_bytes)
            _fill(memoryview(content), file)
        return bytes(content)

    def _open(self, name: str) -> zipfile.ZipExtFile:
        if name not in self._members:
            raise ValueError(f"it has no {name}")
        return self._archive.open(self._members[name])  # type: ignore[return-value]

    def _header(self, name: str, file: zipfile.ZipExtFile) -> tuple[tuple[np.dtype, tuple[int, ...]], bool, int]:
        """Type and shape; whether the first dimension changes fastest; how many bytes follow."""
        start = file.read(10)
        length = int.from_bytes(start[8:10], "little")
        text = file.read(min(length, LARGEST_HEADER))
        match = HEADER.fullmatch(text)
        if start[:8] != MAGIC + b"\x01\x00" or length != len(text) or match is None:
            raise ValueError(f"{name} has a header that NumPy does not write for numbers")
        descr, fortran_order, sizes = match.groups()
        shape = tuple(int(size) for size in sizes.replace(b" ", b"").split(b",") if size)
        n_bytes = self._members[name].file_size - len(start) - length
        return (np.dtype(descr.decode()), shape), fortran_order == b"True", n_bytes


def _fill(content: memoryview, file: zipfile.ZipExtFile) -> None:
    """
    :raises ValueError: if the file has not as many bytes; zipfile raises an error of its own if their checksum is wrong
    """
    position = 0
    while position < len(content):
        n_read = file.readinto(content[position : position + CHUNK])
        if n_read == 0:
            raise ValueError(f"{file.name!r} ends too early")
        position += n_read
    if file.read(1):
        raise ValueError(f"{file.name!r} goes on")
