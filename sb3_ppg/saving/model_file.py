"""SB3's zip files of models: what is written into them for their readers, and what is checked before one is loaded."""

import importlib
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from sb3_ppg.errors import ModelFormatError
from sb3_ppg.model import PhasicModel
from sb3_ppg.saving.files import opened

ZIP_FORMAT_VERSION = 1
SAVED_BY = "_saved_by"  # the attribute that says what wrote a file: [algorithm, version, names of its tensors, user's class]
GUARD = "_guard"  # the attribute that other classes' ``load`` stumbles over
MOST_VALUES = 2**20  # in the description
ModelPath = str | Path | io.BufferedIOBase


# ---- writing ----


@contextmanager
def marked(model: PhasicModel) -> Iterator[None]:
    """
    Meanwhile, the model has the attributes that its file is to have.

    :param model: that is being saved
    """
    cls = type(model)
    users_class = None if _is_ours(cls) else f"{cls.__module__}.{cls.__qualname__}"
    algorithm = algorithm_name(cls)
    marks = {
        SAVED_BY: [algorithm, ZIP_FORMAT_VERSION, model._get_torch_save_params()[0], users_class],
        GUARD: _Guard(users_class or f"sb3_ppg.{algorithm}"),
    }
    vars(model).update(marks)
    try:
        yield
    finally:
        unmark(model)


def unmark(model: PhasicModel) -> None:
    """
    :param model: that was saved, or loaded: it is not to keep the attributes that were for the file
    """
    for mark in (SAVED_BY, GUARD):
        vars(model).pop(mark, None)


class _Guard:
    """
    Only ``PPG.load`` can unpickle it: the ``load`` of PPO and others would fail later, in words that help nobody.

    :param name: of the class whose ``load`` is to be used
    """

    def __init__(self, name: str):
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_guard, (self.name,)


def _unpickle_guard(name: str) -> _Guard:
    if not _is_loading.get():
        raise ModelFormatError(f"This is a file of {name}, which another algorithm cannot load: use {name}.load")
    return _Guard(name)


_is_loading: ContextVar[bool] = ContextVar("_is_loading", default=False)


# ---- reading ----


class SavedBy(NamedTuple):
    """
    What a file says of what wrote it.

    :param algorithm: of ours
    :param version: of the file's format
    :param parts: names of its state dictionaries
    :param users_class: the user's class that is derived from the algorithm, with its module. None: the algorithm itself
    """

    algorithm: str
    version: int
    parts: list[str]
    users_class: str | None


def algorithm_name(cls: type) -> str:
    """
    :param cls: an algorithm of ours, or a class derived from one
    :return: the name of ours
    """
    return next(base.__name__ for base in cls.__mro__ if _is_ours(base))


def saved_by(path: ModelPath) -> str:
    """
    Read all of a model's file, without unpickling anything.

    :param path: of the zip file (".zip" may be left out), or a stream
    :return: the name of the algorithm that wrote it
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if the file is damaged, another class's or a newer version's
    """
    path = _with_suffix(path)
    with _stream(path) as file:
        return _saved_by(file, path).algorithm


def checkpoint_of(path: Path) -> tuple[str, int] | None:
    """
    :param path: of a model's zip file
    :return: by which run of ``PhasicCheckpointCallback`` it was written, and when, in nanoseconds. None: it does not say
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if the file is damaged
    """
    with opened(path) as file, _archive(file, str(path)) as archive:
        match _attributes(archive).get("_checkpoint"):
            case [str(run), int(time)]:
                return run, time
    return None


@contextmanager
def checked_model_file(path: ModelPath, cls: type) -> Iterator[io.BufferedIOBase]:
    """
    What was checked is what is loaded: a file that takes the place of this one meanwhile is another.

    :param path: of the zip file (".zip" may be left out), or a stream
    :param cls: the class that is to load it
    :return: its content, for SB3's ``load``
    :raises FileNotFoundError: if there is none
    :raises ModelFormatError: if the file is damaged, another class's or a newer version's
    """
    path = _with_suffix(path)
    with _stream(path) as file:
        saved = _saved_by(file, path)
        problem = f"{path} is another class's file: it was saved by"
        owner = saved.users_class or saved.algorithm
        if saved.algorithm != algorithm_name(cls):
            raise ModelFormatError(f"{problem} {owner}, not by {algorithm_name(cls)}; use {owner}.load")
        if saved.users_class is not None and not _is_users_class(cls, saved.users_class):
            raise ModelFormatError(f"{problem} {owner}, which is derived from {saved.algorithm}; use {owner}.load")
        token = _is_loading.set(True)
        try:
            _know_former_modules()
            yield file
        finally:
            _is_loading.reset(token)


