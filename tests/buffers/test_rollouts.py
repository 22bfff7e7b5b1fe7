"""Rollout buffers: what a class declares, advantages, and those that are recomputed before further epochs."""

import weakref
from functools import partial

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import (
    PPG,
    ArgumentError,
    NormalizedRewardRolloutBuffer,
    PhasicCallback,
    RecurrentPPG,
    RewardNormalizer,
    VectorRewards,
)
from sb3_ppg.buffers.rollout_buffers import SequenceRolloutBuffer
from sb3_ppg.buffers.rollouts import add_step, batches, compute_advantages, gae
from tests.helpers import (
    BOX,
    KINDS,
    SMALL,
    VectorRewardEnv,
    changed,
    collect,
    make_kind,
    names_of,
    normalized_rewards,
    random_envs,
)


def test_worked_numbers():
    """γ = 1/2, λ = 1/2; the second environment begins an episode at step 1, the first one after the rollout."""
    rewards, values = np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([[4.0, 4.0], [6.0, 6.0]])
    starts = np.array([[0.0, 0.0], [0.0, 1.0]])
    advantages = gae(rewards, values, starts, np.array([100.0, 8.0]), np.array([1.0, 0.0]), 0.5, 0.5)
    # last step: 2 - 6 = -4, and 2 + 8/2 - 6 = 0; first step: 1 + 6/2 - 4 + (-4)/4 = -1, and 1 - 4 = -3
    np.testing.assert_allclose(advantages, [[-1.0, -3.0], [-4.0, 0.0]])


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2, 3)), spaces.Discrete(5), spaces.MultiBinary(3)])
def test_steps_advantages_and_targets_are_those_of_sb3s_methods(space):
    """To the last bit; a class that overrides one of them is called."""

    class Own(RolloutBuffer):
        def add(self, *args):
            super().add(*args)

        def compute_returns_and_advantage(self, *args, **kwargs):
            super().compute_returns_and_advantage(*args, **kwargs)

    ours, sb3s = (cls(5, space, BOX, gamma=0.987, gae_lambda=0.93, n_envs=3) for cls in (RolloutBuffer, Own))
    random = np.random.default_rng(0)
    for step in range(5):
        numbers = random.normal(size=(3, 5)).astype(np.float32)
        values, log_probs = th.as_tensor(numbers[:, :1]), th.as_tensor(numbers[:, 1])
        observations = np.stack([space.sample() for _ in range(3)])
        for buffer in (ours, sb3s):
            assert not buffer.full and buffer.pos == step
            add_step(buffer, observations, numbers[:, 2:4], numbers[:, 4], numbers[:, 2] > 0.5, values, log_probs, {})
    for buffer in (ours, sb3s):
        assert buffer.full
        compute_advantages(buffer, values, np.array([True, False, True]))
    for name in ("observations", "actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(sb3s, name), strict=True)
        assert getattr(ours, name).any()


MODELS = {kind: partial(make_kind, kind) for kind in KINDS} | {
    "normalised rewards": lambda: make_kind("vectors", **normalized_rewards()),
    "VecNormalize": lambda: PPG("MlpPolicy", VecNormalize(random_envs()), **SMALL),
    "vector rewards": lambda: PPG(
        "MlpPolicy",
        make_vec_env(lambda: VectorRewards(VectorRewardEnv()), 2, seed=0),
        reward_weights=[1.0, 3.0],
        **SMALL | dict(gamma=[0.5, 0.99]),
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_with_the_network_that_collected_them_they_are_the_same(make):
    model = make()
    collect(model)
    buffer = model.rollout_buffer
    advantages, returns = buffer.advantages.copy(), buffer.returns.copy()
    model.normalize_advantage = False
    rollout = model.latest_rollout()
    model.update_advantages(rollout)
    np.testing.assert_allclose(rollout.arrays["advantages"].T, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rollout.combined(rollout.arrays["targets"]).T, returns, rtol=1e-4, atol=1e-5)


def test_what_follows_a_time_limit_is_in_normalised_units():
    """γ V is added to the normalised reward, in whose units V is learned."""
    kwargs = normalized_rewards(gamma=0.9)
    normalizer = kwargs["rollout_buffer_kwargs"]["reward_normalizer"]
    model = PPG("MlpPolicy", random_envs(spaces.Box(1, 1, (1,))), n_steps=64, batch_size=64, gamma=0.9, device="cpu", **kwargs)
    for _ in range(2):
        collect(model)
        buffer = model.rollout_buffer
        ends = np.roll(buffer.episode_starts, -1, axis=0)[:-1].astype(bool)
        value = model.policy.predict_values(th.ones(1, 1)).item()
        expected = 1 / np.sqrt(normalizer.return_rms.var + normalizer.epsilon) + 0.9 * value * ends
        assert 0 < ends.sum() < ends.size and value != 0
        np.testing.assert_allclose(buffer.rewards[:-1], expected, rtol=1e-5)


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


@pytest.mark.parametrize(("kind", "base"), [("LSTM", SequenceRolloutBuffer), ("masks", MaskableRolloutBuffer)])
def test_the_authors_reward_normaliser_with_memory_and_with_masks(kind, base, tmp_path):
    cls = type("Normalized", (NormalizedRewardRolloutBuffer, base), {})
    model = make_kind(kind, **normalized_rewards(cls, clip=2.0)).learn(32)
    normalizer = model.rollout_buffer.reward_normalizer
    assert normalizer.return_rms.count == pytest.approx(32, rel=1e-3) and np.abs(model.rollout_buffer.rewards).max() <= 2.0
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model").rollout_buffer.reward_normalizer
    assert loaded.return_rms.var == normalizer.return_rms.var
    np.testing.assert_array_equal(loaded.last_returns, normalizer.last_returns)


OF_BUFFERS = SMALL | dict(n_steps=16, batch_size=16, n_epochs=2, gamma=0.9)
REPLAY = dict(recompute_advantages=True, replay_kwargs=dict(policy_rollouts=2), objective="decoupled")


def ones():
    """Environments with the same observation and a reward of one, until a time limit of five steps."""
    return random_envs(spaces.Box(1, 1, (1,)), episode_length=5)


@pytest.mark.parametrize("algorithm, policy", [(PPG, "MlpPolicy"), (RecurrentPPG, "MlpLstmPolicy")])
def test_the_buffer_that_a_page_shows_is_recomputed_and_replayed(algorithm, policy, tmp_path):
    cls = names_of("docs/extending.md", "(RolloutBuffer)")["CompressedRewards"]
    if algorithm is RecurrentPPG:
        cls = type("OfSequences", (cls, SequenceRolloutBuffer), {})
    model = algorithm(policy, ones(), rollout_buffer_class=cls, **OF_BUFFERS, **REPLAY).learn(4 * 32)
    assert len(model.replay.rollouts) == 2
    for rollout in model.replay.rollouts:
        model.normalize_advantage = False
        model.update_advantages(rollout)
        arrays = rollout.arrays
        rewards, values, starts = arrays["rewards"].T, (arrays["targets"] - arrays["advantages"]).T, arrays["episode_starts"].T
        end = {name.removeprefix("last_"): array[:, 0] for name, array in arrays.items() if name.startswith("last_")}
        cut_off = np.vstack([starts[1:], end["dones"]]).astype(bool)
        np.testing.assert_allclose(rewards[~cut_off], np.log(2), rtol=1e-6)
        assert (rewards[cut_off] != np.float32(np.log(2))).all() and 0 < cut_off.sum() < cut_off.size
        following = model.policy.step_batch(th.as_tensor(end["observations"]), end["dones"], end)
        last = model.policy.next_values(following).detach().numpy().ravel()
        expected = gae(rewards, values, starts, last, end["dones"], model.gamma, model.gae_lambda)
        np.testing.assert_allclose(arrays["advantages"].T, expected, rtol=1e-4, atol=1e-5)


class Silent(RolloutBuffer):
    def compute_returns_and_advantage(self, last_values, dones):
        super().compute_returns_and_advantage(last_values, dones)
        self.advantages *= 2


def test_after_an_update_the_buffer_is_as_collected_and_its_memory_is_the_rollouts():
    """It is a view of what the phase keeps, whose originals are gone."""
    collected, originals = [], []

    class Watch(PhasicCallback):
        def _on_rollout_end(self):
            buffer = self.model.rollout_buffer
            collected.append(
                {name: getattr(buffer, name).copy() for name in ("observations", "rewards", "advantages", "returns")}
            )
            originals.append(weakref.ref(buffer.observations))

    model = PPG("MlpPolicy", ones(), **OF_BUFFERS).learn(32, callback=Watch())
    for name, array in collected[0].items():
        np.testing.assert_array_equal(getattr(model.rollout_buffer, name), array)
    assert originals[0]() is None
    assert np.shares_memory(model.rollout_buffer.observations, model.aux_buffer.rollouts[0].arrays["observations"])


class InPlace(RolloutBuffer):
    """Has the same arrays for all rollouts."""

    def reset(self):
        if not hasattr(self, "observations"):
            super().reset()
        self.observations[:], self.returns[:] = 0, 0
        self.pos, self.full = 0, False


class Tensors(RolloutBuffer):
    """Has observations and own data in tensors."""

    def reset(self):
        super().reset()
        self.observations, self.marks = th.as_tensor(self.observations), th.zeros(self.rewards.shape)

    def add(self, obs, *others):
        tensors, self.observations = self.observations, self.observations.numpy()
        super().add(obs, *others)
        self.observations, self.marks[self.pos - 1] = tensors, th.as_tensor(obs[:, 0])


@pytest.mark.parametrize("cls", [InPlace, Tensors])
def test_rollouts_are_those_of_sb3s_buffer_however_a_class_keeps_its_arrays(cls):
    kwargs = OF_BUFFERS | dict(n_policy_iterations=4)
    models = [
        PPG("MlpPolicy", random_envs(), rollout_buffer_class=each, **kwargs).learn(3 * 32) for each in (RolloutBuffer, cls)
    ]
    for expected, rollout in zip(*(model.aux_buffer.rollouts for model in models), strict=True):
        np.testing.assert_equal(rollout.arrays, expected.arrays)
    assert not changed(*models)
    (batch,) = batches([models[1].latest_rollout()], [np.arange(32)], 1, "cpu")
    assert cls is not Tensors or th.equal(batch.marks, batch.observations[:, 0])


class EveryOther(RolloutBuffer):
    """Yields every other minibatch."""

    def get(self, batch_size=None):
        yield from list(super().get(batch_size))[::2]


def test_a_buffer_with_minibatches_or_dictionaries_of_its_own_is_refused():
    with pytest.raises(ArgumentError, match=r"`rollout_buffer_class`=.*EveryOther.* its own `get`.* use None.*mmap"):
        PPG("MlpPolicy", ones(), rollout_buffer_class=EveryOther, **OF_BUFFERS)
    envs = random_envs(spaces.Dict(a=spaces.Box(-1, 1, (3,))))
    with pytest.raises(ArgumentError, match=r"`rollout_buffer_class`=.*DictRolloutBuffer for these observations"):
        PPG("MultiInputPolicy", envs, rollout_buffer_class=Own, **OF_BUFFERS)


class Longer(PPG):
    """Has rollouts of 24, 32, ... steps."""

    def collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps):
        rollout_buffer.buffer_size += 8
        return super().collect_rollouts(env, callback, rollout_buffer, rollout_buffer.buffer_size)


def test_rollouts_of_varying_length_train_the_policy_phase():
    kwargs = OF_BUFFERS | dict(n_aux_epochs=0)
    assert Longer("MlpPolicy", ones(), **kwargs).learn(2 * (24 + 32)).num_timesteps == 2 * (24 + 32)
    for needs in (dict(n_aux_epochs=1), dict(replay_kwargs=dict(policy_rollouts=2), objective="decoupled")):
        message = "`Longer.collect_rollouts` has collected 24 steps, .* `n_steps`=16: .* use `n_aux_epochs`=0"
        with pytest.raises(ArgumentError, match=message):
            Longer("MlpPolicy", ones(), **kwargs | needs).learn(32)


def test_a_way_of_its_own_to_compute_advantages_is_refused_where_they_are_recomputed():
    """A class may say of its own way that it is SB3's."""
    for name in ("recompute_advantages", "replay_kwargs"):
        kwargs = {name: REPLAY[name], "objective": "decoupled"}
        with pytest.raises(ArgumentError, match=f"`{name}`=.* cannot work: Silent has its own way to compute advantages"):
            PPG("MlpPolicy", ones(), rollout_buffer_class=Silent, **OF_BUFFERS, **kwargs)
        PPG("MlpPolicy", ones(), rollout_buffer_class=type("Open", (Silent,), {"recomputable": True}), **OF_BUFFERS, **kwargs)
    PPG("MlpPolicy", ones(), rollout_buffer_class=Silent, **OF_BUFFERS).learn(32)
    with pytest.raises(ArgumentError, match="its own way, and `objective`='dna' the value targets; use None"):
        PPG("MlpPolicy", ones(), rollout_buffer_class=Silent, objective="dna", n_value_epochs=1, **OF_BUFFERS)


class Own(RolloutBuffer):
    """Has arrays of its own for each step, one under a name of ours, if there is a name."""

    name = ""

    def reset(self):
        super().reset()
        self._raw, self.states = np.zeros((self.buffer_size, self.n_envs)), np.zeros((self.buffer_size, self.n_envs, 3))
        self.infos = np.full((self.buffer_size, self.n_envs), None)
        if self.name:
            setattr(self, self.name, np.full((self.buffer_size, self.n_envs), 1000.0))


def test_a_buffer_may_have_an_array_named_like_that_of_a_prior():
    """Made by each reset, or once."""
    model = make_kind("vectors", rollout_buffer_class=type("Mine", (Own,), dict(name="prior"))).learn(2 * 16)
    assert (model.latest_rollout().arrays["prior"] == 1000).all()
    model = make_kind("vectors")
    model.rollout_buffer.prior = 7
    assert model.learn(2 * 16).rollout_buffer.prior == 7


def test_own_arrays_of_a_buffer_change_nothing_and_cannot_replace_ours():
    models = [make_kind("vectors", rollout_buffer_class=cls).learn(2 * 16) for cls in (None, Own)]
    assert not changed(*models)
    for name in ("targets", "old_values", "old_log_prob", "last_values"):
        with pytest.raises(ArgumentError, match=f"`rollout_buffer_class`.*its {name} would replace an array"):
            make_kind("vectors", rollout_buffer_class=type("Taken", (Own,), dict(name=name)))
    with pytest.raises(ArgumentError, match=r"its last_lstm_states would replace an array"):
        make_kind("LSTM", rollout_buffer_class=type("Taken", (Own, SequenceRolloutBuffer), dict(name="last_lstm_states")))


class Reads(PhasicCallback):
    """Draws SB3's minibatches of a rollout before it is learned from."""

    def _on_rollout_end(self):
        state = np.random.get_state()
        assert sum(len(batch.actions) for batch in self.model.rollout_buffer.get(4)) == 16
        np.random.set_state(state)


@pytest.mark.parametrize("kind", ["vectors", "Dict", "masks"])
def test_callbacks_may_draw_minibatches_of_a_rollout(kind, tmp_path):
    models = [make_kind(kind).learn(3 * 16, callback=callback) for callback in (None, Reads())]
    assert not changed(*models)
    models[1].save_aux_buffer(tmp_path / "state.npz")
    list(models[1].rollout_buffer.get(4))
    models[1].load_aux_buffer(tmp_path / "state.npz")


def test_a_discount_that_a_callback_changes_is_used_throughout_the_update():
    """At a learning rate of 0 the recomputed advantages are those of the first epoch."""
    raw = dict(normalize_advantage=False, normalize_value_targets=False)
    model = make_kind("vectors", learning_rate=0.0, recompute_advantages=True, n_epochs=2, **raw)
    model.rollout_buffer.gamma = 0.5
    collect(model)
    before = model.rollout_buffer.advantages.copy()
    model.train()
    np.testing.assert_allclose(model.replay.rollouts[-1].arrays["advantages"].T, before, rtol=1e-4, atol=1e-5)
