"""
Makes PPG known to RL Zoo, which has no plugin mechanism. This module, ``repairs``, ``procgen``, ``masks`` and ``resume`` are
the ones that patch it (rl_zoo3 2.9.2), and only when ``register()`` is called.
"""

import importlib
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

from stable_baselines3.common.utils import LinearSchedule

import sb3_ppg
from sb3_ppg import PPG, ImpalaCNN, MaskablePPG, RecurrentPPG
from sb3_ppg.arguments import argument_names
from sb3_ppg.errors import ArgumentError, nearest

try:
    import rl_zoo3
    import rl_zoo3.exp_manager
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
    from rl_zoo3.utils import SimpleLinearSchedule

    from sb3_ppg.zoo import repairs
    from sb3_ppg.zoo.masks import register_masks
    from sb3_ppg.zoo.procgen import register_procgen
    from sb3_ppg.zoo.resume import register_resume
except ImportError as error:
    raise ImportError(f'RL Zoo cannot be imported ({error}): pip install "sb3-ppg[zoo]"') from error

from sb3_ppg.zoo.hyperparameter_search import CONVERTERS, SAMPLERS

ALGOS: dict[str, type[PPG]] = {"ppg": PPG, "ppg_lstm": RecurrentPPG, "ppg_mask": MaskablePPG}


def register() -> None:
    """
    Make our algorithms, their hyperparameter files, schedules and Optuna samplers known to RL Zoo's scripts, in this process
    and in those that the scripts start, and repair what is broken in them for every algorithm.

    Call it before a script is imported; a second call changes nothing.
    """
    if ALGOS.keys() <= rl_zoo3.ALGOS.keys():
        return
    rl_zoo3.ALGOS.update(ALGOS)
    HYPERPARAMS_SAMPLER.update(SAMPLERS)
    HYPERPARAMS_CONVERTER.update(CONVERTERS)
    # Strings in hyperparameter files are evaluated in that module
    vars(rl_zoo3.exp_manager)["ImpalaCNN"] = ImpalaCNN
    _use_our_hyperparameter_files()
    _parse_our_schedules()
    _refuse_unknown_hyperparameters()
    repairs.apply()
    register_procgen()
    register_masks()
    register_resume()
    _download_without_pickle()


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


def _parse_our_schedules() -> None:
    """
    The Zoo does not know that ``aux_learning_rate`` may be a schedule ("lin_5e-4"), and its linear schedule is a class of
    its own, so that models could only be loaded where the Zoo is installed.
    """
    original = ExperimentManager._preprocess_schedules

    def preprocess(hyperparams: dict[str, Any]) -> dict[str, Any]:
        hyperparams = original(hyperparams)
        if hyperparams.get("aux_learning_rate") is not None:
            hyperparams["aux_learning_rate"] = original({"learning_rate": hyperparams["aux_learning_rate"]})["learning_rate"]
        for name, value in hyperparams.items():
            if isinstance(value, SimpleLinearSchedule):
                hyperparams[name] = LinearSchedule(start=value.initial_value, end=0.0, end_fraction=1.0)
        return hyperparams

    ExperimentManager._preprocess_schedules = staticmethod(preprocess)  # type: ignore[method-assign]


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


def _refuse_unknown_hyperparameters() -> None:
    """
    What the Zoo does not consume itself goes to the constructor, or, where training continues (``-i``), becomes an attribute
    of the model, whatever its name.
    """
    original = ExperimentManager._preprocess_hyperparams

    @wraps(original)
    def preprocess(self: ExperimentManager, hyperparams: dict[str, Any]) -> tuple:
        result = original(self, hyperparams)
        if self.algo in ALGOS:
            known = argument_names(ALGOS[self.algo])
            for name in result[0].keys() - set(known):
                raise ArgumentError(
                    f"{self.algo.upper()} has no hyperparameter {name!r} (from {self.config}, -params or a study)"
                    f"{nearest(name, known)}"
                )
        return result

    ExperimentManager._preprocess_hyperparams = preprocess  # type: ignore[method-assign]
