"""
Makes PPG known to RL Zoo (rl_zoo3 2.9.2), which has no plugin mechanism.

``register()`` fills the Zoo's tables and teaches its ``ExperimentManager`` our algorithms and environments, for good; other
algorithms are touched where they meet these: Procgen's games, entries for all of MiniGrid or MinAtar. ``patched()`` also
repairs the Zoo's scripts, for as long as it lasts; the launcher runs every script in it.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

import yaml
from stable_baselines3.common.utils import LinearSchedule

import sb3_ppg
from sb3_ppg import PPG, ImpalaCNN, MinAtarCNN
from sb3_ppg.arguments import argument_names
from sb3_ppg.errors import ArgumentError, MissingExtraError, nearest
from sb3_ppg.family import FAMILY, with_preset

try:
    import rl_zoo3
    import rl_zoo3.exp_manager
    from huggingface_sb3 import EnvironmentName
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
    from rl_zoo3.utils import SimpleLinearSchedule

    from sb3_ppg.zoo import repairs
    from sb3_ppg.zoo.hyperparameter_search import CONVERTERS, SAMPLERS, register_search
    from sb3_ppg.zoo.masks import act_under_masks, register_masks
    from sb3_ppg.zoo.minatar import register_minatar
    from sb3_ppg.zoo.patches import Patches
    from sb3_ppg.zoo.procgen import ENV_IDS, register_procgen
    from sb3_ppg.zoo.resume import register_resume
except ImportError as error:
    raise MissingExtraError(f'RL Zoo cannot be imported ({error}): pip install "sb3-ppg[zoo]"') from error

ALGOS: dict[str, type[PPG]] = {name: member.algorithm for name, member in FAMILY.items()}
# Entries of hyperparameter files that stand for several environments, and for which
FAMILIES: dict[str, Callable[[str], bool]] = {
    "procgen": ENV_IDS.__contains__,
    "minigrid": lambda env_id: env_id.startswith("MiniGrid-"),
    "minatar": lambda env_id: env_id.startswith("MinAtar/"),
}


def register() -> None:
    """
    Make our algorithms, their hyperparameter files, schedules and Optuna samplers, and the environments that come with us,
    known to RL Zoo's scripts in this process.

    Call it before a script is imported; a second call changes nothing. What is broken in the scripts stays broken, and the
    processes that some of them start do not know our algorithms: for that there is ``patched()``.

    Example::

        from sb3_ppg.zoo import register

        register()
        from rl_zoo3 import ALGOS
        print(ALGOS["ppg"])
    """
    if ALGOS.keys() <= rl_zoo3.ALGOS.keys():
        return
    rl_zoo3.ALGOS.update(ALGOS)
    HYPERPARAMS_SAMPLER.update(SAMPLERS)
    HYPERPARAMS_CONVERTER.update(CONVERTERS)
    # Strings in hyperparameter files are evaluated in that module
    vars(rl_zoo3.exp_manager).update(ImpalaCNN=ImpalaCNN, MinAtarCNN=MinAtarCNN)
    _use_our_hyperparameter_files()
    _understand_our_hyperparameters()
    _use_the_entries_of_families()
    register_procgen()
    register_minatar()
    register_masks()
    register_resume()
    register_search()
    _download_without_pickle()


@contextmanager
def patched() -> Iterator[Patches]:
    """
    A context in which RL Zoo's scripts run as ``sb3-ppg`` runs them, after ``register()``: what is broken in them is repaired,
    the processes that they start know our algorithms, and a model of MaskablePPG that they load acts under the masks of the
    environment that was made for it. For that, functions of the Zoo, ``subprocess.call``, ``plt.show``, ``MaskablePPG.load``
    and ``predict`` are others within the context. At its end everything is as before.

    :return: which undoes them, and takes further ones
    """
    register()
    with Patches() as patches:
        repairs.apply(patches)
        act_under_masks(patches)
        yield patches


def hyperparameter_file(algo: str) -> Path:
    """
    Our file of tuned hyperparameters for an algorithm.

    :param algo: its name in RL Zoo, such as "ppg"
    :return: within the installed package, or within the repository for an editable installation
    """
    package = Path(sb3_ppg.__file__).parent
    folder = package / "hyperparams"
    return (folder if folder.is_dir() else package.parent / "hyperparams") / f"{algo}.yml"


def _use_our_hyperparameter_files() -> None:
    """The Zoo looks for default files in its own folder only."""
    original = ExperimentManager.__init__

    @wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        call = signature(original).bind(*args, **kwargs)
        if call.arguments.get("config") is None and call.arguments["algo"] in ALGOS:
            call.arguments["config"] = str(hyperparameter_file(call.arguments["algo"]))
        original(*call.args, **call.kwargs)

    ExperimentManager.__init__ = init  # type: ignore[method-assign]


def _understand_our_hyperparameters() -> None:
    """
    The Zoo does not know that ``aux_learning_rate`` may be a schedule ("lin_5e-4"), and its linear schedule is a class of its
    own, so that models could only be loaded where the Zoo is installed. What it does not consume itself goes to the
    constructor, or, where training continues (``-i``), becomes an attribute of the model, whatever its name.
    """
    original = ExperimentManager._preprocess_hyperparams

    @wraps(original)
    def preprocess(self: ExperimentManager, hyperparams: dict[str, Any]) -> tuple:
        hyperparams, *others = original(self, hyperparams)
        if self.algo in ALGOS:
            known = argument_names(ALGOS[self.algo])
            for name in hyperparams.keys() - set(known):
                raise ArgumentError(
                    f"{self.algo.upper()} has no hyperparameter {name!r} (from {self.config}, -params or a study)"
                    f"{nearest(name, known)}"
                )
            hyperparams = with_preset(self.algo, _our_schedules(hyperparams))
        return hyperparams, *others

    ExperimentManager._preprocess_hyperparams = preprocess  # type: ignore[method-assign]


def _our_schedules(hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Those of the Zoo as SB3's, and ours, too."""
    if hyperparams.get("aux_learning_rate") is not None:
        try:
            parsed = ExperimentManager._preprocess_schedules({"learning_rate": hyperparams["aux_learning_rate"]})
        except ValueError as error:
            raise ArgumentError(str(error).replace("learning_rate", "aux_learning_rate")) from error
        hyperparams["aux_learning_rate"] = parsed["learning_rate"]
    return {
        name: LinearSchedule(value.initial_value, 0.0, 1.0) if isinstance(value, SimpleLinearSchedule) else value
        for name, value in hyperparams.items()
    }


