"""The three architectures: which gradient reaches what, what is run when, what is saved."""

import math
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.distributions import SquashedDiagGaussianDistribution
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import MlpExtractor, NatureCNN
from stable_baselines3.common.utils import ConstantSchedule
from torch import nn
from torch.nn import functional as F

from sb3_ppg import PPG, ArgumentError, CnnPolicy, ImpalaCNN, MinAtarCNN, MlpPolicy, MultiInputPolicy, RecurrentPPG
from sb3_ppg.buffers.rollouts import batches
from sb3_ppg.maskable import MaskablePhasicActorCriticCnnPolicy
from sb3_ppg.policies.lstm import RecurrentPhasicActorCriticCnnPolicy, RecurrentPhasicActorCriticPolicy
from tests.helpers import (
    ARCHITECTURES,
    SMALL,
    ActsThroughTorch,
    evaluate_auxiliary,
    image_space,
    make_on_images,
    random_envs,
    untrained,
)

VECTOR = spaces.Box(-1, 1, (4,))
IMAGE = image_space(3, 36, 36)
DICT = spaces.Dict(image=IMAGE, vector=VECTOR)
CASES = {"mlp": (MlpPolicy, VECTOR), "cnn": (CnnPolicy, IMAGE), "multi-input": (MultiInputPolicy, DICT)}
ACTIONS = th.tensor([0, 1, 2, 0, 1, 2])
every_policy = pytest.mark.parametrize("policy_class, observation_space", CASES.values(), ids=CASES)


def make(policy_class, observation_space, **kwargs):
    th.manual_seed(0)
    return policy_class(observation_space, spaces.Discrete(3), ConstantSchedule(1e-3), **kwargs)


def sample(policy):
    """Six observations."""
    space = policy.observation_space
    space.seed(0)
    batched = gym.vector.utils.batch_space(space, 6)
    return policy.obs_to_tensor(batched.sample())[0]


def reached(policy, loss: th.Tensor) -> set[str]:
    """The modules that a loss has a gradient for: heads by their names, the trunks of each network as policy and value."""
    policy.zero_grad()
    loss.backward()
    modules = {name: [getattr(policy, name)] for name in ("action_net", "value_net", "aux_value_net")}
    modules["pi trunk"] = [policy.pi_features_extractor, policy.mlp_extractor.policy_net]
    modules["vf trunk"] = [policy.vf_features_extractor, policy.mlp_extractor.value_net]
    gradients = {name: [p.grad for part in parts for p in part.parameters()] for name, parts in modules.items()}
    return {name for name, parts in gradients.items() if any(part is not None and part.any() for part in parts)}


@pytest.mark.parametrize("policy_class", [MlpPolicy, RecurrentPhasicActorCriticPolicy])
def test_the_kl_term_of_the_auxiliary_phase_reaches_the_features_of_gsdes_deviations(policy_class):
    """SB3 computes them from features without a gradient, so that the phase would move them without a cost."""
    cls = PPG if policy_class is MlpPolicy else RecurrentPPG
    model = cls(policy_class, random_envs(action_space=spaces.Box(-1, 1, (2,))), use_sde=True, **SMALL).learn(16)
    (batch,) = batches([model.latest_rollout()], [np.arange(model.n_envs)], model.n_steps, model.device)
    gaussians = [model.policy.evaluate_batch(batch, auxiliary=phase).distribution.distribution for phase in (False, True)]
    assert th.equal(gaussians[0].stddev, gaussians[1].stddev)
    assert [reached(model.policy, gaussian.stddev.sum()) for gaussian in gaussians] == [set(), {"pi trunk"}]


@every_policy
def test_gradients_of_the_policy_phase(policy_class, observation_space):
    for architecture, value_reaches in {
        "dual": {"value_net", "vf trunk"},
        "detached": {"value_net"},
        "shared": {"value_net", "pi trunk", "vf trunk"} if policy_class is not MlpPolicy else {"value_net", "pi trunk"},
    }.items():
        policy = make(policy_class, observation_space, architecture=architecture)
        obs = sample(policy)
        policy_reaches = {"action_net", "pi trunk"}
        if architecture != "dual" and policy_class is not MlpPolicy:
            policy_reaches |= {"vf trunk"}  # one and the same features extractor
        values, *_ = policy.evaluate_actions(obs, ACTIONS)
        assert reached(policy, values.square().sum()) == value_reaches, architecture
        assert reached(policy, policy.predict_values(obs).square().sum()) == value_reaches, architecture
        _, log_prob, _ = policy.evaluate_actions(obs, ACTIONS)
        assert reached(policy, log_prob.sum()) == policy_reaches, architecture


