"""Options of the losses, off by default: weights, a clipped value loss, running statistics; objectives with mistakes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb3_ppg import PPG, ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import (
    AdvantageHeadObjective,
    Coefficients,
    DecoupledObjective,
    DistillationObjective,
    Objective,
)
from tests.helpers import WITH_CONTEXT, epoch_of, losses_of, make_kind, saved_and_loaded
from tests.saving.small_models import same

COEFFICIENTS = Coefficients(0.2, None, 2.0, 0.0, 0.5, 0.0, 1.0)  # in value units of 2
every_kind = pytest.mark.parametrize("kind", WITH_CONTEXT)


class Weightless(Objective):
    """Each sample weighs nothing, in both phases."""

    policy_keys = aux_keys = ("weights",)

    def extras(self, policy, rollout):
        return {"weights": np.zeros(rollout.shape, dtype=np.float32)}


ALONE = dict(beta_clone=0.0, ent_coef=1.0, clip_range_vf=0.2)
EPOCHS = [(Objective, None), (Objective, 1), (DecoupledObjective, 1)]  # the last one for data of older policies
WEIGHTLESS = [(kind, base, ALONE | dict(n_value_epochs=n)) for kind in WITH_CONTEXT for base, n in EPOCHS]
WEIGHTLESS += [  # relatives, without the terms that have no weights
    ("vectors", AdvantageHeadObjective, dict(n_value_epochs=1, n_aux_epochs=0, objective_kwargs=dict(advantage_coef=0.0))),
    ("vectors", DistillationObjective, dict(n_value_epochs=1, n_policy_iterations=1, beta_clone=0.0)),
]


@pytest.mark.parametrize(("kind", "base", "kwargs"), WEIGHTLESS)
def test_samples_that_weigh_nothing_teach_nothing(kind, base, kwargs):
    objective = type("Weighing", (Weightless, base), {})
    model = make_kind(kind, objective=objective, normalize_value_targets=False, **kwargs)
    before = model.policy.parameters_to_vector()
    model.learn(2 * 16)
    assert (model.n_aux_phases > 0) == (model.n_aux_epochs > 0)
    np.testing.assert_array_equal(model.policy.parameters_to_vector(), before)


def test_terms_that_compare_policies_are_weighted_too():
    model = make_kind("vectors", prior=make_kind("vectors", seed=1), kl_coef=1.0).learn(16)
    with th.no_grad():
        model.policy.action_net.bias[0] += 1.0  # away from the policy that has collected the samples
    (batch,) = epoch_of(model, 16)
    for weights, is_zero in ((th.zeros(16), True), (th.ones(16), False)):
        weighted = SimpleNamespace(**batch._asdict(), weights=weights)
        terms = losses_of("policy_losses", model, weighted, kl_coef=1.0, prior_coef=1.0).terms
        assert [bool(terms[name] == 0) for name in ("kl_penalty", "prior_kl")] == [is_zero] * 2


def test_the_kl_penalty_has_its_weight():
    model = make_kind("vectors", kl_coef=1.0, n_epochs=4, learning_rate=1e-2).learn(16)
    (batch,) = epoch_of(model, 16)
    once, thrice = (losses_of("policy_losses", model, batch, kl_coef=coef) for coef in (1.0, 3.0))
    penalty = once.terms["kl_penalty"]
    assert penalty > 1e-3
    th.testing.assert_close(thrice.total - once.total, 2 * penalty)


class Unlimited(Objective):
    """Leaves out the log-ratios."""

    def joint_losses(self, policy, batch, coefficients):
        return Losses(*super().joint_losses(policy, batch, coefficients)[:2])


def test_target_kl_needs_the_log_ratios():
    make_kind("vectors", objective=Unlimited).learn(16)
    with pytest.raises(ArgumentError, match="`target_kl` cannot work with Unlimited: its losses have no `log_ratio`"):
        make_kind("vectors", objective=Unlimited, target_kl=0.01).learn(16)


class Watching(Objective):
    """Takes each sample's return along, and compares it with what the minibatch has."""

    n_seen = 0
    policy_keys = ("returns",)

    def extras(self, policy, rollout):
        assert not policy.training and not policy.features_extractor.training
        return {"returns": rollout.arrays["targets"]}

    def value_error(self, policy, latent, batch, coefficients):
        np.testing.assert_array_equal(batch.returns, batch.targets)
        self.n_seen += len(batch.targets)
        return super().value_error(policy, latent, batch, coefficients)


@pytest.mark.parametrize("replay_kwargs", [None, dict(policy_rollouts=2)], ids=["the latest rollout", "two rollouts"])
@every_kind
@pytest.mark.filterwarnings("ignore:.*does not correct")
def test_extras_belong_to_their_samples_and_are_computed_in_evaluation_mode(kind, replay_kwargs):
    model = make_kind(kind, objective=Watching, n_epochs=2, replay_kwargs=replay_kwargs).learn(3 * 16)
    assert model.objective.n_seen == 2 * (3 if replay_kwargs is None else 5) * 16


