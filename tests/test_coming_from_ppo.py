"""Situations from scripts that were written for PPO, and behavior that SB3's users expect of every algorithm."""

import copy
import pickle
import random
from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnvWrapper, VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, MaskablePPG, MlpPolicy, PhasicCallback, PhasicCheckpointCallback, RecurrentPPG, hub
from sb3_ppg.buffers.rollouts import RolloutEnd
from sb3_ppg.errors import NonFiniteEnvironmentError, NonFiniteLossError
from sb3_ppg.family import with_preset
from sb3_ppg.policies.lstm import RecurrentPhasicActorCriticPolicy
from sb3_ppg.training.checks import check_environment
from tests.helpers import (
    ROOT,
    VECTOR,
    WITH_CONTEXT,
    BatchNormExtractor,
    MaskedEnv,
    RandomEnv,
    calls_of,
    changed,
    evaluate_auxiliary,
    image_space,
    learn_and_log,
    make_kind,
    names_of,
    random_envs,
    run_in_a_new_process,
    untrained,
)
from tests.saving.small_models import resumed

SMALL = dict(n_steps=32, batch_size=32, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, device="cpu", seed=0)


def make(env="CartPole-v1", policy="MlpPolicy", **kwargs) -> PPG:
    return PPG(policy, env, **SMALL | kwargs)


# ---- environments ----


class Adapter(VecEnvWrapper):
    def __init__(self, simulator):
        super().__init__(simulator, simulator.observation_space, simulator.action_space)

    def reset(self):
        return self.venv.reset()

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        return self.venv.step(self.actions)

    def seed(self, seed=None):
        return [None] * self.num_envs


def test_wrappers_may_be_around_what_is_no_vec_env():
    """It has these of a ``VecEnv``'s attributes, and no more."""
    venv, names = random_envs(), ("num_envs", "observation_space", "action_space", "render_mode", "reset", "step")
    simulator = SimpleNamespace(**{name: getattr(venv, name) for name in names})
    model = make(VecNormalize(Adapter(simulator))).learn(128)
    assert model.num_timesteps == 128 and model.n_aux_phases == 1


def test_a_model_that_was_pickled_with_vec_normalize_asks_for_its_environment():
    env = VecNormalize(make_vec_env("CartPole-v1"))
    model = pickle.loads(pickle.dumps(make(env)))
    with pytest.raises(ArgumentError, match=r"There is no environment.*`load\(\.\.\., env=\.\.\.\)` or `set_env\(\.\.\.\)`"):
        model.learn(32)
    model.set_env(env)
    assert model.learn(32).num_timesteps == 32


def test_the_actions_of_a_loaded_vec_normalize_are_those_of_its_environments(tmp_path):
    """Its ``load`` takes them from the file, so that a policy would never try the other actions."""
    VecNormalize(random_envs()).save(tmp_path / "statistics.pkl")
    model = make(VecNormalize.load(tmp_path / "statistics.pkl", random_envs()))
    other = VecNormalize.load(tmp_path / "statistics.pkl", random_envs(VECTOR, spaces.Discrete(5)))
    for use in (make, model.set_env, lambda env: make(VecFrameStack(env, 2))):
        with pytest.raises(ArgumentError, match=r"of its file, Discrete\(3\), not Discrete\(5\): set its"):
            use(other)
    other.action_space = other.venv.action_space  # as the message says
    assert make(other).learn(64).policy.action_net.out_features == 5


def test_a_callback_may_set_another_environment_but_not_in_the_middle_of_a_rollout():
    """With PPO, the policy meets NaN later."""

    class Sets(PhasicCallback):
        def _on_rollout_end(self) -> None:
            self.model.set_env(make_vec_env("CartPole-v1", 2))

    model = make(make_vec_env("CartPole-v1", 2))
    first = model.env
    assert model.learn(128, callback=Sets()).env is not first and model.n_aux_phases == 1  # the phase goes on
    with pytest.raises(ArgumentError, match=r"`set_env` .* in `_on_rollout_end`"):
        model.learn(128, callback=lambda *_: model.set_env(make_vec_env("CartPole-v1", 2)) or True)
    begins = type("Begins", (PhasicCallback,), {"_on_rollout_start": lambda _: model.set_env(make_vec_env("CartPole-v1", 2))})
    with pytest.raises(ArgumentError, match=r"`set_env` .* in `_on_rollout_end`"):
        model.learn(128, callback=begins())


