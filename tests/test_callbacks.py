"""Callbacks, the progress bar and the log follow both phases."""

import csv
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback, EveryNTimesteps, ProgressBarCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, configure
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_ppg import PPG, PhasicCallback, PhasicCheckpointCallback, latest_checkpoint
from tests.helpers import RandomEnv, evaluate_auxiliary, learn_and_log
from tests.helpers import make_with_papers_values as make

PHASE = 16 * 3


class Witness(PhasicCallback):
    def __init__(self):
        super().__init__()
        self.events: list[tuple] = []

    def on_aux_phase_start(self) -> None:
        stored = (self.locals["n_samples"], len(self.model.aux_buffer))
        self.events.append(("start", self.model.num_timesteps, *stored, self.model.n_aux_phases))

    def on_aux_epoch_end(self) -> None:
        self.events.append(("epoch", self.locals["epoch"], self.locals["n_aux_epochs"], sorted(self.locals["losses"])))

    def on_aux_phase_end(self) -> None:
        self.events.append(("end", len(self.model.aux_buffer), self.model.n_aux_phases))


NAMES = ["aux_value_loss", "grad_norm", "kl", "loss", "value_loss"]
EVENTS = [("start", 48, 48, 3, 0), ("epoch", 1, 2, NAMES), ("epoch", 2, 2, NAMES), ("end", 3, 1)]


@pytest.mark.parametrize(
    "nest",
    [
        lambda witness: [EveryNTimesteps(16, PhasicCallback()), witness],
        lambda witness: CallbackList([CallbackList([witness])]),
        lambda witness: EveryNTimesteps(16, callback=witness),
        lambda witness: EvalCallback(make_vec_env("CartPole-v1"), witness, n_eval_episodes=1, eval_freq=16, verbose=0),
    ],
    ids=["list", "list in a list", "EveryNTimesteps", "callback_on_new_best"],
)
def test_callbacks_follow_the_auxiliary_phase(nest):
    witness = Witness()
    make().learn(PHASE, callback=nest(witness))
    assert witness.events == EVENTS


@pytest.mark.parametrize("own", [True, False], ids=["ProgressBarCallback", "progress_bar=True"])
def test_the_progress_bar_says_where_the_auxiliary_phase_is(own, monkeypatch, capsys):
    said: list[str] = []

    class Listens(ProgressBarCallback):
        def _on_training_start(self) -> None:
            super()._on_training_start()
            self.pbar.set_description = said.append

    monkeypatch.setattr("stable_baselines3.common.base_class.ProgressBarCallback", Listens)
    make().learn(PHASE, callback=Listens() if own else None, progress_bar=not own)
    assert said == [f"auxiliary phase, epoch {epoch}/2" for epoch in (1, 2, 2)] + [""]
    assert "48/48" in capsys.readouterr().out


def test_a_line_says_that_an_auxiliary_phase_begins(capsys):
    make(verbose=1).learn(2 * PHASE)
    output = capsys.readouterr().out
    assert output.count("Auxiliary phase: 2 epochs over 48 samples") == 2
    assert "One phase = 48 steps, 2 phases in this budget of 96" in output
    model = make(verbose=1, n_value_warmup=3)
    for n_phases, is_new in (("0 phases", True), ("1 phase", False)):  # the warm-up is not repeated
        model.learn(PHASE, reset_num_timesteps=is_new)
        assert f"One phase = 48 steps, {n_phases} in this budget of 48" in capsys.readouterr().out
    make(verbose=0).learn(4.8e1)
    assert capsys.readouterr().out == ""


def test_the_last_phase_is_logged_once_and_stays_readable(tmp_path):
    """
    A run of one phase logs a row with its auxiliary phase; another call of ``learn`` does not repeat it, nor for outputs of a
    user's that do not know what is excluded.
    """

    class Writer(KVWriter):
        rows: ClassVar[list[Any]] = []

        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            self.rows.append(key_values.get("aux/n_phases"))

        def close(self) -> None:
            pass

    model = make()
    logger = configure(str(tmp_path), ["csv"])
    logger.output_formats.append(Writer())
    model.set_logger(logger)
    for n_updates in (3, 4):
        model.learn(PHASE if n_updates == 3 else 16, reset_num_timesteps=False)
        assert model.logger.name_to_value["train/n_updates"] == n_updates
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["aux/n_phases"] for row in rows] == ["", "", "", "1", "", ""]
    assert Writer.rows == [None, None, None, 1, None, None]
    assert [row["time/total_timesteps"] for row in rows] == ["16", "32", "48", "48", "64", "64"]
    assert [row["train/n_updates"] for row in rows] == ["", "1", "2", "3", "", "4"]


def test_a_log_that_breaks_at_the_end_does_not_keep_the_last_checkpoint_from_being_saved(tmp_path):
    model = make()
    model.learn(PHASE)
    model.dump_logs = lambda *_: exec("raise OSError")
    with pytest.raises(OSError):
        model.learn(16, PhasicCheckpointCallback(100, tmp_path), log_interval=100, reset_num_timesteps=False)
    assert latest_checkpoint(tmp_path).name == f"ppg_model_{PHASE + 16}_steps.zip"


