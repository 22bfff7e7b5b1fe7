"""A training that was killed, or that a scheduler has ended, goes on when the same command is given again."""

import argparse
import atexit
import json
import multiprocessing
import os
import pickle
import re
import signal
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import rl_zoo3.exp_manager
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.distributed.collectives import broadcast, n_processes, rank
from sb3_ppg.errors import ArgumentError
from sb3_ppg.family import FAMILY
from sb3_ppg.saving.checkpoints import latest_checkpoint
from sb3_ppg.saving.files import atomic_write
from sb3_ppg.saving.model_file import checkpoint_of
from sb3_ppg.zoo.patches import Patches

try:
    import fcntl
except ImportError:  # Windows: who is at work cannot be told there, so that a training is never taken up
    fcntl = None  # type: ignore[assignment]

PREFIX = "rl_model"  # of the Zoo's checkpoints
MARKER = "unfinished.json"
# What two commands may differ in and be the same: where the run lies, what is read from there, where logs go; what is shown
MAY_DIFFER = {"log_folder", "conf_file", "tensorboard_log", "command", "progress", "verbose", "log_interval"}


class Marker:
    """
    Lies in the folder of a run from its beginning to its end, and belongs to the process that trains.

    :param folder: of the run
    """

    def __init__(self, folder: Path):
        self.path = folder / MARKER
        self._file: TextIO | None = None  # locked: the system gives the lock back when the process ends, however it does

    def claim(self, command: dict[str, Any]) -> int | None:
        """
        :param command: as given to ``write``
        :return: the seed, if this was the command and its process has ended; else None. Then the run is this process's
        """
        try:
            file = self.path.open("r+")
        except OSError:
            return None
        if _lock(file):
            with suppress(ValueError):
                content = json.load(file)
                if isinstance(content, dict) and content.get("command") == command and type(content.get("seed")) is int:
                    self._file = file
                    return content["seed"]
        file.close()
        return None

    def write(self, command: dict[str, Any], seed: int) -> None:
        """
        :param command: what has to be the same for the run to go on
        :param seed: of the run
        :raises ArgumentError: if the run belongs to another process
        """
        if self._file is None:
            self._file = self.path.open("a+")
            if not _lock(self._file) and fcntl is not None:
                raise ArgumentError(f"another training has just begun in {self.path.parent}: start again")
        self._file.seek(0)
        self._file.truncate()
        json.dump({"command": command, "seed": seed}, self._file)
        self._file.flush()
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        """The training has come to its end."""
        if self._file is not None and fcntl is None:
            self._file.close()  # Windows removes no open file. Elsewhere the lock is held until the file is gone
        self.path.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()


def _lock(file: TextIO) -> bool:
    """Whether nobody else has it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Interrupted(NamedTuple):
    """
    A training that did not come to its end, and is now this process's.

    :param marker: in the folder of the run
    :param seed: with which it began
    :param checkpoint: the latest, None: there is none yet
    """

    marker: Marker
    seed: int
    checkpoint: Path | None


def interrupted_run(runs: Path, env_name: str, command: dict[str, Any]) -> Interrupted | None:
    """
    :param runs: the folder of an algorithm's trainings
    :param env_name: of the environment, as folders are named
    :param command: of which a training is to go on
    :return: the latest one that did not come to its end, and whose process has
    """
    name = re.compile(rf"{re.escape(env_name)}_(\d+)(_.*)?")
    there = runs.iterdir() if runs.is_dir() else ()
    numbers = {path: int(match[1]) for path in there if (match := name.fullmatch(path.name))}
    for folder in sorted(numbers, key=numbers.__getitem__, reverse=True):
        marker = Marker(folder)
        seed = marker.claim(command)
        if seed is not None:
            try:
                return Interrupted(marker, seed, latest_checkpoint(folder, PREFIX))
            except FileNotFoundError:
                return Interrupted(marker, seed, None)
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
        "learn": _say_how_it_ended,
        "save_trained_model": _finish,
    }.items():
        original = getattr(ExperimentManager, name)
        patches.replace(ExperimentManager, name, wraps(original)(wrap(original)))


def _note_the_command(read: Any) -> Any:
    def read_hyperparameters(self: ExperimentManager) -> Any:
        hyperparameters = read(self)
        goes_on = getattr(self, "asked_to_continue", False)  # which the command line does not say any more
        command = {"arguments": _arguments(self.args), "goes_on": goes_on, "hyperparameters": hyperparameters[1]}
        vars(self)["command"] = json.loads(json.dumps(command, default=str))
        return hyperparameters

    return read_hyperparameters


def _arguments(args: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, however it was spelled, and wherever it is to be written."""
    asked = {name: value for name, value in vars(args).items() if name not in MAY_DIFFER}
    if args.trained_agent:
        asked["trained_agent"] = Path(args.trained_agent).absolute()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed")  # the Zoo draws one where none is given
    return asked | vars(parser.parse_known_args(sys.argv[1:])[0])


