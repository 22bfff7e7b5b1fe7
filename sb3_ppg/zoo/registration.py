"""
Makes our algorithms and environments known to RL Zoo, which has no plugin mechanism, and fixes bugs in its scripts (rl_zoo3
2.9.2). There is one function for each bug, which returns a context manager within which it is fixed; ``patched`` enters those
in ``REPAIRS``. (``manager`` fixes bugs in ``ExperimentManager``.)
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import imageio_ffmpeg
import matplotlib
import numpy as np
import rl_zoo3.exp_manager
import rl_zoo3.load_from_hub
import rl_zoo3.train
import rl_zoo3.utils
import yaml
from huggingface_hub.errors import RemoteEntryNotFoundError
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from rl_zoo3 import ALGOS as ZOO_ALGOS
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
from rl_zoo3.utils import create_test_env, get_model_path, get_trained_models, get_wrapper_class
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import PPG, MaskablePPG
from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.family import FAMILY
from sb3_ppg.saving.files import WRITTEN_BY, saved_attributes
from sb3_ppg.zoo.environments import CutEpisodes, register_environments
from sb3_ppg.zoo.hyperparameters import CONVERTERS, OFFLINE, SAMPLERS
from sb3_ppg.zoo.manager import Manager

ALGOS: dict[str, type[PPG]] = {name: member.algorithm for name, member in FAMILY.items()}


def register() -> None:
    """
    Make our algorithms, their hyperparameter files, schedules and Optuna samplers, and our environments known to RL Zoo's
    scripts in this process: fill the Zoo's tables, and put ``Manager`` in the place of its ``ExperimentManager``.

    Call it before your own code imports ``ExperimentManager``; ``rl_zoo3.train`` may have been imported before. A second call
    changes nothing. It does not fix bugs of the scripts, and the processes that some of them start do not know our algorithms:
    use ``patched()`` for that.
    """
    if rl_zoo3.exp_manager.ExperimentManager is Manager:
        return
    ZOO_ALGOS.update({**ALGOS, **OFFLINE})
    HYPERPARAMS_SAMPLER.update(SAMPLERS)
    HYPERPARAMS_CONVERTER.update(CONVERTERS)
    register_environments()
    rl_zoo3.exp_manager.ExperimentManager = rl_zoo3.train.ExperimentManager = Manager  # type: ignore[misc]


@contextmanager
def patched() -> Iterator[None]:
    """
    Run RL Zoo's scripts as ``sb3-ppg`` runs them: call ``register()``, and fix bugs of the scripts that ``runpy`` runs within
    the block. There, the processes that scripts start know our algorithms, and a MaskablePPG acts under the masks of the
    environment that was made last for playing. For that, functions of the Zoo, ``subprocess.call``, ``pyplot.show`` and
    ``MaskablePPG.predict`` are replaced within the block; at its end everything is as before.
    """
    register()
    with ExitStack() as repairs:
        for repair in REPAIRS:
            repairs.enter_context(repair())
        yield


@contextmanager
def _patched_in_the_zoo(name: str, new: Any) -> Iterator[None]:
    """Replace a function of ``rl_zoo3.utils`` for scripts that import it, from there or from ``rl_zoo3``, within a block."""
    with patch.object(rl_zoo3.utils, name, new), patch.object(rl_zoo3, name, new, create=True):
        yield


def children_through_our_launcher(gym_packages: Sequence[str] = ()) -> AbstractContextManager:
    """
    rl_zoo3 2.9.2: ``benchmark`` starts ``python enjoy.py``, which exists only in the Zoo's own folder. ``record_training``
    starts ``python -m rl_zoo3.record_video``, which does not know our algorithms, once for each file of a checkpoint, and
    always with ``--deterministic``. Start ``python -m sb3_ppg`` instead, once for each checkpoint, with ``--deterministic``
    only if the user asked for it, and with ``--gym-packages``.
    """
    packages = ["--gym-packages", *gym_packages] if gym_packages else []
    original, recorded = subprocess.call, list[list[str]]()

    def call(command: Any, *args: Any, **kwargs: Any) -> int:
        match command:
            case ["python", "enjoy.py", *options]:
                options = [value.gym_id if isinstance(value, EnvironmentName) else value for value in options]
                command = [sys.executable, "-m", "sb3_ppg", "enjoy", *options, *packages]
            case ["python", "-m", str(module), *options] if module.startswith("rl_zoo3."):
                options = [word for word in options if word != "--deterministic" or word in sys.argv]
                if options in recorded:
                    return 0
                recorded.append(options)
                command = [sys.executable, "-m", "sb3_ppg", module.removeprefix("rl_zoo3."), *options, *packages]
        return original(command, *args, **kwargs)

    return patch.object(subprocess, "call", call)


def names_of_folders() -> AbstractContextManager:
    """rl_zoo3 2.9.2: ``benchmark`` looks for folders by the environment's ID; in their names, slashes are dashes."""

    def named(log_folder: str) -> dict[str, tuple[str, str]]:
        return {name: (algo, EnvironmentName(env_id)) for name, (algo, env_id) in get_trained_models(log_folder).items()}

    return _patched_in_the_zoo("get_trained_models", named)


