"""A class of rollout buffers says what it can do."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableRolloutBuffer
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppg import PPG, ArgumentError, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer
from sb3_ppg.buffers.advantages import gae
from sb3_ppg.buffers.protocol import has_new_arrays, is_recomputable
from sb3_ppg.buffers.rollouts import by_environment
from sb3_ppg.buffers.sequences import SequenceRolloutBuffer
from sb3_ppg.objectives import Objective, SampleData
from sb3_ppg.training.preparing import recompute_advantages
from tests.helpers import code_blocks, random_envs

SMALL = dict(n_steps=16, batch_size=16, n_epochs=2, n_policy_iterations=2, n_aux_epochs=1, gamma=0.9, seed=0, device="cpu")
REPLAY = dict(recompute_advantages=True, replay_kwargs=dict(policy_rollouts=2), objective="decoupled")


def buffer_of_the_page() -> type[RolloutBuffer]:
    (code,) = (block for block in code_blocks("docs/extending.md") if "(RolloutBuffer)" in block)
    names: dict = {}
    exec(code.split("model = PPG(")[0], names)
    return names["CompressedRewards"]


def ones():
    """Environments with the same observation and a reward of one, until a time limit of five steps."""
    return random_envs(spaces.Box(1, 1, (1,)), episode_length=5)


@pytest.mark.parametrize("algorithm, policy", [(PPG, "MlpPolicy"), (RecurrentPPG, "MlpLstmPolicy")])
def test_the_buffer_that_a_page_shows_is_recomputed_and_replayed(algorithm, policy, tmp_path):
    cls = buffer_of_the_page()
    if algorithm is RecurrentPPG:
        cls = type("OfSequences", (cls, SequenceRolloutBuffer), {})
    model = algorithm(policy, ones(), rollout_buffer_class=cls, **SMALL, **REPLAY).learn(4 * 32)
    assert len(model.replay.rollouts) == 2
    for rollout in model.replay.rollouts:
        buffer, end = rollout.buffer, rollout.end
        model.normalize_advantage = False
        recompute_advantages(model, buffer, end)
        arrays = (buffer.rewards, buffer.returns - buffer.advantages, buffer.episode_starts)
        rewards, values, starts = (by_environment(buffer, array)[:, :, 0].T for array in arrays)
        cut_off = np.vstack([starts[1:], end.dones]).astype(bool)
        np.testing.assert_allclose(rewards[~cut_off], np.log(2), rtol=1e-6)
        assert (rewards[cut_off] != np.float32(np.log(2))).all() and 0 < cut_off.sum() < cut_off.size
        last_values = model.next_values(th.as_tensor(end.observations), end.dones, memory=end.memory).detach().numpy().ravel()
        expected = gae(rewards, values, starts, last_values, end.dones, model.gamma, model.gae_lambda)
        np.testing.assert_allclose(by_environment(buffer, buffer.advantages)[:, :, 0].T, expected, rtol=1e-4, atol=1e-5)


class Silent(RolloutBuffer):
    def compute_returns_and_advantage(self, last_values, dones):
        super().compute_returns_and_advantage(last_values, dones)
        self.advantages *= 2


class Open(Silent):
    recomputable = True


class Reusing(RolloutBuffer):
    def reset(self):
        super().reset()


CLASSES = {  # whether it is recomputable, and has new arrays
    RolloutBuffer: (True, True),
    MaskableRolloutBuffer: (True, True),
    SequenceRolloutBuffer: (True, True),
    NormalizedRewardRolloutBuffer: (True, True),
    type("AddsOnly", (RolloutBuffer,), {"add": RolloutBuffer.add}): (True, True),
    type("Mixed", (NormalizedRewardRolloutBuffer, SequenceRolloutBuffer), {}): (True, True),
    Silent: (False, True),
    Open: (True, True),
    type("Denied", (Open,), {"recomputable": False}): (False, True),
    Reusing: (True, False),
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_is_trusted_with_what_it_says_of_the_methods_that_it_overrides(cls):
    kwargs = dict(reward_normalizer=RewardNormalizer()) if issubclass(cls, NormalizedRewardRolloutBuffer) else {}
    buffer = cls(2, spaces.Box(-1, 1, (1,)), spaces.Discrete(2), "cpu", **kwargs)
    assert (is_recomputable(buffer), has_new_arrays(buffer)) == CLASSES[cls]


class EveryOther(RolloutBuffer):
    """Yields every other minibatch."""

    def get(self, batch_size=None):
        yield from list(super().get(batch_size))[::2]


class Marking(Objective):
    def extras(self, policy, rollout_buffer, end):
        return SampleData(weights=np.zeros(rollout_buffer.buffer_size * rollout_buffer.n_envs))


def test_minibatches_of_its_own_are_refused_where_an_objective_would_add_to_them():
    """It would draw from the buffer's samples, without ``get``."""
    with pytest.raises(ArgumentError, match=r"`rollout_buffer_class`=.* cannot work: Marking adds data to minibatches"):
        PPG("MlpPolicy", ones(), rollout_buffer_class=EveryOther, objective=Marking, **SMALL)
    PPG("MlpPolicy", ones(), rollout_buffer_class=Silent, objective=Marking, **SMALL).learn(32)


@pytest.mark.parametrize("name", ["recompute_advantages", "replay_kwargs"])
def test_a_buffer_with_a_way_of_its_own_is_refused_where_advantages_would_be_recomputed(name):
    with pytest.raises(ArgumentError, match=f"`{name}`=.* cannot work: Silent has its own way to compute advantages"):
        PPG("MlpPolicy", ones(), rollout_buffer_class=Silent, objective="decoupled", **SMALL, **{name: REPLAY[name]})
    PPG("MlpPolicy", ones(), rollout_buffer_class=Silent, **SMALL).learn(16)
