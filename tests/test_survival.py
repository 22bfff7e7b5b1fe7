"""Training that is stopped, killed or starved goes on as if nothing had happened, or says what is wrong."""

import copy
import errno
import io
import json
import multiprocessing
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile
import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)
from torch import nn

from sb3_ppg import (
    PPG,
    ArgumentError,
    MaskablePPG,
    ModelFormatError,
    NonFiniteLossError,
    NormalizedRewardRolloutBuffer,
    PhasicCheckpointCallback,
    RecurrentPPG,
    RewardNormalizer,
    aux_buffer_path,
    latest_checkpoint,
)
from sb3_ppg.errors import NonFiniteEnvironmentError, NonFiniteError, WorkerError
from sb3_ppg.hub import save_pretrained
from sb3_ppg.saving.files import replaced
from sb3_ppg.training.optimization import Losses, optimize_epoch
from sb3_ppg.training.watched_vec_env import statistics
from tests.helpers import MaskedEnv, RandomEnv, image_space

pytestmark = pytest.mark.slow

N_STEPS, N_ENVS, N_ITERATIONS = 8, 2, 7
ROLLOUT = N_STEPS * N_ENVS
DICT = spaces.Dict(a=image_space(1, 36, 36), b=spaces.Box(-1, 1, (2,)))
SMALL_CNN = dict(features_extractor_kwargs=dict(cnn_output_dim=4))


def discrete(space: spaces.Space | None = None, action_space: spaces.Space | None = None):
    space, action_space = space or spaces.Box(-1, 1, (3,)), action_space or spaces.Discrete(3)
    env = DummyVecEnv([lambda: RandomEnv(space, action_space, episode_length=5)] * N_ENVS)
    env.seed(0)
    return env


def masked():
    env = DummyVecEnv([MaskedEnv] * N_ENVS)
    env.seed(0)
    return env


SETTINGS = {
    "normalised observations and rewards": lambda: (VecNormalize(make_vec_env("Pendulum-v1", N_ENVS, seed=0)), {}),
    "dictionaries, two optimizers": lambda: (
        discrete(DICT),
        dict(policy="MultiInputPolicy", n_value_epochs=2, policy_kwargs=SMALL_CNN),
    ),
    "normalised dictionaries": lambda: (
        VecNormalize(discrete(DICT), norm_obs_keys=["b"]),
        dict(policy="MultiInputPolicy", policy_kwargs=SMALL_CNN),
    ),
    "gSDE": lambda: (discrete(action_space=spaces.Box(-1, 1, (2,))), dict(use_sde=True, sde_sample_freq=3)),
    "the authors' reward normaliser": lambda: (
        discrete(),
        dict(
            rollout_buffer_class=NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer()),
        ),
    ),
    "LSTMs": lambda: (
        VecNormalize(discrete()),
        dict(algorithm=RecurrentPPG, policy="MlpLstmPolicy", batch_size=8, policy_kwargs=dict(lstm_hidden_size=4)),
    ),
    "LSTMs, images, recomputed states": lambda: (
        discrete(DICT),
        dict(
            algorithm=RecurrentPPG,
            policy="MultiInputLstmPolicy",
            recompute_states=True,
            policy_kwargs=dict(lstm_hidden_size=4, **SMALL_CNN),
        ),
    ),
    "masks": lambda: (masked(), dict(algorithm=MaskablePPG)),
}


def make(setting: str) -> PPG:
    env, kwargs = SETTINGS[setting]()
    kwargs = {"policy": "MlpPolicy", "batch_size": 4, **kwargs}
    return kwargs.pop("algorithm", PPG)(
        env=env,
        learning_rate=LinearSchedule(1e-3, 0, 1),
        n_steps=N_STEPS,
        n_epochs=2,
        n_policy_iterations=3,
        n_aux_epochs=2,
        aux_batch_size=8,
        seed=0,
        device="cpu",
        **kwargs,
    )


class AtIteration(BaseCallback):
    """Does something when an iteration begins, the one before being over."""

    def __init__(self, iteration: int, do):
        super().__init__()
        self.iteration, self.do, self.n_rollouts = iteration, do, 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.n_rollouts == self.iteration:
            self.do(self.model)
        self.n_rollouts += 1


def reset_environments(model: PPG) -> None:
    model.env.seed(99)
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.n_envs, dtype=bool)


def everything(model: PPG) -> dict[str, th.Tensor]:
    """Parameters, moments, statistics, counters: what has to be equal in the end."""
    tensors = {f"policy {name}": value for name, value in model.policy.state_dict().items()}
    for name, optimizer in (
        ("policy", model.policy.optimizer),
        ("value", model.value_optimizer),
        ("aux", model.aux_optimizer),
    ):
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{name} optimizer {index} {key}": value for key, value in state.items()}
    if normalizer := model.get_vec_normalize_env():
        tensors["returns"] = th.as_tensor(normalizer.ret_rms.var)
    counters = (model.num_timesteps, model._n_aux_phases, model._n_updates, model._n_stored_rollouts)
    tensors["counters"] = th.tensor(counters)
    return {name: value.clone() for name, value in tensors.items()}


def go_on(folder: Path, setting: str, stops: list[int], n_threads: int, results) -> None:
    """In another process: each training, from its checkpoint to the end."""
    th.set_num_threads(n_threads)  # sums are rounded otherwise with more of them
    for stop in stops:
        fresh = make(setting)
        env = fresh.env
        checkpoint = latest_checkpoint(folder / str(stop))
        model = type(fresh).load(checkpoint, env=env, device="cpu")
        env.seed(99)
        model.load_aux_buffer(aux_buffer_path(checkpoint))
        model.learn(N_ITERATIONS * ROLLOUT - model.num_timesteps, reset_num_timesteps=False)
        th.save(everything(model), folder / f"{stop}.pt")
    results.put("done")


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_training_that_was_stopped_ends_where_it_would_have_ended(setting, tmp_path):
    """Stopped at each position of a phase (of 3), continued in a new process: equal, parameter for parameter."""
    stops = [1, 2, 3, 5]
    expected = {}
    for stop in stops:
        model = make(setting).learn(N_ITERATIONS * ROLLOUT, callback=AtIteration(stop, reset_environments))
        expected[stop] = everything(model)

        def stop_it(model):
            raise KeyboardInterrupt

        checkpoints = PhasicCheckpointCallback(1, tmp_path / str(stop))
        with pytest.raises(KeyboardInterrupt):
            make(setting).learn(N_ITERATIONS * ROLLOUT, callback=[checkpoints, AtIteration(stop, stop_it)])
    run_in_a_new_process(go_on, tmp_path, setting, stops, th.get_num_threads())
    for stop in stops:
        resumed = th.load(tmp_path / f"{stop}.pt")
        assert resumed.keys() == expected[stop].keys()
        for name, value in expected[stop].items():
            assert th.equal(resumed[name], value), f"stopped at {stop}: {name}"
    assert any(not th.equal(expected[1][name], expected[2][name]) for name in expected[1])


