"""Rollouts that are used again: which ones, how often, with what advantages."""

import itertools
from functools import partial

import numpy as np
import pytest
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppg import PPG, ArgumentError, PhasicCallback
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.buffers.rollouts import POLICY_KEYS, Rollout
from sb3_ppg.family import PAPERS_VALUES, with_preset
from tests.buffers.test_aux_buffer import DICT, IMAGES, N_ENVS, N_STEPS, fill, make_rollout_buffer
from tests.helpers import learn_and_log, make_kind, normalized_rewards, saved_and_loaded


def replay_of(n_collected: int, space=IMAGES, **kwargs) -> RolloutReplay:
    """After so many rollouts, without an epoch."""
    replay, buffer = RolloutReplay(**kwargs), make_rollout_buffer(space)
    for number in range(n_collected):
        with replay.learning_from(Rollout.of(fill(buffer, number))):
            pass
    return replay


def numbers(rollouts) -> list[int]:
    """Numbers of rollouts: ``fill`` writes a hundred times the number into the first reward."""
    return [int(rollout.arrays["rewards"][0, 0]) // 100 for rollout in rollouts]


def epoch(replay: RolloutReplay, kind, batch_size: int):
    return replay.epoch(kind, batch_size, POLICY_KEYS, "cpu")


def test_epochs_draw_from_the_last_rollouts():
    replay = replay_of(5, policy_rollouts=2, value_rollouts=3)
    assert replay.capacity == 3 and numbers(replay.rollouts) == [2, 3, 4]
    assert numbers(replay.due("policy")) == [3, 4] and numbers(replay.due("value")) == [2, 3, 4]
    assert numbers(replay.older()) == [2, 3]
    alone = replay_of(5)
    assert numbers(alone.rollouts) == numbers(alone.due("policy")) == numbers(alone.due("value")) == [4]
    assert alone.older() == []


def test_a_rollout_is_used_so_often_and_no_more():
    """Two epochs after each rollout, three uses at most: both in its own update, the last in the next one."""
    replay, buffer = RolloutReplay(policy_rollouts=4, policy_uses=3, value_uses=1), make_rollout_buffer()
    used = []
    for number in range(5):
        with replay.learning_from(Rollout.of(fill(buffer, number))):
            for _ in range(2):
                used.append(numbers(replay.due("policy")))
                for _ in epoch(replay, "policy", 15):
                    pass
    assert used == [[0], [0], [0, 1], [1], [1, 2], [2], [2, 3], [3], [3, 4], [4]]
    assert all(rollout.uses["value"] == 0 for rollout in replay.rollouts)
    list(epoch(replay, "value", 15))
    assert replay.due("value") == [] and numbers(replay.due("policy")) == [4]


@pytest.mark.parametrize("space", [IMAGES, DICT], ids=["images", "dict"])
def test_minibatches_have_equally_many_of_each_and_an_epoch_has_all(space):
    replay = replay_of(4, space, policy_rollouts=3)
    batches = list(epoch(replay, "policy", 10))  # 3 of each
    assert [len(batch.targets) for batch in batches] == [9] * 5
    assert [len(batch.targets) for batch in epoch(replay, "policy", 16)] == [15] * 3
    assert [len(batch.targets) for batch in epoch(replay, "policy", 11)] == [9] * 5  # no small rest
    assert [len(batch.targets) for batch in epoch(replay, "policy", 2)] == [3] * 15  # at least one of each
    for batch in batches:
        assert [int((batch.targets // 100 == number).sum()) for number in (1, 2, 3)] == [3, 3, 3]
    places = np.concatenate([batch.targets for batch in batches])
    everything = [100 * r + 10 * env + step for r in (1, 2, 3) for env in range(N_ENVS) for step in range(N_STEPS)]
    assert sorted(places) == everything and list(places) != everything
    if space is DICT:
        np.testing.assert_array_equal(np.concatenate([batch.observations["vector"][:, 0] for batch in batches]), places)


class WithMarks(RolloutBuffer):
    """Keeps a mark of each sample, which is its reward."""

    def reset(self):
        super().reset()
        self.marks = np.zeros((self.buffer_size, self.n_envs))

    def add(self, obs, action, reward, *args, **kwargs):
        self.marks[self.pos] = reward
        super().add(obs, action, reward, *args, **kwargs)


def make(kind: str = "vectors", **kwargs) -> PPG:
    settings = PAPERS_VALUES | dict(n_steps=8, batch_size=8, n_policy_iterations=4, n_aux_epochs=1, objective="decoupled")
    if kind == "own arrays":
        kind, settings["rollout_buffer_class"] = "vectors", WithMarks
    return make_kind(kind, **settings | kwargs)


def test_without_learning_old_data_is_as_good_as_new():
    """With a learning rate of zero all policies are one: importance weights are one, the clip does nothing."""
    logged = learn_and_log(make(learning_rate=0.0, replay_kwargs=dict(policy_rollouts=3)), 5 * 16)
    assert logged["train/approx_kl"] == pytest.approx(0, abs=1e-6) and logged["train/clip_fraction"] == 0
    assert logged["train/importance_clip_fraction"] == 0 and logged["train/older_rollouts"] == 2


def test_the_auxiliary_phase_has_the_rollouts_of_its_phase():
    collected, phases = [], []

    class Watch(PhasicCallback):
        def _on_rollout_end(self) -> None:
            collected.append(self.model.rollout_buffer.observations.swapaxes(0, 1).copy())

        def on_aux_phase_start(self) -> None:
            phases.append([rollout.arrays["observations"] for rollout in self.model.aux_buffer.rollouts])

    make(replay_kwargs=dict(policy_rollouts=3)).learn(8 * 16, callback=Watch())
    assert [len(phase) for phase in phases] == [4, 4]
    np.testing.assert_array_equal([*phases[0], *phases[1]], collected)


def test_clipping_against_old_policies_is_warned_about():
    with pytest.warns(UserWarning, match="does not correct.*'decoupled' or 'ewma'"):
        make(objective="ppg", replay_kwargs=dict(policy_rollouts=2)).learn(16)


def test_what_cannot_work_is_refused_by_name():
    for arguments, message in (
        (dict(replay_kwargs=3), "use a dictionary"),
        (dict(replay_kwargs=dict(policy_rollouts=0)), "`policy_rollouts`=0 cannot work: use an integer of at least"),
        (dict(replay_kwargs=dict(value_rollouts=2)), "without `n_value_epochs`"),
        (dict(kind="LSTM", n_steps=31, batch_size=31, replay_kwargs=dict(policy_rollouts=2)), "sequences are equal parts"),
        (
            dict(replay_kwargs=dict(policy_rollouts=2), objective="ewma", objective_kwargs=dict(advantage_decay=0.5)),
            "would count a rollout several times",
        ),
        (with_preset("dna", dict(replay_kwargs=dict(policy_rollouts=2))), "has its own value targets.*use None"),
        (with_preset("dcpg", dict(replay_kwargs=dict(policy_rollouts=2))), "holds values as they were collected"),
        (with_preset("idaac", dict(replay_kwargs=dict(policy_rollouts=2))), "levels of older frames are forgotten"),
    ):
        with pytest.raises(ArgumentError, match=message):
            make(**arguments)


@pytest.mark.parametrize("kind", ["vectors", "own arrays", "Dict", "LSTM", "masks"])
def test_saved_and_read_again(kind, tmp_path):
    model = make(kind, replay_kwargs=dict(policy_rollouts=3, policy_uses=2)).learn(5 * 16)
    other = saved_and_loaded(model, tmp_path)
    assert len(other.replay.rollouts) == 3
    for each, same in zip(model.replay.rollouts, other.replay.rollouts, strict=True):
        assert each.uses == same.uses
        assert each.arrays.keys() == same.arrays.keys() >= {"rewards", "episode_starts", "last_dones"}
        map_arrays(partial(np.testing.assert_array_equal, strict=True), each.arrays, same.arrays)
        if kind == "own arrays":
            np.testing.assert_array_equal(same.arrays["marks"].ravel(), same.arrays["rewards"].ravel())
    model.update_advantages(each)
    other.update_advantages(same)
    np.testing.assert_array_equal(each.arrays["advantages"], same.arrays["advantages"])


def test_without_its_rollouts_a_model_goes_on_with_new_ones(tmp_path):
    model = make(replay_kwargs=dict(policy_rollouts=3)).learn(4 * 16)
    model.save(tmp_path / "model.zip")
    other = PPG.load(tmp_path / "model.zip", env=model.get_env(), device="cpu")
    with pytest.warns(UserWarning, match="new rollouts, without the 3 that it would have learned from again"):
        other.learn(16, reset_num_timesteps=False)
    assert len(other.replay.rollouts) == 1
    other.save_aux_buffer(tmp_path / "state.npz")  # what there is now
    other.load_aux_buffer(tmp_path / "state.npz")


def test_replayed_rewards_are_normalised_once():
    """An older rollout keeps the rewards that it had when it was new."""
    model = make(replay_kwargs=dict(policy_rollouts=3), **normalized_rewards()).learn(3 * 16)
    rewards = [rollout.arrays["rewards"].copy() for rollout in model.replay.rollouts]
    model.learn(16, reset_num_timesteps=False)
    kept = [rollout.arrays["rewards"] for rollout in model.replay.rollouts]
    assert len(kept) == 3
    assert all(np.array_equal(now, then) for now, then in zip(kept[:2], rewards[1:], strict=True))


@pytest.mark.parametrize(("phase", "error"), [("policy", KeyboardInterrupt()), ("auxiliary", ZeroDivisionError())])
def test_after_an_error_no_rollout_is_there_twice(phase, error, monkeypatch, tmp_path):
    """A file saved then can be read, and the next call of `learn` continues."""

    def fail(*_):
        raise error

    model = make(replay_kwargs=dict(policy_rollouts=3), n_policy_iterations=2, n_epochs=2).learn(16)
    with pytest.raises(type(error)), monkeypatch.context() as patched:
        patched.setattr(type(model.objective), f"{phase}_losses" if phase == "auxiliary" else "after_policy_step", fail)
        model.learn(16, reset_num_timesteps=False)
    assert len(model.replay.rollouts) == (1 if phase == "policy" else 2)
    saved_and_loaded(model, tmp_path)
    model.learn(16, reset_num_timesteps=False)
    observations = [rollout.arrays["observations"] for rollout in model.replay.rollouts]
    assert len(observations) == (2 if phase == "policy" else 3)
    assert not any(np.array_equal(each, other) for each, other in itertools.combinations(observations, 2))


def test_there_has_to_be_room(monkeypatch):
    monkeypatch.setattr("sb3_ppg.buffers.replay.available_memory", lambda: 10)
    with pytest.raises(ArgumentError, match="only 10 are available in memory: `replay_kwargs` keeps 2 rollouts"):
        make(n_aux_epochs=0, replay_kwargs=dict(policy_rollouts=2)).learn(16)


def test_only_rollouts_that_epochs_use_are_brought_up_to_date():
    model = make(replay_kwargs=dict(policy_rollouts=4, policy_uses=1), normalize_advantage=False)
    assert learn_and_log(model, 5 * 16)["train/older_rollouts"] == 0
    first = model.replay.rollouts[0].arrays
    np.testing.assert_allclose(first["targets"], first["old_values"] + first["advantages"])  # V at collection


def test_the_auxiliary_phase_has_the_latest_targets_as_without_a_replay():
    model = make(n_epochs=2, recompute_advantages=True, replay_kwargs=dict(policy_rollouts=2)).learn(3 * 16)
    latest = model.replay.rollouts[-1].arrays["targets"]
    np.testing.assert_array_equal(model.aux_buffer.rollouts[-1].arrays["targets"], latest)
