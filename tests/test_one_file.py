"""The algorithm in one file: its weights are the package's, SB3 saves and loads it, and it stays short."""

import ast
import importlib.util
import sys
from itertools import product

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG
from sb3_ppg.objectives import Objective
from tests.golden import DoubleRolloutBuffer
from tests.helpers import ROOT, THREE_ACTIONS, VECTOR, assert_trains_like, changed, image_space, random_envs
from tests.optim.test_compiled import InDouble

FILE = ROOT / "examples" / "one_file.py"
spec = importlib.util.spec_from_file_location("one_file", FILE)
one_file = sys.modules["one_file"] = importlib.util.module_from_spec(spec)  # where pickle looks for its classes
spec.loader.exec_module(one_file)

# None of them has its default, so that each counts
SETTINGS = dict(n_steps=16, batch_size=16, n_epochs=2, gamma=0.9, gae_lambda=0.8, clip_range=0.1, ent_coef=0.02, seed=3)
SETTINGS |= dict(n_value_epochs=3, n_policy_iterations=2, n_aux_epochs=2, aux_batch_size=30, beta_clone=0.7)
SETTINGS |= dict(learning_rate=1e-2, max_grad_norm=0.5, device="cpu")
CASES = [
    *product(["dual", "detached"], [THREE_ACTIONS, spaces.Box(-1.0, 2.0, (2,), np.float64)], [VECTOR, image_space(8, 8, 1)]),
    *product(["dual"], [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)], [VECTOR]),
]


class PolicyFirst(Objective):
    """The paper's losses, in the paper's order of epochs; the authors' code has the value epochs first."""

    values_first = False


class DoubleCNN(BaseFeaturesExtractor):
    """A convolution in float64: (B, 1, 8, 8) -> (B, 36)."""

    def __init__(self, observation_space: spaces.Box):
        super().__init__(observation_space, features_dim=36)
        self.conv = th.nn.Conv2d(1, 4, kernel_size=3, stride=2)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.conv(observations.double()).relu().flatten(1)


@pytest.fixture
def in_float64():
    """Compute in float64: in float32, rounding errors switch units of a network on or off, which shows after a phase."""
    th.set_default_dtype(th.float64)
    yield
    th.set_default_dtype(th.float32)


@pytest.mark.parametrize(("architecture", "actions", "observations"), CASES, ids=str)
def test_after_several_phases_its_weights_are_the_packages(architecture, actions, observations, in_float64):
    policy, extractor = ("MlpPolicy", InDouble) if observations is VECTOR else ("CnnPolicy", DoubleCNN)
    # With an eps as large as gradients, Adam does not hide the scale of a loss
    networks = dict(architecture=architecture, net_arch=[16], optimizer_kwargs=dict(eps=1e-3))
    networks |= dict(features_extractor_class=extractor)
    kwargs = SETTINGS | dict(policy_kwargs=networks, rollout_buffer_class=DoubleRolloutBuffer)
    package = dict(normalize_value_targets=False, compile_updates=False, objective=PolicyFirst)
    envs = [VecNormalize(random_envs(observations, actions, 3), norm_obs=False) for _ in range(2)]
    theirs, ours = one_file.PPG(policy, envs[0], **kwargs), PPG(policy, envs[1], **kwargs, **package)
    assert changed(theirs, ours) == {"aux_value_net.weight"}  # for which the package draws more random numbers
    assert_trains_like(ours, theirs, 6 * 16 * 3)
    assert ours.n_aux_phases == 3


@pytest.mark.parametrize(("policy", "space"), [("MlpPolicy", VECTOR), ("CnnPolicy", image_space(36, 36, 1))])
def test_sb3_saves_and_loads_it(policy, space, tmp_path):
    """After a file, it goes on as if there had been none, at the beginning of a phase."""
    kwargs = SETTINGS | dict(policy_kwargs=dict(architecture="detached"))
    model = one_file.PPG(policy, random_envs(space), **kwargs).learn(2 * 16 * 2)
    model.save(tmp_path / "model")
    loaded = one_file.PPG.load(tmp_path / "model", env=model.get_env(), device="cpu")
    assert loaded.policy.architecture == "detached" and not changed(model, loaded)
    before = {name: weight.clone() for name, weight in model.policy.named_parameters()}
    for each in (model, loaded):
        each.set_random_seed(5)
        each.env.seed(5)
        each.learn(3 * 16 * 2)
        assert each.aux_buffer.n_rollouts == 1
    assert not changed(model, loaded)
    assert not any(th.equal(before[name], weight) for name, weight in loaded.policy.named_parameters())
    model.save(tmp_path / "model")  # in the middle of a phase, whose rollouts a file does not have
    assert one_file.PPG.load(tmp_path / "model").aux_buffer.n_rollouts == 0
    model.policy.save(tmp_path / "policy")
    assert type(model.policy).load(tmp_path / "policy").architecture == "detached"


def test_it_is_short_and_needs_sb3_and_torch_alone():
    source = FILE.read_text()
    assert source.count("\n") <= 350
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {getattr(node, "module", None) or alias.name for node in nodes for alias in node.names}
    libraries = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert libraries == {"gymnasium", "numpy", "stable_baselines3", "torch"}  # the first two are SB3's
