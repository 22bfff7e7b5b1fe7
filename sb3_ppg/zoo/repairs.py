"""
Faults of RL Zoo's scripts (rl_zoo3 2.9.2) for every algorithm, and for ours, one function each. Each returns a context manager
within which the fault is mended; ``patched`` enters all of them. (``manager`` mends those of ``ExperimentManager``.)
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import imageio_ffmpeg
import matplotlib
import rl_zoo3.load_from_hub
import rl_zoo3.utils
from huggingface_hub.errors import RemoteEntryNotFoundError
from huggingface_sb3 import EnvironmentName
from rl_zoo3.utils import StoreDict, create_test_env, get_model_path
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import MaskablePPG
from sb3_ppg.errors import ArgumentError
from sb3_ppg.zoo.command_line import check_path, runs_with_a_model
from sb3_ppg.zoo.environments import needs_masks

FONTS = """<?xml version="1.0"?>
<fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir>{fonts}</dir>
<cachedir>{cache}</cachedir>
</fontconfig>
"""


def swap_in_the_zoo(old: Any, new: Any) -> None:
    """Replace a function or class of the Zoo in each of its modules that has imported it by name."""
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "rl_zoo3" and module is not None:
            for name in [name for name, value in vars(module).items() if value is old]:
                setattr(module, name, new)


@contextmanager
def swapped_in_the_zoo(old: Any, new: Any) -> Iterator[None]:
    """Swap within a block. At its end all modules have the old one, including those that were imported within."""
    swap_in_the_zoo(old, new)
    try:
        yield
    finally:
        swap_in_the_zoo(new, old)


def children_through_our_launcher() -> AbstractContextManager:
    """
    rl_zoo3 2.9.2: ``benchmark`` starts ``python enjoy.py``, which exists only in the Zoo's own folder, and
    ``record_training`` starts ``python -m rl_zoo3.record_video``, which does not know our algorithms.
    """
    original = subprocess.call

    @wraps(original)
    def call(command: Any, *args: Any, **kwargs: Any) -> int:
        match command:
            case ["python", "enjoy.py", *options]:
                command = [sys.executable, "-m", "sb3_ppg", "enjoy", *options]
            case ["python", "-m", str(module), *options] if module.startswith("rl_zoo3."):
                command = [sys.executable, "-m", "sb3_ppg", module.removeprefix("rl_zoo3."), *options]
        return original(command, *args, **kwargs)

    return patch.object(subprocess, "call", call)


def explained_options() -> AbstractContextManager:
    """rl_zoo3 2.9.2: ``-params n_steps:abc`` ends in a NameError, because the value is evaluated."""
    original = StoreDict.__call__

    @wraps(original)
    def store(self: StoreDict, parser: Any, namespace: Any, values: list[str], option_string: str | None = None) -> None:
        try:
            original(self, parser, namespace, values, option_string)
        except Exception as error:
            wanted = "name:value with values in Python's notation, strings in quotes, as in learning_rate:\"'lin_0.001'\""
            raise ArgumentError(f"{option_string} {' '.join(values)} ({error}): use {wanted}") from error

    return patch.object(StoreDict, "__call__", store)


def metadata_of_model_cards() -> AbstractContextManager:
    """rl_zoo3 2.9.2 with sb3-team-hf-integration 3: ``push_to_hub`` imports a name that no longer exists."""
    integration = importlib.import_module("huggingface_sb3.push_to_hub")
    if hasattr(integration, "generate_metadata"):
        return nullcontext()

    def generate_metadata(*args: Any) -> dict[str, Any]:
        return integration._generate_metadata(*args).to_dict()

    return patch.object(integration, "generate_metadata", generate_metadata, create=True)


def missing_files_of_the_hub() -> AbstractContextManager:
    """
    rl_zoo3 2.9.2 with huggingface_hub 2: ``load_from_hub`` expects another library's error where a model has no normalization
    statistics, so that such a model cannot be loaded.
    """
    script = rl_zoo3.load_from_hub
    return patch.object(script, "HTTPError", (script.HTTPError, RemoteEntryNotFoundError))


@contextmanager
def latest_model() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: scripts take the training with the greatest number, whether or not it holds a model, and end in an
    AssertionError without a hint where there is none. New trainings are numbered as before, by names of this function in
    other modules.
    """

    def get_latest_run_id(log_path: str, env_name: EnvironmentName) -> int:
        return next(iter(runs_with_a_model(Path(log_path), env_name)), 0)

    @wraps(get_model_path)
    def path_of_the_latest(*args: Any, **kwargs: Any) -> tuple[str, str, str]:
        call = signature(get_model_path).bind(*args, **kwargs)
        call.apply_defaults()
        asked = call.arguments
        runs = Path(asked["folder"]) / asked["algo"]
        if asked["exp_id"] == 0:
            numbers = runs_with_a_model(runs, asked["env_name"], _pattern(**asked))
            asked["exp_id"] = next(iter(numbers), 0)  # 0: the latest that holds another model, for the error to name it
            if numbers:
                print(f"Loading latest experiment, id={numbers[0]}")
        try:
            return get_model_path(*call.args, **call.kwargs)
        except (AssertionError, ValueError) as error:
            if asked["exp_id"] > 0:
                check_path(runs / f"{asked['env_name']}_{asked['exp_id']}")
            if "path: " in str(error):
                check_path(Path(str(error).split("path: ")[1]))
            raise ArgumentError(str(error)) from error

    with (
        patch.object(rl_zoo3.utils, "get_latest_run_id", get_latest_run_id),
        swapped_in_the_zoo(get_model_path, path_of_the_latest),
    ):
        yield