def test_spaces_of_the_old_gym_are_left_to_sb3s_conversion():
    """Its ``Dict`` has no shape, and is not Gymnasium's."""
    check_environment(SimpleNamespace(observation_space=SimpleNamespace(shape=None), action_space=None))


def test_actions_and_normalized_observations_of_integers_are_stored_as_they_were():
    env = random_envs(spaces.Box(-1000, 1000, (1,), np.int64), spaces.Box(-3, 3, (1,), np.int32))
    model = make(VecNormalize(env), learning_rate=0.0)
    assert abs(learn_and_log(model, 64)["train/approx_kl"]) < 1e-6
    for array in (model.rollout_buffer.observations, model.rollout_buffer.actions):
        assert array.dtype == np.float32 and (array != np.round(array)).any()


def echoes() -> gym.Env:
    """A sensor that says NaN where there is no echo, or infinity."""
    env = RandomEnv()
    return TransformObservation(env, lambda obs: np.where(obs > 0, obs, [np.nan, np.inf, 0]).astype(np.float32), None)


class Fills(FlattenExtractor):
    def forward(self, observations):
        return super().forward(th.nan_to_num(observations, 0.0, 1.0, -1.0))


def test_an_extractor_may_take_care_of_observations_that_are_not_finite(tmp_path):
    fills = dict(policy_kwargs=dict(features_extractor_class=Fills))
    with pytest.raises(NonFiniteEnvironmentError, match="allow_nonfinite_observations"):
        make(echoes(), **fills).learn(64)
    model = make(echoes(), **fills, allow_nonfinite_observations=True)
    model.learn(96, callback=PhasicCheckpointCallback(1, tmp_path))
    loaded = resumed(tmp_path, echoes())
    assert model.n_aux_phases == 1 and len(loaded.aux_buffer) == 1 and loaded.num_timesteps == 96


# ---- saving and copying ----


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_callbacks_may_copy_the_model(copied):
    """Copy a model for self-play, where the model's callback has modules in its ``globals``."""
    copies = []

    class Snapshot(BaseCallback):
        def _on_step(self) -> bool:
            copies.append(copied(self.model))
            return True

        _on_rollout_start = _on_rollout_end = _on_step

    make(n_steps=4, batch_size=4).learn(4, callback=Snapshot())
    assert [model.num_timesteps for model in copies] == [0, 1, 2, 3, 4, 4]
    assert all(each.learn(8).num_timesteps == 8 for each in (copies[0], copies[2], copies[-1]))


def test_a_model_file_does_not_hold_the_rollouts(tmp_path):
    model = make(env=RandomEnv(spaces.Box(-1, 1, (10_000,)), spaces.Discrete(2)), n_steps=64, policy_kwargs=dict(net_arch=[1]))
    model.learn(64).save(tmp_path / "model.zip")
    assert len(model.aux_buffer) == 1 and (tmp_path / "model.zip").stat().st_size < 64 * 10_000 * 4 / 4


def test_compiled_policy(tmp_path):
    """Compile as SB3 documents it: ``model.policy = th.compile(model.policy)``."""
    plain, compiled = make().learn(64), make()
    compiled.policy = th.compile(compiled.policy, backend="eager")
    compiled.learn(64).save(tmp_path / "model")
    assert not changed(plain, PPG.load(tmp_path / "model"))


# ---- policies ----


def test_train_and_eval_mode():
    """Update batch statistics in training only, and record π_old without dropout."""
    model = make(policy_kwargs=dict(features_extractor_class=BatchNormExtractor))
    norm = model.policy.features_extractor.layers[0]
    model.learn(32)
    counted = norm.num_batches_tracked.item()
    assert counted == 1  # one minibatch
    modes, recorded = [], model.objective.recorded
    model.objective.recorded = lambda policy, batch: modes.append(policy.training) or recorded(policy, batch)
    model.learn(32, reset_num_timesteps=False)
    assert modes and not any(modes)
    assert norm.num_batches_tracked.item() > counted
    obs = model.get_env().reset()
    assert model.policy.training
    predictions = {model.predict(obs, deterministic=True)[0].item() for _ in range(5)}
    assert len(predictions) == 1 and not model.policy.training


