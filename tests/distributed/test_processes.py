"""Training with several processes, real ones, over torch.distributed."""

import gc
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch as th
import torch.distributed as dist
import torch.multiprocessing as mp
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

from sb3_ppg import PPG, MaskablePPG, NonFiniteLossError, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer
from sb3_ppg.family import with_preset
from tests.distributed.several import in_processes
from tests.helpers import MaskedEnv
from tests.helpers import collect as collect_rollout

pytestmark = pytest.mark.slow

N_STEPS, N_ROLLOUTS = 16, 2


def make(n_envs: int, seed: int, **kwargs) -> PPG:
    settings = dict(n_steps=N_STEPS, batch_size=N_STEPS * n_envs, n_policy_iterations=N_ROLLOUTS, n_epochs=2, n_aux_epochs=3)
    settings |= dict(aux_batch_size=N_STEPS * n_envs * N_ROLLOUTS, max_grad_norm=0.3, device="cpu")
    model = PPG("MlpPolicy", make_vec_env("CartPole-v1", n_envs, seed=seed), seed=seed, **{**settings, **kwargs})
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def train_on(model: PPG, rollouts: list[dict[str, np.ndarray]], envs: slice) -> None:
    """One phase on given rollouts, (step, env, ...), of which this process has some environments."""
    for rollout in rollouts:
        model.rollout_buffer.reset()
        for name, array in rollout.items():
            setattr(model.rollout_buffer, name, array[:, envs].copy())
        model.rollout_buffer.full = True
        model.train()
    assert model.n_aux_phases == 1


def logged(model: PPG) -> list[float]:
    """What is said of all samples together."""
    names = (
        "train/explained_variance",
        "aux/explained_variance",
        "aux/aux_explained_variance",
        "aux/final_kl",
        "train/approx_kl",
    )
    return [model.logger.name_to_value[name] for name in names]


def parameters(model: PPG) -> np.ndarray:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()


def collect(n_envs: int) -> list[dict[str, np.ndarray]]:
    model = make(n_envs, seed=0)
    names = ("observations", "actions", "values", "log_probs", "advantages", "returns")
    rollouts = []
    for _ in range(N_ROLLOUTS):
        _, callback = model._setup_learn(1000)
        model.collect_rollouts(model.env, callback, model.rollout_buffer, N_STEPS)
        rollouts.append({name: getattr(model.rollout_buffer, name).copy() for name in names})
    return rollouts


def worker(rank: int, folder: Path, task: str, rollouts: list[dict[str, np.ndarray]]) -> None:
    th.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", timedelta(seconds=60), world_size=2, rank=rank)
    result = {"halves": halves, "learn": learn, "nan": nan, "refuse": refuse}[task](rank, rollouts)
    np.save(folder / f"{rank}.npy", result)
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()  # the group's threads end with its last reference; at the interpreter's exit they would abort it


def halves(rank: int, rollouts) -> np.ndarray:
    model = make(n_envs=2, seed=0)
    train_on(model, rollouts, slice(2 * rank, 2 * rank + 2))
    return np.concatenate([parameters(model), logged(model)])


def learn(rank: int, _) -> np.ndarray:
    model = make(n_envs=2, seed=0, target_kl=0.01)
    model.learn(2 * N_STEPS * 2 * N_ROLLOUTS * 2)
    assert model.n_aux_phases == 2
    return np.append(parameters(model), model.rollout_buffer.observations.sum())


def nan(rank: int, rollouts) -> np.ndarray:
    """A bad number in one process stops both: none waits for the other."""
    model = make(n_envs=2, seed=0)
    before = parameters(model)
    if rank == 1:
        rollouts[0]["returns"][3, 2] = np.nan
    with pytest.raises(NonFiniteLossError, match="policy phase"):
        train_on(model, rollouts, slice(2 * rank, 2 * rank + 2))
    np.testing.assert_array_equal(parameters(model), before)
    return before


def first_observations() -> np.ndarray:
    """Of environments that were seeded, for a model that was not."""
    model = PPG("MlpPolicy", make_vec_env("CartPole-v1", 2, seed=5), n_steps=8, batch_size=8, device="cpu")
    collect_rollout(model)
    return model.rollout_buffer.observations[0]


def test_environments_seeded_without_the_model_are_numbered_on(tmp_path):
    all_at_once = make_vec_env("CartPole-v1", 4, seed=5).reset()
    np.testing.assert_array_equal(np.concatenate(in_processes(first_observations, tmp_path)), all_at_once)


def refuse(rank: int, _) -> np.ndarray:
    """Every process gets the error; none waits."""
    with pytest.raises(ValueError, match=r"`seed` differs between the processes, 0, 1"):
        make(n_envs=2, seed=rank).learn(32)
    with pytest.raises(ValueError, match=r"`n_envs` differs between the processes, 1, 2"):
        make(n_envs=1 + rank, seed=0).learn(32)
    # The authors' reward normaliser shares its statistics
    normalizer = RewardNormalizer(gamma=0.0)
    normalizer.normalize(np.array([[1.0, 3.0], [5.0, 7.0]]) + 10 * rank, np.ones((2, 2)))
    assert normalizer.return_rms.var == pytest.approx(np.var([1, 3, 5, 7, 11, 13, 15, 17]), rel=1e-2)
    return np.zeros(1)


