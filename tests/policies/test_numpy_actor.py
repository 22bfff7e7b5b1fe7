"""Acting in NumPy: the actions, values and log-probabilities of torch, as long as the policy is of parts that it knows."""

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb3_ppg import PPG, MaskablePPG, MlpPolicy, PhasicCallback
from sb3_ppg.errors import NonFiniteActionError
from tests.helpers import (
    ARCHITECTURES,
    BOX,
    MASKED_ACTIONS,
    NESTED,
    SMALL,
    THREE_ACTIONS,
    VECTOR,
    ActsThroughTorch,
    RandomEnv,
    collect,
    make_kind,
    masked_envs,
    random_envs,
)
from tests.policies.test_policies import Squashed

ACTION_SPACES = {
    "Discrete": spaces.Discrete(5, start=3),
    "MultiDiscrete": spaces.MultiDiscrete([2, 5, 3]),
    "MultiBinary": spaces.MultiBinary(4),
    "Box": BOX,
    "Box of integers": spaces.Box(-3, 9, (3,), np.int64),
}
SHAPES: dict[str, dict[str, Any]] = {
    **{name: dict(architecture=name) for name in ARCHITECTURES},
    **{cls.__name__: dict(activation_fn=cls, net_arch=[7]) for cls in (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.SiLU)},
    "no layers": dict(net_arch=[]),
    "two features extractors": dict(share_features_extractor=False),
}


def through_torch(policy: MlpPolicy) -> MlpPolicy:
    policy = copy.deepcopy(policy)
    policy.numpy_actor = lambda: None
    return policy


def trained(**arguments: Any) -> PPG:
    """A model with another value unit, standard deviation and weights than it began with."""
    model = PPG("MlpPolicy", **{**SMALL, "learning_rate": 0.01, **arguments})
    return model.learn(4 * model.n_steps * model.n_envs)


def assert_acts_like_torch(
    policy: MlpPolicy, space: spaces.Space, masks: np.ndarray | None = None, tolerance: float = 1e-5
) -> None:
    n = 50
    observations = np.stack([space.sample() for _ in range(n)])
    inputs = {} if masks is None else {"action_masks": masks}
    outcomes, predicted = [], []
    for each in (policy, through_torch(policy)):
        th.manual_seed(1)
        with th.no_grad():
            batch = each.step_batch(th.as_tensor(observations), np.zeros(n), inputs)
            outcomes.append([*(each.numpy_actor() or each).act(batch)[:3], each.next_values(batch)])
        predicted.append([each.predict(observations, deterministic=mode, **inputs)[0] for mode in (False, True)])
    assert outcomes[0][0].dtype == outcomes[1][0].dtype
    for one, other in zip(*outcomes, strict=True):
        th.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(*predicted, rtol=1e-5, atol=1e-5)
    assert policy.numpy_actor() is not None


@pytest.mark.parametrize("actions", ACTION_SPACES)
def test_all_kinds_of_actions_are_those_of_torch(actions):
    model = trained(env=random_envs(VECTOR, ACTION_SPACES[actions]))
    assert_acts_like_torch(model.policy, VECTOR)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_shapes_of_networks_are_those_of_torch(shape):
    model = trained(env=random_envs(VECTOR, BOX), policy_kwargs=SHAPES[shape])
    assert_acts_like_torch(model.policy, VECTOR)


@pytest.mark.parametrize("space", [spaces.Discrete(7, start=2), spaces.MultiBinary(3), spaces.Box(0, 9, (2, 3), np.int64)])
def test_all_observations_are_encoded_as_by_torch(space):
    assert_acts_like_torch(trained(env=random_envs(space)).policy, space)


@pytest.mark.parametrize("actions", MASKED_ACTIONS)
def test_masks_exclude_the_same_actions(actions):
    env = masked_envs(VECTOR, actions, n_envs=50)
    model = MaskablePPG("MlpPolicy", env, **SMALL).learn(800)
    masks = np.stack(env.env_method("action_masks"))
    assert_acts_like_torch(model.policy, VECTOR, masks.reshape(50, -1))


def test_squashed_actions_are_those_of_torch():
    """Near the bounds, where log π divides by a difference of nearly equal numbers, rounding counts more."""
    box = spaces.Box(-1.0, 1.0, (2,))
    squashed = trained(env=random_envs(VECTOR, box), policy_kwargs=dict(distribution_class=Squashed))
    assert squashed.policy.numpy_actor() is None  # a class of the user's own
    squashed.policy.action_dist = SquashedDiagGaussianDistribution(2)
    assert_acts_like_torch(squashed.policy, VECTOR, tolerance=1e-3)


class Notes(PhasicCallback):
    """Notes actions and values of each step, and calls a function after one of them."""

    def __init__(self, at: int = -1, function=None):
        super().__init__()
        self.at, self.function, self.seen = at, function, []

    def _on_step(self) -> bool:
        self.seen.append((np.array(self.locals["actions"]), self.locals["values"].flatten().numpy().copy()))
        if self.n_calls == self.at:
            self.function(self.model.policy)
        return True


