"""What several processes agree on, tell each other and write; how one that ends ends them all. Each test starts real ones."""

import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch as th
import torch.distributed as dist
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize
from torch import nn

from sb3_ppg import (
    PPG,
    ArgumentError,
    ImpalaCNN,
    MaskablePPG,
    NormalizedRewardRolloutBuffer,
    PhasicCheckpointCallback,
    RecurrentPPG,
    RewardNormalizer,
    aux_buffer_path,
    latest_checkpoint,
    process_group,
)
from sb3_ppg.distributed import group as starting
from sb3_ppg.distributed.agreement import separate_generators
from sb3_ppg.distributed.collectives import gather, n_processes, rank
from sb3_ppg.errors import NonFiniteError, ProcessGroupError, WorkerError
from sb3_ppg.family import FAMILY, with_preset
from tests.distributed.several import free_port, in_processes, pretend_to_be
from tests.helpers import ROOT, MaskedEnv, RandomEnv
from tests.saving.small_models import everything, numbers_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
N_STEPS, N_ENVS = 8, 2
PHASE = N_STEPS * N_ENVS * 2
VECTOR, IMAGE = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (3, 16, 16), np.uint8)
DICT = spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})


def make(algorithm: type[PPG] = PPG, policy: str = "MlpPolicy", env: Any = "CartPole-v1", **kwargs: Any) -> PPG:
    settings = dict(n_steps=N_STEPS, batch_size=N_STEPS, n_policy_iterations=2, n_epochs=2, n_aux_epochs=2, device="cpu")
    env = make_vec_env(env, N_ENVS) if isinstance(env, str) else env
    return algorithm(policy, env, **{**settings, "seed": 0, "aux_batch_size": PHASE, **kwargs})


def random_env(observations: spaces.Space = VECTOR, actions: spaces.Space | None = None, n_envs: int = N_ENVS):
    def make_env() -> RandomEnv:
        return RandomEnv(deepcopy(observations), actions or spaces.Discrete(3), episode_length=5)

    return VecMonitor(DummyVecEnv([make_env] * n_envs))


class BatchNorm(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Space):
        super().__init__(observation_space, 8)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layers(observations)


# ---- one model ----


def variants() -> dict[str, PPG]:
    """All that steps, or that carries numbers from one step to the next."""
    small = dict(features_dim=8, channels=(4, 4), n_blocks=1)
    impala = dict(features_extractor_class=ImpalaCNN, features_extractor_kwargs=small)
    cnn = dict(policy="CnnPolicy", policy_kwargs=impala, n_steps=4, aux_batch_size=8)
    rewards = dict(reward_normalizer=RewardNormalizer())
    box = spaces.Box(-1, 1, (2,))
    return {
        "target_kl": make(target_kl=1e-4),
        "KL penalty": make(clip_range=None, kl_coef=1.0, n_value_epochs=2),
        "no minibatch is whole": make(batch_size=5, aux_batch_size=N_STEPS),
        "images": make(env=random_env(IMAGE), **cnn),
        "bf16": make(env=random_env(IMAGE), mixed_precision="bf16", micro_batch_size=3, **cnn),
        "one network": make(env=random_env(DICT), policy="MultiInputPolicy", policy_kwargs=dict(architecture="detached")),
        "gSDE": make(env=random_env(actions=box), use_sde=True, sde_sample_freq=3),
        "VecNormalize": make(env=VecNormalize(random_env(), clip_obs=5.0)),
        "reward normaliser": make(
            rollout_buffer_class=NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=rewards,
            normalize_value_targets="running",
        ),
        "batch normalisation": make(env=random_env(), policy_kwargs=dict(features_extractor_class=BatchNorm)),
        "mmap": make(aux_buffer_kwargs=dict(storage="mmap", path=f"disk{rank()}"), recompute_advantages=True),
        "schedule": make(learning_rate=lambda remaining: 1e-3 * remaining),
        "LSTM": make(RecurrentPPG, "MlpLstmPolicy"),
        "masks": make(MaskablePPG, env=DummyVecEnv([MaskedEnv] * N_ENVS)),
        **{name: make(**with_preset(name, dict(aux_batch_size=N_STEPS))) for name, member in FAMILY.items() if member.preset},
    }


