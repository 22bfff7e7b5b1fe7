"""
What is broken in RL Zoo's scripts for every algorithm, one function each. Each says which version it repairs, and is without
effect where that is not broken any more.
"""

import atexit
import importlib
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
from functools import wraps
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import imageio_ffmpeg
import matplotlib
import numpy as np
import optuna
import rl_zoo3.utils
from huggingface_hub.errors import RemoteEntryNotFoundError
from matplotlib import pyplot as plt
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import StoreDict

from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.zoo.command_line import check_path

FONTS = """<?xml version="1.0"?>
<fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include>
<dir>{fonts}</dir>
<cachedir>{cache}</cachedir>
</fontconfig>
"""


def apply() -> None:
    """All of them."""
    run_children_through_our_launcher()
    load_the_first_trial()
    name_the_studies()
    explain_options_that_are_no_python()
    provide_the_metadata_of_a_model_card()
    catch_missing_files_of_the_hub()
    name_the_nearest_model()
    provide_ffmpeg()
    save_plots_without_a_display()


def run_children_through_our_launcher() -> None:
    """
    rl_zoo3 2.9.2: ``benchmark`` starts ``python enjoy.py``, which is only there in the Zoo's own folder, and
    ``record_training`` starts ``python -m rl_zoo3.record_video``, which does not know our algorithms.
    """
    original = subprocess.call

    @wraps(original)
    def call(command: Any, *args: Any, **kwargs: Any) -> int:
        return original(through_our_launcher(command), *args, **kwargs)

    subprocess.call = call  # type: ignore[assignment]


def through_our_launcher(command: Any) -> Any:
    """
    :param command: of a child process
    :return: the same script of the Zoo by our launcher; any other command as it is
    """
    match command:
        case ["python", "enjoy.py", *options]:
            script = "enjoy"
        case ["python" | sys.executable, "-m", str(module), *options] if module.startswith("rl_zoo3."):
            script = module.removeprefix("rl_zoo3.")
        case _:
            return command
    return [sys.executable, "-m", "sb3_ppg", script, *options]


def load_the_first_trial() -> None:
    """rl_zoo3 2.9.2: ``--trial-id 0`` is taken for no trial at all, as 0 is false."""
    original = ExperimentManager.read_hyperparameters

    @wraps(original)
    def read_hyperparameters(self: ExperimentManager) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.trial_id == 0:
            self.trial_id = _First(0)
        return original(self)

    ExperimentManager.read_hyperparameters = read_hyperparameters  # type: ignore[method-assign]


