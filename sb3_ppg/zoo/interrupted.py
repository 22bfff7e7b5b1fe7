"""A training that was killed, or that a scheduler has ended, goes on when the same command is given again."""

import json
import re
import sys
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import rl_zoo3.exp_manager
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.family import FAMILY
from sb3_ppg.saving.checkpoints import latest_checkpoint
from sb3_ppg.training.processes import from_first, rank
from sb3_ppg.zoo.patches import Patches

try:
    import fcntl
except ImportError:  # Windows: who is at work cannot be told there, so that a training is never taken up
    fcntl = None  # type: ignore[assignment]

PREFIX = "rl_model"  # of the Zoo's checkpoints
MARKER = "unfinished.json"


class Interrupted(NamedTuple):
    """
    A training that did not come to its end.

    :param folder: of the run
    :param seed: with which it began
    :param checkpoint: the latest, None: there is none yet
    """

    folder: Path
    seed: int
    checkpoint: Path | None


class Marker:
    """
    Lies in the folder of a run from its beginning to its end, and belongs to the process that trains.

    :param folder: of the run
    """

    def __init__(self, folder: Path):
        self.path = folder / MARKER
        self._file: TextIO | None = None

    def take(self, command: dict[str, Any], seed: int) -> None:
        """
        :param command: what has to be the same for the run to go on
        :param seed: of the run
        """
        self._file = self.path.open("w")
        _lock(self._file)
        json.dump({"command": command, "seed": seed}, self._file)
        self._file.flush()

    def remove(self) -> None:
        """The training has come to its end."""
        self.path.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()

    def seed_of(self, command: dict[str, Any]) -> int | None:
        """
        :param command: as given to ``take``
        :return: the seed, if this was the command and its process has ended; else None
        """
        try:
            content = json.loads(self.path.read_text())
            with self.path.open("r+") as file:
                is_over = _lock(file)
        except (OSError, ValueError):
            return None
        is_same = isinstance(content, dict) and content.get("command") == command
        return content["seed"] if is_over and is_same and type(content.get("seed")) is int else None


def _lock(file: TextIO) -> bool:
    """Whether nobody else has it: the system gives it back when a process ends, however it does."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def interrupted_run(runs: Path, env_name: str, command: dict[str, Any]) -> Interrupted | None:
    """
    :param runs: the folder of an algorithm's trainings
    :param env_name: of the environment, as folders are named
    :param command: of which a training is to go on
    :return: the latest one that did not come to its end, and whose process has
    """
    name = re.compile(rf"{re.escape(env_name)}_(\d+)(_.*)?")
    numbers = {
        path: int(match[1]) for path in (runs.iterdir() if runs.is_dir() else ()) if (match := name.fullmatch(path.name))
    }
    for folder in sorted(numbers, key=numbers.__getitem__, reverse=True):
        seed = Marker(folder).seed_of(command)
        if seed is not None:
            try:
                return Interrupted(folder, seed, latest_checkpoint(folder, PREFIX))
            except FileNotFoundError:
                return Interrupted(folder, seed, None)
    return None


# ---- in the Zoo's script ----


def go_on_when_interrupted(patches: Patches) -> None:
    """
    A training with ``--save-freq`` that was killed, or that ended by a signal, goes on when the same command is given again:
    in its folder, from its latest checkpoint, with its seed.

    :param patches: which undoes what makes it so
    """
    for name, wrap in {
        "read_hyperparameters": _note_the_command,
        "create_log_folder": _find_the_run,
        "create_callbacks": _keep_evaluations,
        "create_envs": _keep_monitor_files,
        "save_trained_model": _finish,
    }.items():
        original = getattr(ExperimentManager, name)
        patches.replace(ExperimentManager, name, wraps(original)(wrap(original)))


def _note_the_command(read: Any) -> Any:
    def read_hyperparameters(self: ExperimentManager) -> Any:
        hyperparameters = read(self)
        saved = json.loads(json.dumps(hyperparameters[1], default=str))
        vars(self)["command"] = {"arguments": sys.argv[1:], "hyperparameters": saved}
        return hyperparameters

    return read_hyperparameters


def _find_the_run(create: Any) -> Any:
    def create_log_folder(self: ExperimentManager) -> None:
        own, command = vars(self), vars(self)["command"]
        is_resumable = self.algo in FAMILY and self.save_freq > 0 and not self.optimize_hyperparameters
        is_first = is_resumable and rank() == 0
        found = from_first(interrupted_run(Path(self.log_path), self.env_name, command) if is_first else None)
        if found is not None:
            _take_up(self, found)
        create(self)
        own["first_monitor"] = from_first(_next_monitor(Path(self.save_path)))
        if is_first:
            own["marker"] = Marker(Path(self.save_path))
            own["marker"].take(command, self.seed)

    return create_log_folder


def _take_up(self: ExperimentManager, run: Interrupted) -> None:
    place = "which has no checkpoint yet" if run.checkpoint is None else f"from {run.checkpoint.name}"
    print(f"Going on with {run.folder}, {place}")
    self.seed, self.save_path = run.seed, str(run.folder)
    self.params_path = f"{self.save_path}/{self.env_name}"
    if run.checkpoint is not None:
        self.trained_agent, self.continue_training = str(run.checkpoint), True
        n_steps = int(run.checkpoint.name.split("_")[-2])
        vars(self).update(continues=True, n_steps_before=n_steps)


def _keep_evaluations(create: Any) -> Any:
    """Those of before the checkpoint: the callback would write over them."""

    def create_callbacks(self: ExperimentManager) -> None:
        create(self)
        n_steps = vars(self).get("n_steps_before", 0)
        for callback in self.callbacks:
            if isinstance(callback, EvalCallback) and n_steps > 0:
                _remember(callback, Path(f"{callback.log_path}.npz"), n_steps)

    return create_callbacks


def _remember(callback: EvalCallback, path: Path, n_steps: int) -> None:
    if not path.exists():
        return
    with np.load(path) as kept:
        n = int((kept["timesteps"] <= n_steps).sum())
        callback.evaluations_timesteps = kept["timesteps"][:n].tolist()
        callback.evaluations_results = kept["results"][:n].tolist()
        callback.evaluations_length = kept["ep_lengths"][:n].tolist()
        if "successes" in kept:
            callback.evaluations_successes = kept["successes"][:n].tolist()
    callback.best_mean_reward = max((float(np.mean(one)) for one in callback.evaluations_results), default=-np.inf)


def _keep_monitor_files(create: Any) -> Any:
    """Each environment of each process has its own, with a number that none has had before."""

    def create_envs(self: ExperimentManager, *args: Any, **kwargs: Any) -> VecEnv:
        make_vec_env = rl_zoo3.exp_manager.make_vec_env

        def make_numbered(*args: Any, **options: Any) -> VecEnv:
            if options["monitor_dir"] is not None:
                options["start_index"] = vars(self).get("first_monitor", 0) + rank() * options["n_envs"]
            return make_vec_env(*args, **options)

        with Patches() as meanwhile:
            meanwhile.replace(rl_zoo3.exp_manager, "make_vec_env", make_numbered)
            return create(self, *args, **kwargs)

    return create_envs


def _next_monitor(folder: Path) -> int:
    numbers = [path.name.split(".")[0] for path in folder.glob("*.monitor.csv")]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def _finish(save: Any) -> Any:
    def save_trained_model(self: ExperimentManager, model: Any) -> None:
        save(self, model)
        if "marker" in vars(self):
            vars(self)["marker"].remove()

    return save_trained_model
