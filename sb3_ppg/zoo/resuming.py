"""Unfinished runs of RL Zoo's ``train``: how ``--resume`` finds them, and which of their files it cleans up first."""

import argparse
import atexit
import json
import multiprocessing
import signal
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TextIO

import numpy as np
from stable_baselines3.common.callbacks import EvalCallback

from sb3_ppg.saving.files import atomic_writes, checkpoint_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# A file in the folder of a run until the run is finished. The process that trains holds a lock on it, which the system
# releases when the process ends, however that happens
MARKER = "unfinished.json"
# Options in which commands for the same run may differ
IGNORED = {"seed", "log_folder", "tensorboard_log", "command", "progress", "verbose", "log_interval"}


def options_of(args: argparse.Namespace) -> dict[str, str]:
    """Return the options of the Zoo's ``train`` that ``--resume`` compares."""
    return {name: str(value) for name, value in vars(args).items() if name not in IGNORED}


def mark_unfinished(folder: Path, options: dict[str, str], seed: int) -> TextIO:
    """Mark a new run as unfinished; return the marker, which is locked while it is open."""
    marker = (folder / MARKER).open("w")
    _lock(marker, waits=True)
    json.dump({"options": options, "seed": seed}, marker)
    marker.flush()
    return marker


def unfinished_run(runs: Path, options: dict[str, str]) -> tuple[TextIO, int] | None:
    """
    Find the newest unfinished run with these options on which no process works; return its marker, which is locked while it is
    open, and its seed. If the command line names a seed, the run must have that seed.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seed", type=int)  # the Zoo's options have a random one if none is named
    seed = parser.parse_known_args(sys.argv[1:])[0].seed
    paths = sorted(runs.glob(f"*/{MARKER}"), key=lambda path: (len(path.parent.name), path.parent.name), reverse=True)
    for path in paths:
        with suppress(OSError, ValueError, TypeError, KeyError):  # finished a moment ago, or damaged
            marker = path.open("r+")
            if _lock(marker) and path.exists():
                content = json.load(marker)
                if content["options"] == options and seed in (None, content["seed"]):
                    return marker, int(content["seed"])
    return None


def _lock(marker: TextIO, *, waits: bool = False) -> bool:
    """Lock a marker; return whether no other process holds the lock. Some file systems have no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(marker, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def make_run_folder(wanted: str) -> str:
    """
    Make the folder of a new run, and return its path: the one that the Zoo chose, which ends in a number, or the next if
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


# ---- files in the folder of an unfinished run ----


def forget_later_episodes(folder: Path, checkpoint: Path | None) -> None:
    """
    Remove the episodes after the checkpoint (all, if there is none) from the monitor files in a run's folder: in learning
    curves their steps would count twice.
    """
    written = 0 if checkpoint is None else checkpoint_of(checkpoint)[1]  # in nanoseconds
    for path in folder.glob("*.monitor.csv"):
        with suppress(ValueError, KeyError):  # a file that was cut before its first episode
            header, names, *episodes = path.read_text().splitlines(keepends=True)
            start, column = json.loads(header[1:])["t_start"], names.strip().split(",").index("t")
            whole = [episode for episode in episodes if episode.endswith("\n")]
            kept = [episode for episode in whole if start + float(episode.split(",")[column]) <= written / 1e9]
            with atomic_writes(path) as (temporary,):
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


# ---- signals ----


@contextmanager
def sigterm_blocked_in_children() -> Iterator[None]:
    """
    Block SIGTERM in processes that are started within. It often goes to a command and all its children (``timeout``,
    torchrun, Slurm), but the run still needs its workers to finish an iteration, and then ends them itself. If the signal
    arrives in the meantime, this process receives it afterwards.
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
