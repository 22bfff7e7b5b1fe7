"""
Fixes for bugs in RL Zoo's scripts (rl_zoo3 2.9.2), one function each. Each returns a context manager within which the bug is
fixed; ``patched`` enters all of them. (``manager`` fixes those in ``ExperimentManager``.)
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import imageio_ffmpeg
import matplotlib
import numpy as np
import rl_zoo3.load_from_hub
import rl_zoo3.utils
from huggingface_hub import repocard
from huggingface_hub.errors import RemoteEntryNotFoundError
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from rl_zoo3.utils import create_test_env, get_model_path, get_trained_models
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import MaskablePPG
from sb3_ppg.errors import ArgumentError, nearest, requirement
from sb3_ppg.zoo.environments import check_is_registered


def _patched_in_the_zoo(name: str, new: Any) -> AbstractContextManager:
    """Replace a function of ``rl_zoo3.utils`` for scripts that import it within a block."""
    patches = ExitStack()
    for module in (rl_zoo3, rl_zoo3.utils):
        if hasattr(module, name):
            patches.enter_context(patch.object(module, name, new))
    return patches


def children_through_our_launcher() -> AbstractContextManager:
    """
    rl_zoo3 2.9.2: ``benchmark`` starts ``python enjoy.py``, which exists only in the Zoo's own folder, and
    ``record_training`` starts ``python -m rl_zoo3.record_video``, which does not know our algorithms.
    """
    original = subprocess.call

    def call(command: Any, *args: Any, **kwargs: Any) -> int:
        match command:
            case ["python", "enjoy.py", *options]:
                options = [one.gym_id if isinstance(one, EnvironmentName) else one for one in options]
                command = [sys.executable, "-m", "sb3_ppg", "enjoy", *options]
            case ["python", "-m", str(module), *options] if module.startswith("rl_zoo3."):
                command = [sys.executable, "-m", "sb3_ppg", module.removeprefix("rl_zoo3."), *options]
        return original(command, *args, **kwargs)

    return patch.object(subprocess, "call", call)


def names_of_folders() -> AbstractContextManager:
    """rl_zoo3 2.9.2: ``benchmark`` looks for folders by the environment's ID; in their names, slashes are dashes."""

    def named(log_folder: str) -> dict[str, tuple[str, str]]:
        return {name: (algo, EnvironmentName(env_id)) for name, (algo, env_id) in get_trained_models(log_folder).items()}

    return _patched_in_the_zoo("get_trained_models", named)


