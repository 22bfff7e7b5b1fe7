"""Trainings that were killed or ended by a signal: how the same command finds them, and which files it cleans up first."""

import argparse
import atexit
import json
import multiprocessing
import os
import pickle
import signal
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from stable_baselines3.common.callbacks import EvalCallback

from sb3_ppg.saving.checkpoints import latest_checkpoint
from sb3_ppg.saving.files import atomic_write
from sb3_ppg.saving.model_file import checkpoint_of

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # Windows: without locks it is unknown whether a process still trains, so no training is resumed
    HAS_LOCKS = False

PREFIX = "rl_model"  # of the Zoo's checkpoints
MARKER = "unfinished.json"
# Options that are ignored when deciding whether two commands are the same training
IGNORED = {"log_folder", "conf_file", "tensorboard_log", "command", "progress", "verbose", "log_interval"}


def command_of(args: argparse.Namespace, hyperparameters: dict[str, Any], continues: bool) -> dict[str, Any]:
    """
    Describe a training, however its options were spelled and wherever its folder lies.

    :param args: options of the Zoo's ``train``
    :param hyperparameters: as the Zoo saves them
    :param continues: whether ``--continue`` was given, which the Zoo's options do not contain
    :return: plain data that has to be the same for an interrupted training to resume
    """
    options = {name: value for name, value in vars(args).items() if name not in IGNORED}
    if options.get("trained_agent"):
        options["trained_agent"] = Path(options["trained_agent"]).absolute()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed")  # as given: the Zoo draws one where none is
    options |= vars(parser.parse_known_args(sys.argv[1:])[0])
    command = {"options": options, "hyperparameters": hyperparameters, "continues": continues}
    return json.loads(json.dumps(command, default=str))


class Marker:
    """
    A file that lies in the folder of a training until the training ends. The process that trains holds a lock on it, which the
    system releases when the process ends, however that happens.
    """

    def __init__(self, folder: Path):
        self.path = folder / MARKER
        self._file: TextIO | None = None  # locked while it is open

    def claim(self, command: dict[str, Any]) -> int | None:
        """
        Lock a training for this process, if its command is the same and no other process is working on it.

        :param command: as given to ``write``
        :return: the training's seed; None if it was not claimed
        """
        try:
            file = self.path.open("r+")
        except OSError:
            return None
        if _lock(file):
            try:
                content = json.load(file)
                if content["command"] == command:
                    self._file = file
                    return int(content["seed"])
            except (ValueError, TypeError, KeyError):
                print(f"{self.path} cannot be read, so its training is not resumed: remove the folder, or the file")
        file.close()
        return None

    def write(self, command: dict[str, Any], seed: int) -> None:
        """
        :param command: description that has to be the same for the training to resume
        :param seed: seed of the training
        """
        if self._file is not None:  # it was claimed, so it says this already
            return
        temporary = self.path.with_suffix(".tmp")
        self._file = temporary.open("a+")
        _lock(self._file)
        json.dump({"command": command, "seed": seed}, self._file)
        self._file.flush()
        os.fsync(self._file.fileno())
        temporary.replace(self.path)  # complete, and locked

    def remove(self) -> None:
        """Mark the training as finished."""
        self.path.unlink(missing_ok=True)  # while it is locked
        if self._file is not None:
            self._file.close()


def _lock(file: TextIO) -> bool:
    """Lock a file, unless another process has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def interrupted_run(runs: Path, command: dict[str, Any]) -> tuple[Marker, int, Path | None] | None:
    """
    :param runs: folder of an algorithm's trainings
    :param command: description of a training
    :return: marker, seed and latest checkpoint, if there is one, of an unfinished training of this command whose process has
        ended; None if there is no such training
    """
    for path in sorted(runs.glob(f"*/{MARKER}"), key=lambda path: _number(path.parent), reverse=True):
        marker = Marker(path.parent)
        seed = marker.claim(command)
        if seed is not None:
            with suppress(FileNotFoundError):
                return marker, seed, latest_checkpoint(path.parent, PREFIX)
            return marker, seed, None
    return None


def _number(folder: Path) -> int:
    """Return the number at the end of a training's folder."""
    number = folder.name.rpartition("_")[2]
    return int(number) if number.isdecimal() else 0


def make_run_folder(wanted: str) -> str:
    """
    Make the folder of a new training, and return its path: the one that the Zoo chose, which ends in a number, or the next if
    another command has made it in the meantime.
    """
    Path(wanted).parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            Path(wanted).mkdir()
            return wanted
        except FileExistsError:
            name, _, number = wanted.rpartition("_")
            wanted = f"{name}_{int(number) + 1}"


# ---- files in the folder of an interrupted training ----


def remove_if_damaged(path: Path) -> None:
    """Remove the best model's statistics if they were cut off: the Zoo writes them in place. The checkpoint has the latest."""
    try:
        if path.exists():
            pickle.loads(path.read_bytes())
    except Exception:
        path.unlink(missing_ok=True)


def forget_later_episodes(folder: Path, checkpoint: Path | None) -> None:
    """
    Remove the episodes after the checkpoint from the monitor files: in learning curves their steps would count twice.

    :param folder: folder of the training
    :param checkpoint: where it resumes. None: it starts over
    """
    written = 0 if checkpoint is None else checkpoint_of(checkpoint)[1]  # in nanoseconds
    for path in folder.glob("*.monitor.csv"):
        with suppress(ValueError, KeyError):  # a file that was cut before its first episode
            header, names, *episodes = path.read_text().splitlines(keepends=True)
            start, column = json.loads(header[1:])["t_start"], names.strip().split(",").index("t")
            whole = [episode for episode in episodes if episode.endswith("\n")]
            kept = [episode for episode in whole if start + float(episode.split(",")[column]) <= written / 1e9]
            with atomic_write(path) as temporary:
                temporary.write_text("".join([header, names, *kept]))


def restore_evaluations(callback: EvalCallback, n_steps: int) -> None:
    """Give a callback the evaluations until the checkpoint, which it would overwrite."""
    names = {"timesteps": "timesteps", "results": "results", "length": "ep_lengths", "successes": "successes"}
    with (
        suppress(OSError, EOFError, ValueError, zipfile.BadZipFile),  # it is written in place, and may be cut
        np.load(f"{callback.log_path}.npz") as kept,
    ):
        n = int((kept["timesteps"] <= n_steps).sum())
        for name, saved in names.items():
            if saved in kept:
                setattr(callback, f"evaluations_{name}", kept[saved][:n].tolist())
    callback.best_mean_reward = max((float(np.mean(one)) for one in callback.evaluations_results), default=-np.inf)


def next_monitor_number(folder: Path) -> int:
    """Return the first number that no monitor file in the folder has."""
    numbers = [path.name.split(".")[0] for path in folder.glob("*.monitor.csv")]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1


# ---- signals ----


@contextmanager
def sigterm_blocked_in_children() -> Iterator[None]:
    """
    Block SIGTERM in processes that are started within. It often goes to a command and all its children (``timeout``,
    torchrun, Slurm), but the training still needs its workers to finish an iteration, and then ends them itself. If the
    signal arrives in the meantime, this process receives it afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    atexit.register(_end_workers)
    resource_tracker.ensure_running()  # a helper process of `multiprocessing` that unblocks signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_workers() -> None:
    """End workers that an error has left. ``multiprocessing`` would send them SIGTERM, and wait."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
