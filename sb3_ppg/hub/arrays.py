"""The arrays of a stranger's safetensors file: names, shapes and types are compared before a byte of them is read."""

from pathlib import Path

import torch as th
from safetensors import safe_open

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.hub.files import regular_file

MAX_HEADER_BYTES = 2**20  # about ten thousand arrays


class Arrays:
    """
    Arrays by name; each is taken once.

    :param path: a safetensors file
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
        self.left = set(self._file.keys())

    def find(self, name: str, like: th.Tensor) -> th.Tensor:
        """
        Find an array that was not read before. It stays on the disk.

        :param name: of the array
        :param like: a tensor of the shape and type that it has to have, so that its size is not the file's choice
        :return: a view of the file, which may change later
        :raises ModelFormatError: if it is missing, or differs in shape or type
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
        Read an array, once. For the arguments see ``find``.

        :return: its numbers, which are finite
        :raises ModelFormatError: see ``find``, or if they are not
        """
        array = self.find(name, like)
        self.left.remove(name)
        if not array.isfinite().all():
            raise ModelFormatError(f"{self._path}: {name!r} has numbers that are not finite")
        return array.clone()
