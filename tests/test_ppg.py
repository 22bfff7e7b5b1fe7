"""The algorithm: identities with PPO, phases, budgets, schedules, bad input."""

import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TransformReward
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sb3_ppg import PPG, ArgumentError, MaskablePPG, PhasicCallback, RecurrentPPG
from sb3_ppg.errors import ADVISED, NonFiniteActionError
from sb3_ppg.family import with_preset
from sb3_ppg.objectives import Objective
from sb3_ppg.training.checks import aux_steps
from tests.helpers import (
    ROOT,
    SMALL,
    VECTOR,
    ActsThroughTorch,
    BatchNormExtractor,
    RandomEnv,
    assert_trains_like,
    calls_of,
    changed,
    collect,
    distributions_are_validated,
    image_space,
    learn_and_log,
    weights,
)
from tests.helpers import make_with_papers_values as make
from tests.training.test_collecting import Countdown


def fill_phase(model: PPG) -> None:
    """Collect the rollouts of a phase and do their updates, without the auxiliary phase."""
    for _ in range(model.n_policy_iterations):
        collect(model)
        model.aux_buffer.add(model.policy_update().kept(model.stored_keys))


# ---- identities ----

COMMON = dict(n_steps=32, batch_size=16, n_epochs=3, learning_rate=1e-3, gamma=0.98, gae_lambda=0.9, clip_range=0.2)
COMMON |= dict(vf_coef=0.7, max_grad_norm=0.5, normalize_advantage=False, seed=1, device="cpu")
LOGGED = ("policy_gradient_loss", "entropy_loss", "value_loss", "approx_kl", "clip_fraction", "explained_variance", "loss")


@pytest.mark.parametrize(
    ("policy", "env", "architecture", "kwargs"),
    [
        ("MlpPolicy", "CartPole-v1", "dual", dict(clip_range_vf=0.1, ent_coef=0.05)),
        (ActsThroughTorch, "CartPole-v1", "dual", dict(clip_range_vf=0.1, ent_coef=0.05)),
        ("MlpPolicy", "CartPole-v1", "dual", dict(target_kl=0.001)),
        ("MlpPolicy", "Pendulum-v1", "dual", dict(use_sde=True)),
        ("MlpPolicy", "Pendulum-v1", "dual", dict(use_sde=True, sde_sample_freq=0)),  # never within a rollout, either
        # At 1e-3, the policy moves so far that processors' different rounding shows
        ("CnnPolicy", lambda: RandomEnv(image_space(36, 36, 1), spaces.Discrete(6)), "shared", dict(learning_rate=1e-4)),
    ],
    ids=["clip_range_vf", "clip_range_vf, through torch", "target_kl", "gSDE", "gSDE 0", "shared CNN"],
)
def test_without_auxiliary_epochs_it_is_ppo(policy, env, architecture, kwargs):
    sb3s = policy if isinstance(policy, str) else "MlpPolicy"
    ppo = PPO(sb3s, make_vec_env(env, 2), **(COMMON | kwargs))
    own = dict(n_aux_epochs=0, policy_kwargs=dict(architecture=architecture))
    ours = PPG(policy, make_vec_env(env, 2), **own, **(COMMON | kwargs))
    assert_trains_like(ours, ppo, 3 * 32 * 2)
    assert ours.n_aux_phases == len(ours.aux_buffer) == 0
    assert not any(name.startswith("aux/") for name in ours.logger.name_to_value)
    for name in LOGGED:
        got, expected = (model.logger.name_to_value[f"train/{name}"] for model in (ours, ppo))
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6), name


# ---- phases and budgets ----


def test_the_auxiliary_phase_follows_every_n_pi_iterations():
    """The next call uses what a budget leaves over: with constant schedules two calls are one."""
    model, stored = make(), []

    class Record(PhasicCallback):
        def _on_rollout_start(self) -> None:
            stored.append(len(self.model.aux_buffer))

    model.learn(16 * 2, callback=Record())
    assert model.n_aux_phases == 0 and len(model.aux_buffer) == 2
    kept = set(np.concatenate([rollout.arrays["targets"] for rollout in model.aux_buffer.rollouts]).ravel().tolist())
    calls = calls_of(model.objective, "auxiliary_losses")
    model.learn(16 * 5, callback=Record(), reset_num_timesteps=False)
    assert stored == [0, 1, 2, 0, 1, 2, 0]
    assert model.n_aux_phases == 2 and len(model.aux_buffer) == 1
    assert kept < {target for (_, batch, _), _ in calls for target in batch.targets.tolist()}
    assert not changed(make().learn(16 * 7), model)


