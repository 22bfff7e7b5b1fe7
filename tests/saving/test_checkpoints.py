"""Checkpoints: when they are saved, which is the latest, and states that do not become one."""

import os
import random
import shutil
import time
import tracemalloc
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import CallbackList, EvalCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, ArgumentError, PhasicCheckpointCallback, aux_buffer_path, latest_checkpoint
from sb3_ppg.errors import NonFiniteError
from tests.helpers import RandomEnv, saved_and_loaded
from tests.saving.small_models import calls_at, resumed, same, saved, small


def complete(folder: Path) -> set[int]:
    return {int(path.name.split("_")[2]) for path in folder.glob("ppg_model_*_steps.aux_buffer.npz")}


def steps(folder: Path) -> set[int]:
    found = {int(path.name.split("_")[2]) for path in folder.glob("ppg_model_*_steps.zip")}
    assert complete(folder) <= found and len(list(folder.iterdir())) == len(complete(folder)) + len(found)
    return found


def test_a_checkpoint_takes_no_longer_after_many(tmp_path, monkeypatch):
    """Each look at the folder takes time that grows with its files."""
    glob, n_looks, model = Path.glob, Counter(), small()

    def counting(path, *args):
        n_looks[model.num_timesteps] += 1
        return glob(path, *args)

    monkeypatch.setattr(Path, "glob", counting)
    model.learn(8 * 12, callback=PhasicCheckpointCallback(1, tmp_path))
    assert n_looks[48] == n_looks[88] > 0


def test_checkpoints_are_saved_between_iterations_and_at_the_end(tmp_path):
    small().learn(8 * 7, callback=PhasicCheckpointCallback(2, tmp_path / "a"))
    assert steps(tmp_path / "a") == {16, 32, 48, 56} and complete(tmp_path / "a") == {48, 56}  # rollouts are large
    small().learn(8 * 6, callback=PhasicCheckpointCallback(3, tmp_path / "b", keep=1, name_prefix="ppg_model"))
    assert steps(tmp_path / "b") == {48} == complete(tmp_path / "b")
    assert latest_checkpoint(tmp_path / "a").name == "ppg_model_56_steps.zip"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint named other_\.\.\._steps.zip"):
        latest_checkpoint(tmp_path / "a", "other")


@pytest.mark.parametrize("name, value", [("save_freq", 0), ("save_freq", -1), ("keep", 0)])
def test_numbers_that_cannot_work_are_refused(name, value, tmp_path):
    with pytest.raises(ArgumentError, match=f"`{name}`={value} cannot work: use an"):
        PhasicCheckpointCallback(**{"save_freq": 1, "save_path": tmp_path, name: value})


def test_a_run_that_continues_logs_to_its_own_tensorboard_folder(tmp_path):
    """SB3 takes the newest one of the name. Under a name that a model has not used, it gets a new folder."""
    pytest.importorskip("tensorboard")

    def folder(model: PPG, name: str = "Mine", is_new: bool = False) -> str:
        model.learn(8, log_interval=1, tb_log_name=name, reset_num_timesteps=is_new)
        return str(Path(model.logger.dir).relative_to(tmp_path))

    first, second, third = (small(tensorboard_log=str(tmp_path)) for _ in range(3))
    assert [folder(model, is_new=True) for model in (first, second)] == ["Mine_1", "Mine_2"]
    first.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=first.get_env(), device="cpu")
    assert [folder(model) for model in (first, loaded, third)] == ["Mine_1", "Mine_1", "Mine_3"]
    assert [folder(loaded, "Other"), folder(loaded, is_new=True)] == ["Other_1", "Mine_4"]
    assert len([*(tmp_path / "Mine_1").iterdir()]) == 3 and len([*(tmp_path / "Mine_2").iterdir()]) == 1