class Preprocesses(MlpPolicy):
    def extract_features(self, obs, features_extractor=None):
        return super().extract_features(obs.clamp(-0.01, 0.01), features_extractor)


def test_features_of_a_custom_policy_reach_all_networks():
    model = make(policy=Preprocesses).learn(64)
    near, far = th.full((1, 4), 0.01), th.full((1, 4), 5.0)
    with th.no_grad():
        for auxiliary in (False, True):
            of_near, of_far = (model.policy.evaluate(obs, auxiliary=auxiliary).latent_pi for obs in (near, far))
            assert th.equal(of_near, of_far)
        assert th.equal(model.policy.predict_values(near), model.policy.predict_values(far))


@pytest.mark.parametrize("methods", [["predict_values"], ["evaluate_actions", "get_distribution"]])
def test_a_policy_whose_methods_the_losses_would_bypass_is_refused(methods):
    policy = type("Own", (MlpPolicy,), {name: lambda self, *args: None for name in methods})
    with pytest.raises(ArgumentError, match=f"Own cannot work: it overrides {' and '.join(methods)}.*override `evaluate`"):
        make(policy=policy)


class NeedsMore(th.optim.SGD):
    def __init__(self, parameters, lr, *, more):
        super().__init__(parameters, lr)


def decaying(parameters, lr: float) -> th.optim.AdamW:
    biases, weights = (
        [parameter for parameter in parameters if (parameter.dim() > 1) == is_weight] for is_weight in (False, True)
    )
    return th.optim.AdamW([dict(params=biases), dict(params=weights, weight_decay=0.1)], lr, betas=(0.8, 0.9))


def policy_with(make_optimizer, base=MlpPolicy, **methods) -> type[MlpPolicy]:
    """Derive a policy that makes an optimizer in ``_build``, as with SB3."""

    def build(self, lr_schedule):
        base._build(self, lr_schedule)
        self.optimizer = make_optimizer([*self.parameters()], lr_schedule(1))

    return type("Own", (base,), dict(_build=build, **methods))


@pytest.mark.parametrize("make_optimizer", [partial(th.optim.Adam, betas=(0.8, 0.9)), decaying])
@pytest.mark.parametrize("kind", ["ppg", "LSTM", "idaac", "ddcpg"])
def test_an_optimizer_that_a_policy_makes_is_that_of_all_epochs(make_optimizer, kind):
    algorithm, base = (RecurrentPPG, RecurrentPhasicActorCriticPolicy) if kind == "LSTM" else (PPG, MlpPolicy)
    kwargs = with_preset(kind, {}) if kind in ("idaac", "ddcpg") else dict(n_value_epochs=1)
    model = algorithm(policy_with(make_optimizer, base), "CartPole-v1", **SMALL | kwargs)
    expected = make_optimizer([*model.policy.parameters()], 1e-3)
    of_policy = [*map(id, model.policy.parameters())]
    of_objective = [*map(id, model.objective.trained_with_policy())]
    for optimizer in model.optimizers:
        given = [id(each) for group in optimizer.param_groups for each in group["params"]]
        assert sorted(given) == sorted(of_policy + of_objective)
        assert type(optimizer) is type(expected) and len(optimizer.param_groups) == len(expected.param_groups)
        for group, like in zip(optimizer.param_groups, expected.param_groups, strict=True):
            assert all(group[name] == value for name, value in like.items() if name not in ("params", "lr"))
    assert model.learn(128).num_timesteps == 128


def test_a_policy_may_make_all_optimizers_in_its_own_way():
    needs = partial(NeedsMore, more=True)

    class MakesAll(policy_with(needs)):
        def make_optimizer(self, learning_rate, parameters):
            return needs(parameters, learning_rate)

    model = make(policy=MakesAll)
    assert type(model.value_optimizer) is type(model.aux_optimizer) is NeedsMore


class PartlyPossible(RandomEnv):
    """A part of the observation says which actions are possible; the first always is."""

    def __init__(self):
        super().__init__(spaces.Dict(obs=VECTOR, mask=spaces.MultiBinary(4)), spaces.Discrete(4))

    def reset(self, **kwargs):
        self.obs, info = super().reset(**kwargs)
        self.obs["mask"][0] = 1
        return self.obs, info

    def step(self, action):
        assert self.obs["mask"][action]
        self.obs, *rest = super().step(action)
        self.obs["mask"][0] = 1
        return self.obs, *rest


