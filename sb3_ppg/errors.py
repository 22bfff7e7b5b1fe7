"""Error classes, and helpers for error messages."""

import contextlib
import difflib
import inspect
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import gymnasium
from gymnasium.error import DependencyNotInstalled, UnregisteredEnv

PACKAGE = f"{Path(__file__).parent}{os.sep}"


class ArgumentError(ValueError, AssertionError):
    """Raised for arguments that cannot work. Also an ``AssertionError``, which SB3's PPO raises for some of them."""


class NonFiniteError(ValueError):
    """
    Raised for a number that is NaN or infinite.

    A ``ValueError``, so that a hyperparameter search prunes the trial and goes on.
    """


class NonFiniteLossError(NonFiniteError):
    """Raised for a loss or a gradient. Policy and optimizer are restored to their state before the epoch."""


class NonFiniteActionError(NonFiniteError):
    """Raised for the policy's output (action parameters or a value), before any environment receives it."""


class NonFiniteEnvironmentError(NonFiniteError):
    """Raised for an observation or a reward, before the policy is trained with it."""


class WorkerError(RuntimeError):
    """Raised when the process of an environment has died."""


class ProcessGroupError(RuntimeError):
    """Raised when another process of the training has failed, has ended, or has other settings. The message says which one."""


def warn(message: str) -> None:
    """
    Warn at the line outside this package that led here.

    :param message: of the ``UserWarning``
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith((PACKAGE, contextlib.__file__)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


MAX_MESSAGE = 2000  # characters


def printable(text: str, longest: int = MAX_MESSAGE) -> str:
    """
    Make a text safe to print: escape control characters (which a terminal obeys), lone surrogates and changes of writing
    direction, and leave out the middle of a long text.

    :param text: text, possibly from a stranger's file
    :param longest: number of characters to keep
    :return: printable text
    """
    if len(text) > longest:
        text = f"{text[: longest // 2]} [...] {text[-longest // 2 :]}"
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class ModelFormatError(ValueError):
    """
    Raised for a file of a model or its auxiliary buffer that is damaged, belongs to another model, cannot be trusted or is too
    new, and for a model that cannot be written as plain data. The message is always ``printable``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class MissingExtraError(ImportError):
    """Raised when a package that comes with one of our extras is not installed or not imported."""


class HubError(RuntimeError):
    """
    Raised for a model that cannot be sent to the Hugging Face Hub or fetched from it. The message, part of which may come from
    there, is always ``printable``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def nearest(name: str, there: Iterable[str]) -> str:
    """Return the end of an error message for a name that does not exist: the nearest names, or those that exist."""
    folded = {one.lower(): one for one in sorted(there)}
    close = difflib.get_close_matches(name.lower(), folded, n=3)
    if close:
        return f"; nearest: {', '.join(folded[one] for one in close)}"
    if not folded:
        return "; there is none"
    return f"; there are {', '.join(list(folded.values())[:20])}{', ...' if len(folded) > 20 else ''}"


# ---- missing extras ----

# Extras by the modules that they install, named as in error messages
EXTRAS = {
    **dict.fromkeys(("huggingface_hub", "safetensors"), "hub"),
    **dict.fromkeys(("rl_zoo3", "pygame", "yaml", "moviepy"), "zoo"),
    **dict.fromkeys(("seaborn", "scipy", "rliable"), "plots"),
    **dict.fromkeys(("ale_py", "cv2", "OpenCV"), "atari"),
    **dict.fromkeys(("mujoco", "imageio"), "mujoco"),
    **dict.fromkeys(("onnx", "onnxscript"), "export"),
    **dict.fromkeys(("minari", "h5py"), "offline"),
    "tensorboard": "tensorboard",
    "Box2D": "box2d",
    "minigrid": "minigrid",
    "minatar": "minatar",
    "mo_gymnasium": "mo",
}
# Patterns of environment IDs by the module that registers them, and how to register them
ENVIRONMENTS = {
    "ale_py": r"\bALE\b|NoFrameskip|Deterministic`|-ram`",
    "minigrid": r"\b(MiniGrid|BabyAI)-",
    "minatar": r"\bMinAtar\b",
}
REGISTRATION = {
    "ale_py": "import ale_py",
    "minigrid": "import minigrid",
    "minatar": "from minatar.gym import register_envs; register_envs()",
}


def pip_install(module: str) -> str:
    """Return the command that installs a module which comes with an extra."""
    return f'pip install "sb3-ppg[{EXTRAS[module]}]"'


@contextlib.contextmanager
def missing_extras_named() -> Iterator[None]:
    """Replace an error about a missing package or environment by a ``MissingExtraError`` that names the extra."""
    try:
        yield
    except UnregisteredEnv as error:
        module = next((module for module, pattern in ENVIRONMENTS.items() if re.search(pattern, str(error))), None)
        if module is None or any(re.search(ENVIRONMENTS[module], name) for name in gymnasium.registry):
            raise
        remedy = f"first `{REGISTRATION[module]}`, which registers it" if find_spec(module) else pip_install(module)
        raise MissingExtraError(f"{_first_sentence(error)}: {remedy}") from error
    except (ImportError, DependencyNotInstalled, AssertionError) as error:
        module = _missing_module(error)
        if module is None or isinstance(error, MissingExtraError):
            raise
        raise MissingExtraError(f"{_first_sentence(error)}: {pip_install(module)}") from error


def _missing_module(error: BaseException) -> str | None:
    """Find the module of an extra that is missing according to an error or its causes."""
    name, text = str(getattr(error, "name", None)).split(".")[0], str(error).lower()
    for module in EXTRAS:
        if name == module or f"{module} is not installed".lower() in text:
            return module
    before = error.__cause__ or error.__context__
    return None if before is None else _missing_module(before)


def _first_sentence(error: BaseException) -> str:
    """Return the message of an error without other packages' advice on what to install."""
    return re.split(r"[.,!?] |\n|; ", str(error))[0].rstrip(".")
