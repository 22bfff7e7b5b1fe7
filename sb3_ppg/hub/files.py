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
    Return the path of a file's content, or raise ``ModelFormatError`` for links, pipes and devices. Links in the cache of the
    Hugging Face Hub's client, from ``snapshots/<commit>/`` to ``blobs/``, are followed.
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
    """Read a JSON file of at most ``limit`` bytes that a schema of msgspec describes."""
    with regular_file(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ModelFormatError(f"{path} is larger than {limit} bytes")
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} cannot be read: {error}") from error


class Arrays:
    """Arrays of a safetensors file by name. Names, shapes and types are compared before a number is read."""

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
        """Return a view of the file, which may change later, on an array with the shape and type of a tensor."""
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
        """Read an array with the shape and type of a tensor, once, and check that its numbers are finite."""
        array = self.find(name, like)
        self.left.remove(name)
        if not array.isfinite().all():
            raise ModelFormatError(f"{self._path}: {name!r} has numbers that are not finite")
        return array.clone()
