"""Callbacks that follow the auxiliary phase, in which SB3's hear nothing."""

from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EventCallback,
    ProgressBarCallback,
)
from stable_baselines3.common.type_aliases import MaybeCallback

LOUD = (EvalCallback, CheckpointCallback, ProgressBarCallback)


class PhasicCallback(BaseCallback):
    """
    A callback that is also told of the auxiliary phase. Derive from it and override what you need; SB3's own events
    (``_on_step``, ``_on_rollout_end``, ...) come as always.

    Example::

        from sb3_ppg import PPG, PhasicCallback

        class KL(PhasicCallback):
            def on_aux_epoch_end(self):
                print(self.locals["epoch"], self.locals["losses"]["kl"])

        PPG("MlpPolicy", "CartPole-v1", n_steps=512).learn(10_000, callback=KL())

    ``self.locals`` then has ``n_samples`` (of the phase), ``n_aux_epochs``, ``epoch`` (of those that are over, from 1) and
    ``losses`` (of the latest epoch: means by the names of ``aux/...``).
    """

    def _on_step(self) -> bool:
        return True

    def on_aux_phase_start(self) -> None:
        """The rollouts of a phase are together, π_old is not yet recorded."""

    def on_aux_epoch_end(self) -> None:
        """An epoch of the auxiliary phase is over."""

    def on_aux_phase_end(self) -> None:
        """
        All its epochs are over; the rollouts are still in ``self.model.aux_buffer``. Whoever goes on with files that are saved
        here repeats the phase: save when the next rollout starts.
        """


class AuxiliaryPhaseEvents:
    """
    Tells callbacks of one auxiliary phase: each ``PhasicCallback``, and SB3's progress bar, which describes where it is.

    :param callback: that of ``learn``, with all that it calls. None: there is nobody to tell
    :param n_samples: of the phase
    :param n_aux_epochs: that are to come
    """

    def __init__(self, callback: BaseCallback | None, n_samples: int, n_aux_epochs: int):
        self.callbacks = list(every(callback))
        self.locals: dict[str, Any] = dict(n_samples=n_samples, n_aux_epochs=n_aux_epochs, epoch=0)

    def start(self) -> None:
        """The phase begins."""
        self._describe(f"auxiliary phase, epoch 1/{self.locals['n_aux_epochs']}")
        self._tell("on_aux_phase_start")

    def epoch_end(self, losses: dict[str, float]) -> None:
        """
        :param losses: of the epoch that is over, by name
        """
        self.locals.update(epoch=self.locals["epoch"] + 1, losses=losses)
        following = min(self.locals["epoch"] + 1, self.locals["n_aux_epochs"])
        self._describe(f"auxiliary phase, epoch {following}/{self.locals['n_aux_epochs']}")
        self._tell("on_aux_epoch_end")

    def end(self) -> None:
        """The phase is over."""
        self._describe("")
        self._tell("on_aux_phase_end")

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            if isinstance(callback, PhasicCallback):
                callback.update_locals(self.locals)
                getattr(callback, event)()

    def _describe(self, text: str) -> None:
        for callback in self.callbacks:
            if isinstance(callback, ProgressBarCallback) and hasattr(callback, "pbar"):
                callback.pbar.set_description(text)


def every(callback: MaybeCallback) -> Iterator[BaseCallback]:
    """
    :param callback: as ``learn`` takes it
    :return: it, and all that it calls
    """
    if isinstance(callback, BaseCallback):
        yield callback
    for child in called_by(callback):
        yield from every(child)


def called_by(callback: MaybeCallback) -> list[BaseCallback]:
    """
    :param callback: as ``learn`` takes it
    :return: whom it calls itself
    """
    children: list[BaseCallback | None] = [*callback] if isinstance(callback, list) else []
    if isinstance(callback, CallbackList):
        children += callback.callbacks
    if isinstance(callback, EventCallback):
        children += [callback.callback]
    if isinstance(callback, EvalCallback):
        children += [callback.callback_on_new_best]
    return [child for child in children if child is not None]


def quiet(callback: MaybeCallback) -> MaybeCallback:
    """
    :param callback: as ``learn`` takes it
    :return: the same without those of SB3 that evaluate, write files or draw, which are for one of several processes
    """
    if isinstance(callback, CallbackList):
        callback = callback.callbacks
    if isinstance(callback, list):
        return CallbackList([one for one in map(quiet, callback) if isinstance(one, BaseCallback)])
    return None if any(isinstance(one, LOUD) for one in every(callback)) else callback
