"""What the extras of this package bring, and how to say that one is missing."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import gymnasium
from gymnasium.error import DependencyNotInstalled, UnregisteredEnv

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


class MissingExtraError(ImportError):
    """What comes with an extra of this package is not installed, or not imported."""


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
