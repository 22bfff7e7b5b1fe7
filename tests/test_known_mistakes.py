"""
Mistakes of other implementations of PPG, each caught where it would show. The tests of the parts look for further ones;
docs/algorithm/details.md lists all of them.
"""

import tracemalloc

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb3_ppg.training.preparing import record
from tests.helpers import RandomEnv, auxiliary_batch_sizes, collect, fill_phase, image_space, losses_of
from tests.helpers import make_with_papers_values as make


def test_cloning_holds_the_whole_distribution_not_the_taken_actions():
    """Move the probability of actions that were never taken; the cloning loss must change and stay finite."""
    model = make(env=RandomEnv(spaces.Box(-1, 1, (2,)), spaces.Discrete(4)))
    fill_phase(model)
    record(model, 1)
    batch = next(model.aux_buffer.minibatches(model.aux_buffer.n_sequences))
    kl = losses_of("auxiliary_losses", model, batch, value_unit=1.0).terms["kl"]
    assert kl.item() == pytest.approx(0, abs=1e-7)
    with th.no_grad():  # actions 2 and 3 trade probability, 0 and 1 keep theirs
        model.policy.action_net.bias += th.tensor([0.0, 0.0, 1.0, -1.0])
        shift = model.policy.get_distribution(batch.observations).distribution.logits - batch.recorded
        model.policy.action_net.bias -= shift[:, 0].mean()
    kl = losses_of("auxiliary_losses", model, batch, value_unit=1.0).terms["kl"]
    assert np.isfinite(kl.item()) and kl.item() > 0.1


def test_the_cloning_target_is_the_policy_right_before_the_auxiliary_phase():
    """The policy that collected the rollouts would pull the policy back by up to N_π iterations."""
    model = make(learning_rate=1e-2, aux_batch_size=16, n_policy_iterations=2)
    targets = []
    record = model.aux_buffer.record

    def recorded(*args):
        record(*args)
        with th.no_grad():
            observations = th.as_tensor(model.aux_buffer.rollouts[0].observations.reshape(-1, 4))
            now = model.policy.actions.parameters(model.policy.get_distribution(observations))
        targets.append((model.aux_buffer.recorded[:1].flatten(0, 1), now))

    model.aux_buffer.record = recorded
    collect(model)
    at_rollout = th.as_tensor(model.rollout_buffer.log_probs.copy()).flatten()
    actions = th.as_tensor(model.rollout_buffer.actions.copy()).long().flatten()
    model.train()
    collect(model)
    model.train()
    ((old, now),) = targets
    assert th.equal(old, now)
    assert (old.gather(1, actions[:, None]).flatten() - at_rollout).abs().max() > 1e-3


def test_advantages_and_bootstraps_are_the_true_value_functions():
    """A wrong auxiliary head changes nothing in a rollout."""
    buffers = []
    for astray in (0.0, 1e6):
        model = make("Pendulum-v1", n_steps=250)  # beyond the time limit of 200 steps
        with th.no_grad():
            model.policy.aux_value_net.bias.fill_(astray)
        collect(model)
        buffers.append((model.rollout_buffer.advantages, model.rollout_buffer.returns, model.rollout_buffer.values))
        value = model.policy.predict_values(th.as_tensor(model.rollout_buffer.observations[:, 0])).detach().numpy()
        np.testing.assert_allclose(value, model.rollout_buffer.values, rtol=1e-5, atol=1e-6)
    for a, b in zip(*buffers, strict=True):
        np.testing.assert_array_equal(a, b)


def test_no_copy_of_the_stored_images_is_made_in_float32():
    """In addition to the stored images, the peak memory of an auxiliary phase is a minibatch, not another buffer."""
    env = make_vec_env(lambda: RandomEnv(image_space(3, 64, 64), spaces.Discrete(2)), 4)
    kwargs = dict(net_arch=[1], features_extractor_kwargs=dict(features_dim=1))
    model = make(env, "CnnPolicy", n_policy_iterations=8, aux_batch_size=16, n_aux_epochs=1, policy_kwargs=kwargs)
    fill_phase(model)
    stored = sum(one.observations.nbytes for one in model.aux_buffer.rollouts)
    assert stored == 8 * 16 * 4 * 3 * 64 * 64
    tracemalloc.start()  # NumPy's memory; a minibatch is gathered there
    model.auxiliary_phase()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < stored / 8


def test_the_auxiliary_phase_clips_its_gradient_and_splits_its_minibatches():
    sizes = dict(n_policy_iterations=2, aux_batch_size=32, micro_batch_size=5)
    model, norms = make(n_aux_epochs=1, max_grad_norm=0.01, **sizes), []

    def note_norm(*_) -> None:
        gradients = [parameter.grad for parameter in model.policy.parameters() if parameter.grad is not None]
        norms.append(th.nn.utils.get_total_norm(gradients).item())

    model.aux_optimizer.register_step_pre_hook(note_norm)
    assert auxiliary_batch_sizes(model, 2 * 16) == [5] * 6 + [2]
    assert norms == [pytest.approx(0.01, rel=1e-4)]
