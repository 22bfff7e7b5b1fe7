"""
How fast PPG trains, and how far that is from what the machine can do: ratios of medians of at least five turns, taken
alternately in one run.

1. IMPALA on Procgen: the fast path in float32 and in bfloat16 against the same code as others would run it: contiguous
   weights, images divided by 255, memory as glibc manages it, and whole minibatches in one pass, or micro-batches of 128;
   GFLOP/s over the machine's best matrix product in that type.
2. Micro-batches: the automatic size against all others.
3. MlpPolicy, LSTMs and masks: the policy phase's update and the rollouts against PPO, RecurrentPPO and MaskablePPO.
4. Memory: the process's peak over the bytes of the stored observations.
5. Scaling: cost per step over a factor of eight in environments, N_π and E_aux.
6. What options cost: a phase with observations in files that are mapped into memory, and with recomputed LSTM states, over
   one without.
7. IMPALA on Procgen on a GPU, where there is one, at the paper's setting.

Each contestant runs in a process of its own. Writes results/speed_<section>.csv, speed.md and speed.png. It takes about half
an hour on two cores; let nothing else run beside it.

    python -m benchmarks.speed [impala] [micro_batches] [mlp] [memory] [scaling] [options] [impala_cuda] [--plot]
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import model_name
from sb3_ppg import PPG, ImpalaCNN, MaskablePPG, RecurrentPPG
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.optim.epoch import optimize_epoch
from sb3_ppg.optim.micro_batches import keep_freed_memory

RESULTS = Path(__file__).parent / "results"
N_TURNS = 5
N_THREADS = os.cpu_count() or 1

Measure = Callable[[], dict[str, float]]


# ---- contestants take turns ----


def _contestant(connection: Connection, make: Callable[..., Measure], arguments: tuple, warm_up: bool) -> None:
    measure = make(*arguments)
    if warm_up:
        measure()
    connection.send("ready")
    while connection.recv():
        connection.send(measure())


def take_turns(contestants: dict[str, tuple[Callable[..., Measure], tuple]], warm_up: bool = True) -> pd.DataFrame:
    """
    :param contestants: by name, a function and its arguments, which make a measurement; each in a process of its own
    :param warm_up: whether each measures once in vain first; where a measurement takes a minute, the median does as well
    :return: a row per contestant and turn, with what it measured
    """
    context = multiprocessing.get_context("spawn")
    connections, processes = {}, []
    for name, (make, arguments) in contestants.items():
        connections[name], theirs = context.Pipe()
        processes.append(context.Process(target=_contestant, args=(theirs, make, arguments, warm_up), daemon=True))
        processes[-1].start()
        theirs.close()  # else nobody would notice that a contestant died
        connections[name].recv()
    rows = []
    for turn in range(N_TURNS):
        for name, connection in connections.items():
            connection.send(True)
            rows.append({"contestant": name, "turn": turn, **connection.recv()})
            print(rows[-1], flush=True)
    for connection in connections.values():
        connection.send(False)
    for process in processes:
        process.join()
    return pd.DataFrame(rows)


def seconds(function: Callable[[], Any], times: int = 1) -> float:
    """The median time that a call takes, until a GPU has done its part."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        if th.cuda.is_available():
            th.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def collect(model: OnPolicyAlgorithm) -> None:
    """One rollout."""
    assert model.env is not None
    callback = CallbackList([])
    callback.init_callback(model)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)


def ready(model: OnPolicyAlgorithm) -> OnPolicyAlgorithm:
    """As ``learn`` leaves it before the first rollout, without a log."""
    model.set_logger(Logger(folder=None, output_formats=[]))
    model._setup_learn(10**9)
    return model


# ---- 1. IMPALA on Procgen ----


class PlainImpalaCNN(ImpalaCNN):
    """Gets images that have been divided by 255."""

    scales_images = False


N_STEPS, N_AUX_EPOCHS = 256, 6


