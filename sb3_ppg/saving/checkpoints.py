"""Checkpoints: the model and the rest of the state of its run, written together."""

import re
import time
import uuid
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import EventCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from typing_extensions import override

from sb3_ppg.arguments import check_value, count, optional
from sb3_ppg.callbacks import PhasicCallback, called_by, every
from sb3_ppg.distributed import broadcast, gather, rank
from sb3_ppg.errors import ArgumentError, warn
from sb3_ppg.saving.files import atomic_writes, checkpoint_of, is_whole
from sb3_ppg.saving.training_state import file_of_process, files_of_processes, first_non_finite, write_training_state

SUFFIX = ".aux_buffer.npz"
N_COMPLETE = 2  # number of the latest checkpoints that have their rollouts


def aux_buffer_path(model_path: str | Path) -> Path:
    """
    :param model_path: a model's zip file, with or without ".zip"
    :return: path of its auxiliary buffer, in the same folder: ``model.zip`` has ``model.aux_buffer.npz``
    """
    path = Path(model_path)
    return path.with_name(path.name.removesuffix(".zip") + SUFFIX)


class PhasicCheckpointCallback(PhasicCallback):
    """
    Save everything that an exact resume needs after every ``save_freq``-th iteration (a rollout with its update) and at the
    end of the run: the model in ``<name_prefix>_<steps>_steps.zip``; the rollouts of the phase, ``VecNormalize``'s statistics
    and the states of the random generators in ``<name_prefix>_<steps>_steps.aux_buffer.npz``. docs/guides/resume.md shows how
    to go on from one.

    The model's file appears last, when all others are complete, so where there is one, the checkpoint is complete. If a number
    in the state is NaN or infinite, no checkpoint is written, and the previous one stays. After an error in the middle of an
    iteration, none is written either, unless it is a ``NonFiniteError`` or a ``WorkerError`` in a single process.

    Several processes each write a file with their own part of the state ("...aux_buffer.0_of_2.npz" and so on) in one folder;
    then the first process writes the model.

    With this callback, SIGTERM, which schedulers of clusters send before they kill a job, ends ``learn`` with ``SystemExit``
    when the current iteration is over and its checkpoint is saved.

    :param save_freq: iterations between two checkpoints
    :param save_path: the folder; made if it is not there
    :param name_prefix: beginning of the files' names
    :param keep: number of the latest checkpoints of this run whose models are kept; None: all. Their other files, which are
        large, are only kept for the latest two, as the latest may be damaged. A run that resumes from a checkpoint counts as
        the same run; files of other runs in the folder are left alone, except those of the same number of steps
    :param verbose: 2: print a line when a checkpoint is saved
    :raises ArgumentError: if a number cannot work; when ``learn`` begins, if another callback would call this one
    """

    def __init__(
        self, save_freq: int, save_path: str | Path, name_prefix: str = "ppg_model", keep: int | None = None, verbose: int = 0
    ):
        super().__init__(verbose)
        check_value("save_freq", save_freq, count())
        check_value("keep", keep, optional(count(), "to keep all"))
        self.save_freq = save_freq
        self.save_path = Path(save_path)
        self.name_prefix = name_prefix
        self.keep = keep
        self.failed_mid_iteration = False  # after an error in the middle of an iteration
        self._n_rollouts = 0
        self._saved_at: int | None = None
        self._run = ""
        self._saved: list[Path] = []  # checkpoints of this run, the oldest first
        self._latest = 0  # time of the latest checkpoint in the folder, in nanoseconds

    def settings(self) -> list[Any]:
        """Return the arguments that must be equal in all processes."""
        return [self.save_freq, self.name_prefix, self.keep]

    @override
    def _on_training_start(self) -> None:
        self._n_rollouts = 0
        self.failed_mid_iteration = False
        self._saved_at = self.num_timesteps if self.num_timesteps > 0 else None
        if self.num_timesteps > 0 and self.model._checkpoint is not None:
            self._run = self.model._checkpoint[0]
        else:  # the same for all callbacks of a run
            session = self.model.session
            self._run = session.run = session.run or broadcast(uuid.uuid4().hex)
        there = _checkpoints(self.save_path, self.name_prefix)
        self._saved = [path for _, path, run in there if run == self._run]
        self._latest = there[-1][0] if there else 0

    @override
    def _on_rollout_start(self) -> None:
        """Save the iteration before, whose update is over."""
        if self._n_rollouts > 0 and self._n_rollouts % self.save_freq == 0:
            self.save()
        self._n_rollouts += 1

    @override
    def _on_training_end(self) -> None:
        if not self.failed_mid_iteration:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, unless it is written already. Warn instead if a number in the state is not finite."""
        if self._saved_at == self.model.num_timesteps:
            return
        path = self.save_path / f"{self.name_prefix}_{self.model.num_timesteps}_steps.zip"
        if error := next(filter(None, gather(first_non_finite(self.model))), None):
            warn(f"{path} is not written: {error}. The checkpoint before it stays the latest")
            return
        self._latest = broadcast(max(time.time_ns(), self._latest + 1))  # a clock may be set back
        self.model._checkpoint = [self._run, self._latest]
        states = aux_buffer_path(path)
        model_file: AbstractContextManager[list[Path]] = atomic_writes(path) if rank() == 0 else nullcontext([])
        with model_file as of_model:
            with atomic_writes(file_of_process(states)) as (state,):
                write_training_state(self.model, state)
                for temporary in of_model:
                    with temporary.open("wb") as file:
                        self.model.save(file)
                gather(None)  # all have written everything
                if rank() == 0:  # what is there already would not fit the new files
                    for before in (path, *files_of_processes(states)):
                        before.unlink(missing_ok=True)
                gather(None)
            gather(None)  # the model's file appears last
        gather(None)
        self._saved_at = self.model.num_timesteps
        if self.verbose >= 2:
            print(f"Saving model checkpoint to {path}")
        self._saved = [*(before for before in self._saved if before != path), path]
        if rank() == 0:
            self._remove_old()

    def _remove_old(self) -> None:
        for n_newer, path in enumerate(reversed(self._saved)):
            if self.keep is not None and n_newer >= self.keep:
                path.unlink(missing_ok=True)  # first: without it the other file is no checkpoint
            if n_newer >= min(self.keep or N_COMPLETE, N_COMPLETE):
                for state in files_of_processes(aux_buffer_path(path)):
                    state.unlink(missing_ok=True)
        self._saved = self._saved[-(self.keep or N_COMPLETE) :]  # the others have lost all that they will lose


def checkpoint_callbacks(callback: MaybeCallback) -> list[PhasicCheckpointCallback]:
    """Return the checkpoint callbacks among a callback of ``learn`` and all that it calls."""
    return [inner for inner in every(callback) if isinstance(inner, PhasicCheckpointCallback)]


def check_checkpoint_callbacks(callback: MaybeCallback) -> None:
    """Refuse a callback of ``learn`` in which a checkpoint callback would not be told of rollouts."""
    for outer in every(callback):
        within = called_by(outer) if isinstance(outer, EventCallback) else []
        for inner in checkpoint_callbacks(within):
            raise ArgumentError(
                f"{type(inner).__name__} cannot work inside of {type(outer).__name__}, which tells it neither of rollouts "
                "nor of the end: give it to learn() itself, alone or in a list"
            )


def latest_checkpoint(save_path: str | Path, name_prefix: str = "ppg_model") -> Path:
    """
    :return: the model's file of the complete checkpoint that was written last, according to the time that is stored in the
        file, or else to its time of modification. Damaged checkpoints are skipped, with a warning
    :raises FileNotFoundError: if there is none
    """
    for _, path, _ in reversed(_checkpoints(Path(save_path), name_prefix)):
        damaged = [file for file in (path, *files_of_processes(aux_buffer_path(path))) if not is_whole(file)]
        if not damaged:
            return path
        warn(f"{damaged[0]} is damaged: its checkpoint is passed over, for the one before it")
    raise FileNotFoundError(
        f"There is no checkpoint named {name_prefix}_..._steps.zip in {save_path} that can be read: does the callback have "
        "another `name_prefix`? RL Zoo's is 'rl_model'"
    )


def _checkpoints(folder: Path, name_prefix: str) -> list[tuple[int, Path, str | None]]:
    """Return times in nanoseconds, models' files and runs of the checkpoints, in the order in which they were written."""
    found, beginning = [], folder / f"{name_prefix}_"  # a prefix may begin with a folder
    for path in beginning.parent.glob("*.zip"):
        if re.fullmatch(rf"{re.escape(beginning.name)}\d+_steps\.zip", path.name):
            with suppress(FileNotFoundError):  # a run that goes on has removed it
                run, written = checkpoint_of(path)
                found.append((written, path, run))
    return sorted(found)
