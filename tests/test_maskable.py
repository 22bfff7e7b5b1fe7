"""MaskablePPG: masked actions are never taken and have no effect on a loss."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.distributions import CategoricalDistribution
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG
from tests.helpers import (
    MASKED_ACTIONS,
    SMALL,
    VECTOR,
    RandomEnv,
    StepsChanged,
    assert_trains_like,
    calls_of,
    collect,
    losses_of,
    masked_envs,
    random_envs,
)


def make(policy: str = "MlpPolicy", observation_space: spaces.Space = VECTOR, actions: str = "Discrete", **kwargs):
    return MaskablePPG(policy, masked_envs(observation_space, actions), **{**SMALL, "n_aux_epochs": 2, **kwargs})


@pytest.mark.parametrize("actions", MASKED_ACTIONS)
def test_without_auxiliary_epochs_it_is_maskable_ppo(actions):
    """Minibatches are whole rollouts, so that their order does not matter."""
    common = dict(n_steps=8, batch_size=16, n_epochs=3, learning_rate=1e-3, normalize_advantage=False, max_grad_norm=0.5)
    common |= dict(gamma=0.99, ent_coef=0.01, device="cpu")
    ours = make(actions=actions, n_aux_epochs=0, **{**common, "seed": 2})
    ppo = MaskablePPO("MlpPolicy", masked_envs(VECTOR, actions), seed=1, **common)
    assert_trains_like(ours, ppo, 8 * 2 * 4)


def test_entropy_and_kl_are_those_of_what_is_possible():
    """Work an example with five actions, the last three excluded."""
    policy, masks = make().policy, th.tensor([[True, True, False, False, False]])

    def distribution(*logits: float):
        with th.no_grad():
            policy.action_net.weight.zero_()
            policy.action_net.bias.copy_(th.tensor(logits))
        return policy.get_distribution(th.zeros(1, 3), masks)

    first = distribution(0.0, np.log(3.0), 50.0, -3.0, 7.0)
    assert first.distribution.probs[0].tolist() == pytest.approx([0.25, 0.75, 0, 0, 0], rel=1e-5)
    assert first.entropy().item() == pytest.approx(-0.25 * np.log(0.25) - 0.75 * np.log(0.75), rel=1e-5)
    old = policy.actions.parameters(first).detach().clone()
    other = distribution(0.0, np.log(3.0), 60.0, -23.0, 37.0)
    assert policy.actions.kl_divergence(other, old).item() == pytest.approx(0, abs=1e-6)
    kl = 0.25 * np.log(0.25 / 0.5) + 0.75 * np.log(0.75 / 0.5)
    assert policy.actions.kl_divergence(distribution(0.0, 0.0, 60.0, -23.0, 37.0), old).item() == pytest.approx(kl, rel=1e-4)


@pytest.mark.parametrize("actions", ["MultiDiscrete", "MultiBinary"])
def test_kl_of_several_masked_actions_is_the_sum_of_their_kls(actions):
    model, sizes = make(actions=actions), MASKED_ACTIONS[actions][1]
    obs = th.randn(16, 3)
    masks = th.rand(16, sum(sizes)) < 0.6
    masks[:, np.cumsum([0, *sizes[:-1]])] = True
    old = model.policy.actions.parameters(model.policy.get_distribution(obs, masks)).detach().clone()
    with th.no_grad():
        model.policy.action_net.weight += th.randn_like(model.policy.action_net.weight)
    new = model.policy.get_distribution(obs, masks)
    expected = th.zeros(16)
    for categorical, log_p in zip(new.distributions, old.split(sizes, dim=1), strict=True):
        p, q = log_p.exp(), categorical.probs
        expected += th.where(p > 0, p * (log_p - q.clamp(min=1e-30).log()), 0).sum(1)
    assert expected.mean() > 0.1
    th.testing.assert_close(model.policy.actions.kl_divergence(new, old), expected, rtol=1e-4, atol=1e-6)
    gradient = th.autograd.grad(model.policy.actions.kl_divergence(new, old).sum(), model.policy.action_net.weight)[0]
    assert gradient.isfinite().all()


@pytest.mark.parametrize("actions", MASKED_ACTIONS)
def test_the_auxiliary_phase_knows_the_masks_of_its_samples(actions):
    """KL(π_old, π) starts at zero, and the masks of the auxiliary phase are those of the environments."""
    model = make(actions=actions)
    acts = calls_of(model, "step_inputs")
    collect(model)
    model.aux_buffer.add(model.latest_rollout().kept(model.stored_keys))
    stored = model.aux_buffer.rollouts[0].arrays["action_masks"]
    assert stored.dtype == bool
    np.testing.assert_array_equal(stored, np.stack([inputs["action_masks"] for _, inputs in acts], axis=1))
    model.policy.set_training_mode(False)
    model.aux_buffer.record(partial(model.objective.recorded, model.policy), 1)
    for batch in model.aux_buffer.minibatches(1):
        assert losses_of("auxiliary_losses", model, batch, value_unit=1.0).terms["kl"].item() == pytest.approx(0, abs=1e-7)
        taken = th.exp(batch.recorded[~batch.action_masks])
        assert len(taken) > 0 and taken.max() == 0


@pytest.mark.parametrize("extractor", [FlattenExtractor, type("ActsThroughTorch", (FlattenExtractor,), {})])
def test_masks_are_those_of_the_call(extractor):
    """Each observation has its own, the last ones are forgotten, and threads use one policy at the same time."""
    model, each = make(policy_kwargs=dict(features_extractor_class=extractor)), np.eye(5, dtype=bool)
    observations = np.zeros((5, *VECTOR.shape), np.float32)
    by_position = (
        model.policy.predict(observations, None, None, False, each)[0],
        model.policy(th.as_tensor(observations), False, each)[0],
    )
    for actions in (model.predict(observations, action_masks=each)[0], *by_position):
        assert actions.tolist() == [*range(5)]

    def predicted(number: int | None) -> set[int]:
        masks = None if number is None else each[number]
        return {int(model.predict(np.zeros(VECTOR.shape, np.float32), action_masks=masks)[0]) for _ in range(99)}

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(predicted, [0, 1, None])) == [{0}, {1}, {*range(5)}]


def test_without_masking():
    """With ``use_masking=False`` every action is possible, and training equals PPG, sample for sample."""
    env = random_envs(VECTOR, spaces.Discrete(5))
    with pytest.raises(ArgumentError, match=r"no method `action_masks`.*ActionMasker.*use_masking=False"):
        MaskablePPG("MlpPolicy", env, n_steps=8, batch_size=8).learn(16)
    # SGD, because Adam would magnify the rounding of sb3-contrib's distributions, which normalise their logits twice
    kwargs = dict(SMALL, learning_rate=0.1, policy_kwargs=dict(optimizer_class=th.optim.SGD))
    models = [cls("MlpPolicy", env, **kwargs) for cls in (PPG, MaskablePPG)]
    models[1].policy.load_state_dict(models[0].policy.state_dict())
    for model, options in zip(models, (dict(), dict(use_masking=False)), strict=True):
        model.set_random_seed(3)
        model.learn(64, **options)
    assert models[1].n_aux_phases == 2
    th.testing.assert_close([*models[1].policy.parameters()], [*models[0].policy.parameters()], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_masks_come_through_wrappers_of_other_processes():
    """ActionMasker makes them in the workers, and a wrapper of all environments changes them, under normalisation."""

    class OnlyTheFirst(StepsChanged):
        def env_method(self, method_name, *args, **kwargs):
            results = super().env_method(method_name, *args, **kwargs)
            return [masks & (np.arange(5) <= 1) for masks in results] if method_name == "action_masks" else results

    def make_env():
        return ActionMasker(RandomEnv(VECTOR, spaces.Discrete(5)), lambda env: np.arange(5) >= 1)

    envs = make_vec_env(make_env, 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs=dict(start_method="fork"))
    env = VecNormalize(OnlyTheFirst(envs, lambda *step: step), norm_reward=False)
    model = MaskablePPG("MlpPolicy", env, n_steps=8, batch_size=8, n_policy_iterations=2, n_aux_epochs=1)
    model.learn(8 * 2 * 2)
    assert (model.rollout_buffer.actions == 1).all() and model.rollout_buffer.action_masks.sum() == 16
    assert model.n_aux_phases == 1
    env.close()


def test_callbacks_see_the_masks_as_with_maskable_ppo():
    seen, model = [], make()
    model.learn(16, lambda found, _: seen.append(found["action_masks"].copy()) or True)
    np.testing.assert_array_equal(np.stack(seen).ravel(), model.rollout_buffer.action_masks.ravel())


def test_masks_that_cannot_be():
    masks = [1, 1, 0]
    env = ActionMasker(RandomEnv(VECTOR, spaces.MultiDiscrete([3, 2, 4])), lambda env: np.array(masks, dtype=bool))
    model = MaskablePPG("MlpPolicy", env, n_steps=8, batch_size=8)
    with pytest.raises(ArgumentError, match=r"returned 3 values, MultiDiscrete.* needs 9"):
        model.learn(8)
    masks = [1, 0, 1, 0, 0, 1, 0, 0, 0]
    with pytest.raises(ArgumentError, match=r"`action_masks` of environment 0 allow no action in dimension 1"):
        model.learn(8)


class Unmasked(CategoricalDistribution):
    def __init__(self, space):
        super().__init__(space.n)


def test_a_distribution_without_masks_is_refused_by_name():
    with pytest.raises(ArgumentError, match="Unmasked cannot work with masks: it has no"):
        make(policy_kwargs=dict(distribution_class=Unmasked))