def test_files_of_other_processes_that_were_killed_are_not_taken_for_a_checkpoints(tmp_path):
    """Two processes were killed before their model was there, and one has gone on from the checkpoint before."""
    small().learn(16, callback=PhasicCheckpointCallback(1, tmp_path / "other"))
    (tmp_path / "here").mkdir()
    stale = tmp_path / "here" / "ppg_model_16_steps.aux_buffer.0_of_2.npz"
    shutil.copy(tmp_path / "other" / "ppg_model_16_steps.aux_buffer.npz", stale)
    small().learn(16, callback=PhasicCheckpointCallback(1, tmp_path / "here"))
    assert not stale.exists() and stale.with_name("ppg_model_16_steps.aux_buffer.npz").exists()


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    small().learn(8 * 4, callback=PhasicCheckpointCallback(2, tmp_path))
    for damaged in (tmp_path / f"ppg_model_32_steps{suffix}" for suffix in (".zip", ".aux_buffer.npz")):
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-100])
        with pytest.warns(UserWarning, match=f"{damaged.name} is damaged"):
            assert latest_checkpoint(tmp_path).name == "ppg_model_16_steps.zip"
        damaged.write_bytes(whole)


@pytest.mark.parametrize("prefix", ["", "sub/model", "sub/", "a/b[c]/model"])
def test_checkpoints_under_any_prefix_are_found(prefix, tmp_path):
    """Also one with folders."""
    small().learn(8 * 4, callback=PhasicCheckpointCallback(2, tmp_path, prefix, keep=1))
    assert latest_checkpoint(tmp_path, prefix) == tmp_path / f"{prefix}_32_steps.zip"
    assert [*tmp_path.rglob("*.zip")] == [tmp_path / f"{prefix}_32_steps.zip"]


def test_a_kill_between_the_two_files_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    """The rollouts are there first: a model without them would be taken for the latest checkpoint."""

    class Kill(BaseException):
        pass

    replace = Path.replace

    def replace_and_kill(path: Path, place: Path) -> None:
        replace(path, place)
        if "32_steps" in place.name:
            raise Kill

    monkeypatch.setattr(Path, "replace", replace_and_kill)
    with pytest.raises(Kill):
        small().learn(8 * 5, callback=PhasicCheckpointCallback(2, tmp_path))
    assert {path.name for path in tmp_path.glob("*32*")} == {"ppg_model_32_steps.aux_buffer.npz"}
    assert resumed(tmp_path).learn(8, reset_num_timesteps=False).num_timesteps == 24


def test_a_second_shorter_run_keeps_its_own_checkpoints(tmp_path):
    """Checkpoints with more steps are the first run's, and stay."""
    small().learn(8 * 6, callback=PhasicCheckpointCallback(1, tmp_path, keep=2))
    assert steps(tmp_path) == {40, 48}
    second = small(seed=1).learn(8 * 3, callback=PhasicCheckpointCallback(1, tmp_path, keep=2))
    assert steps(tmp_path) == {16, 24, 40, 48}
    assert latest_checkpoint(tmp_path).name == "ppg_model_24_steps.zip"

    continued = resumed(tmp_path)  # a run that goes on in another process is the same run
    assert same(continued, second)
    continued.learn(8, callback=PhasicCheckpointCallback(1, tmp_path, keep=2), reset_num_timesteps=False)
    assert steps(tmp_path) == {24, 32, 40, 48}
    continued.learn(8 * 2, callback=PhasicCheckpointCallback(1, tmp_path, keep=1))  # from the beginning: another run
    assert steps(tmp_path) == {16, 24, 32, 40, 48}
    for number, path in enumerate(sorted(tmp_path.glob("*.zip"))):  # copies have other times of modification
        os.utime(path, (number, number))
    assert latest_checkpoint(tmp_path).name == "ppg_model_16_steps.zip"


def test_several_callbacks_of_a_run_know_their_files_when_it_goes_on(tmp_path):
    for model in (small(), None):
        callbacks = [PhasicCheckpointCallback(1, tmp_path / name, keep=1) for name in "ab"]
        (model or resumed(tmp_path / "a")).learn(16, callback=callbacks, reset_num_timesteps=False)
    assert steps(tmp_path / "a") == steps(tmp_path / "b") == {32}


def test_checkpoints_that_are_removed_meanwhile_are_passed_over(tmp_path, monkeypatch):
    """A running training removes them."""
    small().learn(8 * 2, callback=PhasicCheckpointCallback(1, tmp_path, keep=1))
    gone, glob = tmp_path / "ppg_model_8_steps.zip", Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [gone, *glob(folder, pattern)])
    assert latest_checkpoint(tmp_path).name == "ppg_model_16_steps.zip"


