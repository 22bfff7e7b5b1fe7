"""The errors of this package."""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import gymnasium
from gymnasium.error import DependencyNotInstalled, UnregisteredEnv


class ArgumentError(ValueError, AssertionError):
    """Arguments that cannot work. Also an ``AssertionError``, because that is what SB3's PPO raises for some of them."""


class NonFiniteError(ValueError):
    """
    A number was NaN or infinite.

    It is a ``ValueError`` for hyperparameter searches to prune the trial instead of ending.
    """


class NonFiniteLossError(NonFiniteError):
    """A loss or a gradient. Policy and optimizer are as they were before the epoch in which it happened."""


class NonFiniteActionError(NonFiniteError):
    """What the policy gives for an observation: an action's parameters or a value. No environment has been given it."""


class NonFiniteEnvironmentError(NonFiniteError):
    """An observation or a reward. The policy has not been trained with it."""


class WorkerError(RuntimeError):
    """The process of an environment has died."""


class ProcessGroupError(RuntimeError):
    """Of several processes that train together another one has failed, has ended, or does not fit. Its message says which."""


MAX_MESSAGE = 2000  # characters


def printable(text: str, longest: int = MAX_MESSAGE) -> str:
    """
    :param text: which may come from a stranger's file
    :param longest: how many characters of it are kept
    :return: what can be printed without harm: control characters (a terminal obeys them), lone surrogates and what changes
        the direction of writing are escaped, and the middle of a long text is left out
    """
    if len(text) > longest:
        text = f"{text[: longest // 2]} [...] {text[-longest // 2 :]}"
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


class ModelFormatError(ValueError):
    """A file of a model or of its auxiliary buffer that is damaged, another's, not to be trusted or too new; or a model that
    cannot be written as plain data. Its message is ``printable``, whatever the file says."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class MissingExtraError(ImportError):
    """What comes with an extra of this package is not installed, or not imported."""


class HubError(RuntimeError):
    """A model that cannot be sent to the Hugging Face Hub or fetched from there."""


def nearest(name: str, there: Iterable[str]) -> str:
    """
    :param name: of something that is not there
    :param there: the names of what is
    :return: the end of an error message: "; nearest: ..." or what there is
    """
    folded = {one.lower(): one for one in sorted(there)}
    close = difflib.get_close_matches(name.lower(), folded, n=3)
    if close:
        return f"; nearest: {', '.join(folded[one] for one in close)}"
    if not folded:
        return "; there is none"
    return f"; there are {', '.join(list(folded.values())[:20])}{', ...' if len(folded) > 20 else ''}"


# ---- extras of this package that are missing ----

# The modules that come with extras, as errors name them
EXTRAS = {
    **dict.fromkeys(("huggingface_hub", "safetensors"), "hub"),
    **dict.fromkeys(("rl_zoo3", "pygame", "yaml"), "zoo"),
    **dict.fromkeys(("seaborn", "scipy", "rliable"), "plots"),
    **dict.fromkeys(("ale_py", "cv2", "OpenCV"), "atari"),
    **dict.fromkeys(("mujoco", "imageio"), "mujoco"),
    **dict.fromkeys(("onnx", "onnxscript"), "export"),
    "tensorboard": "tensorboard",
    "Box2D": "box2d",
    "minigrid": "minigrid",
    "minatar": "minatar",
}
# Environments that Gymnasium does not know without a module of an extra: patterns of their names, and what registers them
ENVIRONMENTS = {"ale_py": r"\bALE\b|NoFrameskip-v", "minigrid": r"\b(MiniGrid|BabyAI)-", "minatar": r"\bMinAtar\b"}
REGISTRATION = {
    "ale_py": "import ale_py",
    "minigrid": "import minigrid",
    "minatar": "from minatar.gym import register_envs; register_envs()",
}


def module_of(text: str) -> str | None:
    """
    :param text: with the name of an environment that Gymnasium does not know
    :return: the module of an extra that makes such environments known
    """
    return next((module for module, pattern in ENVIRONMENTS.items() if re.search(pattern, text)), None)


def is_installed(module: str) -> bool:
    """
    :param module: its name
    :return: whether it can be imported
    """
    return find_spec(module) is not None


def pip_install(module: str) -> str:
    """
    :param module: that comes with an extra
    :return: the command that installs it
    """
    return f'pip install "sb3-ppg[{EXTRAS[module]}]"'


@contextmanager
def missing_extras_named() -> Iterator[None]:
    """
    :raises MissingExtraError: in place of an error that an extra would mend: one line that says which
    """
    try:
        yield
    except UnregisteredEnv as error:
        module = module_of(str(error))
        if module is None or any(re.search(ENVIRONMENTS[module], name) for name in gymnasium.registry):
            raise
        remedy = f"first `{REGISTRATION[module]}`, which registers such" if is_installed(module) else pip_install(module)
        raise MissingExtraError(f"{_first_sentence(error)}: {remedy}") from error
    except (ImportError, DependencyNotInstalled, AssertionError) as error:
        module = _missing_module(error)
        if module is None or isinstance(error, MissingExtraError):
            raise
        raise MissingExtraError(f"{_first_sentence(error)}: {pip_install(module)}") from error


def _missing_module(error: BaseException) -> str | None:
    """One of an extra that the error, or one that it followed, did not find."""
    name, text = str(getattr(error, "name", None)).split(".")[0], str(error).lower()
    for module in EXTRAS:
        if name == module or f"{module} is not installed".lower() in text:
            return module
    before = error.__cause__ or error.__context__
    return None if before is None else _missing_module(before)


def _first_sentence(error: BaseException) -> str:
    """What is wrong, without others' advice on what to install."""
    return re.split(r"[.,!?] |\n|; ", str(error))[0].rstrip(".")