def run(task: str, folder: Path, rollouts=None) -> list[np.ndarray]:
    mp.start_processes(worker, (folder, task, rollouts), nprocs=2, start_method="forkserver")
    return [np.load(folder / f"{rank}.npy") for rank in range(2)]


needs_gloo = pytest.mark.skipif(sys.platform == "win32", reason="gloo's file rendezvous is not for Windows")


@needs_gloo
def test_two_processes_with_half_the_batch_are_one_with_the_whole(tmp_path):
    """Advantages normalised over all, gradients averaged before clipping, in both phases."""
    rollouts = collect(n_envs=4)
    whole = make(n_envs=4, seed=0)
    start = parameters(whole)
    train_on(whole, rollouts, slice(None))
    first, second = run("halves", tmp_path, rollouts)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first[:-5], parameters(whole), rtol=0, atol=2e-6)
    assert np.abs(first[:-5] - start).max() > 1e-3
    np.testing.assert_allclose(first[-5:], logged(whole), rtol=1e-3, atol=1e-7)


# Options of the step, and members, in which nothing is drawn within a minibatch
ONE_BATCH = dict(n_policy_iterations=2, n_epochs=2, n_aux_epochs=2)
OPTIONS: dict[str, dict] = {
    "micro-batches": dict(micro_batch_size=8),
    "target_kl": dict(target_kl=1e-4, n_epochs=6, learning_rate=5e-3),
    "value epochs": dict(n_value_epochs=2),
    "KL penalty": dict(clip_range=None, kl_coef=0.5),
    "clipped values": dict(objective_kwargs=dict(value_clip=0.1)),
    "clip_range_vf": dict(clip_range_vf=0.1),
    "recomputed advantages": dict(recompute_advantages=True),
    "running units": dict(normalize_value_targets="running"),
    "detached": dict(policy_kwargs=dict(architecture="detached")),
    "normalised rewards": dict(rollout_buffer_class=NormalizedRewardRolloutBuffer),
    "replay": dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=2), batch_size=2),
    **{name: with_preset(name, {}) for name in ("ppg_ewma", "dcpg", "daac")},
    "averaged moments": dict(objective="ewma", objective_kwargs=dict(advantage_decay=0.5)),
    "dna": with_preset("dna", {}),
}


def trained_without_chance(algorithm: type[PPG], n_envs: int, options: dict) -> np.ndarray:
    """Its parameters after four rollouts, in which the policy takes what it holds best; an epoch is one minibatch."""
    policy = "MlpLstmPolicy" if algorithm is RecurrentPPG else "MlpPolicy"
    env = make_vec_env("CartPole-v1", n_envs, seed=0)
    if algorithm is MaskablePPG:
        env = make_vec_env(lambda: MaskedEnv(spaces.Box(-1, 1, (3,))), n_envs, seed=0)  # a space, and its generator, of each
    n_samples = N_STEPS * n_envs
    settings = ONE_BATCH | options | dict(batch_size=n_samples * options.get("batch_size", 1))
    if "rollout_buffer_class" in options:
        settings["rollout_buffer_kwargs"] = dict(reward_normalizer=RewardNormalizer())
    aux_batch_size = n_samples * settings["n_policy_iterations"]
    model = algorithm(policy, env, n_steps=N_STEPS, aux_batch_size=aux_batch_size, seed=0, device="cpu", **settings)
    forward = model.policy.forward
    model.policy.forward = lambda *args, **kwargs: forward(*args, **kwargs, deterministic=True)
    model.learn(4 * N_STEPS * 4)
    assert model.num_timesteps == 4 * N_STEPS * 4
    return np.concatenate(
        [weight.detach().numpy().ravel() for weight in [*model.policy.parameters(), *model.objective.parameters()]]
    )


def each_option(n_envs: int) -> dict[str, np.ndarray]:
    algorithms = {"LSTM": RecurrentPPG, "masks": MaskablePPG}
    variants = {name: trained_without_chance(cls, n_envs, {}) for name, cls in algorithms.items()}
    return {**variants, **{name: trained_without_chance(PPG, n_envs, options) for name, options in OPTIONS.items()}}


@needs_gloo
def test_every_option_takes_the_step_of_one_whole(tmp_path):
    whole = each_option(4)
    first, second = in_processes(each_option, tmp_path, 2)
    for name, expected in whole.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], expected, rtol=0, atol=1e-5, err_msg=name)


def drawn_within_minibatches() -> dict[str, np.ndarray]:
    """Members of which two processes are not one with the whole: their discriminators and classifiers draw pairs."""
    return {name: trained_without_chance(PPG, 2, with_preset(name, {})) for name in ("ddcpg", "idaac")}


@needs_gloo
def test_networks_of_the_objective_are_trained_together(tmp_path):
    first, second = in_processes(drawn_within_minibatches, tmp_path)
    for name, parameters_of_first in first.items():
        assert np.isfinite(parameters_of_first).all()
        np.testing.assert_array_equal(parameters_of_first, second[name], err_msg=name)


@needs_gloo
def test_processes_with_other_seeds_train_one_policy(tmp_path):
    first, second = run("learn", tmp_path)
    np.testing.assert_array_equal(first[:-1], second[:-1])
    assert first[-1] != second[-1]  # from different rollouts


@needs_gloo
def test_a_bad_number_in_one_process_stops_all(tmp_path):
    run("nan", tmp_path, collect(n_envs=4))


@needs_gloo
def test_processes_that_do_not_fit_together_are_refused(tmp_path):
    run("refuse", tmp_path)
