"""Error classes, and helpers for error messages."""

import contextlib
import difflib
import inspect
import os
import re
import sys
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
    """Raised for a number that is NaN or infinite. A ``ValueError``, so that a hyperparameter search prunes the trial."""


class NonFiniteLossError(NonFiniteError):
    """Raised for a loss or a gradient. Policy and optimizer are restored to their state before the epoch."""


class NonFiniteActionError(NonFiniteError):
    """Raised for the policy's output (action parameters or a value), before any environment receives it."""


class NonFiniteEnvironmentError(NonFiniteError):
    """Raised for an observation or a reward, before the policy is trained with it."""


class WorkerError(RuntimeError):
    """Raised when the process of an environment has died."""


class ProcessGroupError(RuntimeError):
    """Raised when processes that train together do not all connect, or when another of them has failed or ended."""


def warn(message: str) -> None:
    """Give a ``UserWarning`` at the line outside this package that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith((PACKAGE, contextlib.__file__)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


ADVISED: set[str] = set()  # topics of the advice that this process has given


def advise(topic: str, message: str) -> None:
    """Warn once, under torchrun only in the first process. If a filter turns warnings into errors, print the advice."""
    if topic not in ADVISED and os.environ.get("RANK", "0") == "0":
        ADVISED.add(topic)
        try:
            warn(message)
        except UserWarning:
            print(message, file=sys.stderr)


MAX_MESSAGE = 2000  # characters


def printable(text: str, longest: int = MAX_MESSAGE) -> str:
    """
    Make a text, possibly from a stranger's file, safe to print: escape control characters (which a terminal obeys), lone
    surrogates and changes of writing direction, and keep the beginning and the end of a long text.
    """
    if len(text) > longest:
        text = f"{text[: longest // 2]} [...] {text[-longest // 2 :]}"
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def cause(error: BaseException) -> str:
    """
    Return the first line that does not end in a colon, of the C++ compiler's output if there is any, otherwise of the message
    of the error that caused all others.
    """
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    output = getattr(error, "output", None) or str(error)
    text = output.decode(errors="replace") if isinstance(output, bytes) else str(output)
    lines = [line.strip() for line in text.splitlines()]
    return printable(next((line for line in lines if line and not line.endswith(":")), type(error).__name__), 300)


class _Printable(Exception):
    """An error whose message may quote a stranger's file."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class ModelFormatError(_Printable, ValueError):
    """
    Raised for a file of a model or its auxiliary buffer that is damaged, belongs to another model, cannot be trusted or is too
    new, and for a model that cannot be written as plain data. The message is always ``printable``.
    """


class MissingExtraError(ImportError):
    """Raised when a package that comes with one of our extras is not installed or not imported."""


class HubError(_Printable, RuntimeError):
    """
    Raised for a model that cannot be sent to the Hugging Face Hub or fetched from it. The message, part of which may come from
    there, is always ``printable``.
    """


@contextlib.contextmanager
def raised_as(kind: type[Exception], what: str, *others: type[Exception]) -> Iterator[None]:
    """Re-raise every error except ``others`` as ``kind``, with ``what`` before its message."""
    try:
        yield
    except (kind, *others):
        raise
    except Exception as error:
        raise kind(f"{what} ({type(error).__name__}): {' '.join(str(error).split())}") from error


def nearest(name: str, there: Iterable[str]) -> str:
    """Return the end of an error message for a name that does not exist: the nearest names, or those that exist."""
    folded = {known.lower(): known for known in sorted(there)}
    with_word = [known for known in folded if f"_{name.lower()}_" in f"_{known}_"]
    close = difflib.get_close_matches(name.lower(), folded, n=3) or with_word
    if close:
        return f"; nearest: {', '.join(map(folded.__getitem__, close))}"
    if not folded:
        return "; there is none"
    return f"; there are {', '.join(list(folded.values())[:20])}{', ...' if len(folded) > 20 else ''}"


