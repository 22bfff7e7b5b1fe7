"""``train -i MODEL`` and ``train --continue -i MODEL``: training that goes on, with what lies beside the model."""

from functools import partialmethod, wraps
from pathlib import Path
from typing import Any

from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback

from sb3_ppg import PPG, PhasicCheckpointCallback, aux_buffer_path
from sb3_ppg.errors import ArgumentError
from sb3_ppg.saving.training_state import file_of_process, files_of_processes
from sb3_ppg.training.processes import agreed, rank
from sb3_ppg.zoo.patches import Patches

CONTINUE = "--continue"


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
    if not {"-i", "--trained-agent"} & set(arguments):
        raise ArgumentError(f"{CONTINUE} needs the model that is to go on: -i MODEL.zip")
    learn = ExperimentManager.learn

    @wraps(learn)
    def go_on(self: ExperimentManager, model: Any) -> None:
        vars(self)["continues"] = True
        learn(self, model)

    patches.replace(ExperimentManager, "learn", go_on)
    return [argument for argument in arguments if argument != CONTINUE]


def register_resume() -> None:
    """
    ``--save-freq`` saves checkpoints to go on from; ``--save-replay-buffer`` keeps the auxiliary buffers of all of them, and
    saves that of the last model; ``-i`` takes the auxiliary buffer that lies beside the model.
    """
    save, load, learn = (
        ExperimentManager.save_trained_model,
        ExperimentManager._load_pretrained_agent,
        ExperimentManager.learn,
    )

    @wraps(save)
    def save_with_buffer(self: ExperimentManager, model: Any) -> None:
        with agreed():
            if isinstance(model, PPG) and self.save_replay_buffer:
                model.save_aux_buffer(aux_buffer_path(Path(self.save_path) / self.env_name))
        if rank() == 0:
            save(self, model)

    @wraps(load)
    def load_with_buffer(self: ExperimentManager, *args: Any) -> Any:
        model = load(self, *args)
        path = aux_buffer_path(self.trained_agent)
        if isinstance(model, PPG) and files_of_processes(path):
            print(f"Loading {file_of_process(path)}")
            model.load_aux_buffer(path)
        return model

    @wraps(learn)
    def learn_with_checkpoints(self: ExperimentManager, model: Any) -> None:
        if not isinstance(model, PPG):
            learn(self, model)
            return
        n_kept = None if self.save_replay_buffer else 1
        self.callbacks = [_phasic(callback, model.n_steps, n_kept) for callback in self.callbacks]
        with Patches() as meanwhile:
            if vars(self).get("continues"):
                _count_on(self, model, meanwhile)
            learn(self, model)

    ExperimentManager.save_trained_model = save_with_buffer  # type: ignore[method-assign]
    ExperimentManager._load_pretrained_agent = load_with_buffer  # type: ignore[method-assign, assignment]
    ExperimentManager.learn = learn_with_checkpoints  # type: ignore[method-assign]


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