# ---- checkpoints ----


def small(**kwargs) -> PPG:
    arguments = dict(n_steps=8, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, aux_batch_size=8, seed=0, device="cpu")
    return PPG("MlpPolicy", **{"env": "CartPole-v1", **arguments, **kwargs})


def steps(folder: Path) -> set[int]:
    names = {path.name for path in folder.iterdir()}
    found = {int(name.split("_")[2]) for name in names if name.endswith(".zip")}
    assert names == {f"ppg_model_{n}_steps{suffix}" for n in found for suffix in (".zip", ".aux_buffer.npz")}
    return found


def test_checkpoints_are_saved_between_iterations_and_at_the_end(tmp_path):
    small().learn(8 * 7, callback=PhasicCheckpointCallback(2, tmp_path / "a"))
    assert steps(tmp_path / "a") == {16, 32, 48, 56}
    small().learn(8 * 6, callback=PhasicCheckpointCallback(3, tmp_path / "b", keep=1, name_prefix="ppg_model"))
    assert steps(tmp_path / "b") == {48}
    assert latest_checkpoint(tmp_path / "a").name == "ppg_model_56_steps.zip"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint named other_\.\.\._steps.zip"):
        latest_checkpoint(tmp_path / "a", "other")
    with pytest.raises(ArgumentError, match="save_freq=0"):
        PhasicCheckpointCallback(0, tmp_path)


def test_a_second_shorter_run_keeps_its_own_checkpoints(tmp_path):
    """Not those with the most steps: they are the first run's, and stay."""
    small().learn(8 * 6, callback=PhasicCheckpointCallback(1, tmp_path, keep=2))
    assert steps(tmp_path) == {40, 48}
    second = small(seed=1).learn(8 * 3, callback=PhasicCheckpointCallback(1, tmp_path, keep=2))
    assert steps(tmp_path) == {16, 24, 40, 48}
    assert latest_checkpoint(tmp_path).name == "ppg_model_24_steps.zip"

    checkpoint = latest_checkpoint(tmp_path)  # a run that goes on in another process is the same run
    resumed = PPG.load(checkpoint, env=make_vec_env("CartPole-v1"), device="cpu")
    resumed.load_aux_buffer(aux_buffer_path(checkpoint))
    assert same(resumed, second)
    resumed.learn(8, callback=PhasicCheckpointCallback(1, tmp_path, keep=2), reset_num_timesteps=False)
    assert steps(tmp_path) == {24, 32, 40, 48}
    resumed.learn(8 * 2, callback=PhasicCheckpointCallback(1, tmp_path, keep=1))  # from the beginning: another run
    assert steps(tmp_path) == {16, 24, 32, 40, 48}
    assert latest_checkpoint(tmp_path).name == "ppg_model_16_steps.zip"