def train_variants() -> list[dict[str, bytes]]:
    """Of each, all that has to be the same afterwards."""
    found = []
    for name, model in variants().items():
        first = model.env.reset()
        assert len({str(one) for one in gather(first)}) == n_processes(), name  # no equal first observations
        weights = next(model.policy.parameters()).detach().clone()
        model.learn(2 * PHASE * n_processes())
        assert not th.equal(weights, next(model.policy.parameters())), name
        tensors = {key: value.numpy().tobytes() for key, value in everything(model).items()}
        if normalizer := model.get_vec_normalize_env():
            tensors["statistics"] = b"".join(one.tobytes() for one in numbers_of(normalizer))
        of_rewards = getattr(model.rollout_buffer, "reward_normalizer", None)
        tensors["rewards"] = str(of_rewards and of_rewards.return_rms.var).encode()
        tensors["episodes"] = str([episode["r"] for episode in model.ep_info_buffer]).encode()
        found.append({f"{name}: {key}": value for key, value in tensors.items()})
    return found


def test_every_variant_trains_one_model(tmp_path):
    first, second = in_processes(train_variants, tmp_path)
    assert len(first) == len(second) > 15
    for ours, theirs in zip(first, second, strict=True):
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if ours[name] != theirs[name]] == []


def test_three_processes(tmp_path):
    def differing(one, other):
        return [name for name in one if one[name] != other[name]]

    first, second, third = in_processes(train_three, tmp_path, size=3)
    assert not differing(first, second) and not differing(first, third)


def train_three() -> dict[str, bytes]:
    model = make(env=VecNormalize(random_env()))
    model.learn(2 * PHASE * 3)
    assert model.num_timesteps == 2 * PHASE * 3 and model.n_aux_phases == 2
    tensors = {key: value.numpy().tobytes() for key, value in everything(model).items()}
    return {**tensors, "statistics": b"".join(one.tobytes() for one in numbers_of(model.env))}


# ---- as one with all environments ----


def collect(n_envs: int) -> dict[str, Any]:
    """A rollout whose observations and rewards do not depend on what is done."""
    model, first = make(env=VecNormalize(random_env(n_envs=n_envs)), n_policy_iterations=10), []
    weights = th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy().copy()

    def keep(_locals, _globals) -> bool:
        first.append(model.env.get_original_obs())
        return True

    model.learn(3 * N_STEPS * 4, callback=keep)
    episodes = sorted(episode["r"] for episode in model.ep_info_buffer)
    statistics = numbers_of(model.env)
    return dict(weights=weights, first=first[0], statistics=statistics, episodes=episodes, n=model.num_timesteps)