@every_policy
def test_gradients_of_the_auxiliary_phase(policy_class, observation_space):
    for architecture, detach, trunk_is_reached in (
        ("dual", False, False),  # the true value function's own network is, not the policy's
        ("detached", False, True),  # the paper
        ("detached", True, False),  # the authors' code
        ("shared", False, True),
    ):
        policy = make(policy_class, observation_space, architecture=architecture, detach_value_in_aux_phase=detach)
        obs = sample(policy)
        _, aux_values, _ = evaluate_auxiliary(policy, obs)
        assert {"aux_value_net", "pi trunk"} <= reached(policy, aux_values.square().sum())
        *_, values = evaluate_auxiliary(policy, obs)
        names = reached(policy, values.square().sum())
        assert "value_net" in names and "aux_value_net" not in names
        assert ("pi trunk" in names) == trunk_is_reached, (architecture, detach)
        assert ("vf trunk" in names) or architecture != "dual"


@every_policy
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_ways_to_ask_agree_and_a_file_of_the_policy_alone_keeps_it(
    policy_class, observation_space, architecture, tmp_path
):
    policy = make(policy_class, observation_space, architecture=architecture)
    obs = sample(policy)
    values, log_prob, entropy = policy.evaluate_actions(obs, ACTIONS)
    distribution, aux_values, true_values = evaluate_auxiliary(policy, obs)
    th.testing.assert_close(distribution.log_prob(ACTIONS), log_prob)
    th.testing.assert_close(distribution.entropy(), entropy)
    th.testing.assert_close(true_values, values.flatten())
    th.testing.assert_close(policy.predict_values(obs), values)
    th.testing.assert_close(policy(obs, deterministic=True)[1], values)
    assert aux_values.shape == true_values.shape == (6,)
    assert not th.allclose(aux_values, true_values)
    policy.save(tmp_path / "policy.zip")
    loaded = policy_class.load(tmp_path / "policy.zip", device="cpu")
    assert loaded.architecture == architecture and loaded.share_features_extractor == policy.share_features_extractor
    _, *loaded_values = evaluate_auxiliary(loaded, obs)
    assert all(map(th.equal, (aux_values, true_values), loaded_values))
    assert th.equal(policy(obs, deterministic=True)[0], loaded(obs, deterministic=True)[0])


def count_forwards(policy, call) -> dict[str, int]:
    counts = {"pi": 0, "vf": 0, "aux": 0}
    modules = {"pi": policy.pi_features_extractor, "vf": policy.vf_features_extractor, "aux": policy.aux_value_net}
    for name, module in modules.items():
        module.register_forward_hook(lambda *_, name=name: counts.__setitem__(name, counts[name] + 1))
    call()
    return counts


def test_no_forward_pass_that_nobody_reads():
    policy = make(CnnPolicy, IMAGE, architecture="dual")
    obs = sample(policy)
    assert count_forwards(policy, lambda: policy(obs)) == dict(pi=1, vf=1, aux=0)  # rollout
    assert count_forwards(policy, lambda: policy.evaluate_actions(obs, ACTIONS)) == dict(pi=1, vf=1, aux=0)
    assert count_forwards(policy, lambda: policy.get_distribution(obs)) == dict(pi=1, vf=0, aux=0)
    assert count_forwards(policy, lambda: policy.predict_values(obs)) == dict(pi=0, vf=1, aux=0)
    assert count_forwards(policy, lambda: evaluate_auxiliary(policy, obs)) == dict(pi=1, vf=1, aux=1)
    shared = dict(architecture="dual", share_features_extractor=True)
    for kwargs in (dict(architecture="detached"), dict(architecture="shared"), shared):
        policy = make(CnnPolicy, IMAGE, **kwargs)  # pi and vf extractors are one module
        for call in (lambda p=policy: p(obs), lambda p=policy: evaluate_auxiliary(p, obs)):
            assert count_forwards(policy, call)["pi"] == 1


def test_networks_by_default():
    for policy, space in ((MlpPolicy, IMAGE), (MultiInputPolicy, DICT), (RecurrentPhasicActorCriticCnnPolicy, IMAGE)):
        assert make(policy, space).architecture == "dual"
    for policy in (CnnPolicy, MaskablePhasicActorCriticCnnPolicy):
        assert make(policy, IMAGE).architecture == "detached"
    assert make(CnnPolicy, IMAGE, share_features_extractor=True).architecture == "detached"
    assert make(CnnPolicy, IMAGE, share_features_extractor=False).architecture == "dual"
    assert make(CnnPolicy, IMAGE, net_arch=dict(pi=[4], vf=[4])).architecture == "detached"
    assert make(CnnPolicy, IMAGE, net_arch=dict(pi=[8], vf=[4])).architecture == "dual"
    assert make(CnnPolicy, IMAGE, architecture="shared").architecture == "shared"
    ppo, ours = (algorithm("CnnPolicy", random_envs(IMAGE), seed=3).policy.state_dict() for algorithm in (PPO, PPG))
    assert {name.split(".")[0] for name in ours.keys() - ppo.keys()} == {"aux_value_net", "value_net"}
    assert all(th.equal(ours[name], weight) for name, weight in ppo.items())  # one network, as PPO has it for images