def test_the_latest_checkpoint_is_that_also_of_a_copy(tmp_path):
    """Whatever the copies' times of modification. (Files that do not say when they were written go by those.)"""
    small().learn(8 * 4, callback=PhasicCheckpointCallback(2, tmp_path / "a"))
    small().learn(8 * 2, callback=PhasicCheckpointCallback(1, tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    for number, path in enumerate(sorted((tmp_path / "b").glob("*.zip"))):
        os.utime(path, (number, number))
    assert latest_checkpoint(tmp_path / "b").name == latest_checkpoint(tmp_path / "a").name == "ppg_model_16_steps.zip"
    for number, name in enumerate(["ppg_model_9_steps.zip", "ppg_model_3_steps.zip", "ppg_model_5_steps.zip"]):
        (tmp_path / name).write_text("none")
        os.utime(tmp_path / name, (number, number))
    assert latest_checkpoint(tmp_path).name == "ppg_model_5_steps.zip"
    for path in tmp_path.glob("*.zip"):
        os.utime(path, (1, 1))
    assert latest_checkpoint(tmp_path).name == "ppg_model_9_steps.zip"


def test_files_of_two_runs_do_not_make_a_checkpoint(tmp_path):
    """All their counters are equal."""
    for run in ("a", "b"):
        small(seed=ord(run)).learn(16, callback=PhasicCheckpointCallback(2, tmp_path / run))
    model = PPG.load(latest_checkpoint(tmp_path / "a"), env=make_vec_env("CartPole-v1"), device="cpu")
    with pytest.raises(ModelFormatError, match="does not belong to this model: its checkpoint is"):
        model.load_aux_buffer(aux_buffer_path(latest_checkpoint(tmp_path / "b")))
    model.load_aux_buffer(aux_buffer_path(latest_checkpoint(tmp_path / "a")))


def spoil_weights(model: PPG) -> None:
    next(model.policy.parameters()).data[0, 0] = np.nan


def spoil_moments(model: PPG) -> None:
    next(iter(model.policy.optimizer.state.values()))["exp_avg"][:] = np.inf


def spoil_statistics(model: PPG) -> None:
    model.get_vec_normalize_env().obs_rms.var[2] = np.nan


def spoil_rollouts(model: PPG) -> None:
    model.aux_buffer.observations[0][0, 3, 1] = np.inf


@pytest.mark.parametrize("spoil", [spoil_weights, spoil_moments, spoil_statistics, spoil_rollouts])
def test_a_state_that_is_not_finite_does_not_replace_a_checkpoint(tmp_path, spoil):
    model = PPG("MlpPolicy", VecNormalize(make_vec_env("CartPole-v1")), n_steps=8, batch_size=8, seed=0, device="cpu")
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


def test_a_checkpoint_counts_on_when_training_goes_on(tmp_path):
    model = small().learn(24)
    callback = PhasicCheckpointCallback(1, tmp_path, verbose=2)
    model.learn(16, reset_num_timesteps=False, callback=callback)
    assert steps(tmp_path) == {32, 40}


def test_without_its_file_the_phase_starts_over_and_says_so(tmp_path):
    small().learn(8 * 2, callback=PhasicCheckpointCallback(1, tmp_path))
    model = PPG.load(latest_checkpoint(tmp_path), env=make_vec_env("CartPole-v1"), device="cpu")
    with pytest.raises(FileNotFoundError):
        model.load_aux_buffer(tmp_path / "elsewhere.npz")
    with pytest.warns(UserWarning, match="2 of the 3 rollouts of a phase.*starts over"):
        model.learn(8, reset_num_timesteps=False)


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
    """One rollout after the other: memory is for one of them."""
    space = spaces.Box(-1, 1, (20_000,))  # 640 kB in a rollout
    storage = dict(storage="mmap", path=tmp_path / "disk")
    arguments = dict(n_steps=8, batch_size=8, n_policy_iterations=20, n_aux_epochs=1, seed=0, device="cpu")
    kwargs = dict(aux_buffer_kwargs=storage, policy_kwargs=dict(net_arch=[2]))
    model = PPG("MlpPolicy", RandomEnv(space, spaces.Discrete(2)), **arguments, **kwargs)
    model.learn(8 * 15, callback=PhasicCheckpointCallback(15, tmp_path))
    checkpoint = latest_checkpoint(tmp_path)
    resumed = PPG.load(checkpoint, env=RandomEnv(space, spaces.Discrete(2)), device="cpu")
    tracemalloc.start()
    resumed.load_aux_buffer(aux_buffer_path(checkpoint))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    rollout = model.aux_buffer.observations[0].nbytes
    assert peak < 5 * rollout
    for ours, theirs in zip(resumed.aux_buffer.observations, model.aux_buffer.observations, strict=True):
        assert isinstance(ours.base, np.memmap) and np.array_equal(ours, theirs)
    resumed.learn(8 * 5, reset_num_timesteps=False)
    assert resumed._n_aux_phases == 1
    assert not list((tmp_path / "disk").iterdir())


@pytest.mark.parametrize("storage", [None, dict(storage="mmap")])
def test_rollouts_for_which_there_is_no_room_are_not_loaded(tmp_path, monkeypatch, storage):
    model, path = saved(tmp_path, aux_buffer_kwargs=storage)
    before = model.aux_buffer
    room = SimpleNamespace(available=100, free=100)
    monkeypatch.setattr("psutil.virtual_memory", lambda: room)
    monkeypatch.setattr("shutil.disk_usage", lambda path: room)
    with pytest.raises(ArgumentError, match="only 100 are available"):
        model.load_aux_buffer(path)
    assert model.aux_buffer is before


# ---- files ----


def saved(folder: Path, n_rollouts: int = 2, **kwargs) -> tuple[PPG, Path]:
    model = small(**kwargs).learn(8 * n_rollouts)
    model.save_aux_buffer(folder / "buffer.npz")
    return model, folder / "buffer.npz"


def test_damaged_files_are_refused(tmp_path):
    """Truncated anywhere, a byte flipped anywhere: an error that names the file, and the model is as before."""
    model, path = saved(tmp_path)
    content = path.read_bytes()
    before = [targets.copy() for targets in model.aux_buffer.value_targets]
    damaged = tmp_path / "damaged.npz"
    with zipfile.ZipFile(path) as file:  # the arrays' own bytes; the zip's padding is nobody's
        spans = [(info.header_offset + 30 + len(info.filename) + 20, info.file_size) for info in file.infolist()]
    flips = [start + size // 2 for start, size in spans]
    for position in flips:
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        damaged.write_bytes(flipped)
        with pytest.raises(ModelFormatError, match=r"damaged.npz"):
            model.load_aux_buffer(damaged)
    for length in np.linspace(0, len(content) - 1, 20).astype(int):
        damaged.write_bytes(content[:length])
        with pytest.raises(ModelFormatError, match=r"damaged.npz"):
            model.load_aux_buffer(damaged)
    for ours, theirs in zip(model.aux_buffer.value_targets, before, strict=True):
        assert np.array_equal(ours, theirs)
    model.load_aux_buffer(path)


def rewrite(path: Path, **arrays) -> None:
    """The npz with other arrays in the place of some."""
    with np.load(path) as file:
        before = {name: file[name] for name in file.files}
    np.savez(path, **{**before, **{name.replace("__", "/"): array for name, array in arrays.items()}})


def described(path: Path, **changes) -> np.ndarray:
    with np.load(path) as file:
        description = json.loads(file["description"].tobytes())
    description = {name: value for name, value in {**description, **changes}.items() if value is not ...}
    return np.frombuffer(json.dumps(description).encode(), dtype=np.uint8)


WORDS = list(range(1, 625))


@pytest.mark.parametrize(
    "state",
    [
        *(dict(numpy__rest=np.array(rest)) for rest in ([1e8, 0, 0], [700.0, 0, 0], [-1.0, 0, 0], [3.5, 0, 0], [np.nan] * 3)),
        dict(numpy__keys=np.zeros(624, dtype=np.uint32)),
        *(dict(python=[version, words, None]) for version, words in ((2, [*WORDS, 1]), (3, WORDS), (3, [*WORDS, 625]))),
        *(
            dict(python=python)
            for python in (None, 3, [3, [*WORDS[1:], -1, 1], None], [3, [*WORDS, 1], "0"], [3, [0.0] * 625, None])
        ),
        dict(torch__cpu=np.zeros(5056, dtype=np.uint8)),
        dict(torch_next=624),
    ],
)
def test_generators_are_not_put_into_states_that_cannot_be(tmp_path, state):
    """NumPy would read, and torch, too, memory that is not its own, or end the process."""
    model, path = saved(tmp_path)
    if "torch_next" in state:
        numbers = th.get_rng_state().numpy().copy()
        numbers[8:12] = np.frombuffer((624).to_bytes(4, "little"), dtype=np.uint8)  # as many left as there are
        numbers[16:24] = np.frombuffer((624).to_bytes(8, "little"), dtype=np.uint8)  # and at the end
        state = dict(torch__cpu=numbers)
    rewrite(path, **(dict(description=described(path, **state)) if "python" in state else state))
    states = random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()
    before = model.aux_buffer
    with pytest.raises(ModelFormatError, match=r"buffer\.npz is damaged.* generator is none that it can be in"):
        model.load_aux_buffer(path)
    assert model.aux_buffer is before
    assert (random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()) == states


def bad_statistics(**changes) -> dict[str, np.ndarray]:
    return {f"normalize__obs_rms__{part}": np.asarray(value, dtype=np.float64) for part, value in changes.items()}


@pytest.mark.parametrize(
    "arrays",
    [
        bad_statistics(mean=[0, np.nan, 0, 0]),
        bad_statistics(var=[1, -1, 1, 1]),
        bad_statistics(var=[1, np.inf, 1, 1]),
        bad_statistics(count=0),
        bad_statistics(count=np.nan),
        dict(value_targets__1=np.full((1, 8), np.nan, dtype=np.float32)),
        dict(observations__1__=np.full((1, 8, 4), np.inf, dtype=np.float32)),
        dict(trojan=np.zeros(3)),
    ],
)
def test_numbers_that_cannot_be_are_refused_and_change_nothing(tmp_path, arrays):
    model = small(env=VecNormalize(make_vec_env("CartPole-v1"))).learn(16)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    rewrite(tmp_path / "buffer.npz", **arrays)
    before, numbers = model.aux_buffer, numbers_of(model.get_vec_normalize_env())
    random_state = random.getstate()
    random.seed(0)
    with pytest.raises(ModelFormatError, match=r"numbers that cannot be|it has 'trojan'"):
        model.load_aux_buffer(tmp_path / "buffer.npz")
    random.setstate(random_state)
    assert model.aux_buffer is before
    assert all(
        np.array_equal(one, other) for one, other in zip(numbers_of(model.get_vec_normalize_env()), numbers, strict=True)
    )


def test_an_environment_that_was_normalised_has_to_be_again(tmp_path):
    model = small(env=VecNormalize(make_vec_env("CartPole-v1"))).learn(16)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    with pytest.raises(ModelFormatError, match=r"Was its environment in VecNormalize\?"):
        small().learn(16).load_aux_buffer(tmp_path / "buffer.npz")


def test_contexts_that_no_rollout_has_are_refused(tmp_path):
    for model, arrays in (
        (
            MaskablePPG("MlpPolicy", masked(), n_steps=8, batch_size=8),
            dict(context__0__action_masks=np.zeros((2, 8, 5), bool)),
        ),
        (
            RecurrentPPG("MlpLstmPolicy", discrete(), n_steps=8, batch_size=8),
            dict(context__0__episode_starts=np.full((2, 8), 0.5, np.float32)),
        ),
        (
            PPG("MlpPolicy", discrete(spaces.Discrete(3)), n_steps=8, batch_size=8),
            dict(observations__0__=np.full((2, 8, 1), 3)),
        ),
    ):
        model.learn(16)
        model.save_aux_buffer(tmp_path / "buffer.npz")
        model.load_aux_buffer(tmp_path / "buffer.npz")
        rewrite(tmp_path / "buffer.npz", **arrays)
        with pytest.raises(ModelFormatError, match="has numbers that cannot be"):
            model.load_aux_buffer(tmp_path / "buffer.npz")


def test_files_of_before_are_read(tmp_path):
    """Which do not say from which checkpoint they are, nor whose class it was."""
    model, path = saved(tmp_path)
    rewrite(path, description=described(path, checkpoint=...))
    model.load_aux_buffer(path)
    model.save(tmp_path / "model.zip")
    before = change_data(
        tmp_path / "model.zip", lambda data: data.update(_saved_by=data["_saved_by"][:3]) or data.pop("_guard")
    )
    assert same(PPG.load(before), model)


@pytest.mark.parametrize("changes", [dict(n_stored_rollouts=2.0), dict(n_envs=True), dict(surprise=1), dict(n_steps=...)])
def test_a_description_is_taken_to_the_letter(tmp_path, changes):
    model, path = saved(tmp_path)
    rewrite(path, description=described(path, **changes))
    with pytest.raises(ModelFormatError, match=r"buffer\.npz (does not belong|is damaged)"):
        model.load_aux_buffer(path)


def test_what_is_no_file_is_not_opened(tmp_path):
    model = small()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ModelFormatError, match=f"{path} is no file with content"):
            model.load_aux_buffer(path)
        with pytest.raises(ModelFormatError, match=f"{path} is no file with content"):
            PPG.load(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    model, _ = saved(tmp_path)
    other = tmp_path / "other.npz"
    np.savez(other, x=np.zeros(3))
    with pytest.raises(ModelFormatError, match=r"other.npz is damaged, or no auxiliary buffer"):
        model.load_aux_buffer(other)
    model.save(tmp_path / "model.zip")
    with pytest.raises(ModelFormatError, match=r"model.zip"):
        model.load_aux_buffer(tmp_path / "model.zip")
    np.savez(other, description=np.array([object()], dtype=object))
    with pytest.raises(ModelFormatError, match=r"other.npz"):  # never unpickled
        model.load_aux_buffer(other)


def test_a_newer_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sb3_ppg.saving.training_state.FORMAT_VERSION", 2)
    model, path = saved(tmp_path)
    monkeypatch.undo()
    with pytest.raises(ModelFormatError, match="version 2 of its format, this sb3_ppg reads 1"):
        model.load_aux_buffer(path)


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda: small(n_steps=4, aux_batch_size=8).learn(16), "n steps is 8, the model's 4"),
        (lambda: small().learn(8), "num timesteps is 16, the model's 8"),
        (lambda: small(n_policy_iterations=2).learn(16), "n aux phases is 0, the model's 1"),
    ],
)
def test_another_models_file_is_refused(tmp_path, other, message):
    _, path = saved(tmp_path)
    with pytest.raises(ModelFormatError, match=f"buffer.npz does not belong to this model: its {message}"):
        other().load_aux_buffer(path)


