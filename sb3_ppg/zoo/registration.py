"""
Makes PPG known to RL Zoo, which has no plugin mechanism. This is the one module that patches it (rl_zoo3 2.9.2), and only
when ``register()`` is called.
"""

from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any

from stable_baselines3.common.utils import LinearSchedule

import sb3_ppg
from sb3_ppg import PPG, ImpalaCNN

try:
    import rl_zoo3
    import rl_zoo3.exp_manager
    from rl_zoo3.exp_manager import ExperimentManager
    from rl_zoo3.utils import SimpleLinearSchedule
except ImportError as error:
    raise ImportError(f'RL Zoo cannot be imported ({error}): pip install "sb3-ppg[zoo]"') from error

ALGOS = {"ppg": PPG}


def register() -> None:
    """
    Make our algorithms, their hyperparameter files and their schedules known to RL Zoo's scripts, in this process.

    Call it before a script's ``main``; a second call changes nothing.
    """
    if ALGOS.keys() <= rl_zoo3.ALGOS.keys():
        return
    rl_zoo3.ALGOS.update(ALGOS)
    # Strings in hyperparameter files are evaluated in that module
    vars(rl_zoo3.exp_manager)["ImpalaCNN"] = ImpalaCNN
    _use_our_hyperparameter_files()
    _parse_our_schedules()


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
