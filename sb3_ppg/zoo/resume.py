"""``train -i MODEL`` and ``train --continue -i MODEL``: training that goes on, with what lies beside the model."""

import argparse
from contextlib import nullcontext
from functools import partialmethod, wraps
from pathlib import Path
from typing import Any

import numpy as np
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg import PPG, PhasicCallback, PhasicCheckpointCallback, aux_buffer_path
from sb3_ppg.distributed.agreement import agreed
from sb3_ppg.distributed.collectives import n_processes, rank
from sb3_ppg.errors import ArgumentError, ModelFormatError
from sb3_ppg.saving.generators import generators_kept
from sb3_ppg.saving.training_state import file_of_process, files_of_processes
from sb3_ppg.zoo.launcher import CONTINUE
from sb3_ppg.zoo.patches import Patches


def take_continue(arguments: list[str], patches: Patches) -> list[str]:
    """
    :param arguments: of the script ``train``
    :param patches: which undoes what makes it go on
    :return: those that the Zoo knows. With ``--continue``, which is left out, counters and schedules go on where the model's
        are, and ``-n`` counts from the beginning
    :raises ArgumentError: if there is no model to continue
    """
    if CONTINUE not in arguments:
        return arguments
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-i", "--trained-agent")
    if not parser.parse_known_args(arguments)[0].trained_agent:
        raise ArgumentError(f"{CONTINUE} needs the model that is to go on: -i MODEL.zip")
    learn = ExperimentManager.learn

    @wraps(learn)
    def go_on(self: ExperimentManager, model: Any) -> None:
        vars(self)["continues"] = True
        learn(self, model)

    patches.replace(ExperimentManager, "learn", go_on)
    patches.replace(ExperimentManager, "asked_to_continue", True)
    return [argument for argument in arguments if argument != CONTINUE]


def register_resume() -> None:
    """
    ``--save-freq`` saves checkpoints to go on from; ``--save-replay-buffer`` keeps the auxiliary buffers of all of them, and
    saves that of the last model; ``-i`` takes the auxiliary buffer that lies beside the model.
    """
    for name, wrap in {
        "save_trained_model": _save_with_buffer,
        "_load_pretrained_agent": _load_with_buffer,
        "learn": _learn_with_checkpoints,
    }.items():
        original = getattr(ExperimentManager, name)
        setattr(ExperimentManager, name, wraps(original)(wrap(original)))


def _save_with_buffer(save: Any) -> Any:
    def save_trained_model(self: ExperimentManager, model: Any) -> None:
        with agreed():
            if isinstance(model, PPG) and self.save_replay_buffer:
                model.save_aux_buffer(aux_buffer_path(Path(self.save_path) / self.env_name))
        if rank() == 0:
            save(self, model)

    return save_trained_model


def _load_with_buffer(load: Any) -> Any:
    def load_pretrained_agent(self: ExperimentManager, hyperparameters: dict[str, Any], env: VecEnv) -> Any:
        n_steps = vars(self).get("n_steps_before", 0)  # of this very run
        if n_steps > 0:  # the model's own, with what they have come to know
            hyperparameters = {name: value for name, value in hyperparameters.items() if name != "rollout_buffer_kwargs"}
        model: Any = load(self, hyperparameters, env)
        if n_steps > 0:  # not the episodes of the beginning again
            seed = int(np.random.SeedSequence([self.seed, n_steps]).generate_state(1)[0] % 2**31)
            model.env.seed(seed + rank() * model.n_envs)
        path = aux_buffer_path(self.trained_agent)
        if isinstance(model, PPG) and files_of_processes(path):
            print(f"Loading {next(file for file in (file_of_process(path), *files_of_processes(path)) if file.exists())}")
            goes_on = n_steps > 0 or getattr(self, "asked_to_continue", False)
            with nullcontext() if goes_on else generators_kept():  # who starts over does so with a seed of its own
                try:
                    model.load_aux_buffer(path)
                except ModelFormatError as error:  # of other rollouts, say
                    if goes_on:
                        raise
                    print(f"{error}. The phase starts over")
        return model

    return load_pretrained_agent


def _learn_with_checkpoints(learn: Any) -> Any:
    def learn_on(self: ExperimentManager, model: Any) -> None:
        if not isinstance(model, PPG):
            learn(self, model)
            return
        n_kept = None if self.save_replay_buffer else 1
        self.callbacks = [_phasic(callback, model.n_steps, n_kept) for callback in self.callbacks]
        if n_processes() > 1 and not self.show_progress:
            self.callbacks.insert(0, PhasicCallback())  # the first one hears twice that the training has ended
        with Patches() as meanwhile:
            if vars(self).get("continues"):
                if vars(self).get("n_steps_before", 0) >= self.n_timesteps:
                    print("All its steps are taken: its model is saved")
                    return
                _count_on(self, model, meanwhile)
            learn(self, model)

    return learn_on


def _phasic(callback: BaseCallback, n_steps: int, n_kept: int | None) -> BaseCallback:
    """In place of SB3's checkpoints, which come in the midst of rollouts: as often, but between them."""
    if not isinstance(callback, CheckpointCallback):
        return callback
    iterations = max(1, round(callback.save_freq / n_steps))
    return PhasicCheckpointCallback(iterations, callback.save_path, callback.name_prefix, keep_buffers=n_kept, verbose=2)


def _count_on(self: ExperimentManager, model: PPG, meanwhile: Patches) -> None:
    remaining = int(self.n_timesteps) - model.num_timesteps
    if remaining <= 0:
        raise ArgumentError(
            f"the model has trained for {model.num_timesteps} steps already: with {CONTINUE}, -n counts from the "
            f"beginning, so use more than that"
        )
    print(f"Going on after {model.num_timesteps} steps")
    self.n_timesteps = remaining
    # Not the model's attribute: that would be saved with it
    meanwhile.replace(type(model), "learn", partialmethod(type(model).learn, reset_num_timesteps=False))
