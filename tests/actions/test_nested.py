"""Dict and Tuple action spaces: environments get the structure that the space describes, losses the sum over its leaves."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformAction
from stable_baselines3.common.distributions import CategoricalDistribution, DiagGaussianDistribution
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize
from torch.nn import functional as F

from sb3_ppg import PPG, ArgumentError, MaskablePPG, ModelFormatError, RecurrentPPG, hub
from sb3_ppg.actions import _KINDS, GaussianActions, NestedDistribution, SquashedGaussianDistribution, flat_masks
from sb3_ppg.environments.vec_envs import GymnasiumVecEnv
from tests.helpers import (
    BOX,
    NESTED,
    SMALL,
    VECTOR,
    ActsThroughTorch,
    RandomEnv,
    assert_both_phases_train,
    learn_and_log,
    random_envs,
)

PATHS = ["kind", "how.0", "how.1", "move.here", "move.there", "move.far"]
MASKS = dict(kind=[True, False, True], how={1: [True, False] + 6 * [True]})
TWO = spaces.Discrete(2)
PAIR = spaces.Dict(choice=spaces.Discrete(3), power=spaces.Box(-2, 2, (2,)))


class MaskedNested(RandomEnv):
    """The middle kind is never possible, and the first bit may not be set."""

    def __init__(self):
        super().__init__(VECTOR, NESTED, episode_length=7)

    def action_masks(self) -> np.ndarray:
        return flat_masks(self.action_space, MASKS)

    def step(self, action):
        assert action["kind"] != 3 and not action["how"][1][0, 0]
        return super().step(action)


def pair_of(logits, mean, log_std) -> NestedDistribution:
    """Return a distribution over ``PAIR`` and those of its leaves."""

    def make_leaf(space):
        return CategoricalDistribution(3) if isinstance(space, spaces.Discrete) else DiagGaussianDistribution(2)

    return NestedDistribution(PAIR, make_leaf).proba_distribution([(logits,), (mean, log_std)])


def test_it_is_the_product_of_the_leaves():
    """Compare with torch's own distributions; the KL divergence is the sum over the leaves."""
    logits, mean, log_std = th.tensor([[0.0, 1.0, 2.0]]), th.tensor([[0.5, -1.0]]), th.tensor([0.0, -1.0])
    distribution, row = pair_of(logits, mean, log_std), th.tensor([[2.0, 0.5, 0.0]])
    categorical, normal = th.distributions.Categorical(logits=logits), th.distributions.Normal(mean, log_std.exp())
    expected = categorical.log_prob(th.tensor([2])) + normal.log_prob(th.tensor([[0.5, 0.0]])).sum(1)
    th.testing.assert_close(distribution.log_prob(row), expected)
    th.testing.assert_close(distribution.entropy(), categorical.entropy() + normal.entropy().sum(1))
    th.testing.assert_close(distribution.mode(), th.tensor([[2.0, 0.5, -1.0]]))
    assert distribution.sample().shape == (1, 3)
    other = pair_of(th.tensor([[1.0, 1.0, 0.0]]), th.tensor([[0.0, 0.0]]), th.tensor([0.5, 0.0]))
    parts = zip(distribution.distributions, other.distributions, strict=True)
    kls = [th.distributions.kl_divergence(part.distribution, its.distribution).reshape(1, -1).sum(1) for part, its in parts]
    parameters = distribution.actions.parameters(distribution)
    th.testing.assert_close(distribution.actions.kl_divergence(other, parameters), sum(kls))


@pytest.mark.parametrize("leaf", [spaces.Discrete(3), spaces.Box(-1, 2, (2,)), spaces.MultiDiscrete([3, 2])], ids=str)
def test_a_space_with_one_leaf_trains_as_the_leaf(leaf):
    """Update for update."""

    def make(wrap):
        env = DummyVecEnv([lambda: wrap(RandomEnv(VECTOR, leaf))] * 2)
        env.seed(0)
        return PPG(ActsThroughTorch, env, ent_coef=0.01, **SMALL)

    space = spaces.Dict(all=spaces.Tuple([leaf]))
    flat, nested = make(lambda env: env), make(lambda env: TransformAction(env, lambda action: action["all"][0], space))
    names = {"action_net.nets.0.weight": "action_net.weight", "action_net.nets.0.bias": "action_net.bias"}
    names["action_net.constants.0.0"] = "log_std"
    weights = flat.policy.state_dict()
    nested.policy.load_state_dict({name: weights[names.get(name, name)] for name in nested.policy.state_dict()})
    for model in (flat, nested):
        model.set_random_seed(1)
        model.learn(64)
    trained = flat.policy.state_dict()
    for name, weight in nested.policy.state_dict().items():
        th.testing.assert_close(weight, trained[names.get(name, name)], rtol=1e-5, atol=1e-7)