def test_two_halves_collect_as_one_whole(tmp_path):
    """Environments are numbered on; statistics, episodes and steps are those of all."""
    first, second = in_processes(collect, tmp_path, 2)
    whole = collect(4)
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_array_equal(np.concatenate([first["first"], second["first"]]), whole["first"])
    for ours, theirs, expected in zip(first["statistics"], second["statistics"], whole["statistics"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(ours, expected, rtol=1e-6)  # SB3 takes means of float32
    assert first["episodes"] == second["episodes"] == whole["episodes"] and len(whole["episodes"]) > 10
    assert first["n"] == second["n"] == whole["n"] == 3 * N_STEPS * 4


def count_transfers() -> list[int]:
    """All-reduces of trainings with one epoch and with three, of four minibatches each."""
    counts, all_reduce = [], dist.all_reduce
    for n_epochs in (1, 3):
        model, n_calls = make(n_epochs=n_epochs, batch_size=4, n_aux_epochs=0, max_grad_norm=0.5), [0]

        def counted(*args, n_calls=n_calls, **kwargs):
            n_calls[0] += 1
            return all_reduce(*args, **kwargs)

        dist.all_reduce = counted
        model.learn(N_STEPS * N_ENVS * 2)
        dist.all_reduce = all_reduce
        counts.append(n_calls[0])
    return counts


def test_one_transfer_for_each_minibatch(tmp_path):
    for one, three in in_processes(count_transfers, tmp_path):
        assert three - one == 2 * 4 and one - 4 < 15


# ---- ends ----


class InOne(BaseCallback):
    """Process 1 does something in its fifth step, or at the end of its second rollout."""

    def __init__(self, action, at_the_end: bool = False):
        super().__init__()
        self.action, self.at_the_end, self.n_rollouts = action, at_the_end, 0

    def _on_step(self) -> bool:
        return not (rank() == 1 and self.n_calls == 5 and not self.at_the_end) or self.action(self.model)

    def _on_rollout_end(self) -> None:
        self.n_rollouts += 1
        if rank() == 1 and self.n_rollouts == 2 and self.at_the_end:
            self.action(self.model)


def boom(model) -> bool:
    raise KeyError("boom")


def spoil(model) -> bool:
    model.env.envs[1].unwrapped.state = np.full(4, np.nan)
    return True


def kill_a_worker(model) -> bool:
    os.kill(model.env.processes[0].pid, signal.SIGKILL)
    return True


def stop(model) -> bool:
    return False


def ask_to_end(model) -> bool:
    os.kill(os.getpid(), signal.SIGTERM)
    return True


def end_in_one(action, at_the_end: bool, error: str | None) -> tuple[float, int, str]:
    """Seconds that the training took, its steps, the error's message."""
    env = make_vec_env("CartPole-v1", N_ENVS, vec_env_cls=SubprocVecEnv if action is kill_a_worker else None)
    model, message = make(env=env), ""
    start = time.perf_counter()
    try:
        model.learn(10_000, callback=[InOne(action, at_the_end), PhasicCheckpointCallback(1000, "checkpoints")])
    except (KeyError, NonFiniteError, WorkerError, ProcessGroupError, SystemExit) as caught:
        message = f"{type(caught).__name__}: {caught}"
    seconds, n_timesteps = time.perf_counter() - start, model.num_timesteps
    if at_the_end:  # nobody knows where the others are
        with pytest.raises(ProcessGroupError, match="an error has ended the group"):
            model.learn(PHASE)
    if action in (spoil, stop):  # the group goes on
        model.learn(2 * PHASE, callback=None)
        hashes = gather(th.nn.utils.parameters_to_vector(model.policy.parameters()).sum().item())
        assert len(set(hashes)) == 1 and model.num_timesteps == 2 * PHASE
    return seconds, n_timesteps, message


@pytest.mark.parametrize(
    ("action", "at_the_end", "in_it", "in_others"),
    [
        (stop, False, "", ""),
        (boom, False, "KeyError: 'boom'", "process 1 of 2: KeyError: 'boom'"),
        (boom, True, "KeyError: 'boom'", "process 1 of 2: KeyError: 'boom'"),
        (spoil, False, "NonFiniteEnvironmentError: The reward|observation", "process 1 of 2: NonFiniteEnvironmentError"),
        (kill_a_worker, False, "WorkerError", "process 1 of 2: WorkerError: A worker process of SubprocVecEnv died"),
        (ask_to_end, False, "SystemExit: 143", "SystemExit: 143"),
    ],
)
def test_what_ends_one_process_ends_all(action, at_the_end, in_it, in_others, tmp_path):
    first, second = in_processes(end_in_one, tmp_path, action, at_the_end, in_it)
    assert max(first[0], second[0]) < 5
    assert first[1] == second[1]  # after the same rollout
    assert re.search(in_it, second[2]) and re.search(in_others, first[2]), (first, second)
    saved = [path.name for path in (tmp_path / "checkpoints").glob("*")]
    if at_the_end:
        assert not saved  # nobody knows what the others have done
    else:
        steps = first[1] // (N_STEPS * N_ENVS * 2) * N_STEPS * N_ENVS * 2
        assert len([name for name in saved if name.endswith("_of_2.npz")]) == 2 and f"ppg_model_{steps}_steps.zip" in saved


# ---- going on ----


def train_and_go_on() -> list[bool]:
    """Whether a training that is gone on from in the midst of a phase is, bit for bit, one that was not interrupted."""
    schedule = dict(learning_rate=lambda remaining: 1e-3 * remaining, n_policy_iterations=3, stats_window_size=10)
    model = make(env=VecNormalize(random_env()), **schedule)
    rollout = N_STEPS * N_ENVS * n_processes()
    model.learn(4 * rollout, callback=PhasicCheckpointCallback(2, "checkpoints", keep=1))
    path = latest_checkpoint("checkpoints")
    resumed = PPG.load(path, env=VecNormalize(random_env()), device="cpu")
    resumed.load_aux_buffer(aux_buffer_path(path))
    resumed.env.seed(7 + rank() * N_ENVS)
    resumed.learn(3 * rollout, reset_num_timesteps=False)

    state = (th.get_rng_state(), np.random.get_state())
    model.load_aux_buffer(aux_buffer_path(path))  # the generators of then
    model.env.seed(7 + rank() * N_ENVS)
    model._last_obs = None
    model.learn(3 * rollout, reset_num_timesteps=False)
    ours, theirs = everything(model), everything(resumed)
    return [
        *(th.equal(ours[name], theirs[name]) for name in ours),
        *(np.array_equal(*pair) for pair in zip(numbers_of(model.env), numbers_of(resumed.env), strict=True)),
        th.equal(state[0], th.get_rng_state()) and np.array_equal(state[1][1], np.random.get_state()[1]),
        model.num_timesteps == 7 * rollout == resumed.num_timesteps,
    ]


def test_stopped_and_gone_on_is_as_uninterrupted(tmp_path):
    first, second = in_processes(train_and_go_on, tmp_path)
    assert all(first) and all(second) and len(first) > 20
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    steps = 4 * N_STEPS * N_ENVS * 2
    wanted = {".zip", ".aux_buffer.0_of_2.npz", ".aux_buffer.1_of_2.npz"}
    assert names == {f"ppg_model_{steps}_steps{ending}" for ending in wanted}


def go_on_with_others() -> tuple[Any, ...]:
    path = latest_checkpoint("../two/checkpoints")
    model = PPG.load(path, env=VecNormalize(random_env()), device="cpu")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.load_aux_buffer(aux_buffer_path(path))
    before, statistics = model.num_timesteps, [one.copy() for one in numbers_of(model.env)]
    rollout = N_STEPS * N_ENVS * n_processes()
    model.learn(2 * rollout, reset_num_timesteps=False)
    rates = gather(model.policy.optimizer.param_groups[0]["lr"])
    return [str(one.message) for one in told], before, model.num_timesteps - before, statistics, rates


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_processes_goes_on_with_a_new_phase(size, tmp_path):
    (tmp_path / "two").mkdir()
    in_processes(train_and_go_on, tmp_path / "two")
    (tmp_path / "other").mkdir()
    rollout = N_STEPS * N_ENVS
    results = in_processes(go_on_with_others, tmp_path / "other", size=size)
    for told, before, taken, statistics, rates in results:
        assert any("from another number of processes: the phase starts anew" in one for one in told), told
        assert before == 4 * rollout * 2 and taken == 2 * rollout * size
        assert statistics[2] > rollout * 8 / 2  # `VecNormalize` knows all samples of before
        for ours, first in zip(statistics, results[0][3], strict=True):
            np.testing.assert_array_equal(ours, first)
        assert len(set(rates)) == 1


def differ_at_the_start() -> list[str]:
    """Messages of those that cannot train together."""
    said = []
    for changes in (
        dict(gamma=0.9 + rank() / 100),
        dict(learning_rate=lambda remaining: (1 + rank()) * 1e-3 * remaining),
        dict(policy_kwargs=dict(net_arch=[8 + rank()])),
        dict(env="Acrobot-v1" if rank() else "CartPole-v1"),
        dict(seed=rank()),
        dict(env=VecNormalize(random_env(), norm_obs=bool(rank()))),
        dict(save_freq=1 + rank()),
    ):
        try:
            callback = PhasicCheckpointCallback(changes.pop("save_freq", 1), "checkpoints")
            make(**changes).learn(10_000, callback=callback)
        except (ArgumentError, ProcessGroupError) as error:
            said.append(str(error))
    model = make()
    model.learn(2 * PHASE)
    model.num_timesteps += rank()
    try:
        model.learn(2 * PHASE, reset_num_timesteps=False)
    except ArgumentError as error:
        said.append(str(error))
    return said


def test_processes_that_do_not_fit_say_so_in_all(tmp_path):
    first, second = in_processes(differ_at_the_start, tmp_path)
    names = [
        "gamma",
        "learning_rate",
        "policy_kwargs",
        "env",
        "seed",
        "VecNormalize",
        "PhasicCheckpointCallback",
        "num_timesteps",
    ]
    assert [one.split("`")[1] for one in first] == names
    assert first == second


# ---- coming together ----


def start(size: int, port: int, number: int, patience: float, told: Any) -> None:
    pretend_to_be(number, size, port)
    if patience < 0:  # of other versions
        starting.PACKAGES = ("torch",)
        starting.version = lambda package: "0.1"
    begin = time.perf_counter()
    try:
        with process_group(start_timeout=abs(patience)):
            told.put((number, "trained", time.perf_counter() - begin))
    except (ProcessGroupError, ArgumentError) as error:
        told.put((number, f"{type(error).__name__}: {error}", time.perf_counter() - begin))


def messages(size: int, port: int, patience: dict[int, float]) -> dict[int, str]:
    """What each process says at its end, all within seconds."""
    context = multiprocessing.get_context("forkserver")
    told = context.Queue()
    processes = [context.Process(target=start, args=(size, port, number, wait, told)) for number, wait in patience.items()]
    for process in processes:
        process.start()
    said = [told.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(seconds < 12 for _, _, seconds in said), said
    return {number: text for number, text, _ in said}


def test_a_missing_process_is_named_by_all():
    said = messages(3, free_port(), {0: 3, 1: 3})
    assert said[0] == said[1] == "ProcessGroupError: of 3 processes, these have not come: [2]"
    assert "has not met the others at 127.0.0.1" in messages(2, free_port(), {1: 2})[1]


def test_other_versions_are_refused_by_all():
    said = messages(2, free_port(), {0: 5, 1: -5})
    assert said[0] == said[1] and re.match("ProcessGroupError: process 1 has .*: use one version", said[0])


def test_a_port_that_is_taken_is_named():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        said = messages(2, port, {0: 4})
    assert f"127.0.0.1:{port}" in said[0]


@pytest.mark.parametrize("n_gpus, backend", [(0, "gloo"), (1, "gloo"), (2, "cpu:gloo,cuda:nccl")])
def test_processes_that_share_a_gpu_do_not_talk_by_nccl(n_gpus, backend, monkeypatch):
    """Which refuses them."""
    asked, start = [], dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda name, **options: asked.append(name) or start("gloo", **options))
    monkeypatch.setattr(th.cuda, "is_available", lambda: n_gpus > 0)
    monkeypatch.setattr(th.cuda, "device_count", lambda: n_gpus)
    monkeypatch.setattr(th.cuda, "set_device", lambda number: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    pretend_to_be(0, 1, free_port())
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    with process_group():
        assert asked == [backend]


def test_generators_of_gpus_are_separated_too(monkeypatch):
    """Where actions are drawn, whatever the CPU has drawn."""
    monkeypatch.setattr(th.cuda, "get_rng_state", lambda device: th.zeros(16, dtype=th.uint8))
    other, device = b"another CPU state", th.device("cuda")

    def seed_after(gpu: bytes | None) -> int:
        """:param gpu: the hash of the other process's, None: the same"""
        monkeypatch.setattr(
            "sb3_ppg.distributed.agreement.gather", lambda hashes: [hashes, [other, hashes[1] if gpu is None else gpu]]
        )
        th.manual_seed(5)
        separate_generators(device)
        return th.initial_seed()

    assert seed_after(None) != 5 and seed_after(b"another GPU state") == 5


def test_torch_without_process_groups():
    code = """
import torch._dynamo  # which asks for them as torch was built
import torch.distributed as dist
dist.is_available = lambda: False
for name in ("Store", "is_initialized", "PrefixStore", "TCPStore"):
    delattr(dist, name)
from sb3_ppg import PPG
print(PPG("MlpPolicy", "CartPole-v1", n_steps=32, n_policy_iterations=1, device="cpu").learn(64).n_aux_phases)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split()[-1] == "2"


def test_without_torchrun_nothing_happens():
    with process_group():
        assert not dist.is_initialized() and n_processes() == 1 and rank() == 0


def test_a_process_that_trains_alone_is_told(monkeypatch):
    for name, value in dict(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1").items():
        monkeypatch.setenv(name, value)
    with pytest.warns(UserWarning, match=r"one of 2 processes, but it trains alone: put `with sb3_ppg.process_group\(\):`"):
        make().learn(PHASE)


PREEMPTED = """
import os, sys
from stable_baselines3.common.env_util import make_vec_env
from sb3_ppg import PPG, PhasicCheckpointCallback, aux_buffer_path, latest_checkpoint
from tests.saving.small_models import small
try:
    path = latest_checkpoint("checkpoints")
    model = PPG.load(path, env=make_vec_env("CartPole-v1"), device="cpu")
    model.load_aux_buffer(aux_buffer_path(path))
    n = 80
except FileNotFoundError:
    model, n = small(), 10**9
print("learns", flush=True)
model.learn(n, reset_num_timesteps=False, callback=PhasicCheckpointCallback(10**6, "checkpoints"))
print("trained to", model.num_timesteps)
"""


def test_a_scheduler_that_ends_a_training_can_start_it_again(tmp_path, monkeypatch, capsys):
    """SIGTERM, in one process: the iteration is ended, the checkpoint saved, the exit status that of the signal."""
    command = [sys.executable, "-c", PREEMPTED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    training = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    assert training.stdout.readline() == "learns\n"
    time.sleep(1)
    training.terminate()
    assert training.wait(timeout=10) == 128 + signal.SIGTERM
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.zip")
    steps = int(checkpoint.name.split("_")[2])
    assert steps > 0 and steps % 8 == 0 and aux_buffer_path(checkpoint).exists()
    monkeypatch.chdir(tmp_path)
    exec(PREEMPTED, {})
    assert capsys.readouterr().out.splitlines()[-1] == f"trained to {steps + 80}"


def test_an_error_of_a_callback_leaves_the_checkpoint_between_iterations_the_latest(tmp_path):
    """In one process."""

    class Fails(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 20 or boom(self.model)

    with pytest.raises(KeyError):
        make().learn(1000, callback=[Fails(), PhasicCheckpointCallback(1, tmp_path)])
    assert {path.name for path in tmp_path.glob("*.zip")} == {"ppg_model_16_steps.zip", "ppg_model_32_steps.zip"}


def test_a_signal_in_the_last_update_is_not_lost(tmp_path):
    class Update(PhasicCheckpointCallback):
        def _on_training_end(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            super()._on_training_end()

    with pytest.raises(SystemExit) as end:
        make().learn(PHASE, callback=Update(1, tmp_path))
    assert end.value.code == 143 and latest_checkpoint(tmp_path).name == f"ppg_model_{PHASE}_steps.zip"
