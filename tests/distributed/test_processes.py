"""Several processes train one model: the same in all of them, and the one that a single process would train."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from torch.profiler import ProfilerActivity, profile

from sb3_ppg import PPG, ImpalaCNN, MaskablePPG, PhasicCallback, RecurrentPPG, VectorRewards, distributed
from sb3_ppg.distributed import gather, n_processes, rank
from sb3_ppg.family import with_preset
from sb3_ppg.training.exchange import interleaved
from tests.helpers import (
    BOX,
    MIXED,
    NESTED,
    THREE_ACTIONS,
    VECTOR,
    BatchNormExtractor,
    MaskedEnv,
    RandomEnv,
    VectorRewardEnv,
    image_space,
    in_processes,
    learn_and_log,
    normalized_rewards,
    random_envs,
)
from tests.helpers import collect as collect_rollout
from tests.saving.small_models import everything, numbers_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
N_STEPS, N_ENVS = 8, 2
PHASE = N_STEPS * N_ENVS * 2  # steps of one process
IMAGE = image_space(3, 16, 16)
random_env = partial(random_envs, episode_length=5)


def make(algorithm: type[PPG] = PPG, policy: str = "MlpPolicy", env: Any = "CartPole-v1", **kwargs: Any) -> PPG:
    settings = dict(n_steps=N_STEPS, batch_size=N_STEPS, n_policy_iterations=2, n_epochs=2, n_aux_epochs=2, device="cpu")
    settings |= dict(compile_updates=False)  # "auto" looks for a compiler in each process
    env = make_vec_env(env, N_ENVS) if isinstance(env, str) else env
    return algorithm(policy, env, **{**settings, "seed": 0, "aux_batch_size": PHASE, **kwargs})


# ---- the same in all processes ----


class LayerDrop(BaseFeaturesExtractor):
    """Two layers, one of which is left out at random: in a process that leaves it out, its gradient counts as zero."""

    def __init__(self, observation_space):
        super().__init__(observation_space, 16)
        self.layers = nn.ModuleList([nn.Linear(4, 16), nn.Linear(4, 16)])

    def forward(self, observations):
        kept = int(th.rand(()) < 0.5)
        return sum(layer(observations) for n, layer in enumerate(self.layers) if n == kept or not self.training)


class Sets(PhasicCallback):
    """Set other environments after the first rollout."""

    def _on_rollout_end(self) -> None:
        if self.n_calls == N_STEPS:
            env = random_env()
            env.seed(rank())
            self.model.set_env(VecNormalize(env))


def variants() -> dict[str, PPG]:
    """Return models with each kind of step and of state that ``train_options`` does not compare with one process."""
    small = dict(features_dim=8, channels=(4, 4), n_blocks=1)
    impala = dict(features_extractor_class=ImpalaCNN, features_extractor_kwargs=small)
    cnn = dict(policy="CnnPolicy", policy_kwargs=impala, n_steps=4, aux_batch_size=8)
    return {
        "no minibatch is whole": make(batch_size=5, aux_batch_size=N_STEPS),
        "images, bf16": make(env=random_env(IMAGE), mixed_precision="bf16", micro_batch_size=3, **cnn),
        "one network": make(env=random_env(MIXED), policy="MultiInputPolicy", policy_kwargs=dict(architecture="detached")),
        "gSDE": make(env=random_env(action_space=BOX), use_sde=True, sde_sample_freq=3),
        "another VecNormalize": make(env=VecNormalize(random_env())),
        "VecNormalize": make(env=VecNormalize(random_env(), clip_obs=5.0), prior="self", n_value_warmup=1),
        "vector rewards": make(
            env=make_vec_env(lambda: VectorRewards(VectorRewardEnv()), N_ENVS),
            reward_weights=[1.0, 0.3],
            **normalized_rewards(),
        ),
        "batch normalisation": make(env=random_env(), policy_kwargs=dict(features_extractor_class=BatchNormExtractor)),
        "layers left out": make(policy_kwargs=dict(features_extractor_class=LayerDrop)),
        "mmap": make(aux_buffer_kwargs=dict(storage="mmap", path=f"disk{rank()}"), recompute_advantages=True),
        "nested actions": make(
            env=random_env(action_space=NESTED), ent_coef=dict(kind=0.1, how=0.0, move=0.1), prior="self", prior_coef=0.5
        ),
        **{name: make(**with_preset(name, dict(aux_batch_size=N_STEPS))) for name in ("ddcpg", "idaac")},
    }


def shared_state(model: PPG) -> dict[str, bytes]:
    """Return everything that must be equal in all processes after a run."""
    state = {name: value.numpy().tobytes() for name, value in everything(model).items()}
    if normalizer := model.get_vec_normalize_env():
        state["statistics"] = b"".join(array.tobytes() for array in numbers_of(normalizer))
    reward_normalizer = getattr(model.rollout_buffer, "reward_normalizer", None)
    state["rewards"] = str(reward_normalizer and reward_normalizer.return_rms.var).encode()
    state["episodes"] = str([episode["r"] for episode in model.ep_info_buffer]).encode()
    return state


def train_variants() -> dict[str, bytes]:
    state = {}
    for name, model in variants().items():
        first_observations = model.env.reset()
        assert len({str(first) for first in gather(first_observations)}) == n_processes(), name
        weights = next(model.policy.parameters()).detach().clone()
        model.learn(2 * PHASE * n_processes(), callback=Sets() if name == "another VecNormalize" else None)
        assert not th.equal(weights, next(model.policy.parameters())), name
        state |= {f"{name}: {key}": value for key, value in shared_state(model).items()}
    return state


def test_every_variant_trains_one_model(found):
    first, second = (process["variants"] for process in found)
    assert first.keys() == second.keys() and len(first) > 200
    assert [name for name in first if first[name] != second[name]] == []


def test_processes_get_seeds_of_their_own_if_the_generators_of_actions_are_equal(monkeypatch):
    """The generator of the CPU does not matter where a GPU draws the actions."""
    monkeypatch.setattr(th.cuda, "get_rng_state", lambda device: th.zeros(16, dtype=th.uint8))
    for other, is_kept in ((b"another", True), (None, False)):
        monkeypatch.setattr(distributed, "gather", lambda own, other=other: [own, other or own])
        for device in ("cpu", "cuda"):
            th.manual_seed(5)
            distributed.seed_apart(th.device(device))
            assert (th.initial_seed() == 5) == is_kept


# ---- the model of one process ----


def collect(n_envs: int) -> dict[str, Any]:
    """Collect rollouts whose observations and rewards do not depend on the actions."""
    env = make_vec_env(lambda: RandomEnv(deepcopy(VECTOR), THREE_ACTIONS, episode_length=5), n_envs)  # each draws its own
    model, first = make(env=VecNormalize(env), n_policy_iterations=10), []

    def keep(_locals, _globals) -> bool:
        first.append(model.env.get_original_obs())
        return True

    model.learn(3 * N_STEPS * 4, callback=keep)
    episodes = sorted(episode["r"] for episode in model.ep_info_buffer)
    seeded_env = PPG("MlpPolicy", make_vec_env("CartPole-v1", n_envs, seed=5), n_steps=8, batch_size=8, device="cpu")
    collect_rollout(seeded_env)
    return dict(
        first=first[0],
        statistics=numbers_of(model.env),
        episodes=episodes,
        seeded_env=seeded_env.rollout_buffer.observations[0],
    )


def test_the_latest_episodes_are_those_of_all_processes():
    assert interleaved([[1, 2, 3], [], [4]]) == [1, 2, 4, 3] and interleaved([[1, 2, 3], [4, 5, 6]])[-3:] == [2, 6, 3]


def test_two_halves_collect_as_one_whole(found):
    """Environments are numbered on, also without a seed of the model; statistics and episodes are those of all."""
    first, second = (process["collected"] for process in found)
    whole = collect(4)
    for name in ("first", "seeded_env"):
        np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), whole[name])
    for ours, theirs, expected in zip(first["statistics"], second["statistics"], whole["statistics"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, expected, rtol=1e-6)  # SB3 takes means of float32
    assert first["episodes"] == second["episodes"] == whole["episodes"] and len(whole["episodes"]) > 10


# Options of the step, and members, in which nothing is drawn within a minibatch
ONE_BATCH = dict(n_policy_iterations=2, n_epochs=2, n_aux_epochs=2, compile_updates=False)
OPTIONS: dict[str, dict] = {
    "default": dict(max_grad_norm=0.3),
    "micro-batches": dict(micro_batch_size=8),
    "target_kl": dict(target_kl=1e-4, n_epochs=6, learning_rate=5e-3),
    "value epochs": dict(n_value_epochs=2),
    "recomputed advantages": dict(recompute_advantages=True),
    "running units": dict(normalize_value_targets="running"),
    "normalised rewards": normalized_rewards(),
    "replay": dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2), batch_size=2),
    **{name: with_preset(name, {}) for name in ("ppg_ewma", "dcpg", "daac")},
    "averaged moments": dict(objective="ewma", objective_kwargs=dict(advantage_decay=0.5)),
    "dna": with_preset("dna", {}),
    "LSTM": dict(algorithm=RecurrentPPG, policy="MlpLstmPolicy"),
    "masks": dict(algorithm=MaskablePPG),
}
OF_ALL_SAMPLES = "train/explained_variance train/approx_kl aux/explained_variance aux/aux_explained_variance aux/final_kl"


def train_without_chance(n_envs: int, options: dict) -> tuple[np.ndarray, list[float], dict[str, bytes]]:
    """
    Train for four rollouts with the most probable actions; an epoch is one minibatch of all samples.

    :return: parameters, numbers of ``OF_ALL_SAMPLES``, everything that must be equal in all processes
    """
    n_steps = 16
    n_samples = n_steps * n_envs
    settings = dict(algorithm=PPG, policy="MlpPolicy", n_steps=n_steps, seed=0, device="cpu") | ONE_BATCH | deepcopy(options)
    settings["batch_size"] = n_samples * options.get("batch_size", 1)
    settings["aux_batch_size"] = n_samples * settings["n_policy_iterations"]
    algorithm = settings.pop("algorithm")
    make_env = (lambda: MaskedEnv(deepcopy(VECTOR))) if algorithm is MaskablePPG else "CartPole-v1"
    model = algorithm(env=make_vec_env(make_env, n_envs, seed=0), **settings)
    forward = model.policy.forward
    model.policy.forward = lambda *args, **kwargs: forward(*args, **kwargs, deterministic=True)
    parameters = [*model.policy.parameters(), *model.objective.parameters()]
    start = th.nn.utils.parameters_to_vector(parameters).detach()
    logged = learn_and_log(model, 4 * n_steps * 4)
    assert model.num_timesteps == 4 * n_steps * 4
    end = th.nn.utils.parameters_to_vector(parameters).detach()
    assert (end - start).abs().max() > 1e-3
    of_all_samples = [logged[name] for name in OF_ALL_SAMPLES.split() if options == OPTIONS["default"]]
    return end.numpy(), of_all_samples, shared_state(model)


def train_options(n_envs: int) -> dict[str, tuple[np.ndarray, list[float], dict[str, bytes]]]:
    return {name: train_without_chance(n_envs, options) for name, options in OPTIONS.items()}


def test_two_processes_with_half_the_batch_are_one_with_the_whole(found):
    """Advantages are normalized over all samples, gradients averaged before they are clipped, in both phases."""
    whole = train_options(4)
    first, second = (process["options"] for process in found)
    for name, (weights, logged, _) in whole.items():
        assert first[name][2] == second[name][2], name
        np.testing.assert_allclose(first[name][0], weights, rtol=0, atol=2e-6 if name == "default" else 1e-5, err_msg=name)
        np.testing.assert_allclose(first[name][1], logged, rtol=1e-3, atol=1e-7, err_msg=name)
        assert first[name][1] == second[name][1]
    assert len(whole["default"][1]) == 5


def count_transfers() -> list[int]:
    """Count the all-reduces of a rollout with four minibatches, for one epoch and for two."""
    counts = []
    for n_epochs in (1, 2):
        model = make(n_epochs=n_epochs, batch_size=4, n_aux_epochs=0, max_grad_norm=0.5)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            model.learn(N_STEPS * N_ENVS * n_processes())
        counts.append(sum(event.name == "c10d::allreduce_" for event in profiler.events()))
    return counts


def test_one_transfer_for_each_minibatch(found):
    for one_epoch, two_epochs in (process["transfers"] for process in found):
        assert two_epochs - one_epoch == 4 and one_epoch - 4 < 15


# ---- all of these in two processes, which start once ----


def train_all() -> dict[str, Any]:
    return {
        "variants": train_variants(),
        "collected": collect(2),
        "options": train_options(2),
        "transfers": count_transfers(),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict[str, Any]]:
    return in_processes(train_all, tmp_path_factory.mktemp("processes"))