def test_other_observations_are_refused(tmp_path):
    _, path = saved(tmp_path)
    acrobot = small()
    acrobot = PPG("MlpPolicy", "Acrobot-v1", n_steps=8, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, device="cpu")
    acrobot.learn(16)
    with pytest.raises(ModelFormatError, match=r"observations/0/ is float32 \(1, 8, 4\), not float32 \(1, 8, 6\)"):
        acrobot.load_aux_buffer(path)


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "folder" / "file"
    with replaced(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(RuntimeError), replaced(path) as temporary:
        temporary.write_text("two")
        raise RuntimeError
    assert path.read_text() == "one" and list(path.parent.iterdir()) == [path]


def test_leftovers_of_processes_that_were_killed_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".model.zip.{dead.pid}.tmp").write_text("half")
    (tmp_path / f".model.zip.{os.getppid()}.tmp").write_text("somebody is writing this")
    small().save(tmp_path / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"model.zip", f".model.zip.{os.getppid()}.tmp"}


def fill_the_disk(folder: Path, results) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    model = small().learn(8)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))  # as a full disk, writing fails half-way
    messages = {}
    for name, save in (
        ("model.zip", model.save),
        ("model.aux_buffer.npz", model.save_aux_buffer),
        ("shared", partial(save_pretrained, model)),
    ):
        try:
            save(folder / name)
        except Exception as error:
            messages[name] = str(error)
    results.put(messages)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    model = small().learn(8 * 2)
    model.save(tmp_path / "model.zip")
    model.save_aux_buffer(tmp_path / "model.aux_buffer.npz")
    save_pretrained(model, tmp_path / "shared")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    messages = run_in_a_new_process(fill_the_disk, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert messages.keys() == {"model.zip", "model.aux_buffer.npz", "shared"}
    for name, message in messages.items():
        assert re.search(
            rf"{name}.* could not be written: {os.strerror(errno.EFBIG)}; what was there .* is as it was", message
        )


# ---- damaged models ----


@pytest.fixture(scope="module")
def model_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.zip"
    small(policy_kwargs=dict(net_arch=[4])).learn(8 * 2).save(path)
    return path


def same(one: PPG, other: PPG) -> bool:
    ours, theirs = everything(one), everything(other)
    return ours.keys() == theirs.keys() and all(th.equal(ours[name], theirs[name]) for name in ours)


def test_a_model_is_whole_or_refused_whatever_byte_is_flipped(model_file, tmp_path):
    """Bytes that carry nothing, such as a date in the archive, may be anything."""
    model, content = PPG.load(model_file), model_file.read_bytes()
    rng = np.random.default_rng(0)
    directory = len(content) - 2000  # where the archive's table of contents is
    places = [*rng.integers(len(content), size=100), *rng.integers(directory, len(content), size=100)]
    bad, refused = tmp_path / "bad.zip", 0
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        bad.write_bytes(flipped)
        before = small(policy_kwargs=dict(net_arch=[4]))
        loaded = copy.deepcopy(before.policy.state_dict())
        try:
            assert same(PPG.load(bad), model)
            before.set_parameters(str(bad))
        except ModelFormatError as error:
            assert f"{bad} is damaged" in str(error)
            with pytest.raises(ModelFormatError, match="is damaged"):
                before.set_parameters(str(bad))
            assert all(th.equal(value, loaded[name]) for name, value in before.policy.state_dict().items())
            refused += 1
    assert refused > 120


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_refused(model_file, tmp_path, part):
    content = model_file.read_bytes()
    (tmp_path / "bad.zip").write_bytes(content[: int(part * len(content))])
    with pytest.raises(ModelFormatError, match=r"bad\.zip is damaged, or no model's file"):
        PPG.load(tmp_path / "bad")
    with pytest.raises(ModelFormatError, match="is damaged"):
        PPG.load(io.BytesIO(content[: int(part * len(content))]))
    assert PPG.load(io.BytesIO(content)).num_timesteps == 16


def test_another_classs_model_is_refused(model_file, tmp_path):
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8).save(tmp_path / "ppo")
    with pytest.raises(ModelFormatError, match=r"ppo\.zip is another class's file: it does not say"):
        PPG.load(tmp_path / "ppo")
    recurrent = RecurrentPPG("MlpLstmPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    recurrent.save(tmp_path / "recurrent")
    with pytest.raises(ModelFormatError, match=r"recurrent\.zip is another class's file: it was saved by RecurrentPPG"):
        PPG.load(tmp_path / "recurrent.zip")
    with pytest.raises(ModelFormatError, match=r"it was saved by PPG, not by MaskablePPG; use PPG\.load"):
        MaskablePPG.load(model_file)
    before = copy.deepcopy(recurrent.policy.state_dict())
    with pytest.raises(ModelFormatError, match="it was saved by PPG, not by RecurrentPPG"):
        recurrent.set_parameters(str(model_file))
    assert all(th.equal(value, before[name]) for name, value in recurrent.policy.state_dict().items())

    assert type(Mine.load(model_file)) is Mine


class Mine(PPG):
    """Somebody's algorithm."""


class Others(PPG):
    """Somebody else's."""


def test_a_users_class_is_loaded_by_itself(model_file, tmp_path):
    Mine("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "mine.zip")
    assert type(Mine.load(tmp_path / "mine")) is Mine

    class Further(Mine):
        """Derived from it."""

    assert type(Further.load(tmp_path / "mine.zip")) is Further
    name = r"tests\.test_survival\.Mine"
    for cls in (PPG, Others):
        with pytest.raises(ModelFormatError, match=rf"it was saved by {name}, which is derived from PPG; use {name}\.load"):
            cls.load(tmp_path / "mine.zip")
    with pytest.raises(ModelFormatError, match=rf"it was saved by {name}, not by RecurrentPPG; use {name}\.load"):
        RecurrentPPG.load(tmp_path / "mine.zip")
    elsewhere = type("Mine", (PPG,), {"__module__": "another_script", "__qualname__": "Mine"})  # it was __main__, say
    assert type(elsewhere.load(tmp_path / "mine.zip")) is elsewhere


@pytest.mark.parametrize("other", [PPO, A2C, DQN, MaskablePPO, RecurrentPPO])
def test_other_algorithms_are_told_what_loads_our_file(model_file, tmp_path, other):
    with pytest.raises(ModelFormatError, match=r"file of sb3_ppg\.PPG, .*use sb3_ppg\.PPG\.load"):
        other.load(model_file)
    Mine("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu").save(tmp_path / "mine.zip")
    with pytest.raises(ModelFormatError, match=r"use tests\.test_survival\.Mine\.load"):
        other.load(tmp_path / "mine.zip")
    assert not {"_guard", "_saved_by"} & vars(PPG.load(model_file)).keys()


def test_what_to_do_with_a_file_of_ppo_works(tmp_path):
    ppo = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    ppo.save(tmp_path / "ppo.zip")
    with pytest.raises(ModelFormatError, match=r"model\.policy\.load_state_dict\(PPO\.load\(path\)\.policy\.state_dict\(\)"):
        PPG.load(tmp_path / "ppo.zip")
    model = PPG("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8)
    model.policy.load_state_dict(PPO.load(tmp_path / "ppo.zip").policy.state_dict(), strict=False)
    observations = np.random.default_rng(0).normal(size=(20, 4))
    assert np.array_equal(model.predict(observations, deterministic=True)[0], ppo.predict(observations, deterministic=True)[0])


def change_data(path: Path, change, **more: bytes) -> Path:
    """A copy of a model's file, with another description."""
    bad = path.with_name("changed.zip")
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(bad, "w") as changed:
        data = json.loads(archive.read("data"))
        change(data)
        contents = {name: archive.read(name) for name in archive.namelist()}
        for name, content in {**contents, "data": json.dumps(data).encode(), **more}.items():
            changed.writestr(name, content)
    return bad


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            3,
            "PPG",
            [],
            {},
            ["PPG"],
            ["PPG", "1", []],
            ["PPG", 1, 5],
            ["PPG", 1, [5]],
            ["PPG", 1, [], 5],
            [["PPG"], 1, []],
        ),
        *(
            ["PPG", True, []],
            ["PPG", 1.0, []],
            ["PPG", 1, [], None, None],
            ["PPG", 1, ["\x1b[2J\ud800"]],
            ["\x1b[31m\n", 1, []],
        ),
        *(["PPG", 1, [], "\x1b[2Jtrojan"], ["PPG", 1, ["policy"] * 50, "\u202e"]),
    ],
)
def test_whatever_a_file_says_that_saved_it(model_file, value):
    bad = change_data(model_file, lambda data: data.update(_saved_by=value))
    with pytest.raises(ModelFormatError, match=r"changed\.zip") as error:
        PPG.load(bad)
    assert str(error.value).isprintable()


