"""Runs of RL Zoo's ``train`` in a folder: which command may go on with one, and which of its files are cleaned up first."""

import atexit
import json
import multiprocessing
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import yaml
from stable_baselines3.common.callbacks import EvalCallback

from sb3_ppg.errors import ArgumentError
from sb3_ppg.saving.checkpoints import aux_buffer_path
from sb3_ppg.saving.files import atomic_writes, checkpoint_of, saved_attributes
from sb3_ppg.saving.training_state import files_of_processes
from sb3_ppg.zoo.diagnosis import LOGGED, whole_rows

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What must be the same in the command that goes on with a run, in addition to the hyperparameters
SAME = ("algo", "env", "env_kwargs", "trained_agent", "prior", "seed")


def locked_config(folder: Path, env_name: str) -> TextIO:
    """
    Open the file of hyperparameters in a run's folder (make it if there is none), and lock it until it is closed or this
    process ends in any way. Raise ``ArgumentError`` if another process has locked it.
    """
    path = folder / env_name / "config.yml"
    if not path.exists() and (others := [*folder.glob("*/config.yml")]):
        raise ArgumentError(f"--run-folder {folder} cannot work: it is for {others[0].parent.name}. Name another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    config = path.open("a")
    try:
        if fcntl is not None:
            fcntl.flock(config, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ArgumentError(f"--run-folder {folder} cannot work: another process is training there") from error
    except OSError:
        pass  # some file systems have no locks
    return config


def settings(params_path: Path) -> dict[str, Any]:
    """Return the hyperparameters of a run, those options of its command that must stay the same, and ``--run-folder``."""
    config, options = (yaml.unsafe_load((params_path / name).read_text()) for name in ("config.yml", "args.yml"))
    return {**config, **{name: options.get(name) for name in (*SAME, "run_folder")}}


def n_steps_of(model: Path, counter: str = "num_timesteps") -> int:
    """Return the number of steps that a model's file has; 0 if there is none, or if it is damaged."""
    return saved_attributes(model).get(counter, 0)


def set_aside(folder: Path, checkpoint: Path) -> None:
    """Move what was saved after a checkpoint to a separate folder, before the run continues differently from there."""
    n_steps = n_steps_of(checkpoint)
    for model in folder.glob("*.zip"):
        if n_steps_of(model) > n_steps:
            place = folder / f"after_{n_steps}_steps"
            place.mkdir(exist_ok=True)
            for path in (model, *files_of_processes(aux_buffer_path(model))):
                path.replace(place / path.name)
            for statistics in folder.glob("*/vecnormalize.pkl"):  # of the best or the last model
                (place / statistics.parent.name).mkdir(exist_ok=True)
                shutil.copy(statistics, place / statistics.parent.name)


def check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an ``ArgumentError`` that names the settings in which a command differs from the run in the folder."""
    changes = [
        f"{name} was {before.get(name)}, now it is {now.get(name)}"
        for name in sorted((before.keys() | now.keys()) - {"n_timesteps", "run_folder"})
        if yaml.dump(before.get(name)) != yaml.dump(now.get(name))
    ]
    if changes:
        raise ArgumentError(
            f"--run-folder {folder} cannot work, its run has other settings: {'; '.join(changes)}. "
            "Give the run's, or name another folder"
        )


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


# ---- files of a run that goes on ----


def forget_later_episodes(folder: Path, checkpoint: Path | None) -> None:
    """
    Remove the episodes after the checkpoint (all, if there is none) from the monitor files in a run's folder, and the rows
    from the file of logged values: in learning curves their steps would count twice.
    """
    written = 0  # in nanoseconds
    if checkpoint is not None:  # a run's last model knows the time of the checkpoint before it
        written = checkpoint_of(checkpoint)[1] if checkpoint.stem.endswith("_steps") else checkpoint.stat().st_mtime_ns
    for path in folder.glob("*.monitor.csv"):
        try:
            header, names, *episodes = path.read_text().splitlines(keepends=True)
            start, column = json.loads(header[1:])["t_start"], names.strip().split(",").index("t")
        except (ValueError, KeyError):  # it was cut before its first episode, and SB3 could read no file of the folder
            path.unlink()
            continue
        with suppress(ValueError):  # a row that cannot be read: the file stays as it is
            whole = [episode for episode in episodes if episode.endswith("\n")]
            kept = [episode for episode in whole if start + float(episode.split(",")[column]) <= written / 1e9]
            with atomic_writes(path) as (temporary,):
                temporary.write_text("".join([header, names, *kept]))
    n_steps, log = 0 if checkpoint is None else n_steps_of(checkpoint), folder / LOGGED
    if log.exists():
        with atomic_writes(log) as (temporary,):
            temporary.write_text("".join(line for line, row in whole_rows(log) if row["time/total_timesteps"] <= n_steps))


def restore_evaluations(callback: EvalCallback, n_steps: int) -> None:
    """Give a callback the evaluations until the checkpoint; otherwise it would overwrite them."""
    names = {"timesteps": "timesteps", "results": "results", "length": "ep_lengths", "successes": "successes"}
    with (
        suppress(OSError, EOFError, ValueError, zipfile.BadZipFile),  # it is written in place, and may be cut
        np.load(f"{callback.log_path}.npz") as kept,
    ):
        n = int((kept["timesteps"] <= n_steps).sum())
        for name, saved in names.items():
            if saved in kept:
                setattr(callback, f"evaluations_{name}", kept[saved][:n].tolist())
    callback.best_mean_reward = max(map(float, map(np.mean, callback.evaluations_results)), default=-np.inf)


# ---- signals ----


@contextmanager
def sigterm_blocked_in_children() -> Iterator[None]:
    """
    Block SIGTERM in processes that are started within the block. ``timeout``, torchrun and Slurm often send it to a command
    and all its children, but the run still needs its workers to finish an iteration, and then ends them itself. Among them is
    multiprocessing's fork server, without which no exit code of a worker would be known. If the signal arrives within the
    block, this process receives it afterwards.
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


def without_sigterm(make_env: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a function that makes an environment in a worker, where SIGTERM has no effect but is not blocked: programs that the
    environment starts would inherit a block, and could not be ended.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        if hasattr(signal, "pthread_sigmask"):
            signal.signal(signal.SIGTERM, lambda *_: None)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return make_env(*args, **kwargs)

    return made


def _end_workers() -> None:
    """End workers that an error has left. ``multiprocessing`` would send them SIGTERM, and wait."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