def test_weights_of_two_extractors_are_not_loaded_into_one():
    """Both have the same names, so that the policy would act on the features of the value function."""
    agent = PPO("CnnPolicy", random_envs(IMAGE), policy_kwargs=dict(share_features_extractor=False), seed=3).policy
    obs = sample(agent)
    with pytest.raises(ArgumentError, match="two features extractors"):
        make(CnnPolicy, IMAGE).load_state_dict(agent.state_dict(), strict=False)
    for theirs, kwargs in ((agent, dict(architecture="dual")), (PPO("CnnPolicy", random_envs(IMAGE)).policy, {})):
        ours = make(CnnPolicy, IMAGE, **kwargs)
        ours.load_state_dict(theirs.state_dict(), strict=False)
        th.testing.assert_close(ours.evaluate_actions(obs, ACTIONS), theirs.evaluate_actions(obs, ACTIONS))


class Counts(NatureCNN):
    """Has a state that is no tensor."""

    get_extra_state, set_extra_state = lambda _: {"n": 1}, lambda *_: None


def test_states_of_extractors_may_be_other_than_tensors():
    policy = make(CnnPolicy, IMAGE, features_extractor_class=Counts)
    policy.load_state_dict(policy.state_dict())


def test_same_seed_same_weights_and_first_random_numbers_as_ppo():
    models, drawn = [], []
    for algorithm in (PPO, PPG):
        models.append(algorithm("MlpPolicy", "CartPole-v1", seed=3).policy.state_dict())
        drawn.append((th.rand(1).item(), np.random.rand()))
    assert drawn[0] == drawn[1]
    ppo, ours = models
    assert {name.split(".")[0] for name in ours.keys() - ppo.keys()} == {"aux_value_net", "value_net"}
    assert ours["value_net.mean"] == 0 and ours["value_net.std"] == 1
    assert all(th.equal(ours[name], weight) for name, weight in ppo.items())


def norms(layer) -> np.ndarray:
    return layer.weight.detach().flatten(1).norm(dim=1).numpy()


def test_impala_has_the_authors_initialisation():
    policy = make(CnnPolicy, IMAGE, features_extractor_class=ImpalaCNN, architecture="dual")
    for extractor in (policy.pi_features_extractor, policy.vf_features_extractor):
        assert [stack.firstconv.out_channels for stack in extractor.stacks] == [16, 32, 32]
        np.testing.assert_allclose(norms(extractor.dense), 1.4, rtol=1e-5)
        for stack in extractor.stacks:
            np.testing.assert_allclose(norms(stack.firstconv), 1.0, rtol=1e-5)
            for block in stack.blocks:
                np.testing.assert_allclose(norms(block.conv0), math.sqrt(1 / math.sqrt(3) / math.sqrt(2)), rtol=1e-5)
                np.testing.assert_allclose(norms(block.conv1), math.sqrt(1 / math.sqrt(3) / math.sqrt(2)), rtol=1e-5)
    for head in (policy.action_net, policy.value_net, policy.aux_value_net):
        np.testing.assert_allclose(norms(head), 0.1, rtol=1e-5)
    assert all(not p.any() for name, p in policy.named_parameters() if name.endswith("bias"))
    assert policy.net_arch == []
    features = policy.pi_features_extractor(th.zeros(2, 3, 36, 36))
    assert features.shape == (2, 256)

    any_callable = partial(ImpalaCNN, features_dim=8)
    policy = make(CnnPolicy, IMAGE, features_extractor_class=any_callable, ortho_init=True)
    assert isinstance(policy.features_extractor, ImpalaCNN) and policy.features_dim == 8
    np.testing.assert_allclose(norms(policy.action_net), 0.01, rtol=1e-4)
    np.testing.assert_allclose(norms(policy.aux_value_net), 1.0, rtol=1e-4)


@pytest.mark.parametrize("size", [7, 16, 64, 84])
def test_impala_takes_any_image(size):
    extractor = ImpalaCNN(spaces.Box(0, 255, (1, size, size + 1), np.uint8), features_dim=9, channels=(2, 3))
    assert extractor(th.zeros(2, 1, size, size + 1)).shape == (2, 9)