def compressed(path: Path, name: str, content: bytes) -> Path:
    """A copy of an archive, with one more member."""
    bomb = path.with_name("bomb.zip")
    shutil.copyfile(path, bomb)
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return bomb


def test_archives_that_unpack_to_very_much_are_refused(model_file, tmp_path):
    tracemalloc.start()
    zeros, before = bytes(2**27), tracemalloc.get_traced_memory()[0]
    with pytest.raises(ModelFormatError, match=r"bomb\.zip .* it is compressed"):
        PPG.load(compressed(model_file, "another", zeros))
    with zipfile.ZipFile(model_file) as archive:
        (tmp_path / "policy.pth").write_bytes(archive.read("policy.pth"))
    inner = compressed(tmp_path / "policy.pth", "archive/data/999", zeros).read_bytes()
    with pytest.raises(ModelFormatError, match=r"changed\.zip .* it is compressed"):
        PPG.load(change_data(model_file, lambda data: None, **{"policy.pth": inner}))
    with pytest.raises(ModelFormatError, match="more than 1048576 values"):
        PPG.load(change_data(model_file, lambda data: None, data=b"[" + b"[]," * 2**20 + b"[]]"))
    _, path = saved(tmp_path)
    with pytest.raises(ModelFormatError, match="it has 'bomb', which this model does not need"):
        small().learn(16).load_aux_buffer(compressed(path, "bomb.npy", zeros))
    peak = tracemalloc.get_traced_memory()[1] - before - len(zeros)
    tracemalloc.stop()
    assert peak < 2**26