def newer_library_of_the_hub() -> AbstractContextManager:
    """
    rl_zoo3 2.9.2 with huggingface_hub 2: ``load_from_hub`` expects another library's error where a model has no normalization
    statistics.
    """
    script = rl_zoo3.load_from_hub
    return patch.object(script, "HTTPError", (script.HTTPError, RemoteEntryNotFoundError))


@contextmanager
def latest_model() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: scripts take the run with the greatest number, even if it holds no model, and end in an error that does not
    say which models there are. Replace their look-up by one that also prints which version wrote the model; ``train`` still
    numbers new runs as before.
    """

    def get_latest_run_id(log_path: str, env_name: EnvironmentName) -> int:
        runs = [run.name.rpartition("_") for run in Path(log_path).glob("*") if any(run.glob("*.zip"))]
        return max((int(number) for name, _, number in runs if name == env_name and number.isdecimal()), default=0)

    def explained(exp_id: int, folder: str, algo: str, env_name: EnvironmentName, *which: Any) -> tuple[str, str, str]:
        try:
            found = get_model_path(exp_id, folder, algo, env_name, *which)
        except (AssertionError, ValueError) as error:
            models = [*map(str, Path(folder, algo).glob("*/*.zip"))]
            first = "; train an agent first, or name another folder (-f)"
            remedy = nearest(str(error).split("path: ")[-1], models) if models else first
            raise ArgumentError(f"{error}{remedy}") from error
        if written_by := saved_attributes(Path(found[1])).get(WRITTEN_BY):
            print(f"{found[1]} was written by sb3_ppg {written_by}")
        return found

    with patch.object(rl_zoo3.utils, "get_latest_run_id", get_latest_run_id), _patched_in_the_zoo("get_model_path", explained):
        yield


@contextmanager
def environments_for_playing() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: ``record_video`` makes an environment without the ``env_kwargs`` of the hyperparameters, and ``enjoy`` and
    ``record_video`` ask a model for actions without action masks. Here a MaskablePPG that is given none acts under those of
    the environment that was made for playing.
    """
    predict: Any = MaskablePPG.predict
    masked: list[VecEnv] = []

    def create(env_id: str, *, hyperparams: dict[str, Any], env_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> VecEnv:
        env_kwargs = {**hyperparams.pop("env_kwargs", {}), **(env_kwargs or {})}
        env = create_test_env(env_id, hyperparams=hyperparams, env_kwargs=env_kwargs, **kwargs)
        masked[:] = [env] if is_masking_supported(env) else []
        return env

    def predict_under_masks(*args: Any, action_masks: np.ndarray | None = None, **kwargs: Any) -> Any:
        if action_masks is None and masked:
            action_masks = get_action_masks(masked[0])
        return predict(*args, action_masks=action_masks, **kwargs)

    with _patched_in_the_zoo("create_test_env", create), patch.object(MaskablePPG, "predict", predict_under_masks):
        yield


def figures_as_files() -> AbstractContextManager:
    """rl_zoo3 2.9.2: without a display, the scripts that plot do nothing. Save their figures instead."""
    show = plt.show

    def show_or_save(*args: Any, **kwargs: Any) -> None:
        if plt.get_backend().lower() != "agg":
            show(*args, **kwargs)
            return
        for figure in map(plt.figure, plt.get_fignums()):
            file = f"{figure.get_label() or figure.number}.png".replace(" ", "_").replace("/", "-").lower()
            figure.savefig(file)
            print(f"No display: saved as {file}")

    return patch.object(plt, "show", show_or_save)


@contextmanager
def episodes_that_wrappers_cut() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: wrappers of ``env_wrapper`` are around SB3's ``Monitor``, which does not see that one of them, such as
    ``TimeLimit``, cuts an episode off. All means leave these episodes out, and an evaluation that has no others never ends.
    """

    def get(hyperparams: dict[str, Any], key: str = "env_wrapper") -> Any:
        wrapper = get_wrapper_class(hyperparams, key)
        return wrapper if wrapper is None or key != "env_wrapper" else lambda env: CutEpisodes(wrapper(env))

    with _patched_in_the_zoo("get_wrapper_class", get), patch.object(rl_zoo3.exp_manager, "get_wrapper_class", get):
        yield


REPAIRS = (
    children_through_our_launcher,
    names_of_folders,
    newer_library_of_the_hub,
    latest_model,
    environments_for_playing,
    figures_as_files,
    episodes_that_wrappers_cut,
)


@contextmanager
def agent_of_run(run: Path) -> Iterator[list[str]]:
    """
    Let scripts use the agent in a run's folder, even if the folder is not named as in the Zoo (``logs/ppg/CartPole-v1_1``).
    Yield the options with which the scripts find the agent: ``--algo`` and ``--env`` of the run's command.
    """
    find = rl_zoo3.utils.get_model_path

    def get_model_path(exp_id: int, folder: str, algo: str, *others: Any) -> tuple[str, str, str]:
        return find(-1, str(run.parent), run.name, *others)

    saved = [yaml.unsafe_load(path.read_text()) for path in run.glob("*/args.yml")]  # of a Zoo run: one
    with _patched_in_the_zoo("get_model_path", get_model_path):
        yield [word for options in saved for name in ("algo", "env") for word in (f"--{name}", str(options[name]))]


@contextmanager
def ffmpeg_on_path() -> Iterator[None]:
    """
    rl_zoo3 2.9.2: ``record_training`` calls ``ffmpeg``. Where there is none, use the one of imageio-ffmpeg,
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
