"""Zip files of models: the class that wrote one, and whether it is complete."""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.protocols import PhasicModel

FORMAT_VERSION = 1
SAVED_BY = "_saved_by"  # attribute in the file: the version of its format, and the writer's `class_names`
ModelPath = str | Path | io.BufferedIOBase


def class_names(cls: type) -> list[str]:
    """
    :param cls: an algorithm of sb3_ppg, or a class derived from one
    :return: the names of the class and of its bases, up to the algorithm of sb3_ppg
    """
    names = []
    for base in cls.__mro__:
        names.append(base.__name__)
        if base.__module__.split(".")[0] == "sb3_ppg":
            break
    return names


def mark_class(model: PhasicModel) -> None:
    """
    Give the model the attribute by which ``checked_model_file`` knows the class that saved a file.

    :param model: about to be saved
    """
    vars(model)[SAVED_BY] = [FORMAT_VERSION, *class_names(type(model))]


def saved_by(path: ModelPath) -> str:
    """
    Check a model's file without unpickling anything.

    :param path: zip file (".zip" may be left out), or a stream
    :return: name of the algorithm of sb3_ppg that wrote it
    :raises FileNotFoundError: if there is no such file
    :raises ModelFormatError: if the file is damaged, another class's or a newer version's
    """
    path = _existing(path)
    with _open(path) as file:
        return _names_of_writer(file, path)[-1]


@contextmanager
def checked_model_file(path: ModelPath, cls: type) -> Iterator[io.BufferedIOBase]:
    """
    Open a model's file and check all of it without unpickling anything.

    :param path: zip file (".zip" may be left out), or a stream
    :param cls: class that is to load it
    :return: the open file, for SB3's ``load``: a file that is put in its place meanwhile is not the one that is loaded
    :raises FileNotFoundError: if there is no such file
    :raises ModelFormatError: if the file is damaged, another class's or a newer version's
    """
    path = _existing(path)
    with _open(path) as file:
        writer, *bases = _names_of_writer(file, path)
        if writer not in class_names(cls):
            derived = f", which is derived from {bases[-1]}" if bases else ""
            raise ModelFormatError(
                f"{path} is another class's file: it was saved by {writer}{derived}, not by {cls.__name__}; use {writer}.load"
            )
        yield file


def checkpoint_of(path: Path) -> tuple[str, int] | None:
    """
    :param path: a model's zip file
    :return: the run of ``PhasicCheckpointCallback`` that wrote it, and the time of writing in nanoseconds. None if it is not a
        checkpoint
    :raises FileNotFoundError: if there is no such file
    :raises ModelFormatError: if the file is damaged
    """
    with path.open("rb") as file:
        checkpoint = _attributes(file, path).get("_checkpoint")
    return None if checkpoint is None else tuple(checkpoint)


def _existing(path: ModelPath) -> ModelPath:
    """Complete a path without ".zip"."""
    if not isinstance(path, (str, Path)) or Path(path).exists():
        return path
    zipped = Path(f"{path}.zip")
    return zipped if zipped.exists() else path


def _open(path: ModelPath) -> AbstractContextManager[io.BufferedIOBase]:
    return Path(path).open("rb") if isinstance(path, (str, Path)) else nullcontext(path)


def _names_of_writer(file: io.BufferedIOBase, path: ModelPath) -> list[str]:
    attributes = _attributes(file, path, check_all=True)
    if SAVED_BY not in attributes:
        raise ModelFormatError(
            f"{path} is another class's file: no algorithm of sb3_ppg saved it. Use the `load` of the class that did, "
            "PPO.load for instance; PPG can go on from PPO's networks: "
            "model.policy.load_state_dict(PPO.load(path).policy.state_dict(), strict=False)"
        )
    version, *names = attributes[SAVED_BY]
    if version != FORMAT_VERSION:
        raise ModelFormatError(
            f"{path} has version {version} of its format, this sb3_ppg reads {FORMAT_VERSION}: use the one that wrote it"
        )
    return names


def _attributes(file: io.BufferedIOBase, path: ModelPath, check_all: bool = False) -> dict[str, Any]:
    """Attributes of the model as JSON has them, most of them pickled; with ``check_all``, after a look at every checksum."""
    try:
        with zipfile.ZipFile(file) as archive:
            if check_all and (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
            return json.loads(archive.read("data"))
    except Exception as error:  # zipfile raises errors of many kinds for a wrong byte
        raise ModelFormatError(f"{path} is damaged, or no model's file: {error}") from error
