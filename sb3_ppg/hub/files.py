"""Files that a stranger may have written: regular files only, of limited size, without following links."""

import os
import stat
from pathlib import Path
from typing import TypeVar

import msgspec
import torch as th
from safetensors import safe_open

from sb3_ppg.errors import ModelFormatError

MAX_JSON_BYTES = 2**22
MAX_HEADER_BYTES = 2**20  # of safetensors files; room for about ten thousand arrays
Kind = TypeVar("Kind")


def regular_file(path: Path) -> Path:
    """
    Find a file without following links, pipes or devices.

    Links in the cache of the Hugging Face Hub's client, from ``snapshots/<commit>/`` to ``blobs/``, are resolved.

    :param path: path of the file
    :return: path of its content
    :raises ModelFormatError: if there is none, or it is not a regular file
    """
    place, snapshot = path, path.parent.resolve()
    if path.is_symlink() and snapshot.parent.name == "snapshots":
        target = Path(os.path.realpath(path))
        place = target if target.parent == (snapshot.parent.parent / "blobs").resolve() else path
    try:
        is_regular = stat.S_ISREG(os.lstat(place).st_mode)
    except FileNotFoundError as error:
        raise ModelFormatError(f"{path.parent}: {path.name} is missing") from error
    if not is_regular:
        raise ModelFormatError(f"{path} is not a regular file: put the file itself there, not a link or a device")
    return place


def read_json(path: Path, kind: type[Kind], limit: int = MAX_JSON_BYTES) -> Kind:
    """
    Read a JSON file that a schema describes.

    :param path: path of the file
    :param kind: the schema, for msgspec
    :param limit: largest size of the file in bytes
    :return: the content
    :raises ModelFormatError: if it is missing, too large, not a regular file, or not as described
    """
    with regular_file(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ModelFormatError(f"{path} is larger than {limit} bytes")
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} cannot be read: {error}") from error


class Arrays:
    """
    Arrays of a safetensors file by name. Names, shapes and types are compared before a number is read.

    :param path: path of the file
    :raises ModelFormatError: if it is missing or not a regular file, or its header is too long
    """

    def __init__(self, path: Path):
        place = regular_file(path)
        with place.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ModelFormatError(f"{path}: its header has {length} bytes, more than {MAX_HEADER_BYTES}")
        self._file = safe_open(place, "pt")
        self._path = path
        self.left = set(self._file.keys())  # names of arrays that were not taken

    def find(self, name: str, like: th.Tensor) -> th.Tensor:
        """
        Find an array that was not taken, and leave its numbers on the disk.

        :param name: name of the array
        :param like: a tensor of the shape and type that the array must have
        :return: a view of the file, which may change later
        :raises ModelFormatError: if there is no such array, or its shape or type differs
        """
        if name not in self.left:
            raise ModelFormatError(f"{self._path} has no array {name!r}")
        shape = tuple(self._file.get_slice(name).get_shape())
        if shape != tuple(like.shape):
            raise ModelFormatError(f"{self._path}: {name!r} has the shape {shape}, the model needs {tuple(like.shape)}")
        array = self._file.get_tensor(name)
        if array.dtype != like.dtype:
            raise ModelFormatError(f"{self._path}: {name!r} is {array.dtype}, the model needs {like.dtype}")
        return array

    def take(self, name: str, like: th.Tensor) -> th.Tensor:
        """
        Read an array, once; takes the arguments of ``find``.

        :return: a copy in memory
        :raises ModelFormatError: like ``find``, and for numbers that are not finite
        """
        array = self.find(name, like)
        self.left.remove(name)
        if not array.isfinite().all():
            raise ModelFormatError(f"{self._path}: {name!r} has numbers that are not finite")
        return array.clone()
