"""Guards around SB3's training loop: checks before the first step, other processes, bad numbers, dead workers, signals."""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnvWrapper

from sb3_ppg.distributed import check_group, gather, leave_group, n_processes, rank
from sb3_ppg.environments.watched import all_statistics, innermost, results_explained, workers_watched
from sb3_ppg.errors import (
    ArgumentError,
    NonFiniteEnvironmentError,
    NonFiniteError,
    ProcessGroupError,
    WorkerError,
    advise,
    warn,
)
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.prior import PRIOR_LEFT_OUT
from sb3_ppg.saving.checkpoints import check_checkpoint_callbacks, checkpoint_callbacks
from sb3_ppg.training.checks import warn_of_missing_rollouts, warn_of_stale_data
from sb3_ppg.training.exchange import RolloutExchange, start_together


class Session:
    """State of a model that exists only while it learns."""

    callback: BaseCallback | None = None  # set when it has been told that the run starts
    run: str | None = None  # identifies the checkpoints of all its callbacks
    received_signal: int | None = None  # signal that asks this process to end
    has_checked_log_probs: bool = False  # of the first rollout

    def __init__(self, model: PhasicInterface):
        self.exchange = RolloutExchange(model)

    def agreed_end(self) -> int | None:
        """Return a signal that asks any process to end, or None; all call this between two iterations."""
        return next((number for number in gather(self.received_signal) if number is not None), None)


@contextmanager
def training(
    model: PhasicInterface, callback: MaybeCallback, total_timesteps: float, reset_num_timesteps: bool
) -> Iterator[None]:
    """
    Guard a run of ``learn``, in which the model has a ``session``. After a ``NonFiniteError`` or a ``WorkerError`` in a single
    process, callbacks are told that the run has ended.

    :raises SystemExit: after SIGTERM, once the iteration is over and saved by a ``PhasicCheckpointCallback``
    :raises KeyboardInterrupt: after Ctrl-C in one of several processes, once the iteration is over
    """
    check_group()
    try:
        check_checkpoint_callbacks(callback)
        _prepare(model, total_timesteps, reset_num_timesteps)
        settings = {
            "total_timesteps": total_timesteps,
            "reset_num_timesteps": reset_num_timesteps,
            "PhasicCheckpointCallback": [checkpoints.settings() for checkpoints in checkpoint_callbacks(callback)],
        }
        start_together(model, settings)
        model.session = Session(model)
        model.begin_compiled_training(total_timesteps, reset_num_timesteps)
        with results_explained(), workers_watched(model.env), _signals_noted(model.session, callback):
            yield
        if (ending := model.session.agreed_end()) is not None:
            raise KeyboardInterrupt if ending == signal.SIGINT else SystemExit(128 + ending)
    except BaseException as error:
        _clean_up(model, callback, error)
        raise
    finally:
        model.session = None


def _clean_up(model: PhasicInterface, callback: MaybeCallback, error: BaseException) -> None:
    """Leave model and callbacks in a state from which they can continue, and let the other processes of a group end."""
    if isinstance(error, NonFiniteEnvironmentError):
        model._last_obs = None  # the environments have moved on, so they are reset
    if isinstance(error, Exception) and model.session is not None and n_processes() > 1:
        leave_group()
    elif isinstance(error, (NonFiniteError, WorkerError)) and model.session is not None and model.session.callback is not None:
        model.session.callback.on_training_end()  # checkpoints are saved, files closed
    for checkpoints in checkpoint_callbacks(callback):
        checkpoints.failed_mid_iteration = True


# ---- signals ----


@contextmanager
def _signals_noted(session: Session, callback: MaybeCallback) -> Iterator[None]:
    """
    Store the first signal that asks this process to end in ``session.received_signal``. A second signal does what it did
    before this block.
    """
    signals: list[int] = [signal.SIGTERM] if checkpoint_callbacks(callback) else []  # schedulers of clusters announce the end
    signals += [signal.SIGINT] if n_processes() > 1 else []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        session.received_signal = number
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
        for number in signals:
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            signal.signal(number, note)
    try:
        yield
    except ProcessGroupError as error:
        if session.received_signal is not None:  # from torchrun, which ends all when one has ended
            raise SystemExit(128 + session.received_signal) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- before the first step ----