@pytest.mark.parametrize(
    ("cls", "space"), [(MlpPolicy, DICT), (RecurrentPhasicActorCriticPolicy, DICT), (MultiInputPolicy, VECTOR)]
)
def test_a_policy_for_other_observations_is_refused(cls, space):
    """SB3's issues 596 and 1174. SB3 itself refuses Dict observations for the names "MlpPolicy" and "CnnPolicy" alone."""
    right = "MultiInputPolicy" if space is DICT else "MlpPolicy"
    with pytest.raises(ArgumentError, match=rf"`policy`={cls.__name__} cannot work .* use '{right}'"):
        make(cls, space)


@pytest.mark.parametrize("extractor", [{}, dict(features_extractor_class=ImpalaCNN)])
@pytest.mark.parametrize(
    ("space", "remedy"),
    [
        (image_space(4, 40, 40, 3), "VecFrameStack"),
        (image_space(4, 40, 40, 1), "leave out the last axis"),
        (image_space(40, 40), "give gray images a last axis"),
        (spaces.Box(0, 1, (3, 40, 40)), "normalize_images"),
        (spaces.Box(0, 1, (10, 10, 4)), "MinAtarCNN"),
        (VECTOR, "MlpPolicy"),
    ],
)
def test_observations_that_are_no_images_are_refused_with_their_own_remedy(space, remedy, extractor):
    with pytest.raises(ArgumentError, match=remedy):
        make(CnnPolicy, space, **extractor)


class OwnTrunk(MlpPolicy):
    def _build_mlp_extractor(self):
        self.mlp_extractor = MlpExtractor(self.features_dim, [8], nn.Tanh)


def test_a_custom_trunk_needs_two_networks_or_our_base_class():
    PPG(OwnTrunk, "CartPole-v1", n_steps=32, n_policy_iterations=1, batch_size=32).learn(32)
    with pytest.raises(ValueError, match="SharedTrunk"):
        PPG(OwnTrunk, "CartPole-v1", policy_kwargs=dict(architecture="detached"))
    own_images = type("OwnImages", (CnnPolicy,), dict(_build_mlp_extractor=OwnTrunk._build_mlp_extractor))
    with pytest.raises(ValueError, match="use architecture='dual'"):
        make(own_images, IMAGE)
    assert make(own_images, IMAGE, architecture="dual").architecture == "dual"


class WithAnOptimizer(MlpPolicy):
    """Made for PPO, whose networks its groups have."""

    def _build(self, lr_schedule):
        super()._build(lr_schedule)
        networks = (self.mlp_extractor, self.action_net, self.value_net)
        self.optimizer = th.optim.AdamW([dict(params=network.parameters()) for network in networks], lr=lr_schedule(1))


class AddsANetwork(MlpPolicy):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.further = nn.Linear(2, 3)


def test_a_network_that_nothing_trains_is_warned_of():
    with pytest.warns(UserWarning, match=r"AddsANetwork has .* does not train, further\.weight, further\.bias"):
        PPG(AddsANetwork, random_envs(), **SMALL)


def test_an_optimizer_of_ones_own_need_not_know_the_auxiliary_head():
    model = PPG(WithAnOptimizer, random_envs(), **SMALL)
    assert not untrained(model, 2)


@pytest.mark.parametrize("env, kwargs", [("CartPole-v1", {}), ("Pendulum-v1", {}), ("Pendulum-v1", dict(use_sde=True))])
def test_a_distribution_stays_as_it_is_when_the_policy_predicts(env, kwargs):
    policy = PPG(ActsThroughTorch, env, device="cpu", **kwargs).policy
    observations = th.zeros(5, *policy.observation_space.shape)
    of_training = policy.get_distribution(observations)
    expected = of_training.log_prob(of_training.mode())
    policy.predict(np.ones(policy.observation_space.shape, np.float32))
    assert th.equal(of_training.log_prob(of_training.mode()), expected) and expected.shape == (5,)


class Squashed(SquashedDiagGaussianDistribution):
    """SB3's, made with the action space; its layers are a mean and a standard deviation."""

    def __init__(self, action_space: spaces.Box):
        super().__init__(math.prod(action_space.shape))


def test_a_gaussian_of_sb3s_may_be_asked_for():
    kwargs = dict(distribution_class=Squashed, log_std_init=-1.0)
    model = PPG("MlpPolicy", random_envs(action_space=spaces.Box(-5, 20, (2,))), policy_kwargs=kwargs, **SMALL)
    assert model.policy.log_std.tolist() == [-1, -1]
    assert not untrained(model, 2)
    actions, _ = model.predict(np.zeros((50, 3), np.float32))
    assert actions.std() > 1 and (actions >= -5).all() and (actions <= 20).all()


