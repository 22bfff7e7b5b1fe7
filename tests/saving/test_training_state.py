"""Files of a training in progress are complete or refused."""

import random
import zipfile
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformAction
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, ModelFormatError, PhasicCheckpointCallback
from sb3_ppg.export import DeterministicPolicy
from sb3_ppg.hub import save_pretrained
from tests.helpers import make_kind, masked_envs
from tests.hub.watch import generator_states
from tests.saving.small_models import numbers_of, saved, small


def test_damaged_files_are_refused(tmp_path):
    """Truncated anywhere, a byte flipped anywhere: an error that names the file, and the model is as before."""
    model, path = saved(tmp_path)
    content = path.read_bytes()
    before = [rollout.arrays["targets"].copy() for rollout in model.aux_buffer.rollouts]
    damaged = tmp_path / "damaged.npz"
    with zipfile.ZipFile(path) as file:  # the arrays' own bytes; the zip's padding is nobody's
        spans = [(info.header_offset + 30 + len(info.filename) + 20, info.file_size) for info in file.infolist()]
    flips = [start + size // 2 for start, size in spans]
    bad = [content[:length] for length in np.linspace(0, len(content) - 1, 20).astype(int)]
    bad += [content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :] for place in flips]
    for bytes_ in bad:
        damaged.write_bytes(bytes_)
        with pytest.raises(ModelFormatError, match=r"damaged.npz"):
            model.load_aux_buffer(damaged)
    np.testing.assert_equal([rollout.arrays["targets"] for rollout in model.aux_buffer.rollouts], before)
    model.load_aux_buffer(path)


