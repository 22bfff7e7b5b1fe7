"""Checkpoints that are whole: the model and what of its training is beside it, written together."""

import re
import time
import uuid
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_ppg.callbacks import called_by, every
from sb3_ppg.checks import is_count
from sb3_ppg.distributed.agreement import agreed
from sb3_ppg.distributed.collectives import broadcast, gather, has_abandoned_group, n_processes, rank
from sb3_ppg.errors import ArgumentError, ModelFormatError, NonFiniteError
from sb3_ppg.model import PhasicModel
from sb3_ppg.saving.files import atomic_write, atomic_writes
from sb3_ppg.saving.model_file import checkpoint_of
from sb3_ppg.saving.training_state import (
    check_state_is_finite,
    file_of_process,
    files_of_processes,
    write_training_state,
)

SUFFIX = ".aux_buffer.npz"


def aux_buffer_path(model_path: str | Path) -> Path:
    """
    :param model_path: of a model's zip file, with or without ".zip"
    :return: where its auxiliary buffer is kept, beside it: ``model.zip`` has ``model.aux_buffer.npz``
    """
    path = Path(model_path)
    return path.with_name(path.name.removesuffix(".zip") + SUFFIX)


class PhasicCheckpointCallback(BaseCallback):
    """
    Saves, after every ``save_freq``-th iteration (a rollout with its update) and at the end of training, all that it takes to
    go on as if nothing had happened: the model in ``<name_prefix>_<steps>_steps.zip``; beside it, in
    ``<name_prefix>_<steps>_steps.aux_buffer.npz``, the rollouts of the phase, ``VecNormalize``'s statistics and the
    generators::

        from stable_baselines3.common.env_util import make_vec_env
        from sb3_ppg import PPG, PhasicCheckpointCallback, aux_buffer_path, latest_checkpoint

        env = make_vec_env("CartPole-v1", 8)
        PPG("MlpPolicy", env, n_steps=128).learn(10_000, callback=PhasicCheckpointCallback(4, "checkpoints"))

        checkpoint = latest_checkpoint("checkpoints")
        model = PPG.load(checkpoint, env=env)
        model.load_aux_buffer(aux_buffer_path(checkpoint))
        model.learn(20_000 - model.num_timesteps, reset_num_timesteps=False)

    Both files take their places when both are complete, the model's last: where it is, the checkpoint is complete. A state
    with a number that is NaN or infinite is not written, the checkpoint before it stays; nor is one after an error amid
    an iteration, unless it is one that ``learn`` names, as of a worker that has died.

    Several processes each write a file with the state of their own part, "...aux_buffer.0_of_2.npz" and so on, in one folder;
    then the first one writes the model.

    While it is there, SIGTERM, by which schedulers of clusters announce the end, ends ``learn`` when the present iteration is
    over and its checkpoint is saved, with ``SystemExit``.

    :param save_freq: in iterations
    :param save_path: the folder; made if it is not there
    :param name_prefix: of the files
    :param keep: how many checkpoints of this run, the latest; None: all. A training that goes on from a checkpoint is the same
        run; what other runs wrote into the folder is left alone
    :param keep_buffers: of how many of these the auxiliary buffers, which are large, are kept, too; None: of all
    :param verbose: 2: say when a checkpoint is saved
    :raises ArgumentError: for numbers that cannot work; when ``learn`` begins, if another callback is to call it
    """

    def __init__(
        self,
        save_freq: int,
        save_path: str | Path,
        name_prefix: str = "ppg_model",
        keep: int | None = None,
        verbose: int = 0,
        *,
        keep_buffers: int | None = None,
    ):
        super().__init__(verbose)
        if not is_count(save_freq) or any(number is not None and not is_count(number) for number in (keep, keep_buffers)):
            raise ArgumentError(
                f"`{save_freq=}`, `{keep=}`, `{keep_buffers=}` cannot work: use integers of at least 1, or None to keep all"
            )
        self.save_freq = save_freq
        self.save_path = Path(save_path)
        self.name_prefix = name_prefix
        self.keep = keep
        self.keep_buffers = keep_buffers
        self.model: PhasicModel
        self.is_amid_iteration = False  # where an error has ended the training
        self._n_rollouts = 0
        self._saved_at: int | None = None
        self._run = uuid.uuid4().hex
        self._saved: list[Path] = []  # by this run, the oldest first
        self._latest = 0  # when the latest one in the folder was written, in nanoseconds

    def settings(self) -> list[Any]:
        """What has to be the same in several processes."""
        return [self.save_freq, self.name_prefix, self.keep, self.keep_buffers]

    def _on_training_start(self) -> None:
        self._n_rollouts = 0
        self.is_amid_iteration = False
        self._saved_at = self.num_timesteps if self.num_timesteps > 0 else None
        if self.num_timesteps > 0 and self.model._checkpoint is not None:
            self._run = self.model._checkpoint[0]
        else:
            self._run = broadcast(uuid.uuid4().hex)
        there = _checkpoints(self.save_path, self.name_prefix)
        self._saved = [one.path for one in there if one.run == self._run]
        self._latest = there[-1].time if there else 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        """The iteration before it is over, its update included."""
        if self._n_rollouts > 0 and self._n_rollouts % self.save_freq == 0:
            self.save()
        self._n_rollouts += 1

    def _on_training_end(self) -> None:
        if not self.is_amid_iteration:
            self.save()

    def save(self) -> None:
        """A checkpoint of now, unless there is one. Where a number is not finite it is not written, and a warning says so."""
        if self._saved_at == self.model.num_timesteps or has_abandoned_group():
            return
        path = self.save_path / f"{self.name_prefix}_{self.model.num_timesteps}_steps.zip"
        if error := next(filter(None, gather(_bad_number(self.model))), None):
            warnings.warn(f"{path} is not written: {error}. The checkpoint before it stays the latest", stacklevel=2)
            return
        self._latest = broadcast(max(time.time_ns(), self._latest + 1))  # clocks differ, and are set back
        self.model._checkpoint = [self._run, self._latest]
        self._write(path)
        self._saved_at = self.model.num_timesteps
        if self.verbose >= 2:
            print(f"Saving model checkpoint to {path}")
        self._saved = [*(one for one in self._saved if one != path), path]
        self._remove_old()

    def _write(self, path: Path) -> None:
        own = file_of_process(aux_buffer_path(path))
        with agreed():
            with atomic_writes([own, path] if n_processes() == 1 else [own]) as (state, *zipped):
                write_training_state(self.model, state)
                for file in zipped:
                    self._write_model(file)
        if n_processes() > 1:  # all have theirs
            with agreed():
                if rank() == 0:
                    with atomic_write(path) as temporary:
                        self._write_model(temporary)

    def _write_model(self, path: Path) -> None:
        with path.open("wb") as file:
            self.model.save(file)

    def _remove_old(self) -> None:
        for old in self._saved[: -self.keep] if self.keep is not None else []:
            old.unlink(missing_ok=True)  # the model first: what has none is no checkpoint
            self._remove_buffers(old)
            self._saved.remove(old)
        for old in self._saved[: -self.keep_buffers] if self.keep_buffers is not None else []:
            self._remove_buffers(old)

    def _remove_buffers(self, path: Path) -> None:
        """Of all processes, those of another number that the training once had included."""
        for file in files_of_processes(aux_buffer_path(path)):
            file.unlink(missing_ok=True)