def _pattern(env_name: str, load_best: bool, load_checkpoint: int | None, load_last_checkpoint: bool, **_: Any) -> str:
    """Return the pattern of the model's file name for the arguments of ``get_model_path``."""
    if load_best:
        return "best_model.zip"
    if load_checkpoint is not None:
        return f"rl_model_{load_checkpoint}_steps.zip"
    return "rl_model_*_steps.zip" if load_last_checkpoint else f"{env_name}.zip"


@contextmanager
def acting_under_masks() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: ``enjoy`` and ``record_video`` make an environment, load a model, then ask it for actions without action
    masks. Here each MaskablePPG that is loaded acts under the masks of the environment that was made for it.
    """
    load: Any = MaskablePPG.load
    predict = MaskablePPG.predict
    made: list[VecEnv] = []
    played: WeakKeyDictionary[MaskablePPG, VecEnv] = WeakKeyDictionary()

    @wraps(create_test_env)
    def create(*args: Any, **kwargs: Any) -> VecEnv:
        made[:] = [create_test_env(*args, **kwargs)]
        return made[0]

    @wraps(load)
    def load_to_play(cls: type[MaskablePPG], *args: Any, **kwargs: Any) -> MaskablePPG:
        model = load.__func__(cls, *args, **kwargs)
        played.update((model, env) for env in made if needs_masks(model, env))
        return model

    @wraps(predict)
    def predict_under_masks(self: MaskablePPG, *args: Any, **kwargs: Any) -> Any:
        given = signature(predict).bind(self, *args, **kwargs).arguments
        if self in played and given.get("action_masks") is None:
            given["action_masks"] = get_action_masks(played[self])
        return predict(**given)

    with (
        swapped_in_the_zoo(create_test_env, create),
        patch.multiple(MaskablePPG, load=classmethod(load_to_play), predict=predict_under_masks),
    ):
        yield


REPAIRS = (
    children_through_our_launcher,
    explained_options,
    metadata_of_model_cards,
    missing_files_of_the_hub,
    latest_model,
    acting_under_masks,
)


# ---- for the scripts that need it ----


@contextmanager
def ffmpeg_on_path() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: ``record_training`` and ``push_to_hub`` call ``ffmpeg``. Where there is none, use the one of imageio-ffmpeg,
    and matplotlib's font for names in the picture.
    """
    if shutil.which("ffmpeg") is not None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="sb3_ppg_ffmpeg_") as folder:
        program = Path(imageio_ffmpeg.get_ffmpeg_exe())
        link = Path(folder) / f"ffmpeg{program.suffix if program.suffix == '.exe' else ''}"
        try:
            link.symlink_to(program)
        except OSError:  # Windows, without the right to make links
            shutil.copy(program, link)
        fonts = Path(folder) / "fonts.conf"
        fonts.write_text(FONTS.format(fonts=Path(matplotlib.get_data_path()) / "fonts" / "ttf", cache=folder))
        variables = {"FONTCONFIG_FILE": str(fonts), **os.environ}
        variables["PATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PATH")]))
        with patch.dict(os.environ, variables):
            yield