class Mirrored(GaussianActions):
    """Has an entropy and a distance to a prior of its own."""

    def entropy(self, distribution, actions):
        return -super().entropy(distribution, actions)

    def prior_kl(self, distribution, prior_parameters):
        return -super().prior_kl(distribution, prior_parameters) - 1


def test_leaves_are_asked_for_their_own_entropy_and_distance_to_a_prior(monkeypatch):
    logged = []
    for kind in (GaussianActions, Mirrored):
        monkeypatch.setitem(_KINDS, DiagGaussianDistribution, kind)
        env = random_envs(VECTOR, spaces.Dict(only=BOX))
        model = PPG("MlpPolicy", env, **SMALL, prior="self", learning_rate=0.0)
        logged.append(learn_and_log(model, 16))
    assert logged[1]["train/entropy_loss"] == pytest.approx(-logged[0]["train/entropy_loss"], rel=1e-5)
    assert logged[1]["train/prior_kl"] == pytest.approx(-1 - logged[0]["train/prior_kl"], rel=1e-5)


def test_the_entropy_of_squashed_leaves():
    """Compare with a Monte Carlo estimate, and the gradient with a difference."""
    th.manual_seed(0)
    mean, log_std = th.tensor([[0.3, -1.0]]), th.tensor([-0.5, 0.4], requires_grad=True)

    def entropy(log_std):
        return SquashedGaussianDistribution(2).proba_distribution(mean, log_std).entropy()

    distribution = SquashedGaussianDistribution(2).proba_distribution(mean.expand(200_000, 2), log_std.detach())
    u = distribution.distribution.sample()
    log_prob = distribution.distribution.log_prob(u) - 2 * (np.log(2) - u - F.softplus(-2 * u))
    assert entropy(log_std).item() == pytest.approx(-log_prob.sum(1).mean().item(), abs=0.01)
    entropy(log_std).sum().backward()
    step = th.tensor([1e-2, 0.0])
    slope = (entropy(log_std + step) - entropy(log_std - step)).item() / 2e-2
    assert log_std.grad[0].item() == pytest.approx(slope, abs=1e-3) and slope > 0.3


@pytest.mark.parametrize("cls, policy", [(PPG, "MlpPolicy"), (RecurrentPPG, "MlpLstmPolicy")])
def test_entropy_coefficients_and_log_probabilities_of_the_leaves(cls, policy):
    """
    At the start choices are about uniform, and Gaussians have standard deviation 1. Without a step the policy is the one that
    acted, whose log-probabilities the rollout has.
    """
    normal, ent_coef = 0.5 * np.log(2 * np.pi * np.e), dict(kind=0.5, how=[0.25, 0], move=0.125)
    model = cls(policy, random_envs(VECTOR, NESTED), ent_coef=ent_coef, learning_rate=0, **SMALL)
    logged = learn_and_log(model, 16)
    total = sum(logged[f"train/log_prob/{path}"] for path in PATHS)
    assert total == pytest.approx(model.rollout_buffer.log_probs.mean(), rel=1e-5)
    expected = 0.5 * np.log(3) + 0.25 * np.log(48) + 0.125 * (4 + 3 + 1) * normal
    assert -logged["train/entropy_loss"] == pytest.approx(expected, rel=1e-2)
    assert logged["train/entropy/kind"] == pytest.approx(np.log(3), rel=1e-2)
    assert logged["train/entropy/move.there"] == pytest.approx(3 * normal, rel=1e-2)
    model.ent_coef = 0.1  # one coefficient can follow several
    expected = np.log(3) + np.log(48) + np.log(16) + (4 + 3 + 1) * normal
    assert -learn_and_log(model, 16)["train/entropy_loss"] == pytest.approx(expected, rel=1e-2)


def test_a_saved_policy_squashes_and_all_its_leaves_have_the_initial_standard_deviation(tmp_path):
    policy_kwargs = dict(squash_output=True, log_std_init=-2.0)
    model = PPG("MlpPolicy", random_envs(VECTOR, NESTED), policy_kwargs=policy_kwargs, **SMALL)
    model.policy.save(tmp_path / "policy.zip")
    loaded = type(model.policy).load(tmp_path / "policy.zip", device="cpu")
    constants = [each for name, each in loaded.named_parameters() if "constants" in name]
    assert len(constants) == 3 and all((each == -2).all() for each in constants)
    assert [kind.bounded for kind in loaded.actions.kinds] == [False, False, False, True, True, True]


def test_numbers_of_parts_are_understood_after_loading(tmp_path):
    """SB3's files have texts in their place."""
    env = random_envs(action_space=spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]))
    PPG("MlpPolicy", env, ent_coef={0: 0.1, 1: 0.0}, **SMALL).save(tmp_path / "model.zip")
    PPG.load(tmp_path / "model.zip", env=env).learn(16)