class Setting(NamedTuple):
    """Of a device: for two CPU cores; for a GPU the paper's."""

    game: str
    n_envs: int
    batch_size: int
    aux_batch_size: int
    architectures: tuple[str, ...]
    paths: tuple[str, ...]


SETTINGS = {
    "cpu": Setting("CoinrunEasy-v0", 64, 2048, 1024, ("detached", "dual"), ("plain", "plain in 128s", "float32", "bf16")),
    "cuda": Setting("CoinrunHard-v0", 256, 8192, 4096, ("dual",), ("plain", "tf32", "bf16", "bf16 compiled")),
}


def make_impala(device: str, architecture: str, path: str) -> PPG:
    """
    :param device: "cpu" or "cuda"
    :param architecture: "dual" or "detached"
    :param path: one of the setting's
    """
    th.set_num_threads(N_THREADS)
    setting, plain = SETTINGS[device], path.startswith("plain")
    kwargs: dict[str, Any] = dict(compile_mode="reduce-overhead") if "compiled" in path else {}
    if path == "tf32":
        th.backends.cuda.matmul.fp32_precision = "tf32"
    model = PPG(
        "CnnPolicy",
        VecNormalize(VecMonitor(EnvPoolVecEnv(setting.game, num_envs=setting.n_envs, seed=0)), norm_obs=False),
        n_steps=N_STEPS,
        n_epochs=1,
        n_policy_iterations=32,
        batch_size=setting.batch_size,
        aux_batch_size=setting.aux_batch_size,
        max_grad_norm=None,
        micro_batch_size={"plain": None, "plain in 128s": 128}.get(path, "auto"),
        mixed_precision="bf16" if path.startswith("bf16") else None,
        policy_kwargs=dict(
            architecture=architecture, features_extractor_class=PlainImpalaCNN if plain else ImpalaCNN, **kwargs
        ),
        device=device,
        seed=0,
    )
    if plain:
        for parameter in model.policy.parameters():
            parameter.data = parameter.data.contiguous()
    else:
        keep_freed_memory()
    ready(model)
    return model


def impala(device: str, architecture: str, path: str) -> Measure:
    """
    What a phase is made of: a rollout, one minibatch of the policy phase, the record of π_old for one auxiliary minibatch,
    one auxiliary minibatch. All rollouts and minibatches of a phase cost the same.
    """
    model = make_impala(device, architecture, path)
    n_sequences = SETTINGS[device].aux_batch_size // N_STEPS

    joint_losses, auxiliary_losses = (
        partial(model._minibatch_losses, losses, model.coefficients())
        for losses in (model.objective.joint_losses, model.objective.auxiliary_losses)
    )

    def policy_minibatch() -> None:
        batch = next(model.rollout_buffer.get(model.batch_size))
        optimize_epoch(
            "policy", [model.policy], model.policy.optimizer, [batch], joint_losses, model.resolved_micro_batch_size()
        )

    def auxiliary_minibatch() -> None:
        batch = next(model.aux_buffer.minibatches(n_sequences))
        optimize_epoch(
            "auxiliary", [model.policy], model.aux_optimizer, [batch], auxiliary_losses, model.resolved_micro_batch_size()
        )

    def uniform(batch: Any) -> th.Tensor:
        return th.full((len(batch.observations), 15), -float(np.log(15)), device=device)

    def measure() -> dict[str, float]:
        rollout = seconds(lambda: collect(model)) + seconds(lambda: next(model.rollout_buffer.get(1)))  # which orders it
        policy = seconds(policy_minibatch)
        model.aux_buffer.reset()
        model.aux_buffer.add(model.rollout_buffer)
        model.aux_buffer.record(uniform, 1)
        batch = next(model.aux_buffer.minibatches(n_sequences))
        record = seconds(lambda: model.recorded(batch))
        auxiliary = seconds(auxiliary_minibatch)
        return dict(rollout=rollout, policy=policy, record=record, auxiliary=auxiliary)

    return measure


