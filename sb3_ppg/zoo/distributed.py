"""RL Zoo's ``train`` under ``torchrun``: one training, one folder, one evaluation."""

import os
from contextlib import redirect_stdout
from functools import wraps
from tempfile import TemporaryFile
from typing import Any

from rl_zoo3.exp_manager import ExperimentManager

from sb3_ppg.distributed.agreement import agreed
from sb3_ppg.distributed.collectives import broadcast, n_processes, rank
from sb3_ppg.errors import ArgumentError
from sb3_ppg.family import FAMILY
from sb3_ppg.zoo.patches import Patches


def train_together(patches: Patches) -> None:
    """
    Within a process group: the first process alone prints, evaluates and saves, into a folder that all know.

    :param patches: which undoes what makes it so
    :raises ArgumentError: in all processes, if their command cannot be carried out by several
    """
    if n_processes() == 1:
        return
    if rank() > 0:
        patches.enter_context(redirect_stdout(patches.enter_context(open(os.devnull, "w"))))
    print(f"{n_processes()} processes train one model")
    for wrap in (_begin_alike, _write_as_the_first, _check_the_folder):
        wrap(patches)


def _begin_alike(patches: Patches) -> None:
    """One seed, one folder; frequencies count the steps of all; who is not the first has nothing to show."""
    original = ExperimentManager.__init__

    @wraps(original)
    def init(self: ExperimentManager, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        with agreed():
            _check(self)
        self.seed, self.save_path = broadcast((self.seed, self.save_path))
        self.params_path = f"{self.save_path}/{self.env_name}"
        self.eval_freq, self.save_freq = (
            max(each // n_processes(), min(each, 1)) for each in (self.eval_freq, self.save_freq)
        )
        if rank() > 0:
            self.eval_freq, self.show_progress, self.tensorboard_log, self.verbose = -1, False, None, 0

    patches.replace(ExperimentManager, "__init__", init)


def _check(self: ExperimentManager) -> None:
    if self.optimize_hyperparameters:
        raise ArgumentError("a search for hyperparameters is for one process: start several with one --storage instead")
    if self.algo not in FAMILY:
        raise ArgumentError(f"{self.algo} trains in one process; under torchrun use one of {', '.join(FAMILY)}")


def _write_as_the_first(patches: Patches) -> None:
    """The others leave the configuration to it."""
    original = ExperimentManager._save_config

    @wraps(original)
    def save_config(self: ExperimentManager, *args: Any) -> None:
        if rank() == 0:
            original(self, *args)

    patches.replace(ExperimentManager, "_save_config", save_config)


def _check_the_folder(patches: Patches) -> None:
    original = ExperimentManager.create_log_folder

    @wraps(original)
    def create_log_folder(self: ExperimentManager) -> None:
        """
        :raises ProcessGroupError: if a process cannot write there, for instance because it does not see the same disk
        """
        with agreed():
            if rank() == 0:
                original(self)
        with agreed(), TemporaryFile(dir=self.params_path):
            pass

    patches.replace(ExperimentManager, "create_log_folder", create_log_folder)
