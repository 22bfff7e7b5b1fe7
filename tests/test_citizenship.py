"""Behaviour that SB3's users expect of every algorithm."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_ppg import PPG, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer
from sb3_ppg.buffers.rollout_buffers import SequenceRolloutBuffer
from tests.helpers import BatchNormExtractor, RandomEnv, changed, make_kind, weights
from tests.saving.small_models import same

pytestmark = pytest.mark.slow

SMALL = dict(n_steps=16, batch_size=16, n_epochs=1, n_policy_iterations=2, n_aux_epochs=2, seed=0, device="cpu")
PHASE = 32  # steps of one environment


def make(env="CartPole-v1", **kwargs) -> PPG:
    return PPG("MlpPolicy", env, **{**SMALL, **kwargs})


# ---- saving and loading ----


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_callbacks_may_copy_the_model(copied):
    """Copy a model for self-play, where the model's callback has modules in its ``globals``."""
    copies = []

    class Snapshot(BaseCallback):
        def _on_step(self) -> bool:
            copies.append(copied(self.model))
            return True

        _on_rollout_start = _on_rollout_end = _on_step

    make(n_steps=4, batch_size=4).learn(4, callback=Snapshot())
    assert [one.num_timesteps for one in copies] == [0, 1, 2, 3, 4, 4]
    assert all(one.learn(8).num_timesteps == 8 for one in (copies[0], copies[2], copies[-1]))


def test_until_a_callback_ends_it(capsys):
    model = make(verbose=1).learn(float("inf"), callback=StopTrainingOnMaxEpisodes(3))
    assert 0 < model.num_timesteps < 2000 and "One phase" not in capsys.readouterr().out
    assert "in this budget of 32\n" in (make(verbose=1).learn(3.2e1), capsys.readouterr().out)[1]


def test_a_checkpoint_does_not_hold_the_rollouts(tmp_path):
    model = make(env=RandomEnv(spaces.Box(-1, 1, (10_000,)), spaces.Discrete(2)), n_steps=64, policy_kwargs=dict(net_arch=[1]))
    model.learn(64).save(tmp_path / "model.zip")
    assert len(model.aux_buffer) == 1 and (tmp_path / "model.zip").stat().st_size < 64 * 10_000 * 4 / 4


def test_load_for_another_number_of_environments(tmp_path):
    """Train with 8 environments and load with one, like ``enjoy``: a misfit of ``aux_batch_size`` matters only in training."""
    model = make(env=make_vec_env("CartPole-v1", 8), aux_batch_size=16 * 8 * 2).learn(16 * 8)
    model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=make_vec_env("CartPole-v1", 1))
    evaluate_policy(loaded, loaded.get_env(), n_eval_episodes=1)
    with pytest.raises(ValueError, match="aux_batch_size"):
        loaded.learn(16)


# ---- determinism ----


@pytest.mark.parametrize("env, kwargs", [("CartPole-v1", {}), ("Pendulum-v1", dict(use_sde=True, n_value_epochs=2))])
def test_same_seed_same_parameters(env, kwargs):
    one, again, other = (make(env=make_vec_env(env, 2), seed=seed, **kwargs).learn(PHASE * 2 * 2) for seed in (0, 0, 1))
    assert same(one, again) and "action_net.weight" in changed(weights(one), weights(other))


# ---- environments ----


def test_set_env():
    model = make().learn(16)
    model.set_env(gym.make("CartPole-v1"))
    model.learn(16, reset_num_timesteps=False)
    assert model.n_aux_phases == 1  # what was stored has stayed
    with pytest.raises(ValueError):
        model.set_env(gym.make("Pendulum-v1"))


SEQUENCES = type("Sequences", (NormalizedRewardRolloutBuffer, SequenceRolloutBuffer), {})
MASKS = type("Masks", (NormalizedRewardRolloutBuffer, MaskableRolloutBuffer), {})


@pytest.mark.parametrize(("kind", "cls"), [("LSTM", SEQUENCES), ("masks", MASKS)])
def test_the_authors_reward_normaliser_with_memory_and_with_masks(kind, cls, tmp_path):
    buffer_kwargs = dict(reward_normalizer=RewardNormalizer(clip=2.0))
    model = make_kind(kind, rollout_buffer_class=cls, rollout_buffer_kwargs=buffer_kwargs).learn(32)
    normalizer = model.rollout_buffer.reward_normalizer
    assert normalizer.return_rms.count == pytest.approx(32, rel=1e-3) and np.abs(model.rollout_buffer.rewards).max() <= 2.0
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model").rollout_buffer.reward_normalizer
    assert loaded.return_rms.var == normalizer.return_rms.var
    np.testing.assert_array_equal(loaded.last_returns, normalizer.last_returns)


def test_reward_normaliser_by_hand():
    normalizer = RewardNormalizer(gamma=0.5, clip=1.5)
    rewards = np.array([[1.0], [2.0], [3.0]])
    starts = np.array([[True], [False], [True]])
    # R = 1, 2.5, 3; with the initial count of 1e-4 their variance is all but that of the three
    var = np.var([1, 2.5, 3])
    np.testing.assert_allclose(normalizer.normalize(rewards, starts), np.clip(rewards / np.sqrt(var), -1.5, 1.5), rtol=1e-3)
    normalizer.normalize(np.array([[4.0]]), np.array([[False]]))
    assert normalizer.last_returns == [4 + 0.5 * 3]
    normalizer.normalize(np.ones((1, 2)), np.zeros((1, 2)))  # of another number of environments
    assert normalizer.last_returns.tolist() == [1, 1]
    for kwargs in (dict(clip=-1), dict(gamma=2), dict(epsilon=-1)):
        with pytest.raises(ValueError, match=next(iter(kwargs))):
            RewardNormalizer(**kwargs)


# ---- policies ----


def test_train_and_eval_mode():
    """Update batch statistics in training only, and record π_old without dropout."""
    model = make(policy_kwargs=dict(features_extractor_class=BatchNormExtractor))
    norm = model.policy.features_extractor.layers[0]
    model.learn(16)
    counted = norm.num_batches_tracked.item()
    assert counted == 1  # one minibatch
    modes, recorded = [], model.objective.recorded
    model.objective.recorded = lambda policy, inputs: modes.append(policy.training) or recorded(policy, inputs)
    model.learn(16, reset_num_timesteps=False)
    assert modes and not any(modes)
    assert norm.num_batches_tracked.item() > counted
    obs = model.get_env().reset()
    assert model.policy.training
    predictions = {model.predict(obs, deterministic=True)[0].item() for _ in range(5)}
    assert len(predictions) == 1 and not model.policy.training


def test_compiled_policy(tmp_path):
    """Compile as SB3 documents it: ``model.policy = th.compile(model.policy)``."""
    plain, compiled = make().learn(PHASE), make()
    compiled.policy = th.compile(compiled.policy, backend="eager")
    compiled.learn(PHASE)

    compiled.save(tmp_path / "model")
    assert not changed(weights(plain), weights(PPG.load(tmp_path / "model")))


def test_warnings_point_at_the_users_line():
    with pytest.warns(UserWarning) as found:
        model = RecurrentPPG("MlpLstmPolicy", "CartPole-v1", n_steps=8, batch_size=6, learning_rate=2.0, device="cpu")
        model.learning_rate, model.lr_schedule = 1e-4, lambda _: 1e-4
        model.learn(8)
    assert {warning.filename for warning in found} == {__file__}
    assert len(found) >= 3  # a truncated minibatch, the learning rate, a budget without a phase
