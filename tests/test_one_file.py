"""The algorithm in one file: its weights are the package's, SB3 saves and loads it, and it stays short."""

import ast
import importlib.util
import re
import sys
from itertools import product

import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG
from sb3_ppg.objectives import Objective
from tests.helpers import BOX, ROOT, THREE_ACTIONS, VECTOR, assert_trains_like, changed, image_space, random_envs

FILE = ROOT / "examples" / "one_file.py"
spec = importlib.util.spec_from_file_location("one_file", FILE)
one_file = sys.modules["one_file"] = importlib.util.module_from_spec(spec)  # where pickle looks for its classes
spec.loader.exec_module(one_file)

# None of them has its default, so that each counts
SETTINGS = dict(n_steps=16, batch_size=16, n_epochs=2, gamma=0.9, gae_lambda=0.8, clip_range=0.1, ent_coef=0.02, seed=3)
SETTINGS |= dict(n_value_epochs=3, n_policy_iterations=2, n_aux_epochs=2, aux_batch_size=30, beta_clone=0.7)
SETTINGS |= dict(learning_rate=1e-3, max_grad_norm=0.5, device="cpu")
# An eps as large as gradients, so that Adam neither hides the scale of a loss nor enlarges rounding errors
ADAM = dict(optimizer_kwargs=dict(eps=1e-3))
IMAGE = image_space(36, 36, 1)
CASES = [
    *product(["dual", "detached"], [THREE_ACTIONS, BOX], [VECTOR, IMAGE]),
    *product(["dual"], [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)], [VECTOR]),
]


class PolicyFirst(Objective):
    """The paper's losses, in the paper's order of epochs; the authors' code has the value epochs first."""

    values_first = False


@pytest.mark.parametrize(("architecture", "actions", "observations"), CASES, ids=str)
def test_after_several_phases_its_weights_are_the_packages(architecture, actions, observations):
    policy, extractor = ("MlpPolicy", {}) if observations is VECTOR else ("CnnPolicy", dict(features_dim=16))
    kwargs = SETTINGS | dict(policy_kwargs=dict(architecture=architecture, features_extractor_kwargs=extractor, **ADAM))
    package = dict(normalize_value_targets=False, compile_updates=False, objective=PolicyFirst)
    envs = [VecNormalize(random_envs(observations, actions, 3), norm_obs=False) for _ in range(2)]
    theirs, ours = one_file.PPG(policy, envs[0], **kwargs), PPG(policy, envs[1], **kwargs, **package)
    assert changed(theirs, ours) == {"aux_value_net.weight"}  # for which the package draws more random numbers
    assert_trains_like(ours, theirs, 6 * 16 * 3)
    assert ours.n_aux_phases == 3


def test_sb3_saves_and_loads_it(tmp_path):
    """After a file, it goes on as if there had been none, at the beginning of a phase."""
    kwargs = SETTINGS | dict(policy_kwargs=dict(architecture="detached"))
    model = one_file.PPG("MlpPolicy", random_envs(), **kwargs).learn(2 * 16 * 2)
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
    policy = one_file.PhasicActorCriticPolicy
    model.policy.save(tmp_path / "policy")
    assert policy.load(tmp_path / "policy").architecture == "detached"


def test_it_is_short_and_needs_sb3_and_torch_alone():
    source = FILE.read_text()
    assert source.count("\n") <= 350
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {getattr(node, "module", None) or alias.name for node in nodes for alias in node.names}
    libraries = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert libraries == {"gymnasium", "numpy", "stable_baselines3", "torch"}  # the first two are SB3's


def test_its_page_counts_the_lines_of_each_module_of_the_package_once():
    package = ROOT / "sb3_ppg"
    page = (ROOT / "docs" / "algorithm" / "one_file.md").read_text()
    assert page.count("\n") <= 60
    rows = [(re.findall(r"`([^`]+)`", paths), int(lines)) for paths, lines in re.findall(r"\| (`.+`) \| (\d+) \|", page)]
    named = {package / path for paths, _ in rows for path in paths}
    counted = []
    for paths, lines in rows:
        found = [package / path for path in paths if path.endswith(".py")]
        found += [
            module for path in paths if path.endswith("/") for module in (package / path).rglob("*.py") if module not in named
        ]
        n_lines = sum(module.read_text().count("\n") for module in found)
        assert abs(lines - n_lines) <= n_lines / 10, (paths, n_lines)
        counted += found
    assert sorted(counted) == sorted(package.rglob("*.py"))