def test_a_callback_may_close_the_log_when_training_ends(tmp_path):
    """It has the last row by then."""

    class Closes(PhasicCallback):
        def _on_training_end(self) -> None:
            self.logger.close()

    model, callback = make(), Closes()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(PHASE, callback=callback)
    with (tmp_path / "progress.csv").open() as file:
        assert [*csv.DictReader(file)][-1]["aux/n_phases"] == "1"


def test_the_log_describes_the_policy_after_the_auxiliary_phase():
    """KL(π_old, π) and the explained variances of both heads equal ones computed after the phase."""
    model, seen = make(n_aux_epochs=4, aux_learning_rate=5e-3), {}

    class Look(PhasicCallback):
        def on_aux_phase_end(self) -> None:
            buffer = self.model.aux_buffer
            (batch,) = (batch for _, batch in buffer.batches(np.arange(buffer.n_sequences), buffer.n_sequences))
            with th.no_grad():
                distribution, aux_values, values = evaluate_auxiliary(self.model.policy, batch.observations)
            old = th.distributions.Categorical(logits=batch.recorded)
            seen["final_kl"] = th.distributions.kl_divergence(old, distribution.distribution).mean().item()
            for name, predicted in (("explained_variance", values), ("aux_explained_variance", aux_values)):
                seen[name] = (1 - (batch.targets - predicted).var() / batch.targets.var()).item()

    logged = learn_and_log(model, PHASE, callback=Look())
    for name, value in seen.items():
        assert logged[f"aux/{name}"] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert logged["aux/kl"] > 0 and logged["aux/final_kl"] > 0
    assert logged["time/phase_position"] == 1.0
    assert logged["time/update_seconds"] > logged["aux/seconds"] > 0 and logged["time/rollout_seconds"] > 0


@pytest.mark.parametrize("recomputes", [False, True])
def test_the_explained_variance_is_that_of_the_values_at_collection(recomputes):
    """Also in the first update, in which the head gets its unit, and if targets are computed again."""
    found = []

    class Watch(PhasicCallback):
        def _on_rollout_end(self) -> None:
            returns, values = self.model.rollout_buffer.returns, self.model.rollout_buffer.values
            found.append(1 - np.var(returns - values) / np.var(returns))

    options = dict(n_steps=64, batch_size=64, n_epochs=3, seed=0, device="cpu", recompute_advantages=recomputes)
    model = PPG("MlpPolicy", "Pendulum-v1", **options)
    for n_rollouts in (1, 2):
        logged = learn_and_log(model, 64, callback=Watch(), reset_num_timesteps=n_rollouts == 1)
        assert logged["train/explained_variance"] == pytest.approx(found[-1], abs=1e-4)


def test_explained_variances_of_constant_targets_are_nan():
    logged = learn_and_log(make(RandomEnv(spaces.Box(0, 0, (2,)), spaces.Discrete(2)), gamma=0.0), PHASE)
    for name in ("train/explained_variance", "aux/explained_variance", "aux/aux_explained_variance"):
        assert np.isnan(logged[name]), name


def test_the_logged_gradient_norm_is_that_before_clipping():
    free = learn_and_log(make(), 16)["train/grad_norm"]
    clipped = learn_and_log(make(max_grad_norm=1e-3), 16)["train/grad_norm"]
    assert free == pytest.approx(clipped) and free > 1e-2


class Locals(BaseCallback):
    """Records the types of the local variables that a callback of SB3 sees, at a step and at the end of a rollout."""

    def _on_step(self) -> bool:
        self.steps = {name: type(value) for name, value in self.locals.items()}
        assert self.locals["env"] is self.model.env
        return True

    def _on_rollout_end(self) -> None:
        self.ends = {name: type(value) for name, value in self.locals.items()}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_callbacks_see_the_locals_of_ppo(env):
    ppo, ours = Locals(), Locals()
    PPO("MlpPolicy", env, n_steps=16, batch_size=16).learn(16, callback=ppo)
    make(env).learn(16, callback=ours)
    for theirs, mine in ((ppo.steps, ours.steps), (ppo.ends, ours.ends)):
        assert theirs.keys() - mine.keys() <= {"idx", "done", "terminal_obs", "terminal_value"}
        assert {name for name in theirs.keys() & mine.keys() if theirs[name] is not mine[name]} <= {"self"}


@pytest.mark.slow
def test_a_rollout_asks_the_workers_for_nothing_but_steps():
    model = make(make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv))
    asked: list[str] = []

    class Ask(PhasicCallback):
        def _on_rollout_start(self) -> None:
            workers = self.model.env.unwrapped
            if not asked:
                for remote in workers.remotes:
                    remote.send = lambda message, send=remote.send: asked.append(message[0]) or send(message)

    try:
        model.learn(2 * 16 * 4, callback=Ask())
    finally:
        model.env.close()
    assert set(asked) <= {"step", "close"} and asked.count("step") == 2 * 16 * 4