# Where the first files' classes are now: pickles name them by their modules
MOVED = {
    "sb3_ppg.model_file": "sb3_ppg.saving.model_file",
    "sb3_ppg.reward_normalizer": "sb3_ppg.buffers.reward_normalizer",
}


def _know_former_modules() -> None:
    """From now on, as other threads may be loading, too."""
    sys.modules.update({former: importlib.import_module(present) for former, present in MOVED.items()})


def _is_users_class(cls: type, name: str) -> bool:
    """Whether it has that name, or a base has, in whatever module: a script's is ``__main__`` while it runs."""
    users = takewhile(lambda base: not _is_ours(base), cls.__mro__)
    return any(f".{name}".endswith(f".{base.__qualname__}") for base in users)


def _is_ours(cls: type) -> bool:
    return cls.__module__.split(".")[0] == "sb3_ppg"


def _with_suffix(path: ModelPath) -> ModelPath:
    """The file that is there, with or without ".zip"."""
    if not isinstance(path, (str, Path)):
        return path
    zipped = Path(f"{path}.zip")
    return zipped if zipped.exists() and not Path(path).exists() else Path(path)


def _stream(path: ModelPath) -> AbstractContextManager[io.BufferedIOBase]:
    return nullcontext(path) if isinstance(path, io.BufferedIOBase) else opened(Path(path))


@contextmanager
def _archive(file: io.BufferedIOBase, name: ModelPath) -> Iterator[zipfile.ZipFile]:
    """
    :raises ModelFormatError: if it is none, if it unpacks to more than it has, for whatever zipfile makes of a wrong byte
    """
    try:
        with zipfile.ZipFile(file) as archive:
            _check_sizes(archive, file.seek(0, 2))
            yield archive
    except (ModelFormatError, MemoryError):
        raise
    except Exception as error:
        raise ModelFormatError(f"{name} is damaged, or no model's file: {error}") from error


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """
    :param archive: of Stable-Baselines3 or torch, which compress nothing
    :param size: of its file, in bytes
    :raises ValueError: if it unpacks to more than that
    """
    members = archive.infolist()
    if len({member.filename for member in members}) < len(members):
        raise ValueError("a member is there twice")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("it is compressed, which Stable-Baselines3's files are not (`zip -0` makes one that is not)")
    if sum(member.file_size for member in members) > size:
        raise ValueError("it unpacks to more than it has")


def _saved_by(file: io.BufferedIOBase, path: ModelPath) -> SavedBy:
    """Read everything, and check it but for what only unpickling would tell."""
    with _archive(file, path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")
        for member in archive.infolist():
            if member.filename.endswith(".pth"):  # an archive itself
                with archive.open(member) as part, zipfile.ZipFile(part) as inner:
                    _check_sizes(inner, member.file_size)
        names, attributes = set(archive.namelist()), _attributes(archive)
        if SAVED_BY not in attributes:
            raise ModelFormatError(
                f"{path} is another class's file: it does not say that an algorithm of sb3_ppg saved it. Use the `load` of "
                "the class that did, PPO.load for instance; PPG can go on from PPO's networks: "
                "model.policy.load_state_dict(PPO.load(path).policy.state_dict(), strict=False)"
            )
        saved = _parsed(attributes[SAVED_BY])
        if saved.version != ZIP_FORMAT_VERSION:
            raise ModelFormatError(
                f"{path} has version {saved.version} of its format, this sb3_ppg reads {ZIP_FORMAT_VERSION}: use the one that "
                "wrote it"
            )
        parts = {f"{part}.pth" for part in ["policy", *saved.parts]}
        if missing := parts - names:
            raise ModelFormatError(f"{path} is damaged: it has no {', '.join(sorted(missing))}")
        if strange := {name for name in names if name.endswith(".pth")} - parts - {"pytorch_variables.pth"}:
            raise ModelFormatError(f"{path} is damaged: nobody knows its {min(strange)}")
    return saved


def _attributes(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Of the model, as JSON has them: most are pickled, and stay so."""
    content = archive.read("data")
    if sum(content.count(sign) for sign in (b",", b"[", b"{")) > MOST_VALUES:  # one is before each value
        raise ValueError(f"its description has more than {MOST_VALUES} values")
    attributes = json.loads(content.decode())  # not left to json, which would import other encodings
    if not isinstance(attributes, dict):
        raise ValueError("its description is no dictionary")
    return attributes


def _parsed(saved: Any) -> SavedBy:
    match saved:
        case [str(algorithm), int(version), [*parts], (str() | None) as users_class]:
            pass
        case [str(algorithm), int(version), [*parts]]:  # as files before 0.1.0 have it
            users_class = None
        case _:
            raise ValueError(f"it says that it was saved by {saved!r:.100}")
    if isinstance(version, bool) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"it says that it was saved by {saved!r:.100}")
    return SavedBy(algorithm, version, parts, users_class)