def metadata_of_model_cards() -> AbstractContextManager:
    """rl_zoo3 2.9.2 with sb3-team-hf-integration 3: ``push_to_hub`` imports a name that no longer exists."""
    integration = importlib.import_module("huggingface_sb3.push_to_hub")

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
    rl_zoo3 2.9.2: scripts take the run with the greatest number, whether or not it holds a model, and end in an error that
    does not say which models there are. Only their look-up is replaced: ``train`` still numbers new runs as before.
    """

    def get_latest_run_id(log_path: str, env_name: EnvironmentName) -> int:
        runs = [run.name.rpartition("_") for run in Path(log_path).glob("*") if any(run.glob("*.zip"))]
        return max((int(number) for name, _, number in runs if name == env_name and number.isdecimal()), default=0)

    def steps(checkpoint: Path) -> int:
        return int(re.sub(r"\D", "", checkpoint.name))

    def explained(exp_id: int, folder: str, algo: str, env_name: EnvironmentName, *which: Any) -> tuple[str, str, str]:
        check_is_registered(env_name.gym_id)
        try:
            return get_model_path(exp_id, folder, algo, env_name, *which)
        except (AssertionError, ValueError) as error:
            wanted = Path(str(error).split("path: ")[-1])
            if "rl_model" in wanted.name:  # a checkpoint
                there = sorted(wanted.parent.glob("rl_model_*_steps.zip"), key=lambda one: abs(steps(one) - steps(wanted)))
                raise ArgumentError(f"{error}; nearest: {', '.join(map(str, sorted(there[:3], key=steps)))}") from error
            models = map(str, Path(folder, algo).glob("*/*.zip"))
            raise ArgumentError(f"{error}{nearest(str(wanted), models)}") from error

    with (
        patch.object(rl_zoo3.utils, "get_latest_run_id", get_latest_run_id),
        _patched_in_the_zoo("get_model_path", explained),
    ):
        yield


def options_of_the_hyperparameters() -> AbstractContextManager:
    """rl_zoo3 2.9.2: ``record_video`` makes an environment without the ``env_kwargs`` of the hyperparameters."""

    def create(env_id: str, *, hyperparams: dict[str, Any], env_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> VecEnv:
        env_kwargs = {**hyperparams.pop("env_kwargs", {}), **(env_kwargs or {})}
        return create_test_env(env_id, hyperparams=hyperparams, env_kwargs=env_kwargs, **kwargs)

    return _patched_in_the_zoo("create_test_env", create)


@contextmanager
def acting_under_masks() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: ``enjoy`` and ``record_video`` ask a model for actions without action masks. Here a MaskablePPG that is
    given none acts under those of the environment that was made for playing.
    """
    predict: Any = MaskablePPG.predict
    make = rl_zoo3.utils.create_test_env  # with other repairs
    masked: list[VecEnv] = []

    def create(*args: Any, **kwargs: Any) -> VecEnv:
        env = make(*args, **kwargs)
        masked[:] = [env] if is_masking_supported(env) else []
        return env

    def predict_under_masks(*args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> Any:
        if action_masks is None and masked:
            action_masks = get_action_masks(masked[0])
        return predict(*args, action_masks=action_masks, **kwargs)

    with _patched_in_the_zoo("create_test_env", create), patch.object(MaskablePPG, "predict", predict_under_masks):
        yield


def figures_as_files() -> AbstractContextManager:
    """
    rl_zoo3 2.9.2: without a display, the scripts that plot do nothing. Save their figures instead. Figures without data are an
    error.
    """
    show = plt.show

    def show_or_save(*args: Any, **kwargs: Any) -> None:
        for number in plt.get_fignums():
            if not any(axes.has_data() for axes in plt.figure(number).axes):
                what = plt.figure(number).get_label()
                remedy = "no run here has such data, or as many episodes as the window, for which -w takes a smaller number"
                raise ArgumentError(f"{what!r} would be empty: {remedy}")
        if plt.get_backend().lower() != "agg":
            show(*args, **kwargs)
            return
        for number in plt.get_fignums():
            file = Path(f"{plt.figure(number).get_label() or number}.png".replace(" ", "_").replace("/", "-").lower())
            plt.figure(number).savefig(file)
            print(f"No display: saved as {file}")

    return patch.object(plt, "show", show_or_save)


REPAIRS = (
    children_through_our_launcher,
    names_of_folders,
    metadata_of_model_cards,
    missing_files_of_the_hub,
    latest_model,
    options_of_the_hyperparameters,
    acting_under_masks,
    figures_as_files,
)


# ---- for the scripts that need it ----


def our_commands_on_cards() -> AbstractContextManager:
    """rl_zoo3 2.9.2: the model cards of ``push_to_hub`` name the Zoo's own commands, which do not know our algorithms."""
    original = repocard.metadata_save

    def save(card: Path, metadata: dict[str, Any]) -> None:
        text = (
            card.read_text()
            .replace("python -m rl_zoo3.", "sb3-ppg ")
            .replace("install rl_zoo3", f"install {requirement('zoo')}")
        )
        card.write_text(text)
        original(card, metadata)

    return patch.object(repocard, "metadata_save", save)


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
        program = imageio_ffmpeg.get_ffmpeg_exe()
        shutil.copy(program, Path(folder) / ("ffmpeg.exe" if program.endswith(".exe") else "ffmpeg"))
        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        config = Path(folder) / "fonts.conf"
        config.write_text(f"<fontconfig><dir>{fonts}</dir><cachedir>{folder}</cachedir></fontconfig>")
        variables = {"FONTCONFIG_FILE": str(config), **os.environ}
        variables["PATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PATH")]))
        with patch.dict(os.environ, variables):
            yield