def test_a_clock_that_was_set_back_does_not_lead_back(tmp_path, monkeypatch):
    """The clock is another node's, or is corrected while the training is interrupted."""
    now = time.time_ns()
    for hours, n_steps in ((1, 16), (0, 32), (-1, 48)):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: now + hours * 3600 * 10**9)
        model = resumed(tmp_path) if n_steps > 16 else small()
        callback = PhasicCheckpointCallback(1, tmp_path, keep=3)
        model.learn(n_steps - model.num_timesteps, callback=callback, reset_num_timesteps=n_steps == 16)
        assert latest_checkpoint(tmp_path).name == f"ppg_model_{n_steps}_steps.zip"
        assert steps(tmp_path) == {*range(max(8, n_steps - 16), n_steps + 8, 8)}


def test_a_model_is_saved_where_a_link_leads_and_stays_as_readable(tmp_path):
    (tmp_path / "real.zip").write_text("before")
    (tmp_path / "real.zip").chmod(0o600)
    (tmp_path / "latest.zip").symlink_to("real.zip")
    small().save(tmp_path / "latest.zip")
    assert (tmp_path / "latest.zip").is_symlink() and (tmp_path / "real.zip").stat().st_mode & 0o777 == 0o600
    PPG.load(tmp_path / "real.zip", device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.zip", "real.zip"]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        ("on_aux_phase_start", None),
        ("on_aux_phase_end", None),
        ("on_aux_epoch_end", NonFiniteError("a number")),
        ("on_aux_phase_end", KeyboardInterrupt()),
    ],
)
def test_files_that_are_saved_within_an_auxiliary_phase_or_after_its_error_can_be_read(event, error, tmp_path):
    """Without an error they repeat the phase; after one, the phase is over."""
    model, found = small(), []

    def save(model: PPG) -> None:
        found.append(saved_and_loaded(model, tmp_path, make_vec_env("CartPole-v1")))

    with nullcontext() if error is None else pytest.raises(type(error)):
        model.learn(8 * 3, callback=calls_at(event, 24, save if error is None else Mock(side_effect=error)))
    if error is not None:
        save(model)
    (loaded,) = found
    assert len(loaded.aux_buffer) == (loaded.n_policy_iterations if error is None else 0)
    loaded.learn(8, reset_num_timesteps=False)
    assert len(loaded.aux_buffer) == (0 if error is None else 1)


NOT_FINITE = {
    "weight": lambda model: next(model.policy.parameters()).data[0].fill_(np.nan),
    "moment": lambda model: next(iter(model.policy.optimizer.state.values()))["exp_avg"].fill_(np.inf),
    "statistic": lambda model: model.get_vec_normalize_env().obs_rms.var.fill(np.nan),
    "stored sample": lambda model: model.aux_buffer.rollouts[0].arrays["observations"][0, 3].fill(np.inf),
}


@pytest.mark.parametrize("spoil", NOT_FINITE.values(), ids=NOT_FINITE)
def test_a_state_that_is_not_finite_does_not_replace_a_checkpoint(tmp_path, spoil):
    model = small(env=VecNormalize(make_vec_env("CartPole-v1")))
    callback = PhasicCheckpointCallback(100, tmp_path, keep=1)
    model.learn(8 * 2, callback=callback)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    callback.num_timesteps = model.num_timesteps = 24
    spoil(model)
    with pytest.warns(UserWarning, match=r"ppg_model_24_steps\.zip is not written: .* is not finite"):
        callback.save()
    with pytest.raises(NonFiniteError, match="is not finite"):
        model.save_aux_buffer(aux_buffer_path(latest_checkpoint(tmp_path)))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("event", "n_steps", "whole"), [("_on_step", 13, 8), ("on_aux_epoch_end", 24, 16)])
def test_an_error_in_an_iteration_leaves_the_checkpoint_before_it(event, n_steps, whole, tmp_path):
    """RL Zoo also tells callbacks that such a training has ended."""
    callback, model = PhasicCheckpointCallback(1, tmp_path, keep=1), small()
    with pytest.raises(OSError):
        model.learn(100, callback=[callback, calls_at(event, n_steps, Mock(side_effect=OSError))])
    callback.on_training_end()
    assert model.num_timesteps > whole and steps(tmp_path) == {whole}
    resumed(tmp_path).learn(8, reset_num_timesteps=False, callback=callback)
    assert steps(tmp_path) == {whole + 8}