def seen(in_torch: bool, env: Any = "CartPole-v1", total: int = 64, **options: Any) -> list[Any]:
    policy: Any = ActsThroughTorch if in_torch else "MlpPolicy"
    model, notes = PPG(policy, env, **{**SMALL, "n_steps": 64}), Notes(**options)
    model.learn(total, callback=notes)
    return [np.array(each) for each in zip(*notes.seen, strict=True)]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_draws_the_same_actions(env):
    for one, other in zip(seen(False, env, 512), seen(True, env, 512), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


CHANGES = {
    "in place": lambda policy: policy.value_net.weight.detach().mul_(3),
    "data": lambda policy: setattr(policy.value_net.weight, "data", policy.value_net.weight.data * 3),
    "another layer": lambda policy: setattr(policy.mlp_extractor.value_net, "2", nn.Linear(64, 64)),
    "another parameter": lambda policy: setattr(policy.action_net, "bias", nn.Parameter(th.tensor([5.0, -5.0]))),
    "a further layer": lambda policy: policy.mlp_extractor.value_net.append(nn.ReLU()),
    "hook": lambda policy: policy.value_net.register_forward_hook(lambda _, inputs, output: output + 7),
    "method": lambda policy: setattr(policy, "evaluate", lambda obs, **o: MlpPolicy.evaluate(policy, 3 * obs, **o)),
    "method of the networks": lambda policy: setattr(
        policy.mlp_extractor, "forward_critic", lambda features: -policy.mlp_extractor.value_net(features)
    ),
    "method of a layer": lambda policy: setattr(policy.value_net, "forward", lambda latent: latent.sum(dim=1, keepdim=True)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_callback_changes_counts_from_the_next_step(change):
    """Change it in the middle of a rollout."""
    th.manual_seed(0)
    ours, expected, before = seen(False, at=20, function=change), seen(True, at=20, function=change), seen(True)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert not all(np.allclose(one[21:], other[21:]) for one, other in zip(ours, before, strict=True))


def test_other_policies_act_through_torch():
    class Own(MlpPolicy):
        def evaluate(self, obs, **options):
            return super().evaluate(2 * obs, **options)

    class Wrapped(MlpPolicy):
        @functools.wraps(MlpPolicy.evaluate)
        def evaluate(self, *args, **options):
            return super().evaluate(*args, **options)

    for kind in ("images", "Dict", "LSTM"):
        assert make_kind(kind).policy.numpy_actor() is None
    made = [
        PPG(Own, "CartPole-v1", **SMALL),
        PPG(Wrapped, "CartPole-v1", **SMALL),
        PPG("MlpPolicy", "Pendulum-v1", use_sde=True, **SMALL),
        PPG("MlpPolicy", random_envs(VECTOR, NESTED), **SMALL),
        PPG("MlpPolicy", "CartPole-v1", mixed_precision="bf16", **SMALL),
        PPG("MlpPolicy", "CartPole-v1", policy_kwargs=dict(activation_fn=nn.GELU), **SMALL),
        PPG("MlpPolicy", "CartPole-v1", policy_kwargs=dict(net_arch=[1024, 1024]), **SMALL),
    ]
    assert [model.policy.numpy_actor() for model in made] == [None] * len(made)
    policy = PPG("MlpPolicy", "CartPole-v1", **SMALL).policy
    with th.autocast("cpu", th.bfloat16):
        assert policy.numpy_actor() is None
    assert policy.numpy_actor() is not None and policy.double().numpy_actor() is None


def test_numbers_that_are_not_finite_are_explained_as_by_torch():
    model = PPG("MlpPolicy", random_envs(VECTOR, THREE_ACTIONS), **SMALL)
    with th.no_grad():
        model.policy.action_net.bias[0] = np.nan
    with pytest.raises(NonFiniteActionError, match="Expected parameter logits"):
        model.learn(16)
    for deterministic in (False, True):
        with pytest.raises(ValueError, match="Expected parameter logits"):
            model.predict(VECTOR.sample(), deterministic=deterministic)
    model = PPG("MlpPolicy", random_envs(VECTOR, BOX), **SMALL)
    with th.no_grad():
        model.policy.log_std[0] = np.nan
    for deterministic in (False, True):
        with pytest.raises(ValueError, match="Expected parameter scale"):
            model.predict(VECTOR.sample(), deterministic=deterministic)


def test_an_observation_outside_its_space_is_refused_as_by_torch():
    model = PPG("MlpPolicy", random_envs(spaces.Discrete(7, start=2)), **SMALL)
    for number in (1, 9):
        with pytest.raises(RuntimeError, match="Class values must be"):
            model.predict(np.array([number]))
    assert model.policy.numpy_actor() is not None


def test_action_dist_has_the_latest_distribution():
    model = PPG("MlpPolicy", random_envs(VECTOR, BOX), **SMALL)
    latest, before = (np.stack([VECTOR.sample() for _ in range(4)]) for _ in range(2))
    with th.no_grad():
        expected, _ = (model.policy.get_distribution(th.as_tensor(each)).distribution.mean for each in (latest, before))
    model.predict(latest)
    th.testing.assert_close(model.policy.action_dist.distribution.mean, expected)


def test_layers_that_are_added_later_are_in_evaluation_mode_when_it_predicts():
    model = PPG("MlpPolicy", "CartPole-v1", **SMALL)
    model.predict(np.zeros(4, np.float32))
    model.policy.mlp_extractor.policy_net.append(nn.Dropout(0.5))
    model.predict(np.zeros(4, np.float32))
    assert not model.policy.mlp_extractor.policy_net[-1].training


def test_an_environment_may_change_the_actions_that_it_is_given():
    class Changing(RandomEnv):
        def step(self, action):
            action -= action
            return super().step(action)

    env = make_vec_env(lambda: Changing(VECTOR, spaces.MultiDiscrete([4, 5])), 2, seed=0)
    model = PPG("MlpPolicy", env, **SMALL)
    collect(model)
    assert model.rollout_buffer.actions.any()