def test_every_logged_value_is_documented():
    logged = learn_and_log(make(clip_range_vf=0.2), 16 * 3).keys() | learn_and_log(make("Pendulum-v1", kl_coef=0.1), 16).keys()
    assert {"train/clip_range_vf", "train/std", "train/kl_penalty", "aux/learning_rate", "time/phase_position"} <= logged
    glossary = (ROOT / "docs" / "logs.md").read_text()
    assert not [name for name in logged if f"`{name}`" not in glossary]


def rates_of(optimizer: th.optim.Optimizer) -> list[float]:
    """Let an optimizer note the learning rate of each of its steps."""
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
    return rates


def test_each_of_the_epochs_has_a_schedule_over_the_whole_budget():
    names = dict(learning_rate=1e-3, value_learning_rate=4e-3, aux_learning_rate=2e-3)
    schedules = {name: LinearSchedule(start, 0.0, 1.0) for name, start in names.items()}
    model = make(n_value_epochs=2, clip_range=lambda progress: progress, **schedules)
    optimizers = model.policy.optimizer, model.value_optimizer, model.aux_optimizer
    # 1e-8 would let rounding noise move the policy
    assert {optimizer.param_groups[0]["eps"] for optimizer in optimizers} == {1e-5}
    policy, value, aux = map(rates_of, optimizers)
    logged = learn_and_log(model, 16 * 6)
    progress = 1 - np.arange(1, 7) / 6
    np.testing.assert_allclose(policy, 1e-3 * progress, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(value, np.repeat(4e-3 * progress, 2), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(aux, np.repeat(2e-3 * progress.reshape(2, 3).mean(axis=1), 2 * len(aux) // 4), rtol=1e-6)
    assert logged["train/clip_range"] == logged["train/value_learning_rate"] == pytest.approx(0.0)
    assert "`train/value_learning_rate`" in (ROOT / "docs" / "logs.md").read_text()


def test_a_model_file_keeps_the_value_learning_rate_and_another_can_be_given(tmp_path):
    model = make(n_value_epochs=1, value_learning_rate=LinearSchedule(4e-3, 0.0, 1.0))
    model.save(tmp_path / "model.zip")
    for given, expected in (({}, 4e-3 / 2), (dict(value_learning_rate=5e-3), 5e-3), (dict(value_learning_rate=None), 5e-4)):
        loaded = PPG.load(tmp_path / "model.zip", env=model.get_env(), device="cpu", **given)
        rates = rates_of(loaded.value_optimizer)
        loaded.learn(16 * 2)
        assert rates[0] == pytest.approx(expected)


def test_schedules_do_not_turn_negative_past_the_budget():
    model = make(learning_rate=lambda progress: 1e-3 * progress, clip_range=lambda progress: 0.2 * progress)
    rates = rates_of(model.aux_optimizer)
    logged = learn_and_log(model, 40)  # the third rollout ends at 48
    assert model.num_timesteps == 48
    assert model.policy.optimizer.param_groups[0]["lr"] == logged["train/clip_range"] == 0.0
    assert rates == [pytest.approx(1e-3 * (24 + 8 + 0) / 40 / 3)] * len(rates)  # by default the mean of the other's
    model.lr_schedule = lambda _: 2e-6
    assert learn_and_log(model, 48)["aux/learning_rate"] == 2e-6


@pytest.mark.parametrize(("architecture", "max_grad_norm"), [("dual", None), ("shared", 0.5)])
def test_rewards_of_any_scale_lead_to_the_same_training(architecture, max_grad_norm):
    """Over two phases, value losses, gradient norms and the policy equal those of rewards a thousand times smaller."""
    results = []
    for scale in (1.0, 1000.0):
        env = make_vec_env("CartPole-v1", 2, seed=0, wrapper_class=TransformReward, wrapper_kwargs=dict(func=scale.__mul__))
        kwargs = dict(max_grad_norm=max_grad_norm, policy_kwargs=dict(architecture=architecture))
        model = make(env, n_epochs=2, n_value_epochs=1, **kwargs)
        with th.no_grad():
            for head in (model.policy.value_net, model.policy.aux_value_net):
                head.weight.zero_()  # in the first rollout, which has no unit yet, values are as much larger, too
        logged = learn_and_log(model, 2 * 16 * 3 * 2)
        assert model.n_aux_phases == 2
        results.append((logged, weights(model)))
    (small, expected), (large, got) = results
    assert large["train/value_unit"] == pytest.approx(1000 * small["train/value_unit"], rel=1e-3)
    for name in ("train/value_loss", "train/grad_norm", "aux/loss", "aux/grad_norm", "aux/final_kl"):
        assert large[name] == pytest.approx(small[name], rel=1e-2, abs=1e-6), name
    for name in (name for name in expected if not name.endswith((".mean", ".std"))):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-2, atol=1e-4, err_msg=name)


def test_new_heads_start_at_the_mean_of_the_first_value_targets():
    """Half a squared error in standard deviations is then about 0.5; losses compare values with what they have become."""
    differences = []

    class Comparing(Objective):
        def value_error(self, policy, latent, batch, coefficients):
            differences.append((policy.value_net(latent).flatten() - batch.old_values).abs().max().item())
            return super().value_error(policy, latent, batch, coefficients)

    kwargs = dict(n_steps=512, learning_rate=0.0, n_policy_iterations=1, objective=Comparing)
    model = PPG("MlpPolicy", "Pendulum-v1", **SMALL | kwargs)
    logged = learn_and_log(model, 2 * 512)
    assert logged["train/value_unit"] > 10
    assert 0.4 < logged["aux/aux_value_loss"] < 0.7 and 0.4 < 0.5 * logged["train/value_loss"] < 0.7
    assert len(differences) > 2 and max(differences) < 1e-3


@pytest.mark.parametrize("off", [dict(normalize_value_targets=False), dict(n_aux_epochs=0)], ids=lambda off: next(iter(off)))
def test_units_that_are_turned_off_later_are_those_of_the_return_again(off, tmp_path):
    """The values themselves stay the same, as a learning rate of zero shows."""
    model = make(normalize_value_targets=True, gamma=0.99).learn(16 * 6)
    assert model.policy.value_unit > 1
    model.save(tmp_path / "model")
    loaded = PPG.load(tmp_path / "model", env=make_vec_env("CartPole-v1"), learning_rate=0.0, **off)
    assert loaded.policy.value_unit == model.policy.value_unit
    observations = th.as_tensor(np.random.default_rng(0).normal(size=(5, 4)), dtype=th.float32)
    expected = loaded.policy.predict_values(observations)
    loaded.learn(32)
    assert loaded.policy.value_unit == 1
    th.testing.assert_close(loaded.policy.predict_values(observations), expected)


def test_the_value_unit_is_an_average_over_a_phase():
    """Rollouts of the first phase weigh the same; later the latest N_π weigh most."""
    model, rng = make(), np.random.default_rng(0)
    collect(model)
    rollouts = [rng.normal(10 * index, 3 + index, (16, 1)).astype(np.float32) for index in range(5)]
    for index, targets in enumerate(rollouts):
        model.rollout_buffer.returns = targets
        model.policy_update()
        if index < 3:
            assert model.policy.value_net.mean.item() == pytest.approx(np.mean(rollouts[: index + 1]), rel=1e-5)
            assert model.policy.value_net.std.item() == pytest.approx(np.std(rollouts[: index + 1]), rel=1e-5)
    shares = np.array([4 / 27, 4 / 27, 4 / 27, 2 / 9, 1 / 3])
    mean = shares @ [targets.mean() for targets in rollouts]
    second_moment = shares @ [np.square(targets).mean() for targets in rollouts]
    assert model.policy.aux_value_net.mean.item() == pytest.approx(mean, rel=1e-5)
    assert model.policy.value_unit == pytest.approx((second_moment - mean**2) ** 0.5, rel=1e-4)


@pytest.mark.parametrize("scale, offset", [(0.0, 7.0), (0.01, 0.0)], ids=["constant", "small"])
def test_small_or_constant_value_targets_stay_in_their_units(scale, offset):
    """Before the first reward of a sparse task, dividing by nearly zero would ruin the heads."""
    model = make(n_policy_iterations=1)
    collect(model)
    targets = (scale * np.random.default_rng(0).random((16, 1)) + offset).astype(np.float32)
    model.rollout_buffer.returns = targets
    before = weights(model)
    model.train()
    assert model.policy.value_net.std == model.policy.aux_value_net.std == 1
    assert model.policy.value_net.mean.item() == pytest.approx(targets.mean())
    assert model.logger.name_to_value["aux/loss"] < 100
    assert "mlp_extractor.policy_net.0.weight" in changed(before, model)


def test_neither_phase_looks_at_values_minibatch_by_minibatch(monkeypatch):
    """An epoch of 8 minibatches has as many transfers to the host as one of 1 minibatch; PPO has several per minibatch."""

    def count_transfers(n_minibatches: int) -> int:
        sizes = dict(batch_size=16 // n_minibatches, n_policy_iterations=8, aux_batch_size=16 * 8 // n_minibatches)
        # Adam reads its step counter, which it keeps on the host
        model = make(policy_kwargs=dict(optimizer_class=th.optim.SGD), **sizes)
        fill_phase(model)
        transfers: list[str] = []
        with monkeypatch.context() as patched:
            for name in ("item", "cpu", "tolist", "__bool__", "__float__", "__int__", "numpy"):
                call = getattr(th.Tensor, name)
                patched.setattr(th.Tensor, name, lambda *args, call=call: transfers.append("") or call(*args))
            model.policy_update()
            model.auxiliary_phase()
        return len(transfers)

    assert count_transfers(1) == count_transfers(8) < 20


# ---- the auxiliary phase ----


class LargestTensor(TorchDispatchMode):
    """Note the number of bytes of the largest result."""

    n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.n_bytes = max(self.n_bytes, *(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, th.Tensor)), 0)
        return result


def test_no_copy_of_the_stored_images_is_made_in_float32():
    """In addition to the stored images, the peak memory of an auxiliary phase is a minibatch, not another buffer."""
    env = make_vec_env(lambda: RandomEnv(image_space(3, 64, 64), spaces.Discrete(2)), 4)
    kwargs = dict(net_arch=[1], features_extractor_kwargs=dict(features_dim=1))
    model = make(env, "CnnPolicy", n_policy_iterations=8, aux_batch_size=16, n_aux_epochs=1, policy_kwargs=kwargs)
    fill_phase(model)
    stored = sum(rollout.arrays["observations"].nbytes for rollout in model.aux_buffer.rollouts)
    assert stored == 8 * 16 * 4 * 3 * 64 * 64
    tracemalloc.start()  # NumPy's memory; a minibatch is gathered there
    with LargestTensor() as largest:
        model.auxiliary_phase()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < stored / 8 and largest.n_bytes == stored / 8  # a minibatch in float32


# ---- bad input ----

# Values that cannot work, and arguments that contradict each other: what the error says
BAD_VALUES = dict(
    **dict.fromkeys(["n_steps", "n_epochs", "n_value_epochs", "n_policy_iterations", "micro_batch_size"], (0,)),
    **dict.fromkeys(["kl_coef", "vf_coef", "gae_lambda", "clip_range_vf", "aux_learning_rate"], (-0.5,)),
    batch_size=[0, 2.5, True],
    n_aux_epochs=[-1, False],
    gamma=[1.5, True],
    beta_clone=[-1.0, float("nan")],
    ent_coef=[float("inf")],
    prior_coef=[-1, "much", float("nan"), lambda _: -1.0],
    clip_range=[0.0, lambda: 0.2],
    max_grad_norm=[0.0, lambda _: 0.5],
    target_kl=[0.0],
    learning_rate=[-1e-3, "fast", None, lambda _: float("nan")],
    normalize_advantage=["False"],
    normalize_value_targets=[None],
    rollout_buffer_class=["RolloutBuffer", ReplayBuffer],
    policy_kwargs=["dict(net_arch=[8])"],
    policy=[None, 3],
    aux_buffer_kwargs=["mmap"],
    mixed_precision=["fp16"],
)
CONTRADICTORY_NETWORKS = [
    (dict(architecture="triple"), "architecture`='triple'.*dual.*detached.*shared"),
    (dict(detach_value_in_aux_phase=True), "detach_value_in_aux_phase.*'dual'.*detached"),
    (dict(architecture="shared", share_features_extractor=False), "share_features_extractor.*'shared'.*dual"),
    (dict(architecture="detached", net_arch=dict(pi=[8], vf=[9])), "net_arch.*'detached'.*dual"),
]
# Values from YAML files, and unknown names
BAD_POLICY_KWARGS = [
    ({name: value}, f"{name}`={re.escape(repr(value))} cannot work: use")
    for name, value in (
        ("net_arch", "[64, 64]"),
        ("net_arch", [64.0]),
        ("activation_fn", "nn.ELU"),
        ("log_std_init", "-2"),
        ("ortho_init", "False"),
        ("optimizer_class", "Adam"),
        ("optimizer_kwargs", "dict(eps=1e-5)"),
        ("features_extractor_class", "NatureCNN"),
        ("share_features_extractor", "True"),
    )
]
BAD_POLICY_KWARGS += [
    (dict(net_archs=[64]), r"net_archs`=\[64\] cannot work: PhasicActorCriticPolicy has no such argument; nearest: net_arch"),
    (dict(features_extractor_class=th.nn.Identity), "features_extractor_class`=.*Identity.* cannot work: derive it from"),
]
BATCH_NORM = dict(features_extractor_class=BatchNormExtractor)
DDCPG = with_preset("ddcpg", {})
AVERAGED = dict(objective="ewma", objective_kwargs=dict(advantage_decay=0.5))
BAD_ARGUMENTS = [({name: value}, name) for name, values in BAD_VALUES.items() for value in values]
BAD_ARGUMENTS += [(dict(policy_kwargs=kwargs), message) for kwargs, message in CONTRADICTORY_NETWORKS + BAD_POLICY_KWARGS]
BAD_ARGUMENTS += [
    (dict(objective_kwargs=dict(huber_threshold=0.3)), "huber_threshold`=0.3 cannot work: it is for `value_loss`='huber'"),
    (dict(objective_kwargs=dict(dual_clp=3)), "dual_clp`=3 cannot work: Objective has no such argument; nearest: dual_clip"),
    (
        dict(objective="dcpg", objective_kwargs=dict(value_loss="huber")),
        "value_loss`='huber' cannot work: DelayedCriticObjective has no such argument; there are policy, value_distance_coef$",
    ),
    (dict(objective="ewma", objective_kwargs=dict(dual_clip=3)), "dual_clip`=3 cannot work: EWMAObjective has no such clip"),
    (dict(replay_kwargs=dict(policy_rollout=2)), "policy_rollout`=2 cannot work: .* nearest: policy_rollouts"),
    (dict(rollout_buffer_kwargs=dict(window=2)), "window`=2 cannot work: RolloutBuffer has no such argument"),
    (DDCPG | dict(n_steps=1, normalize_advantage=False), "n_steps`=1 cannot work: DynamicsObjective draws other samples"),
    (
        DDCPG | dict(env=RandomEnv(VECTOR, spaces.Discrete(1))),
        r"objective`=DynamicsObjective cannot work with Discrete\(1\).*use 'dcpg'",
    ),
    (dict(value_learning_rate=1e-3), "value_learning_rate`=0.001 cannot work: both losses share.*n_value_epochs"),
    (dict(micro_batch_size=4, policy_kwargs=BATCH_NORM), "micro_batch_size`=4 cannot work: batch normalization.*None"),
    (dict(recompute_advantages=True, **AVERAGED), "recompute_advantages`=True.* would count a rollout several times"),
    (dict(objective_kwargs=dict(value_clip=0.2), clip_range_vf=0.2), "clip_range_vf`=.* cannot work: `value_clip` of"),
    (dict(normalize_value_targets="always"), 'normalize_value_targets.*use True, False or "running"'),
    (dict(policy="MlpLstmPolicy"), r"policy`='MlpLstmPolicy' is not for PPG: .* sb3_ppg\.RecurrentPPG"),
    (dict(env=CartPoleEnv), r"env`=.*`env=Env\(\)`, or `env=make_vec_env\(Env, n_envs=8\)`"),
    (dict(env=[CartPoleEnv()]), r"env`=.*make_vec_env"),
    (dict(seed=1.5), r"seed`=1\.5 cannot work: use an integer from 0"),
    (dict(clip_range=None), "clip_range.*None.*kl_coef"),
    (dict(n_steps=1, batch_size=1), "n_steps.*1.*normalize_advantage"),
    (dict(policy=MaskablePPG.policy_aliases["MlpPolicy"]), "policy`=MaskablePhasicActorCriticPolicy is not for PPG"),
    (dict(aux_buffer_kwargs=dict(storage="cloud")), "storage`='cloud'"),
    (dict(aux_buffer_kwargs=dict(path="/x")), "path`='/x'.*no meaning"),
    (dict(ignore_terminations=0), "ignore_terminations`=0 .*True, False, or the step"),
]


def test_numpys_numbers_are_pythons():
    """Files store only Python numbers, and arithmetic with NumPy's differs."""
    given = dict(learning_rate=np.float32(1e-3), gamma=np.float64(0.9), n_steps=np.uint8(200), batch_size=np.uint8(200))
    model = PPG("MlpPolicy", "CartPole-v1", n_policy_iterations=np.int64(1), seed=np.int64(3), device="cpu", **given)
    found = [model.learning_rate, model.gamma, model.n_steps, model.batch_size, model.n_policy_iterations, model.seed]
    assert [*map(type, found)] == [float, float, int, int, int, int] and found[0] == np.float32(1e-3)
    model.gae_lambda = np.float64(0.5)
    assert model.learn(200).n_aux_phases == 1 and type(model.gae_lambda) is float


@pytest.mark.parametrize("kwargs, message", BAD_ARGUMENTS, ids=[" ".join(kwargs) for kwargs, _ in BAD_ARGUMENTS])
def test_arguments_that_cannot_work_are_refused_at_construction(kwargs, message):
    with pytest.raises(ValueError, match=f"`{message}"):
        make(**kwargs)


def test_numbers_as_text_in_the_optimizers_arguments_are_shown():
    with pytest.raises(ArgumentError, match=r"PhasicActorCriticPolicy cannot be made with .*'eps': '1e-5'"):
        make(policy_kwargs=dict(optimizer_kwargs=dict(eps="1e-5")))


@pytest.mark.parametrize("storage", ["memory", "mmap"])
def test_a_phase_that_the_machine_cannot_hold_is_refused(monkeypatch, tmp_path, storage):
    """The error comes before the first rollout and names the bytes and the remedy."""
    kwargs = {} if storage == "memory" else dict(aux_buffer_kwargs=dict(storage="mmap", path=tmp_path / "new"))
    model = make(env=RandomEnv(image_space(64, 64, 3), spaces.Discrete(6)), policy="CnnPolicy", **kwargs)
    needed = 3 * 16 * (64 * 64 * 3 + 4)  # with value targets
    room = SimpleNamespace(available=needed - 1, free=needed - 1)
    monkeypatch.setattr("psutil.virtual_memory", lambda: room)
    monkeypatch.setattr("shutil.disk_usage", lambda path: room)
    place, remedy = (
        ("in memory", "storage='mmap'") if storage == "memory" else (f"on the disk of {tmp_path}/new", "another disk")
    )
    message = rf"{needed:,} more.*{needed - 1:,} are available {place}.*`n_steps` \(now 16\).*{remedy}"
    with pytest.raises(ArgumentError, match=message):
        model.learn(16)
    assert model.num_timesteps == 0
    room.available = room.free = needed
    model.learn(16)
    room.available = room.free = needed * 2 // 3  # one of three rollouts is there already
    model.learn(16)
    room.available = room.free = needed // 3 - 1
    with pytest.raises(ArgumentError, match="take"):
        model.learn(16)


@pytest.mark.parametrize("policy", ["MlpPolicy", "MultiInputPolicy"])
def test_a_phase_on_a_disk_is_the_same(tmp_path, policy):
    space = spaces.Box(-1, 1, (3,)) if policy == "MlpPolicy" else spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3))
    states = []
    for kwargs in (dict(), dict(storage="mmap", path=tmp_path / "here"), dict(storage="mmap")):
        model = make(env=RandomEnv(space, spaces.Discrete(2)), policy=policy, aux_buffer_kwargs=kwargs).learn(16 * 2)
        stored = model.aux_buffer.rollouts[0].arrays["observations"]
        array = stored["a"] if isinstance(stored, dict) else stored
        assert isinstance(array.base, np.memmap) == (kwargs != {})
        states.append(weights(model.learn(16 * 2)))
        assert model.n_aux_phases == 1
    for other in states[1:]:
        assert not changed(states[0], other)
    assert not list((tmp_path / "here").iterdir())  # nothing is left behind


def test_a_disk_that_is_not_there_is_named_and_another_can_be_given(tmp_path):
    """The file of a model may come from another machine."""
    make(aux_buffer_kwargs=dict(storage="mmap", path=tmp_path / "disk")).save(tmp_path / "model")
    (tmp_path / "disk").touch()
    env = make().get_env()
    with pytest.raises(ArgumentError, match=rf"`path`='{tmp_path}/disk'.*File exists.*aux_buffer_kwargs"):
        PPG.load(tmp_path / "model", env=env).learn(16)
    elsewhere = dict(storage="mmap", path=tmp_path / "elsewhere")
    model = PPG.load(tmp_path / "model", env=env, aux_buffer_kwargs=elsewhere).learn(16)
    assert len(model.aux_buffer) == 1 and (tmp_path / "elsewhere").is_dir()


ACTIONS = [spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]


@pytest.mark.parametrize("action_space", ACTIONS, ids=lambda space: type(space).__name__)
def test_no_environment_is_given_an_action_that_is_nan(action_space):
    model = make(RandomEnv(VECTOR, action_space))  # which refuses such actions
    model.learn(5, callback=lambda *_: model.num_timesteps < 5)
    with th.no_grad():
        model.policy.action_net.bias.fill_(np.nan)
    with pytest.raises(NonFiniteActionError, match="actions or values that are NaN or infinite: normalize large observations"):
        model.learn(16, reset_num_timesteps=False)
    assert model.num_timesteps == 5 and distributions_are_validated()


def test_an_evaluation_between_auxiliary_epochs_changes_nothing():
    """This holds even for a network that behaves differently in training mode."""
    network = dict(features_extractor_class=BatchNormExtractor)
    modes = []

    class Predicts(PhasicCallback):
        def on_aux_epoch_end(self) -> None:
            modes.append(self.model.policy.training)
            self.model.predict(np.zeros(4, np.float32), deterministic=True)

    models = [make(policy_kwargs=network, n_aux_epochs=3).learn(48, callback=callback) for callback in (None, Predicts())]
    assert modes == [True] * 3
    assert not changed(*models)


def test_what_is_hardly_meant_warns_at_the_line_that_makes_the_model():
    with pytest.warns(UserWarning, match="there will be a truncated mini-batch of size 4") as caught:
        PPG("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=12)
    assert {warning.filename for warning in caught} == {__file__}


def test_a_budget_below_three_phases_warns_with_the_numbers_also_on_a_further_learn():
    model = make(n_steps=16, n_policy_iterations=4)
    with pytest.warns(UserWarning) as caught:
        model.learn(33)  # three rollouts
        model.learn(16, reset_num_timesteps=False)  # the fourth, and the auxiliary phase: nothing is said again
        ADVISED.clear()
        model.learn(64)
        model.learn(64, reset_num_timesteps=False)
    assert model.n_aux_phases == 3
    messages = [str(warning.message) for warning in caught if "A budget" in str(warning.message)]
    assert {warning.filename for warning in caught} == {__file__}
    assert [re.search(r"after (\d) auxiliary phase", message)[1] for message in messages] == ["0", "2"]
    assert "in all" not in messages[0] and "in all" in messages[1]
    assert "budget of 33 steps" in messages[0] and "16 * 1 * 4 = 64 steps" in messages[0] and "n_aux_epochs=0" in messages[0]


def test_auxiliary_phases_of_few_optimizer_steps_are_advised_against_when_the_model_is_made():
    """1,024 samples in minibatches of 64: 16 steps in each epoch."""
    kwargs = dict(n_steps=256, batch_size=64, seed=0, device="cpu")
    with pytest.warns(UserWarning, match=r"takes 16 optimizer steps.*0\.0003.*Raise `n_aux_epochs` \(now 1\)") as caught:
        PPG("MlpPolicy", "Pendulum-v1", n_aux_epochs=1, **kwargs)
    assert [warning.filename for warning in caught] == [__file__]
    ADVISED.clear()
    with pytest.warns(UserWarning, match=r"takes 16 optimizer steps.*0\.001: below about 24,"):
        PPG("MlpPolicy", "Pendulum-v1", n_aux_epochs=1, aux_learning_rate=1e-3, **kwargs)
    ADVISED.clear()
    for enough in (dict(n_aux_epochs=10), dict(n_aux_epochs=0), dict(n_aux_epochs=1, aux_learning_rate=3e-3), {}):
        PPG("MlpPolicy", "Pendulum-v1", **(kwargs if enough else dict(device="cpu")), **enough)
    RecurrentPPG("MlpLstmPolicy", "Pendulum-v1", device="cpu")
    PPG("MlpPolicy", "Pendulum-v1", **with_preset("dcpg", kwargs | dict(n_aux_epochs=1)))  # other losses
    assert not ADVISED


@pytest.mark.filterwarnings("error")
def test_advice_ends_no_run_where_warnings_are_errors_and_comes_from_the_first_process(capsys, monkeypatch):
    for rank in ("1", "0", "0"):
        monkeypatch.setenv("RANK", rank)
        make(n_steps=16, n_policy_iterations=4).learn(16)
        assert bool(ADVISED) == (rank == "0")
    assert capsys.readouterr().err.count("A budget of 16 steps ends after 0 auxiliary phases") == 1


@pytest.mark.parametrize("device", ["cuda:0", th.device("cuda")], ids=str)
def test_a_gpu_that_does_not_exist_warns(monkeypatch, tmp_path, device):
    monkeypatch.setattr(th.cuda, "is_available", lambda: False)
    make().save(tmp_path / "model")
    for made in (lambda: make(device=device), lambda: PPG.load(tmp_path / "model", device=device)):
        with pytest.warns(UserWarning, match=f"`device`='{device}' runs on the CPU: .*no CUDA GPU"):
            made()


def test_ordinary_arguments_and_budgets_do_not_warn(recwarn, capsys):
    for kwargs, budget in (
        (dict(n_policy_iterations=4), 177),  # a twelfth rollout starts before they are over
        (dict(n_aux_epochs=0), 16),
        (dict(learning_rate=1.0, aux_learning_rate=lambda progress: progress), 144),
        (dict(device="auto"), 144),
    ):
        make(**dict(aux_learning_rate=0.01) | kwargs).learn(budget)
    assert not [str(warning.message) for warning in recwarn] and not capsys.readouterr().err


SINGLE_SAMPLES = [(8, None, [8] * 24), (2, None, [4] * 48), (8, 24, [24] * 8), (8, 16, [16] * 12)]
WHOLE_SEQUENCES = [(64, None, [64] * 3), (8, 64, [64] * 3), (8, 70, [64, 128]), (8, 128, [64, 128])]


@pytest.mark.parametrize(("batch_size", "size", "sizes"), SINGLE_SAMPLES + WHOLE_SEQUENCES)
def test_auxiliary_minibatches_are_of_whole_sequences_or_of_single_samples(batch_size, size, sizes):
    """Without a given size, minibatches are a sixteenth of a rollout of 64 steps, or those of the policy phase if larger."""
    model = make(Countdown([1000]), n_steps=64, batch_size=batch_size, n_aux_epochs=1, aux_batch_size=size)
    calls = calls_of(model.objective, "auxiliary_losses")
    model.learn(3 * 64)
    seen = [batch.observations for (_, batch, _), _ in calls]
    assert sorted(map(len, seen)) == sizes and aux_steps(model)[0] == len(sizes)
    model.aux_batch_size = 1000
    before = model.aux_buffer.single_samples
    assert aux_steps(model)[0] == 1 and model.aux_buffer.single_samples == before  # a phase may be under way
    places = th.cat(seen).flatten()
    assert sorted(places.tolist()) == list(range(3 * 64))
    assert bool((places.reshape(-1, 64).diff() == 1).all()) == (sizes[0] >= 64)