@pytest.mark.parametrize("kwargs", [{}, with_preset("daac", {}), with_preset("dna", {})])
def test_the_policy_of_the_page_masks_actions_by_the_observation_in_both_phases(kwargs):
    policy = names_of("docs/guides/own_networks.md", "MaskedByObservation")["MaskedByObservation"]
    model = make(make_vec_env(PartlyPossible, 2), policy, learning_rate=0.0, **kwargs)
    assert abs(learn_and_log(model, 128)["train/approx_kl"]) < 1e-6
    obs = dict(obs=th.zeros(1, 3), mask=th.tensor([[1, 0, 0, 1]]))
    probabilities = evaluate_auxiliary(model.policy, obs)[0].distribution.probs
    assert probabilities[0, [1, 2]].sum() == 0 and probabilities.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("algorithm", [PPG, RecurrentPPG, MaskablePPG])
@pytest.mark.parametrize("number", range(3), ids=["vectors", "images", "Dict"])
def test_the_plain_policy_classes_of_ppo_mean_ours(tmp_path, algorithm, number):
    ppo = {PPG: PPO, RecurrentPPG: RecurrentPPO, MaskablePPG: MaskablePPO}[algorithm]
    name, plain = [*ppo.policy_aliases.items()][number]
    space = [VECTOR, image_space(36, 36, 1), spaces.Dict(a=VECTOR)][number]
    model, by_name = (algorithm(policy, RandomEnv(space, spaces.Discrete(3)), **SMALL) for policy in (plain, name))
    assert not changed(model, by_name) and model.policy_class is algorithm.policy_aliases[name]
    model.save(tmp_path / "model")
    hub.save_pretrained(model, tmp_path / "shared")
    for loaded in (algorithm.load(tmp_path / "model"), hub.from_pretrained(tmp_path / "shared")):
        assert loaded.policy_class is model.policy_class and not changed(model, loaded)
    for other in {PPO, RecurrentPPO, MaskablePPO} - {ppo}:
        with pytest.raises(ArgumentError, match=f"is not for {algorithm.__name__}: use one of .*, or derive your class from"):
            algorithm([*other.policy_aliases.values()][number], RandomEnv(space, spaces.Discrete(3)), **SMALL)


def test_an_algorithm_of_ones_own_may_have_policies_for_it_alone():
    own_policy = type("OwnPolicy", (MlpPolicy,), dict(algorithm="Own"))
    own = type("Own", (PPG,), dict(policy_aliases={"MlpPolicy": own_policy}))
    for policy in ("MlpPolicy", own_policy, PPO.policy_aliases["MlpPolicy"]):
        assert own(policy, random_envs(), **SMALL).policy_class is own_policy


def count_as_ppos() -> None:
    assert not issubclass(PPG, PPO)
    PPO.register(PPG)
    assert isinstance(PPG("MlpPolicy", "CartPole-v1"), PPO) and issubclass(RecurrentPPG, PPO)


def test_the_page_says_how_ppgs_models_count_as_ppos():
    """Run in another process, because the line changes a process for good."""
    assert "`PPO.register(PPG)`" in (ROOT / "docs" / "migration.md").read_text()
    run_in_a_new_process(count_as_ppos)


