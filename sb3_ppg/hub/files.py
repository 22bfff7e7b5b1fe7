"""Reading strangers' files: regular ones only, within a size limit, without following links."""

import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sb3_ppg.errors import ModelFormatError

MAX_JSON_BYTES = 2**22
Kind = TypeVar("Kind")


def regular_file(path: Path) -> Path:
    """
    Find a file without following links, pipes or devices.

    Links that the Hugging Face Hub's client puts into its cache, from ``snapshots/<commit>/`` to ``blobs/``, are resolved.

    :param path: of the file
    :return: where its content is
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

    :param path: of the file
    :param kind: the schema, for msgspec; it also bounds how deep the data can be nested
    :param limit: the largest size that it may have, in bytes
    :return: its content
    :raises ModelFormatError: if it is missing, too large, not a regular file, or not as described
    """
    with regular_file(path).open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ModelFormatError(f"{path} is larger than {limit} bytes")
    try:
        data = msgspec.json.decode(content, type=kind)
        json.loads(content, object_pairs_hook=_without_duplicates)  # msgspec would take the last one
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} cannot be read: {error}") from error
    return data


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a key is there twice, one of {list(found)}")
    return found
