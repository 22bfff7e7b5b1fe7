"""Callbacks that follow the auxiliary phase, during which SB3 calls no callback."""

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
from typing_extensions import override

RANK_ZERO_ONLY = (EvalCallback, CheckpointCallback, ProgressBarCallback)


class PhasicCallback(BaseCallback):
    """
    Callback that is also called in the auxiliary phase. Derive from it and override what you need; SB3's own events
    (``_on_step``, ``_on_rollout_end``, ...) come as usual.

    Example::

        from sb3_ppg import PPG, PhasicCallback

        class KL(PhasicCallback):
            def on_aux_epoch_end(self):
                print(self.locals["epoch"], self.locals["losses"]["kl"])

        PPG("MlpPolicy", "CartPole-v1", n_steps=512).learn(10_000, callback=KL())

    In these events ``self.locals`` has ``n_samples`` (in the phase), ``n_aux_epochs``, ``epoch`` (the number of finished
    epochs) and, from the first epoch on, ``losses`` (means over the latest epoch, by the names of ``aux/...``).
    """

    model: Any  # a PPG

    @override
    def _on_step(self) -> bool:
        return True

    def on_aux_phase_start(self) -> None:
        """Called when the rollouts of a phase are complete, before π_old is recorded."""

    def on_aux_epoch_end(self) -> None:
        """Called after each epoch of the auxiliary phase."""

    def on_aux_phase_end(self) -> None:
        """
        Called after the last epoch, with the rollouts still in ``self.model.aux_buffer``.

        A run that is resumed from files saved here repeats the phase; save when the next rollout starts instead.
        """


def tell(callback: MaybeCallback, event: str, **state: Any) -> None:
    """Call an event of each ``PhasicCallback``, with its ``locals``, and show the epoch in SB3's progress bar."""
    for listener in every(callback):
        if isinstance(listener, PhasicCallback):
            listener.update_locals(state)
            getattr(listener, event)()
        elif isinstance(listener, ProgressBarCallback) and hasattr(listener, "pbar"):
            epoch = min(state["epoch"] + 1, state["n_aux_epochs"])
            text = f"auxiliary phase, epoch {epoch}/{state['n_aux_epochs']}"
            listener.pbar.set_description("" if event == "on_aux_phase_end" else text)


def every(callback: MaybeCallback) -> Iterator[BaseCallback]:
    """Iterate over a callback of ``learn`` and all callbacks that it contains, at any depth."""
    if isinstance(callback, BaseCallback):
        yield callback
    for child in called_by(callback):
        yield from every(child)


def called_by(callback: MaybeCallback) -> list[BaseCallback]:
    """Return the callbacks that a callback of ``learn`` calls directly."""
    children: list[BaseCallback | None] = [*callback] if isinstance(callback, list) else []
    if isinstance(callback, CallbackList):
        children += callback.callbacks
    if isinstance(callback, EventCallback):
        children += [callback.callback]
    if isinstance(callback, EvalCallback):
        children += [callback.callback_on_new_best]
    return [child for child in children if child is not None]


def without_rank_zero_callbacks(callback: MaybeCallback) -> MaybeCallback:
    """Remove SB3's callbacks that evaluate, write files or draw progress bars, which only one process should run."""
    if isinstance(callback, CallbackList):
        callback = callback.callbacks
    if isinstance(callback, list):
        return CallbackList([rest for rest in map(without_rank_zero_callbacks, callback) if isinstance(rest, BaseCallback)])
    return None if any(isinstance(inner, RANK_ZERO_ONLY) for inner in every(callback)) else callback
