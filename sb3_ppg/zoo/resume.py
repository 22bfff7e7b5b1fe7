"""``train -i MODEL`` and ``train --continue -i MODEL``: training that goes on, with what lies beside the model."""

from functools import partialmethod, wraps
from pathlib import Path
from typing import Any

from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback

from sb3_ppg import PPG, PhasicCheckpointCallback, aux_buffer_path
from sb3_ppg.errors import ArgumentError
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
    _continue_counters(patches)
    return [argument for argument in arguments if argument != CONTINUE]


def register_resume() -> None:
    """
    ``--save-replay-buffer`` saves the auxiliary buffer beside the model, and lets ``--save-freq`` save checkpoints to go on
    from; ``-i`` takes the auxiliary buffer that lies beside the model.
    """
    save, load, learn = (
        ExperimentManager.save_trained_model,
        ExperimentManager._load_pretrained_agent,
        ExperimentManager.learn,
    )

    @wraps(save)
    def save_with_buffer(self: ExperimentManager, model: Any) -> None:
        if isinstance(model, PPG) and self.save_replay_buffer:
            model.save_aux_buffer(aux_buffer_path(Path(self.save_path) / self.env_name))
        save(self, model)

    @wraps(load)
    def load_with_buffer(self: ExperimentManager, *args: Any) -> Any:
        model = load(self, *args)
        path = aux_buffer_path(self.trained_agent)
        if isinstance(model, PPG) and path.exists():
            print(f"Loading {path}")
            model.load_aux_buffer(path)
        return model

    @wraps(learn)
    def learn_with_checkpoints(self: ExperimentManager, model: Any) -> None:
        if isinstance(model, PPG) and self.save_replay_buffer:
            self.callbacks = [_phasic(callback, model.n_steps) for callback in self.callbacks]
        learn(self, model)

    ExperimentManager.save_trained_model = save_with_buffer  # type: ignore[method-assign]
    ExperimentManager._load_pretrained_agent = load_with_buffer  # type: ignore[method-assign, assignment]
    ExperimentManager.learn = learn_with_checkpoints  # type: ignore[method-assign]


def _phasic(callback: BaseCallback, n_steps: int) -> BaseCallback:
    """In place of SB3's checkpoints, which come in the midst of rollouts: as often, but between them."""
    if not isinstance(callback, CheckpointCallback):
        return callback
    iterations = max(1, round(callback.save_freq / n_steps))
    return PhasicCheckpointCallback(iterations, callback.save_path, callback.name_prefix, verbose=2)


def _continue_counters(patches: Patches) -> None:
    learn = ExperimentManager.learn

    @wraps(learn)
    def go_on(self: ExperimentManager, model: Any) -> None:
        remaining = int(self.n_timesteps) - model.num_timesteps
        if remaining <= 0:
            raise ArgumentError(
                f"the model has trained for {model.num_timesteps} steps already: with {CONTINUE}, -n counts from the "
                f"beginning, so use more than that"
            )
        print(f"Going on after {model.num_timesteps} steps")
        self.n_timesteps = remaining
        with Patches() as meanwhile:
            # Not the model's attribute: that would be saved with it
            meanwhile.replace(type(model), "learn", partialmethod(type(model).learn, reset_num_timesteps=False))
            learn(self, model)

    patches.replace(ExperimentManager, "learn", go_on)