NAMED_LIKE_INPUTS = ("action_masks", "episode_starts", "number", "lstm_states")


class KeepsZeros(Objective):
    """Keeps data that it does not use; the auxiliary minibatches have all of them."""

    n_seen = 0

    def __init__(self, policy, prefix: str = ""):
        super().__init__(policy)
        self.aux_keys = tuple(prefix + name for name in NAMED_LIKE_INPUTS)

    def extras(self, policy, rollout):
        return dict.fromkeys(self.aux_keys, np.zeros(rollout.shape))

    def evaluated_losses(self, policy, evaluation, batch, coefficients):
        kept = [getattr(batch, name) for name in self.aux_keys]
        assert th.stack(kept).shape == (4, len(batch.targets)) and not th.stack(kept).any()
        self.n_seen += 1
        return super().evaluated_losses(policy, evaluation, batch, coefficients)


@every_kind
def test_an_objective_may_name_what_minibatches_have_and_nothing_that_a_rollout_lacks(kind):
    keys = dict(policy_keys=("advantages", "episode_starts"), aux_keys=("targets", "episode_starts"))
    named = make_kind(kind, objective=type("Named", (Objective,), keys)).learn(2 * 16)
    assert same(named, make_kind(kind).learn(2 * 16))
    with pytest.raises(ArgumentError, match="has acitons in `policy_keys` or `aux_keys`, and a rollout has only"):
        make_kind(kind, objective=type("Misspelled", (Objective,), dict(aux_keys=("acitons",)))).learn(16)
    reads = dict(evaluated_losses=lambda self, policy, evaluation, batch, coefficients: batch.rewards)
    with pytest.raises(AttributeError, match="but no rewards: an objective names what it needs beside them in `policy_keys` "):
        make_kind(kind, objective=type("Unnamed", (Objective,), reads)).learn(2 * 16)


@every_kind
@pytest.mark.parametrize("shaped", [lambda array: array[:, 1:], lambda array: array.T, np.ravel, np.mean])
def test_extras_have_a_row_for_each_sample(kind, shaped):
    """Rewards that began one step later were drawn for the step before: as the next, a sample had its own."""
    extras = dict(extras=lambda self, policy, rollout: {"marks": {"reward": shaped(rollout.arrays["rewards"])}})
    with pytest.raises(ArgumentError, match=r"has extras of other shapes: marks \(.*return \(2, 8, \.\.\.\), or \(2, 1, "):
        make_kind(kind, objective=type("Shifted", (Objective,), extras | dict(aux_keys=("marks",)))).learn(16)


@every_kind
def test_data_with_the_names_of_the_policys_inputs_do_not_replace_them(kind, tmp_path):
    with pytest.raises(ArgumentError, match=r"has extras under names of the rollout's own arrays: rename .*episode_starts"):
        make_kind(kind, objective=KeepsZeros).learn(16)
    kwargs = dict(objective=KeepsZeros, objective_kwargs=dict(prefix="my_"))
    model, other = make_kind(kind, **kwargs).learn(5 * 16), make_kind(kind).learn(5 * 16)
    assert model.objective.n_seen > 0 and model.n_aux_phases == 2
    np.testing.assert_array_equal(model.policy.parameters_to_vector(), other.policy.parameters_to_vector())
    assert same(model, saved_and_loaded(model, tmp_path))


def test_value_losses_are_clipped_against_the_values_at_collection():
    """
    Worked numbers in units of 2: V 1, 2; V_old 0, 2; targets 2, 3. V_clip is .5, 2:
    errors 1, 1 and 2.25, 1, whose maxima are 2.25, 1.
    """
    batch = SimpleNamespace(targets=th.tensor([4.0, 6.0]), old_values=th.tensor([0.0, 4.0]))
    policy = SimpleNamespace(value_net=nn.Identity())
    clipped = make_kind("vectors", objective_kwargs=dict(value_clip=0.5)).objective
    losses = clipped.value_error(policy, th.tensor([[2.0], [4.0]]), batch, COEFFICIENTS)
    assert losses.terms["value_loss"].item() == 1.625 and losses.total.item() == 0.5 * 1.625
    values = (nn.Identity(), th.tensor([[2.0], [4.0]]))
    assert clipped.head_error(*values, batch, 2.0).item() == 1.625
    batch.weights = th.tensor([0.0, 3.0])
    assert clipped.head_error(*values, batch, 2.0).item() == 3 * 1.0 / 2
    batch.aux_weights = th.tensor([3.0, 0.0])  # of the auxiliary phase
    assert clipped.head_error(*values, batch, 2.0).item() == 3 * 2.25 / 2