def _find_the_run(create: Any) -> Any:
    def create_log_folder(self: ExperimentManager) -> None:
        own, command = vars(self), vars(self)["command"]
        is_resumable = self.algo in FAMILY and self.save_freq > 0 and not self.optimize_hyperparameters
        is_first = is_resumable and rank() == 0
        found = interrupted_run(Path(self.log_path), self.env_name, command) if is_first else None
        place = broadcast(None if found is None else (found.marker.path.parent, found.seed, found.checkpoint))
        if place is not None:
            _take_up(self, *place)
        elif rank() == 0:
            _make_own_folder(self)
        self.save_path, self.params_path = broadcast((self.save_path, self.params_path))
        create(self)
        own["first_monitor"] = broadcast(_next_monitor(Path(self.save_path)))
        if is_first:
            own["marker"] = Marker(Path(self.save_path)) if found is None else found.marker
            own["marker"].write(command, self.seed)

    return create_log_folder


def _make_own_folder(self: ExperimentManager) -> None:
    """The Zoo takes the next number. Where another command has taken it at the same time, it is the one after that."""
    while True:
        try:
            Path(self.save_path).mkdir(parents=True)
        except FileExistsError:
            folder, name = os.path.split(self.save_path)
            number, others = re.fullmatch(rf"{re.escape(self.env_name)}_(\d+)(.*)", name).groups()  # type: ignore[union-attr]
            self.save_path = os.path.join(folder, f"{self.env_name}_{int(number) + 1}{others}")
            self.params_path = f"{self.save_path}/{self.env_name}"
        else:
            return


def _take_up(self: ExperimentManager, folder: Path, seed: int, checkpoint: Path | None) -> None:
    place = "which has no checkpoint yet" if checkpoint is None else f"from {checkpoint.name}"
    print(f"Going on with {folder}, seed {seed}, {place} (to begin anew, remove {folder / MARKER})")
    self.seed = self.args.seed = seed
    self.save_path, self.params_path = str(folder), str(folder / self.env_name)
    if checkpoint is not None:
        self.trained_agent, self.continue_training = str(checkpoint), True
        vars(self).update(continues=True, n_steps_before=int(checkpoint.name.split("_")[-2]))
        if rank() == 0:
            _remove_if_broken(Path(self.params_path) / "vecnormalize.pkl")
            _forget_later_episodes(folder, checkpoint)


def _forget_later_episodes(folder: Path, checkpoint: Path) -> None:
    """Those after the checkpoint: in learning curves their steps would count twice."""
    match checkpoint_of(checkpoint):
        case _, int(nanoseconds):
            for path in folder.glob("*.monitor.csv"):
                with suppress(ValueError, KeyError):  # one that was cut before its first episode
                    header, names, *episodes = path.read_text().splitlines(keepends=True)
                    start, column = json.loads(header[1:])["t_start"], names.strip().split(",").index("t")
                    ends = [start + float(episode.split(",")[column]) for episode in episodes]
                    kept = [one for one, end in zip(episodes, ends, strict=True) if end <= nanoseconds / 1e9]
                    with atomic_write(path) as temporary:
                        temporary.write_text("".join([header, names, *kept]))


def _remove_if_broken(path: Path) -> None:
    """The Zoo writes in place. What counts is in the checkpoint; this is the best model's, for `enjoy`."""
    try:
        if path.exists():
            pickle.loads(path.read_bytes())
    except Exception:
        path.unlink(missing_ok=True)


def _keep_evaluations(create: Any) -> Any:
    """Those of before the checkpoint: the callback would write over them."""

    def create_callbacks(self: ExperimentManager) -> None:
        create(self)
        n_steps = vars(self).get("n_steps_before", 0)
        for callback in self.callbacks:
            if isinstance(callback, EvalCallback) and n_steps > 0:
                callback.n_calls = n_steps // (self.n_envs * n_processes())  # by which it counts to the next one
                _take_evaluations(callback, Path(f"{callback.log_path}.npz"), n_steps)

    return create_callbacks


def _take_evaluations(callback: EvalCallback, path: Path, n_steps: int) -> None:
    with suppress(OSError, EOFError, ValueError, zipfile.BadZipFile), np.load(path) as kept:  # written in place, too
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
            meanwhile.enter_context(_inherited_deafness())
            return create(self, *args, **kwargs)

    return create_envs


@contextmanager
def _inherited_deafness() -> Iterator[None]:
    """
    Processes that are started here do not hear SIGTERM, which often goes to a command and all its children (``timeout``,
    torchrun, Slurm): the training ends after its iteration, for which it needs its workers, and then ends them. This process
    hears later what came meanwhile.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    atexit.register(_end_workers)
    resource_tracker.ensure_running()  # the helper of `multiprocessing` that is started first, and opens ears again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_workers() -> None:
    """After an error. ``multiprocessing`` would send them SIGTERM, and wait."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def _next_monitor(folder: Path) -> int:
    numbers = [path.name.split(".")[0] for path in folder.glob("*.monitor.csv")]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


def _say_how_it_ended(learn: Any) -> Any:
    def learn_on(self: ExperimentManager, model: Any) -> None:
        try:
            learn(self, model)
        except SystemExit:
            goes_on = "goes" if self.algo in FAMILY and self.save_freq > 0 else "with --save-freq would have gone"
            print(f"A signal has ended the training after {model.num_timesteps} steps; the same command {goes_on} on")
            raise

    return learn_on


def _finish(save: Any) -> Any:
    def save_trained_model(self: ExperimentManager, model: Any) -> None:
        save(self, model)
        if "marker" in vars(self):
            vars(self)["marker"].remove()

    return save_trained_model
