"""What the extras of this package bring, and how to say that one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from gymnasium.error import DependencyNotInstalled, UnregisteredEnv

# The modules that come with extras, as errors name them
EXTRAS = {
    **dict.fromkeys(("huggingface_hub", "safetensors"), "hub"),
    **dict.fromkeys(("rl_zoo3", "pygame"), "zoo"),
    **dict.fromkeys(("seaborn", "scipy", "rliable"), "plots"),
    **dict.fromkeys(("ale_py", "cv2", "OpenCV"), "atari"),
    **dict.fromkeys(("mujoco", "imageio"), "mujoco"),
    "tensorboard": "tensorboard",
    "Box2D": "box2d",
    "minigrid": "minigrid",
}
# Environments that Gymnasium knows after a module of an extra is imported: a part of their names, the module
ENVIRONMENTS = {"ALE/": "ale_py", "NoFrameskip-v": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid"}


class MissingExtraError(ImportError):
    """What comes with an extra of this package is not installed, or not imported."""


def where_from(env_id: str) -> str:
    """
    :param env_id: a text with the name of an environment that Gymnasium does not know
    :return: what makes it known, for the end of a message; empty if that is not known
    """
    for part, module in ENVIRONMENTS.items():
        if part in env_id:
            missing = find_spec(module) is None
            return (
                f': pip install "sb3-ppg[{EXTRAS[module]}]"' if missing else f": first `import {module}`, which registers it"
            )
    return ""


@contextmanager
def missing_extras_named() -> Iterator[None]:
    """
    :raises MissingExtraError: in place of an error that an extra would mend: one line that says which
    """
    try:
        yield
    except UnregisteredEnv as error:
        if remedy := where_from(str(error)):
            raise MissingExtraError(f"{_first_sentence(error)}{remedy}") from error
        raise
    except (ImportError, DependencyNotInstalled, AssertionError) as error:
        extra = _extra_of(error)
        if extra is None or isinstance(error, MissingExtraError):
            raise
        raise MissingExtraError(f'{_first_sentence(error)}: pip install "sb3-ppg[{extra}]"') from error


def _extra_of(error: BaseException) -> str | None:
    """Of the module that the error, or one that it followed, did not find."""
    for module, extra in EXTRAS.items():
        if (
            str(getattr(error, "name", None)).split(".")[0] == module
            or f"{module} is not installed".lower() in str(error).lower()
        ):
            return extra
    before = error.__cause__ or error.__context__
    return None if before is None else _extra_of(before)


def _first_sentence(error: BaseException) -> str:
    """What is wrong, without others' advice on what to install."""
    return str(error).split(". ")[0].split(", ")[0].rstrip(".")