def test_a_member_that_is_longer_than_it_claims_is_not_unpacked(tmp_path):
    model, path = saved(tmp_path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "numpy/keys.npy"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, content in members.items():
            archive.writestr(one, content + bytes(2**27) if one == name else content)
        archive.getinfo(name).file_size, archive.getinfo(name).CRC = len(members[name]), zlib.crc32(members[name])
    tracemalloc.start()
    model.load_aux_buffer(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_settings_may_be_numpys(tmp_path):
    model = small(n_steps=np.int64(8)).learn(16)
    model.save_aux_buffer(tmp_path / "buffer.npz")
    model.load_aux_buffer(tmp_path / "buffer.npz")


def test_loading_leaves_the_generators_alone_unless_asked(model_file):
    def states():
        return random.getstate(), np.random.get_state()[1:], th.get_rng_state()

    def equal(one, other):
        return one[0] == other[0] and np.array_equal(one[1][0], other[1][0]) and th.equal(one[2], other[2])

    before = states()
    PPG.load(model_file, env=make_vec_env("CartPole-v1"))
    assert equal(states(), before)
    with pytest.raises(ValueError, match="spaces do not match"):
        PPG.load(model_file, env=make_vec_env("Acrobot-v1"))
    assert equal(states(), before)
    PPG.load(model_file, seed=7)
    assert not equal(states(), before)
    asked = states()
    PPG.load(model_file, seed=7)
    assert equal(states(), asked)


def test_what_was_checked_is_what_is_loaded(model_file, tmp_path, monkeypatch):
    """Another file takes its place meanwhile."""
    path = tmp_path / "model.zip"
    shutil.copyfile(model_file, path)

    original = BaseAlgorithm.load.__func__

    def load(cls, *args, **kwargs):
        small(policy_kwargs=dict(net_arch=[8])).save(path)
        return original(cls, *args, **kwargs)

    expected = PPG.load(model_file)
    monkeypatch.setattr(BaseAlgorithm, "load", classmethod(load))
    assert same(PPG.load(path), expected)


def test_a_newer_or_incomplete_model_is_refused(model_file, tmp_path, monkeypatch):
    with zipfile.ZipFile(model_file) as archive, zipfile.ZipFile(tmp_path / "without.zip", "w") as without:
        for name in archive.namelist():
            if name != "aux_optimizer.pth":
                without.writestr(name, archive.read(name))
    with pytest.raises(ModelFormatError, match=r"without\.zip is damaged: it has no aux_optimizer\.pth"):
        PPG.load(tmp_path / "without.zip")
    monkeypatch.setattr("sb3_ppg.saving.model_file.FORMAT_VERSION", 2)
    small().save(tmp_path / "newer.zip")
    monkeypatch.undo()
    with pytest.raises(ModelFormatError, match=r"newer\.zip has version 2 of its format, this sb3_ppg reads 1"):
        PPG.load(tmp_path / "newer.zip")
    with pytest.raises(FileNotFoundError):
        PPG.load(tmp_path / "none.zip")


def test_parameters_that_do_not_fit_change_nothing(model_file):
    """SB3 would have copied those that do."""
    model = small(policy_kwargs=dict(net_arch=[4, 4])).learn(8 * 3)
    before = everything(model)
    with pytest.raises((RuntimeError, ValueError)):
        model.set_parameters(str(model_file))
    assert all(th.equal(value, before[name]) for name, value in everything(model).items())


# ---- killed ----


def train_on(folder: Path) -> None:
    """From the latest checkpoint, saving another after each iteration, for ever."""
    env = make_vec_env("CartPole-v1")
    model = small()
    if any(folder.glob("*.zip")):
        checkpoint = latest_checkpoint(folder)
        model = PPG.load(checkpoint, env=env, device="cpu")
        model.load_aux_buffer(aux_buffer_path(checkpoint))
        assert checkpoint.name == f"ppg_model_{model.num_timesteps}_steps.zip"
    model.learn(10**6, callback=PhasicCheckpointCallback(1, folder, keep=2), reset_num_timesteps=False)


def kill_often(folder: Path, results) -> None:
    """
    A process that has everything imported forks trainings. It kills each a random while after its first checkpoint, or, each
    second one, when it sees it write. It goes by what they do, not by the clock: the machine may be busy.
    """
    th.set_num_threads(1)
    small().learn(8 * 3, callback=PhasicCheckpointCallback(1, folder / "warm-up"))  # what is imported late
    last, halves = 0, 0
    for number, delay in enumerate(np.random.default_rng(0).uniform(0.0, 0.2, size=50)):
        checkpoints = set(folder.glob("*.zip"))
        pid = os.fork()
        if pid == 0:
            try:
                train_on(folder)
            finally:
                os._exit(1)  # training for ever cannot end, but with an error
        while set(folder.glob("*.zip")) <= checkpoints:
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "A training did not find a complete checkpoint"
        time.sleep(delay)
        while number % 2 and not any(folder.glob(".*.tmp")):
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "A training ended"
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        halves += any(folder.glob(".*.tmp"))
        if any(folder.glob("*.zip")):
            steps = int(latest_checkpoint(folder).name.split("_")[2])
            assert steps >= last
            last = steps
    results.put((last, halves))


def run_in_a_new_process(function, *args):
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    process = context.Process(target=function, args=(*args, results))
    process.start()
    process.join()
    assert process.exitcode == 0
    return results.get(timeout=10)


def test_a_training_that_is_killed_at_50_moments_goes_on_each_time(tmp_path):
    steps, halves = run_in_a_new_process(kill_often, tmp_path)
    assert steps >= 50 * 8  # it got on
    assert halves >= 10  # many were killed while they saved


def die_while_saving(folder: Path, at: str) -> None:
    model = small().learn(8 * 2)
    die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    monkeypatch = pytest.MonkeyPatch()
    if at == "written":
        monkeypatch.setattr("sb3_ppg.saving.files._flush", die)
    else:
        monkeypatch.setattr(zipfile.ZipFile, "close", die)
    model.save(folder / "model.zip")


@pytest.mark.parametrize("at", ["half-way", "written"])
def test_a_process_that_dies_while_it_saves_leaves_the_old_file(tmp_path, at):
    small().learn(8).save(tmp_path / "model.zip")
    before = (tmp_path / "model.zip").read_bytes()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=die_while_saving, args=(tmp_path, at))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "model.zip").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2  # and the half that nobody takes for a model
    PPG.load(tmp_path / "model.zip", device="cpu").save(tmp_path / "model.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["model.zip"]


# ---- bad numbers ----


class Spoiled(gym.Wrapper):
    """CartPole with a bad number in one place of its observations, or as its reward, at one step."""

    def __init__(self, at: int, what: str, value: float):
        super().__init__(gym.make("CartPole-v1", max_episode_steps=5))
        self.at, self.what, self.value, self.steps = at, what, value, 0

    def spoil(self, obs, reward=0.0):
        self.steps += 1
        if self.steps == self.at:
            obs = obs.copy()
            obs[2], reward = (self.value, reward) if self.what == "observation" else (obs[2], self.value)
        return obs, reward

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return *self.spoil(obs, reward), *rest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("at", [8 * 2 + 3, 5])  # in the third rollout; at the end of an episode
def test_bad_numbers_from_an_environment_are_named_before_they_train(tmp_path, value, what, at):
    env = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2 + [lambda: Spoiled(at, what, value)])
    arguments = dict(n_steps=8, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, seed=0, device="cpu")
    model = PPG("MlpPolicy", env, **arguments)
    checkpoints = PhasicCheckpointCallback(100, tmp_path)
    step = (at - 1) % 8 + 1
    with pytest.raises(NonFiniteEnvironmentError, match=rf"{what}.* of environment 2 is {value}.* after step {step} of"):
        model.learn(10_000, callback=checkpoints)
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
    kept = PPG.load(latest_checkpoint(tmp_path), device="cpu")
    for ours, theirs in zip(kept.policy.parameters(), model.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


class SpoiledAbove(VecEnvWrapper):
    """Environments whose normalised observations get a bad number at one step."""

    def __init__(self, venv, at: int):
        super().__init__(venv)
        self.at, self.steps = at, 0

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        obs, *rest = self.venv.step_wait()
        self.steps += 1
        if self.steps == self.at:
            obs[2, 1] = np.nan
        return obs, *rest


def spoiled(at: int, what: str, value: float, vec_env_class=DummyVecEnv):
    return vec_env_class([partial(gym.make, "CartPole-v1")] * 2 + [partial(Spoiled, at, what, value)])


def numbers_of(normalizer: VecNormalize) -> list[np.ndarray]:
    return [np.array(part) for rms in statistics(normalizer).values() for part in (rms.mean, rms.var, rms.count)]


class Remember(BaseCallback):
    """VecNormalize's statistics after each step, and that it can be saved."""

    def _on_step(self) -> bool:
        normalizer = self.model.get_vec_normalize_env()
        pickle.dumps(normalizer)
        self.numbers = numbers_of(normalizer)
        return True


BAD_ENVIRONMENTS = {
    "observation": (lambda at: VecNormalize(spoiled(at, "observation", np.nan)), "observation of environment 2 is nan"),
    "last observation": (
        lambda at: VecNormalize(spoiled(at, "observation", np.nan)),
        "last observation of an episode of environment 2 is nan",
    ),
    "reward": (lambda at: VecNormalize(spoiled(at, "reward", -np.inf)), "reward of environment 2 is -inf"),
    "in a worker": (
        lambda at: VecNormalize(spoiled(at, "reward", np.nan, partial(SubprocVecEnv, start_method="fork"))),
        "reward of environment 2 is nan",
    ),
    "inside of other wrappers": (
        lambda at: VecMonitor(VecNormalize(VecFrameStack(spoiled(at, "observation", np.nan), 2))),
        "observation of environment 2 is nan",
    ),
    "normalised twice": (
        lambda at: VecNormalize(VecNormalize(spoiled(at, "observation", np.nan), norm_reward=False), norm_obs=False),
        "observation of environment 2 is nan",
    ),
    "too large for a variance": (
        lambda at: VecNormalize(spoiled(at, "observation", 1e30)),
        "VecNormalize's statistics `obs_rms` are not finite",
    ),
    "from a wrapper further out": (
        lambda at: SpoiledAbove(VecNormalize(spoiled(0, "reward", 0)), at),
        "observation of environment 2 is nan",
    ),
}


@pytest.mark.parametrize(
    "place, at",
    [(place, 20 if place == "last observation" else 8 * 2 + 3) for place in BAD_ENVIRONMENTS],
)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_bad_numbers_do_not_reach_statistics_nor_a_checkpoint(tmp_path, place, at):
    make_env, message = BAD_ENVIRONMENTS[place]
    env = make_env(at)
    model = PPG("MlpPolicy", env, n_steps=8, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, seed=0, device="cpu")
    remember = Remember()
    with pytest.raises(NonFiniteEnvironmentError, match=f"{message}.* after step {(at - 1) % 8 + 1} of the rollout"):
        model.learn(10_000, callback=[remember, PhasicCheckpointCallback(1, tmp_path, keep=1)])
    after_the_step_before = remember.numbers
    for ours, theirs in zip(numbers_of(model.get_vec_normalize_env()), after_the_step_before, strict=True):
        assert np.array_equal(ours, theirs)

    (checkpoint,) = tmp_path.glob("*.zip")
    resumed = PPG.load(checkpoint, env=make_env(0), device="cpu")
    resumed.load_aux_buffer(aux_buffer_path(checkpoint))
    for continued in (resumed, model):  # in a new process, or by somebody who caught the error
        continued.learn(8 * 3 * 2, reset_num_timesteps=False)
        assert all(np.isfinite(numbers).all() for numbers in numbers_of(continued.get_vec_normalize_env()))
        continued.env.close()
    assert not {"step_wait", "reset"} & vars(env.venv).keys()


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_numbers_are_looked_at_before_frozen_statistics_clip_them(value):
    env = VecNormalize(spoiled(3, "observation", value), training=False)
    with pytest.raises(NonFiniteEnvironmentError, match=f"observation of environment 2 is {value} after step 3"):
        PPG("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(24)


def test_a_bad_first_observation_does_not_reach_statistics():
    class Bad(RandomEnv):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return obs * np.nan, info

    env = VecNormalize(DummyVecEnv([lambda: Bad(spaces.Box(-1, 1, (2,)), spaces.Discrete(2))]))
    before = numbers_of(env)
    with pytest.raises(NonFiniteEnvironmentError, match="first observation of environment 0 is nan"):
        PPG("MlpPolicy", env, n_steps=8, batch_size=8, device="cpu").learn(8)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(numbers_of(env), before, strict=True))


@pytest.mark.parametrize("reward", [np.nan, 1e300])
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_bad_rewards_do_not_reach_the_authors_normaliser(reward):
    normalizer, starts = RewardNormalizer(), np.zeros((4, 2))
    normalizer.normalize(np.ones((4, 2)), starts)
    before = copy.deepcopy(vars(normalizer))
    with pytest.raises(NonFiniteError, match=r"The reward of environment 1 at step 2|too large"):
        normalizer.normalize(np.array([[1, 1], [1, 1], [1, reward], [1, 1]]), starts)
    assert np.array_equal(normalizer.last_returns, before["last_returns"])
    assert vars(normalizer.return_rms) == vars(before["return_rms"])


def test_bad_numbers_in_dictionaries_and_first_observations():
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))

    class Bad(RandomEnv):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return {**obs, "a": np.array([0, np.nan], dtype=np.float32)}, info

    model = PPG("MultiInputPolicy", Bad(space, spaces.Discrete(2)), n_steps=8, batch_size=8, device="cpu")
    with pytest.raises(NonFiniteEnvironmentError, match=r"observation \(key 'a'\) of environment 0 is nan after step 0"):
        model.learn(8)