REFUSED = {
    "set_prior": lambda model, other: model.set_prior("self", -1.0),
    "set_prior without an agent": lambda model, other: model.set_prior(None, "0.2"),
    "set_prior of no agent": lambda model, other: model.set_prior(3),
    "learn without a number": lambda model, other: model.learn("64"),
    "learn with a wrong interval": lambda model, other: model.learn(64, log_interval=0),
    "set_prior of another kind": lambda model, other: model.set_prior(other),
    "set_env": lambda model, other: model.set_env(other.env),
    "set_parameters": lambda model, other: model.set_parameters(other.get_parameters()),
    "set_random_seed": lambda model, other: model.set_random_seed(-1),
    "warm_start": lambda model, other: model.warm_start({}),
    "load_aux_buffer": lambda model, other: model.load_aux_buffer("no/such/file"),
    "predict": lambda model, other: model.predict(np.zeros(4), epsilon=2.0),
    "predict with masks": lambda model, other: model.predict(np.zeros(4), action_masks=np.array([True, False])),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_a_refused_call_leaves_the_model_and_the_generators_as_they_were(call):
    def generators():
        return random.getstate(), np.random.get_state()[1].tolist(), th.get_rng_state().tolist()

    other, expected = make(RandomEnv(VECTOR, spaces.Discrete(5))), make().learn(32)
    expected.set_random_seed(0)
    expected.learn(64)
    model = make().learn(32)
    model.set_random_seed(0)
    before = generators()
    refused = TypeError if call is REFUSED["predict with masks"] else (ValueError, RuntimeError, FileNotFoundError)
    with pytest.raises(refused):
        call(model, other)
    assert generators() == before
    assert not changed(model.learn(64), expected) and model.prior is None


def test_models_that_exchange_parameters_train_apart():
    """torch's optimizers keep the tensors that they are given."""
    model, other = make().learn(32), make(seed=1)
    parameters = model.get_parameters()
    before = copy.deepcopy(parameters)
    other.set_parameters(parameters)
    other.learn(32)
    assert str(model.get_parameters()) == str(parameters) == str(before)
    mean = {name: (own + before["policy"][name]) / 2 for name, own in other.policy.named_parameters()}  # with gradients
    other.set_parameters({"policy": mean}, exact_match=False)
    assert not changed(mean, dict(other.policy.named_parameters()))


def test_a_policy_that_loads_its_own_parameters_keeps_its_values():
    """They are in value units, which are no parameters."""
    model = make().learn(64)
    obs = th.ones(3, *model.observation_space.shape)
    _, *before = evaluate_auxiliary(model.policy, obs)
    for strict in (True, False):
        model.policy.load_state_dict({name: own.detach().clone() for name, own in model.policy.named_parameters()}, strict)
        _, *after = evaluate_auxiliary(model.policy, obs)
        assert all(map(th.equal, after, before))


def test_arguments_of_a_subclass_are_its_own():
    class Shaped(PPG):
        def __init__(self, *args, scales=None, noise=None, **kwargs):
            super().__init__(*args, **kwargs)
            self.scales, self.noise = scales, noise

    model = Shaped("MlpPolicy", "CartPole-v1", **SMALL, scales=np.ones(2), noise="gaussian").learn(32)
    assert isinstance(model.scales, np.ndarray) and model.noise == "gaussian"


def test_environments_that_are_set_after_a_rollout_or_before_there_are_networks():
    """Where VecNormalize normalizes integers, the buffer gets other arrays; the rollout is learned from first."""
    integers = spaces.Box(0, 9, (3,), np.int64)

    class SetsEnv(PhasicCallback):
        def _on_rollout_end(self):
            if self.num_timesteps == 32:
                self.model.set_env(VecNormalize(random_envs(integers, n_envs=1)))

    sizes = SMALL | dict(aux_batch_size=64)
    model = PPG("MlpPolicy", random_envs(integers, n_envs=1), **sizes, _init_setup_model=False)
    model.set_env(random_envs(integers, n_envs=1))
    model._setup_model()
    phases = calls_of(model.objective, "auxiliary_losses")
    model.learn(64, SetsEnv())
    observations = phases[0][0][1].observations  # of both rollouts
    is_integer = (observations % 1 == 0).all(dim=1)
    assert is_integer.sum() == 32 and observations[is_integer].std() > 1 and observations[~is_integer].abs().max() < 5


def test_an_optimizer_that_replaces_the_policys_does_not_leave_the_others_behind():
    model = make()
    head = model.policy.action_net
    model.policy.optimizer = th.optim.Adam(head.parameters(), 3e-4)
    with pytest.raises(ArgumentError, match="`aux_optimizer` trains other parameters"):
        model.learn(32)
    model.aux_optimizer = model.policy.make_optimizer(3e-4, head.parameters())
    model.learn(32)


def test_a_layer_that_is_added_must_be_known_to_both_optimizers():
    model = make()
    model.policy.requires_grad_(False)
    model.policy.mlp_extractor.policy_net.append(th.nn.Linear(64, 64))
    model.policy.optimizer = model.policy.make_optimizer(3e-4, model.policy.mlp_extractor.policy_net[-1].parameters())
    with pytest.raises(ArgumentError, match="`aux_optimizer` trains other parameters"):
        model.learn(32)


def test_frozen_layers_may_be_left_out_of_a_new_optimizer(tmp_path):
    model = make()
    model.policy.mlp_extractor.requires_grad_(False)
    free = [parameter for parameter in model.policy.parameters() if parameter.requires_grad]
    model.policy.optimizer = th.optim.Adam(free, 3e-4)
    frozen = {name for name, own in model.policy.named_parameters() if not own.requires_grad}
    assert untrained(model, 3) == frozen != set()
    for groups in ([dict(params=free)], [dict(params=free[:2]), dict(params=free[2:])]):
        model.policy.optimizer = th.optim.Adam(groups, 3e-4)
        model.save(tmp_path / "model.zip")
        with pytest.raises(ArgumentError, match="replaced by one of other parameters: make it in the `_build`"):
            PPG.load(tmp_path / "model.zip")
    weights = load_from_zip_file(tmp_path / "model.zip")[1]["policy"]
    again = make()
    again.set_parameters({"policy": weights}, exact_match=False)  # as the error says
    assert not changed(model, weights) and not changed(again, weights)


def test_a_logger_that_a_callback_sets_before_a_run_stays(tmp_path):
    class Sets(BaseCallback):
        def _init_callback(self):
            self.model.set_logger(logger)

        def _on_step(self):
            return True

    logger, model = configure(str(tmp_path), ["csv"]), make()
    model.learn(32, Sets())
    assert model.learn(32).logger is logger


class ActsOtherwise(MlpPolicy):
    def forward(self, obs, deterministic=False):
        actions, values, log_probs = super().forward(obs, deterministic)
        return actions, values, log_probs - 0.7


class Wraps(MlpPolicy):
    def forward(self, obs, deterministic=False):
        acted = super().forward(obs, deterministic)
        self.probabilities = self.action_dist.distribution.probs
        return acted


def test_a_forward_that_disagrees_with_the_losses_is_an_error_after_the_first_rollout():
    with pytest.raises(ArgumentError, match=r"`ActsOtherwise.forward` acted with .* and `ActsOtherwise.evaluate`"):
        make(policy=ActsOtherwise).learn(32)
    model = make(policy=Wraps).learn(32)
    assert model.policy.probabilities.shape == (1, 2)


class Noisy(FlattenExtractor):
    """Is random in evaluation mode, too, as NoisyNet is."""

    def forward(self, observations):
        return super().forward(observations) + 0.5 * th.randn(observations.shape[0], self.features_dim)


@pytest.mark.parametrize("kind", WITH_CONTEXT)
def test_networks_that_are_random_train_with_a_warning_that_says_so(kind):
    model = make_kind(kind, policy_kwargs=dict(features_extractor_class=Noisy))
    model.policy.action_net.weight.data *= 100
    with pytest.warns(UserWarning, match="The policy's networks are random: two passes with the same weights"):
        model.learn(32)
    assert model.n_aux_phases == 1


def test_the_latest_distribution_can_be_read_and_copies_do_not_have_it():
    model, scales = make("Pendulum-v1"), []
    model.learn(32, callback=lambda *_: scales.append(model.policy.action_dist.distribution.scale.mean().item()) or True)
    assert scales == [1.0] * 32
    copied = copy.deepcopy(model)
    assert not hasattr(copied.policy.action_dist, "distribution") and copied.learn(32).num_timesteps == 32
    with_noise = make("Pendulum-v1", use_sde=True)
    with_noise.policy.reset_noise()
    assert copy.deepcopy(with_noise).learn(64).n_aux_phases == 1
    masked = MaskablePPG("MlpPolicy", MaskedEnv(), **SMALL).learn(32)
    assert masked.policy.action_dist.distribution.logits.min() < -1e6
    recurrent = RecurrentPPG("MlpLstmPolicy", "Pendulum-v1", **SMALL)
    recurrent.predict(np.zeros((1, 3), np.float32))
    assert recurrent.policy.action_dist.distribution.variance.shape == (1, 1)


class Lazy(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, 8)
        self.layer = th.nn.LazyLinear(8)

    def forward(self, observations):
        return self.layer(observations)


def test_an_extractor_may_have_layers_that_are_made_in_their_first_pass():
    model = make(policy_kwargs=dict(features_extractor_class=Lazy, ortho_init=False)).learn(64)
    assert model.policy.pi_features_extractor.layer.weight.shape == (8, 4)


# ---- rollouts ----


def test_until_a_callback_ends_it(capsys):
    model = make(verbose=1).learn(float("inf"), callback=StopTrainingOnMaxEpisodes(3))
    assert 0 < model.num_timesteps < 2000 and "One phase" not in capsys.readouterr().out


class CollectsItself(PPG):
    def collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps):
        rollout_buffer.reset()
        callback.on_rollout_start()
        for _ in range(n_rollout_steps):
            with th.no_grad():
                actions, values, log_probs = self.policy(obs_as_tensor(self._last_obs, self.device))
            new_obs, rewards, dones, _ = env.step(actions.numpy())
            self.num_timesteps += env.num_envs
            if not callback.on_step():
                return False
            stored = (self._last_obs, actions.numpy().reshape(-1, 1), rewards + 0.1, self._last_episode_starts)
            rollout_buffer.add(*stored, values, log_probs)
            self._last_obs, self._last_episode_starts = new_obs, dones
        with th.no_grad():
            rollout_buffer.compute_returns_and_advantage(
                self.policy.predict_values(obs_as_tensor(new_obs, self.device)), dones
            )
        callback.on_rollout_end()
        return True


