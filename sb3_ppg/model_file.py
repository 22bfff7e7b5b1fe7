"""SB3's zip files of models: what is checked before one is loaded."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from sb3_ppg.errors import ModelFormatError

FORMAT_VERSION = 1
SAVED_BY = "_saved_by"  # the attribute that says what wrote a file: [algorithm, version, names of its tensors]


def algorithm_name(cls: type) -> str:
    """
    :param cls: an algorithm of ours, or a class derived from one
    :return: the name of ours
    """
    return next(base.__name__ for base in cls.__mro__ if base.__module__.split(".")[0] == "sb3_ppg")


def saved_by(path: str | Path | io.BufferedIOBase) -> str:
    """
    Read all of a model's file, without unpickling anything.

    :param path: of the zip file (".zip" may be left out), or a stream
    :return: the name of the algorithm that wrote it
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if the file is damaged, another class's or a newer version's
    """
    file: Any = path
    if isinstance(path, (str, Path)):
        with_suffix = Path(f"{path}.zip")
        file = path = Path(path) if Path(path).exists() or not with_suffix.exists() else with_suffix
    try:
        with zipfile.ZipFile(file) as archive:
            if (member := archive.testzip()) is not None:
                raise zipfile.BadZipFile(f"the checksum of {member} is wrong")
            data, names = json.loads(archive.read("data")), set(archive.namelist())
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a flipped byte can lead zipfile to
        raise ModelFormatError(f"{path} is damaged, or no model's file: {error}") from error
    match data.get(SAVED_BY) if isinstance(data, dict) else None:
        case [str(algorithm), int(file_version), *rest]:
            parts = rest[0] if rest else []
        case _:
            raise ModelFormatError(f"{path} is another class's file: it does not say that an algorithm of sb3_ppg saved it")
    if file_version != FORMAT_VERSION:
        raise ModelFormatError(
            f"{path} has version {file_version} of its format, this sb3_ppg reads {FORMAT_VERSION}: use the one that wrote it"
        )
    if missing := {f"{part}.pth" for part in parts} - names:
        raise ModelFormatError(f"{path} is damaged: it has no {', '.join(sorted(missing))}")
    return algorithm


def check_model_file(path: str | Path | io.BufferedIOBase, cls: type) -> None:
    """
    :param path: of the zip file, or a stream
    :param cls: the class that is to load it
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if the file is damaged, another class's or a newer version's
    """
    algorithm = saved_by(path)
    if algorithm != algorithm_name(cls):
        raise ModelFormatError(
            f"{path} is another class's file: it was saved by {algorithm}, not by {algorithm_name(cls)}; use {algorithm}.load"
        )