def test_equal_layers_may_be_given_as_a_dictionary_with_the_names_of_the_networks():
    with pytest.raises(ArgumentError, match=r"`net_arch`=.*its keys are 'pi' and 'vf'"):
        make(MlpPolicy, VECTOR, net_arch=dict(pi=[8], v=[8]))
    policy = make(MlpPolicy, VECTOR, architecture="shared", net_arch=dict(pi=[8], vf=[8]))
    assert [m.out_features for m in policy.mlp_extractor.policy_net if isinstance(m, nn.Linear)] == [8]


def test_minatars_network_reads_grids_with_channels_last():
    grid = spaces.Box(0.0, 1.0, (10, 10, 4), bool)
    policy = make(CnnPolicy, grid, features_extractor_class=MinAtarCNN, net_arch=[], architecture="shared")
    assert sum(weights.numel() for weights in policy.features_extractor.parameters()) == 16 * (4 * 9 + 1) + 128 * (16 * 64 + 1)
    observations = th.rand(3, *grid.shape) < 0.3
    features = policy.extract_features(observations, policy.features_extractor)
    convolved = F.conv2d(observations.float().movedim(-1, 1), *policy.features_extractor.conv.parameters()).relu()
    assert th.allclose(features, policy.features_extractor.dense(convolved.flatten(1)).relu(), atol=1e-6)


# ---- images reach the features extractor as bytes and are scaled in its weights ----


@pytest.mark.parametrize(
    "space, policy_kwargs",
    [
        (image_space(3, 36, 36), {}),
        (image_space(36, 36, 3), {}),
        (image_space(3, 36, 36), dict(normalize_images=False, features_extractor_kwargs=dict(normalized_image=True))),
        (spaces.Box(0, 1, (3, 36, 36), np.float32), dict(features_extractor_kwargs=dict(normalized_image=True))),
        (spaces.Box(0, 100, (3, 36, 36), np.uint8), dict(features_extractor_kwargs=dict(normalized_image=True))),
    ],
    ids=["images", "channels last", "not to be normalised", "floats", "bytes that are no image"],
)
def test_images_are_scaled_when_sb3_scales_them(space, policy_kwargs):
    model = make_on_images(policy_kwargs, space=space)
    policy = model.policy
    obs, _ = policy.obs_to_tensor(np.stack([policy.observation_space.sample() for _ in range(3)]))
    scaled = preprocess_obs(obs, policy.observation_space, normalize_images=policy.normalize_images)
    extractor = policy.pi_features_extractor
    expected = extractor(scaled)
    th.testing.assert_close(policy.extract_features(obs, extractor), expected, rtol=1e-5, atol=1e-6)
    # Environments do not always keep their word
    for other in (obs.float(), obs.to(th.int64)) if obs.dtype == th.uint8 else ():
        th.testing.assert_close(policy.extract_features(other, extractor), expected, rtol=1e-5, atol=1e-6)


class Centred(ImpalaCNN):
    def forward(self, x):
        assert x.dtype == th.float32 and x.max() <= 1  # scaled, unless a subclass says otherwise
        return super().forward(x - 0.5)


class WithPositions(ImpalaCNN):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.positions = nn.Parameter(th.zeros(1, 3, 36, 36))

    def forward(self, x):  # only convolutions change how they lie in memory
        return super().forward(x + self.positions.view(3, 36, 36))


@pytest.mark.parametrize("extractor", [Centred, WithPositions])
def test_subclasses_of_our_network_train(extractor):
    assert not untrained(make_on_images(dict(features_extractor_class=extractor), n_aux_epochs=1), 2)


def test_parameters_in_one_array():
    """Also of channels_last weights, and back."""
    model = make_on_images()
    vector = model.policy.parameters_to_vector()
    assert vector.shape == (sum(parameter.numel() for parameter in model.policy.parameters()),)
    other = make_on_images(seed=1)
    other.policy.load_from_vector(vector)
    for ours, theirs in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_a_guessed_name_of_a_policy_is_an_error_that_says_where_the_classes_are():
    with pytest.raises(
        ImportError, match=r"no MaskableDictPolicy: .* sb3_ppg\.maskable\.MaskableMultiInputPhasicActorCriticPolicy"
    ):
        from sb3_ppg import MaskableDictPolicy  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'Mistake'"):
        from sb3_ppg import Mistake  # noqa: F401