# ---- missing extras ----

# Extras by the modules that they install
EXTRAS = {
    **dict.fromkeys(("huggingface_hub", "msgspec", "safetensors"), "hub"),
    **dict.fromkeys(("rl_zoo3", "pygame", "yaml", "moviepy", "imageio_ffmpeg"), "zoo"),
    **dict.fromkeys(("seaborn", "scipy", "rliable"), "plots"),
    **dict.fromkeys(("ale_py", "cv2"), "atari"),
    **dict.fromkeys(("mujoco", "imageio"), "mujoco"),
    **dict.fromkeys(("onnx", "onnxscript"), "export"),
    **dict.fromkeys(("minari", "h5py"), "offline"),
    "tensorboard": "tensorboard",
    "Box2D": "box2d",
    "minigrid": "minigrid",
    "minatar": "minatar",
    "mo_gymnasium": "mo",
}
PROCGEN_GAMES = (
    "Bigfish Bossfight Caveflyer Chaser Climber Coinrun Dodgeball Fruitbot Heist Jumper Leaper Maze Miner Ninja Plunder "
    "Starpilot"
)
# Environments that Gymnasium does not know by itself: pattern of their IDs, module, extra, and how to make them known
ENVIRONMENTS = (
    (r"\bALE\b|(NoFrameskip|Deterministic|-ram)(-v\d|`)", "ale_py", "atari", "`import ale_py` before"),
    (r"(MiniGrid|BabyAI)-", "minigrid", "minigrid", "`import minigrid` before"),
    (r"\bMinAtar\b", "minatar", "minatar", "`from minatar.gym import register_envs; register_envs()` before"),
    (rf"\b({PROCGEN_GAMES.replace(' ', '|')})[A-Z]", "envpool", "procgen", "use `sb3_ppg.environments.EnvPoolVecEnv`"),
    (r"\bmo-", "mo_gymnasium", "mo", "`import mo_gymnasium` before"),
)
ORIGIN = " @ git+https://github.com/sb3-ppg/sb3_ppg"  # where pip finds the package; nothing, once it is on PyPI


def requirement(extra: str) -> str:
    """Return what ``pip install`` needs to install the package with an extra."""
    return f'"sb3-ppg[{extra}]{ORIGIN}"'


def pip_install(extra: str) -> str:
    """Return the commands that install the package with an extra: from anywhere, and in a clone."""
    return f'pip install {requirement(extra)}, or in a clone pip install -e ".[{extra}]"'


def remedy_for_environment(name: str) -> str | None:
    """Return how to install or register an environment's family if it is in ``ENVIRONMENTS`` but unregistered, else None."""
    for pattern, module, extra, remedy in ENVIRONMENTS:
        if re.search(pattern, name) and not any(re.search(pattern, known) for known in gymnasium.registry):
            return remedy if find_spec(module) else pip_install(extra)
    return None


@contextlib.contextmanager
def missing_extras_named() -> Iterator[None]:
    """Raise a ``MissingExtraError`` that names the extra of a missing module or environment, whichever package misses it."""
    try:
        yield
    except UnregisteredEnv as error:
        if remedy := remedy_for_environment(str(error)):
            raise MissingExtraError(f"{str(error).split('. ')[0].rstrip('.')}: {remedy}") from error
        raise
    except (ImportError, DependencyNotInstalled) as error:
        link: BaseException | None = error  # of the chain of causes
        while link is not None and not isinstance(error, MissingExtraError):
            module = (getattr(link, "name", None) or "").split(".")[0]
            if module in EXTRAS:
                is_missing = isinstance(link, ModuleNotFoundError)
                problem = "is not installed" if is_missing else f"cannot be imported ({' '.join(str(link).split())})"
                raise MissingExtraError(f"{module} {problem}: {pip_install(EXTRAS[module])}") from error
            link = link.__cause__ or link.__context__
        raise