def _use_the_entries_of_families() -> None:
    """The Zoo's files have an entry for all Atari games; ours may have them for Procgen's games and for MiniGrid, too."""
    original = ExperimentManager.read_hyperparameters

    @wraps(original)
    def read_hyperparameters(self: ExperimentManager) -> tuple[dict[str, Any], dict[str, Any]]:
        env_name = self.env_name
        family = next((name for name, is_member in FAMILIES.items() if is_member(env_name.gym_id)), None)
        if family is not None and self.config.endswith((".yml", ".yaml")):
            entries = yaml.safe_load(Path(self.config).read_text())
            if env_name.gym_id not in entries and family in entries:
                print(f"Using {family!r} hyperparameters")
                self.env_name = EnvironmentName(family)
        try:
            return original(self)
        finally:
            self.env_name = env_name

    ExperimentManager.read_hyperparameters = read_hyperparameters  # type: ignore[method-assign]


def _download_without_pickle() -> None:
    """The Zoo fetches models that it does not have, as SB3 zip files."""
    script = importlib.import_module("rl_zoo3.load_from_hub")
    original = script.download_from_hub

    @wraps(original)
    def download_from_hub(algo: str, *args: Any, **kwargs: Any) -> None:
        if algo not in ALGOS:
            return original(algo, *args, **kwargs)
        from sb3_ppg.zoo.sharing import download_without_pickle

        download_without_pickle(algo, *args, **kwargs)

    vars(script)["download_from_hub"] = download_from_hub