def _prepare(model: PhasicInterface, total_timesteps: float, reset_num_timesteps: bool) -> None:
    """Check the set-up before the first step, and warn of settings that are surely unintended."""
    if rank() > 0:
        model.verbose = 0
    if model.env is None or isinstance(innermost(model.env), VecEnvWrapper):  # a wrapper that was unpickled
        raise ArgumentError("There is no environment to learn in: use `load(..., env=...)` or `set_env(...)` before")
    model.check_arguments()
    if model.prior == PRIOR_LEFT_OUT:
        raise ArgumentError(
            "This model was trained near a prior, which its files do not hold: call set_prior(agent), or, to go on without, "
            "set_prior(None) (in RL Zoo, --prior AGENT)"
        )
    if {model.rollout_buffer.buffer_size, len(model.rollout_buffer.rewards)} != {model.n_steps}:  # which was changed by hand
        model.rollout_buffer.buffer_size = model.n_steps
        model.rollout_buffer.reset()
    if {rollout.shape for rollout in (*model.aux_buffer.rollouts, *model.replay.rollouts)} - {(model.n_envs, model.n_steps)}:
        model._missing_rollouts = model.n_kept_rollouts()
        model.aux_buffer.reset()
        model.replay.rollouts = []
    if model.n_aux_epochs > 0:
        n_missing = model.n_policy_iterations - len(model.aux_buffer)
        model.aux_buffer.check_room(model.rollout_buffer, model.stored_keys, n_missing, model.policy.state_keys)
    model.replay.check_room(model.rollout_buffer.observations)
    warn_of_missing_rollouts(model)
    model._missing_rollouts = None
    _report_phases(model, total_timesteps, 0 if reset_num_timesteps else model.num_timesteps)
    warn_of_stale_data(model)
    if model._n_updates > 0 and any(rms.count < 1 for rms in all_statistics(model.env).values()):
        warn(
            "This model has been trained, but the statistics of its VecNormalize are new, and begin at zero: load them "
            "(`load_aux_buffer`, or VecNormalize.load)"
        )


def _report_phases(model: PhasicInterface, total_timesteps: float, n_before: int) -> None:
    """Print the number of phases in a run after ``n_before`` steps, and warn if the model then has fewer than three in all."""
    if model.n_aux_epochs == 0 or math.isinf(total_timesteps):  # a callback ends it
        return
    n_envs = model.n_envs * n_processes()
    per_rollout = model.n_steps * n_envs
    phase = per_rollout * model.n_policy_iterations
    n_warmup = math.ceil(max(0, model._warmup_end - n_before) / per_rollout) if n_before > 0 else model.n_value_warmup
    n_rollouts = max(0, math.ceil(total_timesteps / per_rollout) - n_warmup)
    n_phases = (n_rollouts + len(model.aux_buffer)) // model.n_policy_iterations
    if model.verbose >= 1:
        print(f"One phase = {phase:,} steps, {n_phases} phase{'s' * (n_phases != 1)} in this budget of {total_timesteps:,.0f}")
    n_phases, in_all = n_phases + model._n_aux_phases, " in all" if model._n_aux_phases > 0 else ""
    if n_phases < 3:
        advise(
            "phases",
            f"A budget of {total_timesteps:,.0f} steps ends after {n_phases} auxiliary phase{'s' * (n_phases != 1)}{in_all}, "
            "and at least three are recommended: one phase is n_steps * n_envs * n_policy_iterations = "
            f"{model.n_steps} * {n_envs} * {model.n_policy_iterations} = {phase:,} steps. Use more steps, smaller values, or "
            "`n_aux_epochs=0` for PPO; or call `learn` again, which goes on with the phase",
        )