class TellsTheEnd(CollectsItself):
    def train(self):
        self.rollout_end = RolloutEnd(self._last_obs, np.zeros(1), self._last_episode_starts)
        super().train()


class Counts(PhasicCallback):
    n_phases = n_ends = 0

    def on_aux_phase_end(self):
        self.n_phases += 1

    def _on_training_end(self):
        self.n_ends += 1


def test_callbacks_hear_of_phases_and_of_ends_on_rollouts_from_elsewhere():
    """They hear of the end of a run that fails, too."""
    callback, model = Counts(), CollectsItself("MlpPolicy", "CartPole-v1", **SMALL)
    model.learn(128, callback)
    assert (callback.n_phases, callback.n_ends) == (2, 1)
    model.policy.value_net.bias.data.fill_(np.nan)
    with pytest.raises(NonFiniteLossError):
        model.learn(32, callback)
    assert callback.n_ends == 2


def of_the_family(cls: type[PPG], name: str) -> PPG:
    return cls("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, seed=0, device="cpu", **with_preset(name, {}))


@pytest.mark.parametrize("name", ["ppg", "dcpg", "daac", "ppg_replay", "ddcpg", "idaac", "dna"])
def test_rollouts_may_come_from_elsewhere_and_what_needs_their_end_says_so(name):
    model = of_the_family(CollectsItself, name)
    if name in ("ppg", "dcpg", "daac"):
        assert model.learn(64).num_timesteps == 64
        assert "last_observations" not in model.replay.rollouts[-1].arrays  # rather than zeros
    else:
        with pytest.raises(ArgumentError, match=r"the end of the rollout, which `CollectsItself\.collect_rollouts` has not"):
            model.learn(64)


@pytest.mark.parametrize("cls", [CollectsItself, TellsTheEnd])
@pytest.mark.parametrize("argument", [dict(prior="self"), dict(ignore_terminations=True), dict(ignore_terminations=500)])
def test_what_only_its_own_loop_does_is_refused_with_another(argument, cls):
    model = cls("MlpPolicy", "CartPole-v1", **SMALL, **argument)
    with pytest.raises(ArgumentError, match=rf"`{next(iter(argument))}`=.*{cls.__name__}\.collect_rollouts` does not call"):
        model.learn(64)


def test_an_objective_that_was_not_told_of_the_steps_says_so():
    with pytest.raises(ArgumentError, match="does not know the levels"):
        of_the_family(TellsTheEnd, "idaac").learn(64)
    model = of_the_family(TellsTheEnd, "ddcpg").learn(32)
    np.testing.assert_array_equal(model.aux_buffer.rollouts[0].arrays["last_observations"][:, 0], model._last_obs)


@pytest.mark.parametrize("resizes_the_buffer", [False, True])
def test_rollouts_of_another_size_are_dropped(resizes_the_buffer):
    replayed = dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2))
    model = make(make_vec_env("CartPole-v1", 2), **replayed).learn(64)
    model.n_steps = 16
    if resizes_the_buffer:
        model.rollout_buffer.buffer_size = 16
    with pytest.warns(UserWarning, match="The phase starts over, without .* of a phase"):
        model.learn(64, reset_num_timesteps=False)
    assert model.n_aux_phases == 1 and [rollout.shape[1] for rollout in model.replay.rollouts] == [16, 16]
