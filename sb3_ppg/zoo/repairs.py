"""
What is broken in RL Zoo's scripts for every algorithm, one function each. Each says which version it repairs, and is without
effect where that is not broken any more. All of it lasts as long as the launcher runs a script, see ``patched``.
"""

import importlib
import subprocess
import sys
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Any

import optuna
import rl_zoo3.load_from_hub
import rl_zoo3.utils
from huggingface_hub.errors import RemoteEntryNotFoundError
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import StoreDict
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.zoo.command_line import check_path, runs_with_a_model
from sb3_ppg.zoo.patches import Patches


def apply(patches: Patches) -> None:
    """
    All of them.

    :param patches: which undoes them at its end
    """
    run_children_through_our_launcher(patches)
    load_the_first_trial(patches)
    name_the_studies(patches)
    explain_options_that_are_no_python(patches)
    provide_the_metadata_of_a_model_card(patches)
    catch_missing_files_of_the_hub(patches)
    find_the_latest_model(patches)
    end_only_what_began(patches)
    save_plots_without_a_display(patches)


def run_children_through_our_launcher(patches: Patches) -> None:
    """
    rl_zoo3 2.9.2: ``benchmark`` starts ``python enjoy.py``, which is only there in the Zoo's own folder, and
    ``record_training`` starts ``python -m rl_zoo3.record_video``, which does not know our algorithms.
    """
    original = subprocess.call

    @wraps(original)
    def call(command: Any, *args: Any, **kwargs: Any) -> int:
        return original(through_our_launcher(command), *args, **kwargs)

    patches.replace(subprocess, "call", call)


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


def load_the_first_trial(patches: Patches) -> None:
    """rl_zoo3 2.9.2: ``--trial-id 0`` is taken for no trial at all, as 0 is false."""
    original = ExperimentManager.read_hyperparameters

    @wraps(original)
    def read_hyperparameters(self: ExperimentManager) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.trial_id == 0:
            self.trial_id = _TrueZero(0)
        return original(self)

    patches.replace(ExperimentManager, "read_hyperparameters", read_hyperparameters)


def name_the_studies(patches: Patches) -> None:
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

    patches.replace(ExperimentManager, "load_trial", load_trial)


def explain_options_that_are_no_python(patches: Patches) -> None:
    """rl_zoo3 2.9.2: ``-params n_steps:abc`` ends in a NameError, as the value is evaluated."""
    original = StoreDict.__call__

    @wraps(original)
    def store(self: StoreDict, parser: Any, namespace: Any, values: list[str], option_string: str | None = None) -> None:
        try:
            original(self, parser, namespace, values, option_string)
        except Exception as error:
            wanted = "name:value with values in Python's notation, strings in quotes, as in learning_rate:\"'lin_0.001'\""
            raise ArgumentError(f"{option_string} {' '.join(values)} ({error}): use {wanted}") from error

    patches.replace(StoreDict, "__call__", store)


class _TrueZero(int):
    """The number 0, but true."""

    def __bool__(self) -> bool:
        return True


def provide_the_metadata_of_a_model_card(patches: Patches) -> None:
    """rl_zoo3 2.9.2 with sb3-team-hf-integration 3: ``push_to_hub`` imports a name that is no longer there."""
    integration = importlib.import_module("huggingface_sb3.push_to_hub")
    if not hasattr(integration, "generate_metadata"):

        def generate_metadata(*args: Any) -> dict[str, Any]:
            return integration._generate_metadata(*args).to_dict()

        patches.replace(integration, "generate_metadata", generate_metadata)


def catch_missing_files_of_the_hub(patches: Patches) -> None:
    """
    rl_zoo3 2.9.2 with huggingface_hub 2: ``load_from_hub`` expects another library's error where a model has no normalisation
    statistics, so that such a model cannot be loaded.
    """
    script = rl_zoo3.load_from_hub
    if not issubclass(RemoteEntryNotFoundError, script.HTTPError):
        patches.replace(script, "HTTPError", (script.HTTPError, RemoteEntryNotFoundError))


def find_the_latest_model(patches: Patches) -> None:
    """
    rl_zoo3 2.9.2: scripts take the run with the greatest number, whether or not it holds a model, and end in an AssertionError
    without a hint where there is none. New runs are numbered as before: for that other modules have the function.
    """
    original = rl_zoo3.utils.get_model_path

    def get_latest_run_id(log_path: str, env_name: EnvironmentName) -> int:
        return next(iter(runs_with_a_model(Path(log_path), env_name)), 0)

    @wraps(original)
    def get_model_path(*args: Any, **kwargs: Any) -> tuple[str, str, str]:
        call = signature(original).bind(*args, **kwargs)
        asked = call.arguments
        runs = Path(asked["folder"]) / asked["algo"]
        if asked["exp_id"] == 0:
            numbers = runs_with_a_model(runs, asked["env_name"], _file_asked_for(asked))
            asked["exp_id"] = next(iter(numbers), 0)  # 0: the latest that holds another model, for the error to name it
            if numbers:
                print(f"Loading latest experiment, id={numbers[0]}")
        try:
            return original(*call.args, **call.kwargs)
        except (AssertionError, ValueError) as error:
            if asked["exp_id"] > 0:
                check_path(runs / f"{asked['env_name']}_{asked['exp_id']}")
            if "path: " in str(error):
                check_path(Path(str(error).split("path: ")[1]))
            raise ArgumentError(str(error)) from error

    patches.replace(rl_zoo3.utils, "get_latest_run_id", get_latest_run_id)
    patches.replace_in_the_zoo(original, get_model_path)


def _file_asked_for(asked: dict[str, Any]) -> str:
    """The pattern of its name, from the arguments of the Zoo's ``get_model_path``."""
    if asked.get("load_best"):
        return "best_model.zip"
    if asked.get("load_checkpoint") is not None:
        return f"rl_model_{asked['load_checkpoint']}_steps.zip"
    if asked.get("load_last_checkpoint"):
        return "rl_model_*_steps.zip"
    return f"{asked['env_name']}.zip"


def end_only_what_began(patches: Patches) -> None:
    """
    rl_zoo3 2.9.2: whatever ends a training, its first callback (the progress bar) is told so. One that was never told of the
    beginning, because the error came before, answers with an error of its own, which hides the first.
    """
    original = ExperimentManager.learn

    @wraps(original)
    def learn(self: ExperimentManager, model: Any) -> None:
        for callback in self.callbacks[:1]:
            vars(callback)["on_training_end"] = partial(_end_if_it_began, callback)
        original(self, model)

    patches.replace(ExperimentManager, "learn", learn)


def _end_if_it_began(callback: BaseCallback) -> None:
    if callback.locals:  # which `on_training_start` sets
        type(callback).on_training_end(callback)


def save_plots_without_a_display(patches: Patches) -> None:
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

    patches.replace(plt, "show", show)