def _bad_number(model: PhasicModel) -> str | None:
    try:
        check_state_is_finite(model)
    except NonFiniteError as error:
        return str(error)
    return None


def checkpoint_callbacks(callback: MaybeCallback) -> list[PhasicCheckpointCallback]:
    """
    :param callback: as ``learn`` takes it
    :return: those that save checkpoints, among it and all that it calls
    """
    return [one for one in every(callback) if isinstance(one, PhasicCheckpointCallback)]


def check_checkpoint_callbacks(callback: MaybeCallback) -> None:
    """
    :param callback: as ``learn`` takes it
    :raises ArgumentError: if one that saves checkpoints would not be told when
    """
    for outer in every(callback):
        within = called_by(outer) if isinstance(outer, EventCallback) else []
        for one in checkpoint_callbacks(within):
            raise ArgumentError(
                f"{type(one).__name__} cannot work inside of {type(outer).__name__}, which would tell it neither of "
                "rollouts nor of the end: give it to learn() itself, alone or in a list"
            )


def latest_checkpoint(save_path: str | Path, name_prefix: str = "ppg_model") -> Path:
    """
    :param save_path: the folder of a ``PhasicCheckpointCallback``
    :param name_prefix: its
    :return: the model's file of the complete checkpoint that was written last, whatever its steps. The file itself says when:
        copying does not change it. (For files that do not say, it is their time of modification.)
    :raises FileNotFoundError: if there is none
    """
    # Once more, should the old ones have been removed before they were read, for new ones that were not there yet
    checkpoints = _checkpoints(Path(save_path), name_prefix) or _checkpoints(Path(save_path), name_prefix)
    if not checkpoints:
        raise FileNotFoundError(f"There is no checkpoint named {name_prefix}_..._steps.zip in {save_path}")
    return checkpoints[-1].path


class _Checkpoint(NamedTuple):
    """A model's file: when it was written, in nanoseconds, after how many steps, and by which run."""

    time: int
    n_steps: int
    path: Path
    run: str | None


def _checkpoints(folder: Path, name_prefix: str) -> list[_Checkpoint]:
    """By the time when they were written."""
    name = re.compile(rf"{re.escape(name_prefix)}_(\d+)_steps\.zip")
    found = []
    for path in folder.glob("*.zip"):
        if match := name.fullmatch(path.name):
            with suppress(FileNotFoundError):  # the training that goes on has removed it
                run, written = _written(path)
                found.append(_Checkpoint(written, int(match[1]), path, run))
    return sorted(found)


def _written(path: Path) -> tuple[str | None, int]:
    """By which run, and when."""
    try:
        if (checkpoint := checkpoint_of(path)) is not None:
            return checkpoint
    except ModelFormatError:
        pass  # whoever loads it will be told
    return None, path.stat().st_mtime_ns