def test_a_gradient_that_is_not_finite_is_named_and_leaves_the_weights():
    """Though the loss is finite: d sqrt(x)/dx at 0 is infinite."""
    network = nn.Linear(2, 1, bias=False)
    before = network.weight.detach().clone()
    optimizer = th.optim.Adam(network.parameters(), fused=True)

    def losses(batch):
        error = (network(batch[0]) * 0).abs().sqrt().mean()
        return Losses(error, {"error": error})

    with pytest.raises(NonFiniteLossError, match="auxiliary phase met a gradient that is not finite, that of weight"):
        optimize_epoch("auxiliary", [network], optimizer, [(th.ones(3, 2),)], losses)
    assert th.equal(network.weight, before) and not optimizer.state


def test_a_bad_loss_leaves_a_checkpoint(tmp_path, monkeypatch):
    model = small()
    model.learn(8)
    bad = lambda *args: th.tensor(float("nan"), requires_grad=True)  # noqa: E731
    monkeypatch.setattr("sb3_ppg.losses.value_loss", bad)
    with pytest.raises(NonFiniteLossError, match=r"policy phase.*value_loss"):
        model.learn(8, reset_num_timesteps=False, callback=PhasicCheckpointCallback(100, tmp_path))
    assert latest_checkpoint(tmp_path).name == "ppg_model_16_steps.zip"