def seconds_per_step(row: pd.Series, setting: Setting) -> float:
    """Of a whole phase, per environment step."""
    per_step = row["rollout"] / (setting.n_envs * N_STEPS) + row["policy"] / setting.batch_size
    return per_step + (row["record"] + N_AUX_EPOCHS * row["auxiliary"]) / setting.aux_batch_size


def gigaflops_per_sample(architecture: str) -> float:
    """Of a forward and backward pass of the auxiliary loss, all networks."""
    model = make_impala("cpu", architecture, "float32")
    observations = th.zeros(8, 3, 64, 64, dtype=th.uint8)
    with FlopCounterMode(display=False) as counter:
        evaluation = model.policy.evaluate_auxiliary(observations)
        (evaluation.aux_values + evaluation.values).sum().backward()
    return counter.get_total_flops() / 8 / 1e9


def peak_gigaflops(device: str) -> Measure:
    """The best of the device's matrix products: several sizes, as ``mm`` and as a convolution with 1x1 kernels."""
    th.set_num_threads(N_THREADS)

    def best(dtype: th.dtype) -> float:
        found = []
        for n in (512, 1024, 2048) if device == "cpu" else (2048, 8192):
            a, b = th.randn(n, n).to(device, dtype), th.randn(n, n).to(device, dtype)
            image = a.T.reshape(1, n, n // 32, 32).contiguous(memory_format=th.channels_last)
            kernel = b.reshape(n, n, 1, 1)
            for product in (lambda a=a, b=b: th.mm(a, b), lambda i=image, k=kernel: F.conv2d(i, k)):
                found.append(2 * n**3 / seconds(product, 9) / 1e9)
        return max(found)

    return lambda: {"float32": best(th.float32), "bf16": best(th.bfloat16)}


def run_impala(device: str = "cpu") -> pd.DataFrame:
    setting = SETTINGS[device]
    contestants = [(device, architecture, path) for architecture in setting.architectures for path in setting.paths]
    rows = take_turns(
        {" ".join(contestant[1:]): (impala, contestant) for contestant in contestants} | {"peak": (peak_gigaflops, (device,))},
        warm_up=device == "cuda",  # compilation; on a CPU a turn takes a minute
    )
    times = rows[rows["contestant"] != "peak"].groupby("contestant", sort=False)[["rollout", "policy", "record", "auxiliary"]]
    table = times.median().reset_index()
    table[["architecture", "path"]] = table["contestant"].str.split(" ", n=1, expand=True)
    table["steps_per_second"] = 1 / table.apply(seconds_per_step, axis=1, setting=setting)
    plain = table[table["path"] == "plain"].set_index("architecture")["steps_per_second"]
    table["over_plain"] = table["steps_per_second"] / table["architecture"].map(plain)
    flops = {architecture: gigaflops_per_sample(architecture) for architecture in setting.architectures}
    table["gflops"] = table["architecture"].map(flops) * setting.aux_batch_size / table["auxiliary"]
    peaks = rows[rows["contestant"] == "peak"][["float32", "bf16"]].median()
    table["peak_gflops"] = [peaks["bf16" if path.startswith("bf16") else "float32"] for path in table["path"]]
    return table.drop(columns="contestant").round(4)


# ---- 2. micro-batches ----


class Frames(gym.Env):
    """Random images; nothing to learn, nothing to wait for."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(15)
        self.frames = [self.observation_space.sample() for _ in range(16)]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return self.frames[self.steps % 16], 1.0, self.steps == 100, False, {}


NETWORKS = {
    "ImpalaCNN 64x64x3": (dict(features_extractor_class=ImpalaCNN), (3, 64, 64)),
    "NatureCNN 84x84x4": ({}, (4, 84, 84)),
}
SIZES = (16, 32, 64, 128, 256, 512, 1024)


def micro_batches(network: str, precision: str) -> Measure:
    """Samples per second through one minibatch of 1,024, for each micro-batch size; and the automatic size."""
    th.set_num_threads(N_THREADS)
    keep_freed_memory()
    kwargs, shape = NETWORKS[network]
    model = PPG(
        "CnnPolicy",
        DummyVecEnv([lambda: Frames(shape)] * 16),
        n_steps=64,
        batch_size=1024,
        max_grad_norm=None,
        mixed_precision="bf16" if precision == "bf16" else None,
        policy_kwargs=dict(architecture="detached", **kwargs),
        device="cpu",
        seed=0,
    )
    ready(model)
    collect(model)
    batch = next(model.rollout_buffer.get(1024))
    joint_losses = partial(model._minibatch_losses, model.objective.joint_losses, model.coefficients())

    def speed(size: int) -> float:
        arguments = ("policy", [model.policy], model.policy.optimizer, [batch], joint_losses, size)
        return 1024 / seconds(lambda: optimize_epoch(*arguments))

    def measure() -> dict[str, float]:
        speeds = {str(size): speed(size) for size in SIZES}
        return {**speeds, "auto": float(model.resolved_micro_batch_size() or 1024)}

    return measure


def run_micro_batches() -> pd.DataFrame:
    contestants = [(network, precision) for network in NETWORKS for precision in ("float32", "bf16")]
    rows = take_turns({", ".join(contestant): (micro_batches, contestant) for contestant in contestants})
    table = rows.drop(columns="turn").groupby("contestant", sort=False).median()
    sizes = [str(size) for size in SIZES]
    table["auto_over_best"] = [row[str(int(row["auto"]))] / row[sizes].max() for _, row in table.iterrows()]
    return table.reset_index().round(3)


# ---- 3. MlpPolicy ----


def hundred_actions() -> gym.Env:
    """Of which 80 are invalid."""
    return InvalidActionEnvDiscrete(dim=100, n_invalid_actions=80)


BESIDE_PPO: dict[str, tuple[Any, type[OnPolicyAlgorithm], type[PPG], str]] = {
    "CartPole-v1": ("CartPole-v1", PPO, PPG, "MlpPolicy"),
    "Pendulum-v1": ("Pendulum-v1", PPO, PPG, "MlpPolicy"),
    "CartPole-v1, LSTMs": ("CartPole-v1", RecurrentPPO, RecurrentPPG, "MlpLstmPolicy"),
    "100 actions, masks": (hundred_actions, MaskablePPO, MaskablePPG, "MlpPolicy"),
}


def mlp(algorithm: str, contest: str) -> Measure:
    """The same network, rollouts, minibatches of 64 and epochs; one thread."""
    th.set_num_threads(1)
    settings: dict[str, Any] = dict(n_steps=256, batch_size=64, n_epochs=4, max_grad_norm=0.5, ent_coef=0.01, seed=0)
    env, ppo, ppg, policy = BESIDE_PPO[contest]
    cls: Any = {"PPO": ppo, "PPG": ppg}[algorithm]
    model = ready(cls(policy, make_vec_env(env, 8, seed=0), device="cpu", **settings))
    update = model.policy_phase if isinstance(model, PPG) else model.train

    def measure() -> dict[str, float]:
        rollouts, updates = [], []
        for _ in range(5):
            rollouts.append(seconds(lambda: collect(model)))
            updates.append(seconds(update))
        return dict(rollout=statistics.median(rollouts), update=statistics.median(updates))

    return measure


def run_mlp() -> pd.DataFrame:
    tables = []
    for env_id in BESIDE_PPO:
        rows = take_turns({algorithm: (mlp, (algorithm, env_id)) for algorithm in ("PPO", "PPG")})
        table = rows.groupby("contestant")[["rollout", "update"]].median()
        ratios = table.loc["PPO"] / table.loc["PPG"]
        row = dict(env=env_id, update_ppo=8192 / table.loc["PPO", "update"], update_ppg=8192 / table.loc["PPG", "update"])
        row |= dict(rollout_ppo=2048 / table.loc["PPO", "rollout"], rollout_ppg=2048 / table.loc["PPG", "rollout"])
        tables.append({**row, "update_over_ppo": ratios["update"], "rollout_over_ppo": ratios["rollout"]})
    return pd.DataFrame(tables).round(3)


# ---- 4. memory ----


def peak_bytes(reset: bool = False) -> int:
    """
    Of the memory that this process had, by Linux's count (``getrusage`` counts what the parent had, too).

    :param reset: begin anew, from what it has now
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def peak_memory(n_policy_iterations: int, channels: tuple[int, ...]) -> Measure:
    """One phase of 64 environments x 256 steps of 64x64x3 images."""
    th.set_num_threads(N_THREADS)
    setting = SETTINGS["cpu"]

    def measure() -> dict[str, float]:
        model = PPG(
            "CnnPolicy",
            DummyVecEnv([lambda: Frames((3, 64, 64))] * setting.n_envs),
            n_steps=N_STEPS,
            n_epochs=1,
            batch_size=setting.batch_size,
            n_policy_iterations=n_policy_iterations,
            n_aux_epochs=1,
            aux_batch_size=setting.aux_batch_size,
            policy_kwargs=dict(
                architecture="detached",
                features_extractor_class=ImpalaCNN,
                features_extractor_kwargs=dict(channels=channels, n_blocks=2 if len(channels) > 1 else 0),
            ),
            device="cpu",
        )
        start = peak_bytes(reset=True)
        model.learn(setting.n_envs * N_STEPS * n_policy_iterations)
        stored = setting.n_envs * N_STEPS * n_policy_iterations * 3 * 64 * 64
        return dict(stored=stored, start=start, peak=peak_bytes())

    return measure


def _once(connection: Connection, make: Callable[..., Measure], arguments: tuple) -> None:
    connection.send(make(*arguments)())


def run_memory() -> pd.DataFrame:
    context = multiprocessing.get_context("spawn")
    rows = []
    for n_policy_iterations, channels in ((4, (4,)), (8, (4,)), (16, (4,)), (2, (16, 32, 32))):
        ours, theirs = context.Pipe()
        process = context.Process(target=_once, args=(theirs, peak_memory, (n_policy_iterations, channels)))
        process.start()
        theirs.close()
        row = {name: value / 1e6 for name, value in ours.recv().items()}
        process.join()
        rows.append({"n_policy_iterations": n_policy_iterations, "channels": "-".join(map(str, channels)), **row})
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    table["constant"] = table["peak"] - 1.15 * table["stored"]
    return table.round(1)


# ---- 5. scaling ----

SCALES = dict(n_envs=(4, 8, 16, 32), n_policy_iterations=(4, 8, 16, 32), n_aux_epochs=(1, 2, 4, 8))


def phase(settings: dict[str, Any]) -> Measure:
    """A whole phase on CartPole, per environment step."""
    th.set_num_threads(1)
    settings = dict(n_envs=8, n_policy_iterations=4, n_aux_epochs=1) | settings
    n_envs, n_policy_iterations = settings.pop("n_envs"), settings["n_policy_iterations"]
    env = make_vec_env("CartPole-v1", n_envs, seed=0)
    sizes: dict[str, Any] = dict(n_steps=128, n_epochs=1, batch_size=256, aux_batch_size=256, max_grad_norm=None)
    model = PPG("MlpPolicy", env, seed=0, device="cpu", **sizes, **settings)
    ready(model)

    def measure() -> dict[str, float]:
        def run() -> None:
            for _ in range(n_policy_iterations):
                collect(model)
                model.train()

        return dict(seconds=seconds(run, 3) / (n_envs * 128 * n_policy_iterations))

    return measure


def run_scaling() -> pd.DataFrame:
    rows = []
    for quantity, values in SCALES.items():
        turns = take_turns({str(value): (phase, ({quantity: value},)) for value in values})
        medians = turns.groupby("contestant", sort=False)["seconds"].median()
        for value, median in medians.items():
            rows.append(dict(quantity=quantity, value=int(str(value)), microseconds_per_step=1e6 * median))
    return pd.DataFrame(rows).round(2)


# ---- 6. options ----


def images(storage: str, cold: bool) -> Measure:
    """
    4 rollouts of 64 environments x 256 steps of 64x64x3 images, 805 MB: seconds to store, to read, to train an epoch.

    :param cold: whether the system has forgotten the files' pages before they are read
    """
    th.set_num_threads(N_THREADS)
    model = PPG(
        "CnnPolicy",
        DummyVecEnv([lambda: Frames((3, 64, 64))] * 64),
        n_steps=N_STEPS,
        n_epochs=1,
        batch_size=2048,
        n_policy_iterations=4,
        aux_batch_size=8 * N_STEPS,
        aux_buffer_kwargs=dict(storage=storage),
        policy_kwargs=dict(architecture="detached", features_extractor_class=ImpalaCNN),
        device="cpu",
    )
    ready(model)
    collect(model)
    for _ in model.rollout_buffer.get(2048):  # which orders it
        pass

    def read_everything() -> None:
        for batch in model.aux_buffer.minibatches(8):
            assert len(batch.value_targets) > 0

    def measure() -> dict[str, float]:
        model.aux_buffer.reset()
        store = sum(seconds(lambda: model.aux_buffer.add(model.rollout_buffer)) for _ in range(4))
        model.aux_buffer.recorded = th.zeros(4 * 64, N_STEPS, 15)
        if cold:  # nothing has touched the pages yet, so the system can forget them
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("1")
        read = seconds(read_everything)
        batch = next(model.aux_buffer.minibatches(8))
        loss = partial(model._minibatch_losses, model.objective.auxiliary_losses, model.coefficients())
        train = seconds(lambda: optimize_epoch("aux", [model.policy], model.aux_optimizer, [batch], loss, 64))
        return dict(store=store, read=read, train=train * 64 * 4 / 8)

    return measure


def recurrent(recompute_states: bool) -> Measure:
    """A phase of CartPole with LSTMs of 64 units, 16 rollouts of 8 environments x 32 steps."""
    th.set_num_threads(1)
    model = RecurrentPPG(
        "MlpLstmPolicy",
        make_vec_env("CartPole-v1", 8, seed=0),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        n_policy_iterations=16,
        recompute_states=recompute_states,
        policy_kwargs=dict(lstm_hidden_size=64),
        device="cpu",
    )
    ready(model)

    def measure() -> dict[str, float]:
        def run() -> None:
            for _ in range(16):
                collect(model)
                model.train()

        return dict(seconds=seconds(run))

    return measure


def run_options() -> pd.DataFrame:
    contestants = {"memory": (images, ("memory", False)), "mmap": (images, ("mmap", False))}
    if os.access("/proc/sys/vm/drop_caches", os.W_OK):
        contestants["mmap, cold"] = (images, ("mmap", True))
    turns = take_turns(contestants).groupby("contestant", sort=False)[["store", "read", "train"]].median()
    train = turns.loc["memory", "train"]  # the same code
    whole = turns["store"] + N_AUX_EPOCHS * (turns["read"] + train)
    rows = []
    for name in turns.index.drop("memory"):
        for part, times in (
            (f"storing and {N_AUX_EPOCHS} auxiliary epochs, ImpalaCNN", whole),
            ("reading alone", turns["read"]),
        ):
            rows.append(dict(option=f"{name}: {part}", without=times["memory"], ratio=times[name] / times["memory"]))
    phases = take_turns({name: (recurrent, (name == "recomputed",)) for name in ("stored", "recomputed")})
    times = phases.groupby("contestant")["seconds"].median()
    ratio = times["recomputed"] / times["stored"]
    rows.append(dict(option="recomputed LSTM states: a phase", without=times["stored"], ratio=ratio))
    return pd.DataFrame(rows).round(4)


# ---- report ----

SECTIONS = dict(impala=run_impala, micro_batches=run_micro_batches, mlp=run_mlp, memory=run_memory, scaling=run_scaling)
SECTIONS["options"] = run_options
if th.cuda.is_available():
    SECTIONS["impala_cuda"] = partial(run_impala, "cuda")


def lines_of_impala(table: pd.DataFrame) -> Iterator[str]:
    yield "| architecture | path | steps/s | over plain | GFLOP/s training | of the peak |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for _, row in table.iterrows():
        share = row["gflops"] / row["peak_gflops"]
        cells = [row["architecture"], row["path"], f"{row['steps_per_second']:.1f}", f"{row['over_plain']:.2f}"]
        yield f"| {' | '.join(cells)} | {row['gflops']:.0f} | {share:.0%} of {row['peak_gflops']:.0f} |"


def lines_of_micro_batches(table: pd.DataFrame) -> Iterator[str]:
    sizes = [str(size) for size in SIZES]
    yield f"| samples/s by micro-batch size | {' | '.join(sizes)} | automatic | of the best |"
    yield "| --- |" + " --- |" * (len(sizes) + 2)
    for _, row in table.iterrows():
        speeds = " | ".join(f"{row[size]:.0f}" for size in sizes)
        yield f"| {row['contestant']} | {speeds} | {row['auto']:.0f} | {row['auto_over_best']:.0%} |"


def lines_of_mlp(table: pd.DataFrame) -> Iterator[str]:
    yield "| environment | update, samples/s: PPO | PPG | ratio | rollout, steps/s: PPO | PPG | ratio |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for _, row in table.iterrows():
        update = f"{row['update_ppo']:,.0f} | {row['update_ppg']:,.0f} | {row['update_over_ppo']:.2f}"
        rollout = f"{row['rollout_ppo']:,.0f} | {row['rollout_ppg']:,.0f} | {row['rollout_over_ppo']:.2f}"
        yield f"| {row['env']} | {update} | {rollout} |"


def lines_of_memory(table: pd.DataFrame) -> Iterator[str]:
    yield "| N_π | channels | stored observations, MB | peak of the process | before training | peak - 1.15 stored |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for _, row in table.iterrows():
        figures = " | ".join(f"{row[name]:.0f}" for name in ("stored", "peak", "start", "constant"))
        yield f"| {row['n_policy_iterations']} | {row['channels']} | {figures} |"
    small = table[table["channels"] == "4"]
    slope = np.polyfit(small["stored"], small["peak"], 1)[0]
    yield ""
    yield f"Growth of the peak per stored byte (N_π = 4 to 16): {slope:.3f}."


def lines_of_scaling(table: pd.DataFrame) -> Iterator[str]:
    yield "| quantity | values | microseconds per environment step | last over first |"
    yield "| --- | --- | --- | --- |"
    for quantity, rows in table.groupby("quantity", sort=False):
        costs = rows["microseconds_per_step"].tolist()
        values, figures = ", ".join(map(str, rows["value"])), ", ".join(f"{cost:.1f}" for cost in costs)
        yield f"| {quantity} | {values} | {figures} | {costs[-1] / costs[0]:.2f} |"


def lines_of_options(table: pd.DataFrame) -> Iterator[str]:
    yield "| with | seconds without | ratio |"
    yield "| --- | --- | --- |"
    for _, row in table.iterrows():
        yield f"| {row['option']} | {row['without']:.2f} | {row['ratio']:.2f} |"


LINES = dict(
    impala=("IMPALA on Procgen (CoinrunEasy, 64 environments x 256 steps)", lines_of_impala),
    micro_batches=("Micro-batches, minibatches of 1,024", lines_of_micro_batches),
    impala_cuda=("IMPALA on Procgen, on a GPU (CoinrunHard, 256 environments x 256 steps)", lines_of_impala),
    mlp=("MlpPolicy, LSTMs and masks, 8 environments, minibatches of 64", lines_of_mlp),
    memory=("Memory, 64 environments x 256 steps of 64x64x3 images", lines_of_memory),
    scaling=("Scaling, CartPole", lines_of_scaling),
    options=("What options cost (mmap: 805 MB of 64x64x3 images)", lines_of_options),
)


def cpu() -> str:
    """What ran it."""
    return f"{model_name()}, {N_THREADS} cores, torch {th.__version__}"


def report(tables: dict[str, pd.DataFrame]) -> None:
    """
    :param tables: of all sections
    """
    text = ["# Speed", "", "Written by `python -m benchmarks.speed`. Medians of at least 5 turns, taken alternately.", ""]
    text += [f"Machine: {(RESULTS / 'speed_machine.txt').read_text().strip()}."]
    for section, table in tables.items():
        title, lines = LINES[section]
        text += ["", f"## {title}", "", *lines(table)]
    (RESULTS / "speed.md").write_text("\n".join(text) + "\n")

    if not {"impala", "micro_batches", "mlp", "scaling"} <= tables.keys():
        return
    figure, ((left, middle), (right, last)) = plt.subplots(2, 2, figsize=(13, 8), layout="constrained")
    table = tables["impala"]
    names = [f"{row['architecture']}\n{row['path'].replace(' in', chr(10) + 'in')}" for _, row in table.iterrows()]
    bars = left.bar(names, table["steps_per_second"], color=["silver", "tab:gray", "tab:blue", "tab:orange"] * 2)
    left.bar_label(bars, [f"{ratio:.1f}x" for ratio in table["over_plain"]])
    left.tick_params(axis="x", labelsize="small")
    left.margins(y=0.1)
    left.set(ylabel="environment steps per second", title="IMPALA on Procgen")
    for _, row in tables["micro_batches"].iterrows():
        speeds = [row[str(size)] for size in SIZES]
        (line,) = middle.plot(SIZES, speeds, marker=".", label=row["contestant"])
        middle.plot(
            row["auto"], row[str(int(row["auto"]))], marker="o", markersize=10, fillstyle="none", color=line.get_color()
        )
    middle.set(xscale="log", xlabel="micro-batch size (circle: automatic)", ylabel="samples per second")
    middle.set_xticks(SIZES, [str(size) for size in SIZES])
    middle.set_title("Micro-batches")
    middle.set_ylim(0, 1.35 * tables["micro_batches"][[str(size) for size in SIZES]].to_numpy().max())
    middle.legend(fontsize="small", loc="upper left")
    table = tables["mlp"]
    positions = np.arange(len(table))
    right.bar(positions - 0.2, table["update_over_ppo"], 0.4, label="update")
    right.bar(positions + 0.2, table["rollout_over_ppo"], 0.4, label="rollout")
    right.axhline(1, color="black", linewidth=0.8)
    right.set_xticks(positions, [name.replace(", ", "\n") for name in table["env"]])
    right.set(ylabel="PPG over PPO, samples per second", title="MlpPolicy, LSTMs, masks")
    right.legend()
    for quantity, rows in tables["scaling"].groupby("quantity", sort=False):
        last.plot(rows["value"] / rows["value"].iloc[0], rows["microseconds_per_step"], marker=".", label=quantity)
    last.set(xlabel="times the first value", ylabel="microseconds per environment step", ylim=0, title="Scaling, CartPole")
    last.legend()
    figure.savefig(RESULTS / "speed.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *SECTIONS], help="these only; default: all")
    parser.add_argument("--plot", action="store_true", help="from the CSV files alone")
    args = parser.parse_args()
    for section in [] if args.plot else args.sections or SECTIONS:
        print(f"--- {section}", flush=True)
        SECTIONS[section]().to_csv(RESULTS / f"speed_{section}.csv", index=False)
        (RESULTS / "speed_machine.txt").write_text(cpu() + "\n")
    there = [section for section in LINES if (RESULTS / f"speed_{section}.csv").exists()]
    report({section: pd.read_csv(RESULTS / f"speed_{section}.csv", dtype={"channels": str}) for section in there})


if __name__ == "__main__":
    main()