@pytest.mark.parametrize("ent_coef", [dict(kind=1), dict(kind=1, how=[1], move=1), dict(kind="a", how=0, move=0), [1, 2, 3]])
def test_coefficients_of_another_structure_are_refused(ent_coef):
    with pytest.raises(ArgumentError, match="`ent_coef`"):
        PPG("MlpPolicy", random_envs(VECTOR, NESTED), ent_coef=ent_coef, **SMALL)
    with pytest.raises(ArgumentError, match="`ent_coef`"):
        PPG("MlpPolicy", random_envs(), ent_coef=ent_coef, **SMALL)


def test_masks_of_leaves_become_one_row_and_others_are_refused():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.MultiBinary(1), spaces.Box(0, 1, (2,))]))
    assert flat_masks(space, {"a": [True, False]}).tolist() == [True, False, True, True, True, True]
    assert flat_masks(space, {"b": {0: [False, True]}}).tolist() == [True, True, False, True, True, True]
    for masks in (dict(kind=[True]), dict(other=[True]), dict(move=dict(far=[True])), [True] * 30):
        with pytest.raises(ArgumentError, match="`masks`"):
            flat_masks(NESTED, masks)


def test_excluded_actions_are_never_taken():
    model = MaskablePPG("MlpPolicy", DummyVecEnv([MaskedNested] * 2), **SMALL)
    assert_both_phases_train(model)
    logged = model.logger.name_to_value
    assert logged["train/entropy/how.1"] == pytest.approx(3 * np.log(2), rel=1e-2)
    assert logged["train/entropy/kind"] == pytest.approx(np.log(2), rel=1e-2)


def monitored():
    return gym.wrappers.TimeLimit(RandomEnv(VECTOR, NESTED), 5)


VEC_ENVS = {
    "SubprocVecEnv": lambda: make_vec_env(monitored, 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs=dict(start_method="fork")),
    "wrappers": lambda: VecNormalize(VecMonitor(DummyVecEnv([monitored] * 2))),
    "Gymnasium's": lambda: GymnasiumVecEnv(gym.vector.SyncVectorEnv([monitored] * 2)),
}


@pytest.mark.parametrize("kind", [pytest.param("SubprocVecEnv", marks=pytest.mark.slow), "wrappers", "Gymnasium's"])
def test_vectorized_environments_take_the_structure(kind):
    env = VEC_ENVS[kind]()
    model = PPG("MlpPolicy", env, **SMALL).learn(32)
    _, lengths = evaluate_policy(model, model.get_env(), 2, deterministic=False, return_episode_rewards=True)
    assert lengths == [5, 5]
    model.get_env().close()


def test_keys_that_json_does_not_have_are_not_shared(tmp_path):
    model = PPG("MlpPolicy", random_envs(VECTOR, spaces.Dict({0: BOX, 1: BOX})), **SMALL)
    with pytest.raises(ModelFormatError, match="action_space"):
        hub.save_pretrained(model, tmp_path)


def test_spaces_without_actions_or_with_other_leaves_are_refused():
    for space, message in (
        (spaces.Dict(), "has no actions"),
        (spaces.Tuple([spaces.Dict()]), "has no actions"),
        *(
            (spaces.Dict(good=TWO, outer=spaces.Tuple([spaces.Dict(bad=leaf)])), r"'outer\.0\.bad', which cannot work: ")
            for leaf in (spaces.Text(3), spaces.Box(-np.inf, 1, (2,)), spaces.Box(0, 1, (0,)))
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            PPG("MlpPolicy", random_envs(VECTOR, space), **SMALL)


def test_arguments_for_one_distribution_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)`distribution_class`=.*make_leaf_distribution"):
        PPG("MlpPolicy", random_envs(VECTOR, NESTED), policy_kwargs=dict(distribution_class=DiagGaussianDistribution), **SMALL)


def test_leaves_have_temperatures():
    model = PPG("MlpPolicy", random_envs(VECTOR, NESTED), **SMALL)
    observation = np.stack([VECTOR.sample()] * 500)
    plain, _ = model.predict(observation)
    assert model.action_space.contains(model.predict(observation[0])[0])
    cold = dict(kind=1e-6, how=1.0, move=dict(here=1.0, there=1.0, far=1e-6))
    actions, _ = model.predict(observation, temperature=cold)
    assert len({action["kind"] for action in plain}) == 3 and len({action["kind"] for action in actions}) == 1
    spread = {name: np.std([action["move"][name][..., 0] for action in actions], axis=0).max() for name in ("here", "far")}
    assert spread["far"] < 2e-3 and spread["here"] > 0.3
    with pytest.raises(ArgumentError, match="`temperature`=0"):
        model.predict(observation, temperature=dict(kind=0, how=1, move=1))