# ---- workers ----


class Dying(gym.Wrapper):
    """Its process ends at the given step, as if killed."""

    def __init__(self, at: int):
        super().__init__(gym.make("CartPole-v1"))
        self.at, self.steps = at, 0

    def step(self, action):
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class DeadOnArrival(RandomEnv):
    def reset(self, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)


def lose_a_worker_at_reset(start_method: str, results) -> None:
    multiprocessing.set_forkserver_preload(["stable_baselines3"])
    space, actions = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
    env = SubprocVecEnv([partial(cls, space, actions) for cls in (RandomEnv, DeadOnArrival, RandomEnv)], start_method)
    try:
        PPG("MlpPolicy", env, n_steps=8, batch_size=8).learn(8)
    except WorkerError as error:
        results.put(str(error))
    env.close()


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_worker_that_dies_at_reset_is_named(start_method):
    message = run_in_a_new_process(lose_a_worker_at_reset, start_method)
    assert re.fullmatch(r"A worker.* died when it was asked to reset: environment 1 \(\d+, exit code -9\)", message)


def lose_a_worker(start_method: str, folder: Path, results) -> None:
    multiprocessing.set_forkserver_preload(["stable_baselines3"])
    makers = [partial(Dying, at) for at in (1000, 11, 1000)]
    env = VecNormalize(SubprocVecEnv(makers, start_method=start_method))
    model = PPG("MlpPolicy", env, n_steps=8, batch_size=8, n_policy_iterations=3, n_aux_epochs=1, device="cpu")
    try:
        model.learn(10_000, callback=PhasicCheckpointCallback(100, folder))
    except WorkerError as error:
        env.close()
        results.put(str(error))


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_a_worker_that_dies_is_named(tmp_path, start_method):
    """With fork, its siblings hold the other end of its pipe: SB3 would wait for ever."""
    message = run_in_a_new_process(lose_a_worker, start_method, tmp_path)
    assert re.search(
        r"worker process of SubprocVecEnv died when it was asked to step: environment 1 \(\d+, exit code -9\)$", message
    )
    assert latest_checkpoint(tmp_path)