def test_without_its_rollouts_a_phase_is_not_saved_and_starts_over(tmp_path):
    """Its file could not be read."""
    small(objective="decoupled", replay_kwargs=dict(policy_rollouts=2)).learn(16).save(tmp_path / "model")
    model = PPG.load(tmp_path / "model", env=make_vec_env("CartPole-v1"), device="cpu")
    with pytest.raises(FileNotFoundError):
        model.load_aux_buffer(tmp_path / "elsewhere.npz")
    with pytest.raises(ArgumentError, match=r"saved in the middle of a phase.*2.*load_aux_buffer"):
        model.save_aux_buffer(tmp_path / "buffer.npz")
    assert not (tmp_path / "buffer.npz").exists()
    with pytest.warns(UserWarning, match="starts over, without 2 of the 3 rollouts of a phase: `save_aux_buffer` and"):
        model.learn(8)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    model.save(tmp_path / "model")
    again = PPG.load(tmp_path / "model", env=make_vec_env("CartPole-v1"), device="cpu")
    again.load_aux_buffer(tmp_path / "buffer.npz")
    assert (len(again.aux_buffer), again.replay.n_stored) == (len(model.aux_buffer), model.replay.n_stored) != (0, 0)


def test_the_generators_are_where_they_were(tmp_path):
    model = small().learn(8)
    random.seed(1), np.random.seed(2), th.manual_seed(3)
    np.random.randn()  # half of a pair is kept
    model.save_aux_buffer(tmp_path / "buffer.npz")
    expected = (random.random(), np.random.randn(3).tolist(), th.randn(3).tolist())
    random.seed(4), np.random.seed(5), th.manual_seed(6)
    model.load_aux_buffer(tmp_path / "buffer.npz")
    assert (random.random(), np.random.randn(3).tolist(), th.randn(3).tolist()) == expected


def test_observations_on_a_disk_come_back_to_the_disk(tmp_path):
    """They are read one rollout after the other: memory may hold only one."""
    env = RandomEnv(spaces.Box(-1, 1, (20_000,)), spaces.Discrete(2))  # 640 kB in a rollout
    kwargs = dict(aux_buffer_kwargs=dict(storage="mmap", path=tmp_path / "disk"), policy_kwargs=dict(net_arch=[2]))
    model = small(env=env, n_policy_iterations=20, **kwargs).learn(8 * 15, callback=PhasicCheckpointCallback(15, tmp_path))
    checkpoint = latest_checkpoint(tmp_path)
    loaded = PPG.load(checkpoint, env=env, device="cpu")
    tracemalloc.start()
    loaded.load_aux_buffer(aux_buffer_path(checkpoint))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * model.aux_buffer.rollouts[0].arrays["observations"].nbytes
    for ours, theirs in zip(loaded.aux_buffer.rollouts, model.aux_buffer.rollouts, strict=True):
        mine, other = (rollout.arrays["observations"] for rollout in (ours, theirs))
        assert isinstance(mine.base, np.memmap) and np.array_equal(mine, other)
    loaded.learn(8 * 5, reset_num_timesteps=False)
    assert loaded.n_aux_phases == 1
    assert not list((tmp_path / "disk").iterdir())


def test_rollouts_for_which_there_is_no_room_are_not_loaded(tmp_path, monkeypatch):
    model, path = saved(tmp_path)
    before = model.aux_buffer
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(ArgumentError, match="only 100 are available"):
        model.load_aux_buffer(path)
    assert model.aux_buffer is before


def test_checkpoints_within_a_callback_that_does_not_pass_events_on_are_refused(tmp_path):
    model, env, checkpoints = small(), make_vec_env("CartPole-v1"), PhasicCheckpointCallback(1, tmp_path)
    for within in (
        EvalCallback(env, callback_after_eval=checkpoints),
        [EvalCallback(env, callback_on_new_best=checkpoints)],
        EveryNTimesteps(16, CallbackList([CallbackList([checkpoints])])),
    ):
        with pytest.raises(ArgumentError, match=r"PhasicCheckpointCallback cannot work inside of .*: give it to learn"):
            model.learn(64, callback=within)
    model.learn(16, callback=CallbackList([CallbackList([checkpoints])]))
    assert steps(tmp_path) == {8, 16}
