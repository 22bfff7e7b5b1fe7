"""The value head and the action distribution that docs/guides/own_networks.md shows, on all kinds of policies."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import CategoricalDistribution

from sb3_ppg import PPG, ArgumentError, MaskablePPG, RecurrentPPG
from tests.helpers import KINDS, VECTOR, WITH_CONTEXT, code_blocks, learn_and_log, masked_envs, random_envs, untrained

pytestmark = pytest.mark.slow

SMALL = dict(n_steps=16, batch_size=16, n_epochs=2, n_policy_iterations=2, n_aux_epochs=2, seed=0, device="cpu")


def names_of(word: str) -> dict:
    """Return the names that the page's block with this word defines."""
    (code,) = (block for block in code_blocks("docs/guides/own_networks.md") if f"class {word}" in block)
    names: dict = {}
    exec(code[: code.index("model = PPG")], names)
    return names


TWO_HOT, BETA = names_of("TwoHotHead"), names_of("BetaDistribution")


def test_a_two_hot_head_learns_a_value_between_two_bins():
    head, latent, targets = TWO_HOT["TwoHotHead"](3, 0.0, 10.0, 11), th.ones(2, 3), th.tensor([2.25, 2.25])
    optimizer = th.optim.Adam(head.parameters(), lr=0.3)
    for _ in range(100):
        optimizer.zero_grad()
        loss = head.loss(latent, targets, 1.0)
        loss.backward()
        optimizer.step()
    assert head(latent).detach().numpy() == pytest.approx(2.25, abs=0.01)
    assert loss.item() == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25), abs=1e-3)  # of the two bins, the least


@pytest.mark.parametrize(("kind", "objective"), zip(WITH_CONTEXT, ["ppg", "dna", "dcpg"], strict=True))
def test_two_hot_heads_train_with_memory_with_masks_and_with_relatives(kind, objective):
    cls, name, make_envs, policy_kwargs = KINDS[kind]
    policy = type("TwoHotPolicy", (TWO_HOT["TwoHot"], cls.policy_aliases[name]), {})
    fixed = {"dna": dict(n_value_epochs=1, n_policy_iterations=1), "dcpg": {}}.get(objective, {})
    policy_kwargs = dict(policy_kwargs, architecture="shared" if objective == "dcpg" else "dual")
    arguments = {**SMALL, **fixed, "objective": objective, "policy_kwargs": policy_kwargs, "normalize_value_targets": False}
    model = cls(policy, make_envs(), **arguments)
    assert {name.split(".")[0] for name in untrained(model, 4)} == ({"aux_value_net"} if objective == "dcpg" else set())
    logged = model.logger.name_to_value
    assert 0 < logged["aux/aux_value_loss" if objective != "dcpg" else "aux/value_loss"] < np.log(51)


def beta(kind: type[PPG] = PPG, policy: str = "MlpPolicy", **policy_kwargs) -> PPG:
    space = spaces.Box(np.float32([-2, 0]), np.float32([1, 0.1]))
    policy_kwargs["distribution_class"] = BETA["BetaDistribution"]
    return kind(policy, random_envs(VECTOR, space), policy_kwargs=policy_kwargs, **SMALL)


def test_a_registered_distribution_has_an_exact_kl_divergence():
    policy = beta().policy
    first, second = (policy.get_distribution(th.randn(4, 3)) for _ in range(2))
    kl = th.distributions.kl_divergence(first.distribution, second.distribution).sum(dim=1)
    parameters = [policy.actions.parameters(one) for one in (first, second)]
    th.testing.assert_close(policy.actions.kl(first, *parameters), kl)
    assert not policy.actions.kl(first, parameters[0], parameters[0]).any()


@pytest.mark.parametrize(
    ("kind", "policy", "kwargs"), [(PPG, "MlpPolicy", {}), (RecurrentPPG, "MlpLstmPolicy", dict(lstm_hidden_size=4))]
)
def test_a_registered_distribution_acts_within_the_bounds_trains_and_is_saved(kind, policy, kwargs, tmp_path):
    model = beta(kind, policy, **kwargs)
    logged = learn_and_log(model, 4 * 32)  # RandomEnv refuses actions outside of its space
    assert logged["aux/final_kl"] > -1e-6 and model.n_aux_phases == 2 and not hasattr(model.policy, "log_std")
    observations = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    actions, _ = model.predict(observations)
    assert (actions >= model.action_space.low).all() and (actions <= model.action_space.high).all()
    assert actions[:, 0].min() < -0.5 and actions[:, 1].max() > 0.05  # scaled to the bounds, not clipped at them
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model", device="cpu")
    best = [one.predict(observations, deterministic=True)[0] for one in (model, loaded)]
    np.testing.assert_array_equal(*best)


class Unknown(CategoricalDistribution.__base__):
    """Nobody has registered it."""

    actions_from_params = entropy = log_prob = log_prob_from_params = mode = proba_distribution = sample = None

    def __init__(self, action_space):
        super().__init__()

    def proba_distribution_net(self, latent_dim):
        return th.nn.Linear(latent_dim, 1)


def test_distributions_that_cannot_work_are_refused_when_the_model_is_made():
    with pytest.raises(ArgumentError, match=r"No exact KL divergence is known for Unknown.*actions\.register\(Unknown"):
        PPG("MlpPolicy", "CartPole-v1", policy_kwargs=dict(distribution_class=Unknown))
    with pytest.raises(ArgumentError, match=r"`distribution_class`=Unknown cannot work with masks"):
        MaskablePPG("MlpPolicy", masked_envs(), policy_kwargs=dict(distribution_class=Unknown))