def name_the_studies() -> None:
    """rl_zoo3 2.9.2: a study or a trial that is not there ends in a KeyError or an IndexError."""
    original = ExperimentManager.load_trial

    @wraps(original)
    def load_trial(self: ExperimentManager, storage: str, study_name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        is_journal = storage.endswith(".log")
        if is_journal:
            check_path(Path(storage))
        try:
            return original(self, storage, study_name, *args, **kwargs)
        except KeyError as error:
            there = optuna.get_all_study_names(JournalStorage(JournalFileBackend(storage)) if is_journal else storage)
            raise ArgumentError(f"there is no study {study_name!r} in {storage}{nearest(study_name, there)}") from error
        except IndexError as error:
            raise ArgumentError(f"the study {study_name!r} has no trial {self.trial_id}") from error

    ExperimentManager.load_trial = load_trial  # type: ignore[method-assign]


def explain_options_that_are_no_python() -> None:
    """rl_zoo3 2.9.2: ``-params n_steps:abc`` ends in a NameError, as the value is evaluated."""
    original = StoreDict.__call__

    @wraps(original)
    def store(self: StoreDict, parser: Any, namespace: Any, values: list[str], option_string: str | None = None) -> None:
        try:
            original(self, parser, namespace, values, option_string)
        except Exception as error:
            wanted = "name:value with values in Python's notation, strings in quotes, as in learning_rate:\"'lin_0.001'\""
            raise ArgumentError(f"{option_string} {' '.join(values)} ({error}): use {wanted}") from error

    StoreDict.__call__ = store  # type: ignore[method-assign]


class _First(int):
    """The number 0, but true."""

    def __bool__(self) -> bool:
        return True


def provide_the_metadata_of_a_model_card() -> None:
    """rl_zoo3 2.9.2 with sb3-team-hf-integration 3: ``push_to_hub`` imports a name that is no longer there."""
    integration = importlib.import_module("huggingface_sb3.push_to_hub")
    if not hasattr(integration, "generate_metadata"):

        def generate_metadata(*args: Any) -> dict[str, Any]:
            return integration._generate_metadata(*args).to_dict()

        vars(integration)["generate_metadata"] = generate_metadata


def catch_missing_files_of_the_hub() -> None:
    """
    rl_zoo3 2.9.2 with huggingface_hub 2: ``load_from_hub`` expects another library's error where a model has no normalisation
    statistics, so that such a model cannot be loaded.
    """
    script = importlib.import_module("rl_zoo3.load_from_hub")
    if not issubclass(RemoteEntryNotFoundError, script.HTTPError):
        vars(script)["HTTPError"] = (script.HTTPError, RemoteEntryNotFoundError)


def name_the_nearest_model() -> None:
    """rl_zoo3 2.9.2: a model that is not there ends in an AssertionError without a hint."""
    original = rl_zoo3.utils.get_model_path

    @wraps(original)
    def get_model_path(*args: Any, **kwargs: Any) -> tuple[str, str, str]:
        try:
            return original(*args, **kwargs)
        except (AssertionError, ValueError) as error:
            call = signature(original).bind(*args, **kwargs).arguments
            if call["exp_id"] > 0:
                check_path(Path(call["folder"]) / call["algo"] / f"{call['env_name']}_{call['exp_id']}")
            if "path: " in str(error):
                check_path(Path(str(error).split("path: ")[1]))
            raise ArgumentError(str(error)) from error

    rl_zoo3.utils.get_model_path = get_model_path


def provide_ffmpeg() -> None:
    """
    rl_zoo3 2.9.2: videos need an ``ffmpeg`` on the path, and a font. Where there is none, the program that comes with
    imageio-ffmpeg, and matplotlib's font, in a folder that is removed at the end.
    """
    if shutil.which("ffmpeg") is not None:
        return
    folder = tempfile.TemporaryDirectory(prefix="sb3_ppg_ffmpeg_")
    atexit.register(folder.cleanup)
    program = Path(imageio_ffmpeg.get_ffmpeg_exe())
    link = Path(folder.name) / f"ffmpeg{program.suffix if program.suffix == '.exe' else ''}"
    try:
        link.symlink_to(program)
    except OSError:  # Windows without the right to
        shutil.copy(program, link)
    os.environ["PATH"] = os.pathsep.join(filter(None, [folder.name, os.environ.get("PATH")]))
    if "FONTCONFIG_FILE" not in os.environ:
        fonts = Path(folder.name) / "fonts.conf"
        fonts.write_text(FONTS.format(fonts=Path(matplotlib.get_data_path()) / "fonts" / "ttf", cache=folder.name))
        os.environ["FONTCONFIG_FILE"] = str(fonts)


def save_plots_without_a_display() -> None:
    """rl_zoo3 2.9.2: ``plot_train`` and others only show what they draw; where nothing can be shown, it is saved."""
    original = plt.show

    @wraps(original)
    def show(*args: Any, **kwargs: Any) -> None:
        if plt.get_backend().lower() != "agg":
            return original(*args, **kwargs)
        for number in plt.get_fignums():
            file = Path(f"{plt.figure(number).get_label() or number}.png".replace(" ", "_").replace("/", "-").lower())
            plt.figure(number).savefig(file)
            print(f"No display: saved as {file}")

    plt.show = show


def record_training() -> None:
    """rl_zoo3 2.9.2: with ``-o FOLDER`` it does not find its own videos again if the folder is relative."""
    options = ("-o", "--output-folder")
    for index, option in enumerate(sys.argv[:-1]):
        if option in options:
            sys.argv[index + 1] = os.path.abspath(sys.argv[index + 1])
    runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)


def plot_from_file() -> None:
    """rl_zoo3 2.9.2: the last evaluations of a single run are saved as a number, at which this script then fails."""
    script = importlib.import_module("rl_zoo3.plots.plot_from_file")
    vars(script)["pickle"] = SimpleNamespace(load=_load_results)
    script.plot_from_file()


def _load_results(file: BinaryIO) -> dict[str, dict[str, Any]]:
    results = pickle.load(file)
    for env, algorithms in results.items():
        if env != "results_table":
            for curves in algorithms.values():
                curves["last_evals"] = np.atleast_1d(curves["last_evals"])
    return results