@pytest.mark.parametrize(
    "name, change",
    [
        ("description", lambda text: text[:1]),
        # One more number in the state of torch's generator
        ("description", lambda text: np.frombuffer(text.tobytes().replace(b'"torch": [', b'"torch": [0, '), np.uint8)),
        ("rollouts/1/targets", None),
        ("normalize/0/obs_rms/mean", None),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name, change, tmp_path):
    """The generators come last: what comes before them has been read, nothing of it is kept."""
    model = small(env=VecNormalize(make_vec_env("CartPole-v1"))).learn(16)
    path = tmp_path / "buffer.npz"
    model.save_aux_buffer(path)
    with np.load(path) as file:
        arrays = dict(file)
    array = arrays.pop(name)
    np.savez(path, **arrays, **({} if change is None else {name: change(array)}))
    model.get_vec_normalize_env().obs_rms.mean += 1
    random.random(), np.random.random(), th.rand(1)
    before, numbers, states = model.aux_buffer, numbers_of(model.get_vec_normalize_env()), generator_states()
    with pytest.raises(ModelFormatError, match=r"buffer\.npz is damaged"):
        model.load_aux_buffer(path)
    assert model.aux_buffer is before and generator_states() == states
    np.testing.assert_equal(numbers_of(model.get_vec_normalize_env()), numbers)


def test_another_kind_of_file_is_refused(tmp_path):
    model, _ = saved(tmp_path)
    other = tmp_path / "other.npz"
    never_unpickled = np.array([object()], dtype=object)
    for save in (partial(np.savez, x=np.zeros(3)), partial(np.savez, description=never_unpickled), model.save):
        save(other)
        with pytest.raises(ModelFormatError, match=r"other\.npz is damaged, or no auxiliary buffer"):
            model.load_aux_buffer(other)


class WithThreeActions(TransformAction):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"), lambda action: min(action, 1), spaces.Discrete(3))


@pytest.mark.parametrize(
    "other, message",
    [
        (lambda: small().learn(8), "num timesteps is 16, the model's 8"),
        (lambda: small(env=make_vec_env("CartPole-v1", 2), n_steps=4).learn(16), "n envs is 1, the model's 2"),
        (lambda: small(MaskablePPG, env=masked_envs(), n_steps=4).learn(16), "algorithm is 'PPG', the model's 'MaskablePPG'"),
        (lambda: small(env=VecNormalize(make_vec_env("CartPole-v1"))).learn(16), r"VecNormalize is \[\], .*obs_rms"),
        (lambda: small(env=make_vec_env("Acrobot-v1")).learn(16), r"observation space is 'Box.*', the model's 'Box"),
        (lambda: small(env=WithThreeActions()).learn(16), r"action space is 'Discrete\(2\)', the model's 'Discrete\(3\)'"),
        # Another run, whose counters are equal
        (lambda: small().learn(16, callback=PhasicCheckpointCallback(2, "run")), r"checkpoint is None, the model's \["),
    ],
)
def test_another_models_file_is_refused(other, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, path = saved(tmp_path)
    with pytest.raises(ModelFormatError, match=f"buffer.npz does not belong to this model: its {message}"):
        other().load_aux_buffer(path)


def test_a_phase_goes_on_with_an_objective_that_needs_less_of_its_rollouts(tmp_path):
    model, path = saved(tmp_path, n_policy_iterations=3, objective_kwargs=dict(value_clip=0.2))
    model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=model.env, objective_kwargs=None)
    loaded.load_aux_buffer(path)
    assert loaded.learn(8, reset_num_timesteps=False).n_aux_phases == 1


def test_the_file_of_other_lstms_is_refused(tmp_path):
    models = [make_kind("LSTM", policy_kwargs=dict(lstm_hidden_size=size)).learn(16) for size in (4, 5)]
    models[0].save_aux_buffer(tmp_path / "buffer.npz")
    with pytest.raises(ModelFormatError, match=r"its memory is \{'lstm_states': \[4, 1, 4\]\}, the model's"):
        models[1].load_aux_buffer(tmp_path / "buffer.npz")


def test_a_run_may_replay_another_number_of_rollouts_when_it_goes_on(tmp_path):
    """A shorter replay keeps the latest rollouts, a longer one begins with those that there are."""
    for before, after, n_replayed in ((3, None, 1), (3, 2, 2), (1, 2, 2)):
        model, path = saved(tmp_path, n_rollouts=4, replay_kwargs=dict(policy_rollouts=before))
        model.save(tmp_path / "model.zip")
        replay_kwargs = None if after is None else dict(policy_rollouts=after)
        other = PPG.load(tmp_path / "model.zip", env=model.get_env(), replay_kwargs=replay_kwargs)
        other.load_aux_buffer(path)
        assert len(other.aux_buffer) == len(model.aux_buffer) == 1
        latest = other.replay.rollouts[-1:]
        other.learn(8 * (2 if before == 1 else 1), reset_num_timesteps=False)
        assert len(other.replay.rollouts) == n_replayed
        assert n_replayed == 1 or before == 1 or other.replay.rollouts[0] is latest[0]


def test_statistics_of_each_normalisation_come_back(tmp_path):
    """Observations are normalised by an inner VecNormalize, rewards by an outer one."""

    def environments():
        return VecNormalize(VecNormalize(make_vec_env("CartPole-v1", 2, seed=0), norm_reward=False), norm_obs=False)

    model = small(env=environments()).learn(100)
    model.save(tmp_path / "model.zip")
    model.save_aux_buffer(tmp_path / "state.npz")
    env = environments()
    loaded = PPG.load(tmp_path / "model.zip", env=env)
    loaded.load_aux_buffer(tmp_path / "state.npz")
    assert model.env.venv.obs_rms.count > 100 and model.env.ret_rms.count > 100
    for ours, theirs in ((env.ret_rms, model.env.ret_rms), (env.venv.obs_rms, model.env.venv.obs_rms)):
        np.testing.assert_equal(vars(ours), vars(theirs))
    with pytest.raises(ModelFormatError, match=r"its VecNormalize is .*1/obs_rms.*, the model's \[\]"):
        PPG.load(tmp_path / "model.zip", env=env.venv.venv).load_aux_buffer(tmp_path / "state.npz")
    with pytest.raises(ArgumentError, match="wrapped in 2 VecNormalize"):
        save_pretrained(model, tmp_path / "shared")
    with pytest.raises(ArgumentError, match="wrapped in 2 VecNormalize"):
        DeterministicPolicy(model)