@pytest.mark.parametrize("objective", ["ppg", "decoupled", "ewma"])
def test_large_value_errors_count_linearly_in_both_phases(objective):
    """
    Worked numbers in units of 2: V 1, 2; targets 2, 6; errors 1 and 4, of which the second counts 2 * 1.5 * 4 - 1.5² = 9.75
    instead of 16.
    """
    batch = SimpleNamespace(targets=th.tensor([4.0, 12.0]))
    policy, values = SimpleNamespace(value_net=nn.Identity()), th.tensor([[2.0], [4.0]])
    for kwargs, expected in ((dict(value_loss="huber", huber_threshold=1.5), 5.375), (dict(value_loss="mse"), 8.5)):
        made = make_kind("vectors", objective=objective, objective_kwargs=kwargs)
        assert made.objective.value_error(policy, values, batch, COEFFICIENTS).terms["value_loss"].item() == expected
        assert made.objective.head_error(policy.value_net, values, batch, 2.0).item() == expected
        made.learn(48)
    with pytest.raises(ArgumentError, match="`value_loss`='l1' cannot work"):
        make_kind("vectors", objective=objective, objective_kwargs=dict(value_loss="l1"))


@pytest.mark.parametrize(("kind", "objective"), [*zip(WITH_CONTEXT, ["ppg", "decoupled", "ewma"], strict=True)])
def test_values_at_collection_come_along(kind, objective, tmp_path):
    model = make_kind(kind, objective=objective, objective_kwargs=dict(value_clip=0.1)).learn(3 * 16)
    expected = model.rollout_buffer.values.T
    assert expected.shape == (2, 8)
    for each in (model, saved_and_loaded(model, tmp_path)):
        np.testing.assert_array_equal(each.aux_buffer.rollouts[0].arrays["old_values"], expected)


@pytest.mark.parametrize("others", [{}, dict(target_kl=1e-9, n_epochs=4), dict(replay_kwargs=dict(policy_rollouts=3))])
@pytest.mark.filterwarnings("ignore:.*does not correct")
def test_the_value_unit_is_the_standard_deviation_of_all_value_targets_so_far(others):
    """With rollouts of one size, all samples count the same."""
    env = make_vec_env("Pendulum-v1", 4, seed=0)
    settings = dict(n_steps=32, n_policy_iterations=2, normalize_value_targets="running", seed=0, device="cpu")
    model = PPG("MlpPolicy", env, **settings, **others)
    rollouts: list[np.ndarray] = []
    for is_new in (*[False] * 5, True):
        model.learn(128, reset_num_timesteps=is_new)
        rollouts.append(model.rollout_buffer.returns.copy())
        assert model.policy.value_unit == pytest.approx(np.std(rollouts), rel=1e-4)


def test_the_value_unit_of_a_model_without_one_begins_with_the_first_rollout(tmp_path):
    """Not as an average with the earlier rollouts, whose targets are not known any more."""
    env = make_vec_env("Pendulum-v1", 4, seed=0)
    PPG("MlpPolicy", env, n_steps=32, normalize_value_targets=False, device="cpu").learn(2 * 128).save(tmp_path / "model")
    model = PPG.load(tmp_path / "model", env=env, normalize_value_targets="running").learn(128, reset_num_timesteps=False)
    assert model.policy.value_unit == pytest.approx(model.rollout_buffer.returns.std(), rel=1e-4)


class TwoCritics(Objective):
    """A second value function on the features of the first."""

    def __init__(self, policy):
        super().__init__(policy)
        self.second = nn.Linear(policy.mlp_extractor.latent_dim_vf, 1)

    def value_error(self, policy, latent, batch, coefficients):
        first = super().value_error(policy, latent, batch, coefficients)
        loss = (self.second(latent).flatten() - batch.targets).square().mean()
        return first._replace(total=first.total + loss, terms={**first.terms, "second_loss": loss})


@pytest.mark.parametrize("n_value_epochs", [None, 1])
def test_the_parameters_of_an_objectives_value_loss_are_trained_in_epochs_of_their_own_too(n_value_epochs):
    model = make_kind("vectors", objective=TwoCritics, n_value_epochs=n_value_epochs, n_aux_epochs=0)
    before = model.objective.second.weight.detach().clone()
    model.learn(16)
    assert (model.objective.second.weight != before).all()


class Keeps(Objective):
    """Keeps the policy, or a part of it."""

    def __init__(self, policy, part: str = ""):
        super().__init__(policy)
        self.kept = getattr(policy, part) if part else policy


@pytest.mark.parametrize("part", ["", "aux_value_net"])
def test_keeping_the_policy_would_train_its_parameters_twice(part):
    with pytest.raises(ArgumentError, match=r"weight.* would be trained twice per step: use the policy that each"):
        make_kind("vectors", objective=Keeps, objective_kwargs=dict(part=part))
