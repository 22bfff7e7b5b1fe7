"""IMPALA on Procgen, micro-batches, memory, and the cost of options."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from gymnasium import spaces
from matplotlib.axes import Axes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.tables import formatted
from benchmarks.turns import Measure, collect, medians, phase, ready, seconds, take_turns
from sb3_ppg import PPG, ImpalaCNN, RecurrentPPG
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.optim.epoch import optimize_epoch
from sb3_ppg.optim.micro_batches import keep_freed_memory

N_THREADS = os.cpu_count() or 1
N_ENVS, N_STEPS, N_AUX_EPOCHS = 64, 256, 6
BATCH_SIZE, AUX_BATCH_SIZE = 2048, 1024
N_SEQUENCES = AUX_BATCH_SIZE // N_STEPS  # of an auxiliary minibatch
Sizes = dict[str, Any]


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


def images(n_envs: int, shape: tuple[int, ...] = (3, 64, 64)) -> DummyVecEnv:
    """Make environments of random images."""
    return DummyVecEnv([lambda: Frames(shape)] * n_envs)


def image_model(env: VecEnv, policy_kwargs: dict[str, Any], **arguments: Any) -> PPG:
    """Make a model for images, with ImpalaCNNs in two networks if the arguments do not say otherwise."""
    policy_kwargs = dict(architecture="detached", features_extractor_class=ImpalaCNN) | policy_kwargs
    return PPG("CnnPolicy", env, policy_kwargs=policy_kwargs, device="cpu", seed=0, **arguments)


def policy_minibatch(model: PPG, batch: Any, size: int | None) -> None:
    """Take a step of the policy phase in micro-batches of this size."""
    losses = partial(model.minibatch_losses, model.objective.joint_losses, model.coefficients())
    optimize_epoch("policy", [model.policy], model.policy.optimizer, [batch], losses, size)


def auxiliary_minibatch(model: PPG, batch: Any, size: int | None) -> None:
    """Take a step of the auxiliary phase in micro-batches of this size."""
    losses = partial(model.minibatch_losses, model.objective.auxiliary_losses, model.coefficients())
    optimize_epoch("auxiliary", [model.policy], model.aux_optimizer, [batch], losses, size)


# ---- IMPALA: the fast path in float32 and in bfloat16 against the same code as others would run it: contiguous weights, images
# divided by 255, memory as glibc manages it, and whole minibatches in one pass, or micro-batches of 128 ----


class PlainImpalaCNN(ImpalaCNN):
    """An ImpalaCNN that gets images that have been divided by 255."""

    scales_images = False


PATHS: dict[str, dict[str, Any]] = {  # the arguments of a model
    "plain": dict(micro_batch_size=None),
    "plain in 128s": dict(micro_batch_size=128),
    "float32": {},
    "bf16": dict(mixed_precision="bf16"),
}


def impala_model(architecture: str, path: str) -> PPG:
    """Make a model for CoinRun with an architecture and one of ``PATHS``."""
    plain = path.startswith("plain")
    network = dict(architecture=architecture, features_extractor_class=PlainImpalaCNN if plain else ImpalaCNN)
    env = VecNormalize(VecMonitor(EnvPoolVecEnv("CoinrunEasy-v0", num_envs=N_ENVS, seed=0)), norm_obs=False)
    sizes: Sizes = dict(batch_size=BATCH_SIZE, aux_batch_size=AUX_BATCH_SIZE, n_steps=N_STEPS, n_policy_iterations=32)
    model = image_model(env, network, n_epochs=1, max_grad_norm=None, **sizes, **PATHS[path])
    if plain:
        for parameter in model.policy.parameters():
            parameter.data = parameter.data.contiguous()
    else:
        keep_freed_memory()
    ready(model)
    return model


def parts(architecture: str, path: str) -> Measure:
    """
    Measure the parts of a phase: a rollout, one minibatch of the policy phase, the record of π_old for one auxiliary
    minibatch, one auxiliary minibatch. All rollouts and minibatches of a phase cost the same.
    """
    model = impala_model(architecture, path)
    size = model.resolved_micro_batch_size()

    def uniform(batch: Any) -> th.Tensor:
        return th.full((len(batch.observations), 15), -float(np.log(15)))

    def measure() -> dict[str, float]:
        rollout = seconds(lambda: collect(model)) + seconds(lambda: next(model.rollout_buffer.get(1)))  # which orders it
        policy = seconds(lambda: policy_minibatch(model, next(model.rollout_buffer.get(BATCH_SIZE)), size))
        model.aux_buffer.reset()
        model.aux_buffer.add(model.rollout_buffer)
        model.aux_buffer.record(uniform, 1)
        batch = next(model.aux_buffer.minibatches(N_SEQUENCES))
        record = seconds(lambda: model.recorded(batch))
        auxiliary = seconds(lambda: auxiliary_minibatch(model, next(model.aux_buffer.minibatches(N_SEQUENCES)), size))
        return dict(rollout=rollout, policy=policy, record=record, auxiliary=auxiliary)

    return measure


def gigaflops_per_sample(architecture: str) -> float:
    """Count a forward and backward pass of the auxiliary loss through all networks."""
    model = impala_model(architecture, "float32")
    with FlopCounterMode(display=False) as counter:
        evaluation = model.policy.evaluate_auxiliary(th.zeros(8, 3, 64, 64, dtype=th.uint8))
        (evaluation.aux_values + evaluation.values).sum().backward()
    return counter.get_total_flops() / 8 / 1e9


def peak_gigaflops() -> Measure:
    """Measure the best of the processor's matrix products: several sizes, as ``mm`` and as a convolution with 1x1 kernels."""

    def best(dtype: th.dtype) -> float:
        found = []
        for n in (512, 1024, 2048):
            a, b = th.randn(n, n).to(dtype), th.randn(n, n).to(dtype)
            image = a.T.reshape(1, n, n // 32, 32).contiguous(memory_format=th.channels_last)
            products: list[Callable] = [partial(th.mm, a, b), partial(F.conv2d, image, b.reshape(n, n, 1, 1))]
            found += [2 * n**3 / seconds(product, 9) / 1e9 for product in products]
        return max(found)

    return lambda: {"float32": best(th.float32), "bf16": best(th.bfloat16)}


def run_impala() -> pd.DataFrame:
    """Measure all paths, and the machine's peak."""
    contestants = [(architecture, path) for architecture in ("detached", "dual") for path in PATHS]
    found = medians(
        {" ".join(one): (parts, one) for one in contestants} | {"peak": (peak_gigaflops, ())},
        n_threads=N_THREADS,
        warm_up=False,  # a turn takes a minute
    )
    peaks = found.loc["peak"]
    table = found.drop(index="peak", columns=["float32", "bf16"]).reset_index(drop=True)
    table["architecture"], table["path"] = zip(*contestants, strict=True)
    per_step = table["rollout"] / (N_ENVS * N_STEPS) + table["policy"] / BATCH_SIZE
    table["steps_per_second"] = 1 / (per_step + (table["record"] + N_AUX_EPOCHS * table["auxiliary"]) / AUX_BATCH_SIZE)
    plain = table[table["path"] == "plain"].set_index("architecture")["steps_per_second"]
    table["over_plain"] = table["steps_per_second"] / table["architecture"].map(plain)
    table["gflops"] = table["architecture"].map(gigaflops_per_sample) * AUX_BATCH_SIZE / table["auxiliary"]
    table["peak_gflops"] = [peaks["bf16" if path == "bf16" else "float32"] for path in table["path"]]
    return table.assign(share=table["gflops"] / table["peak_gflops"]).round(4)


IMPALA = {
    "architecture": "{architecture}",
    "path": "{path}",
    "steps/s": "{steps_per_second:.1f}",
    "over plain": "{over_plain:.2f}",
    "GFLOP/s training": "{gflops:.0f}",
    "of the peak": "{share:.0%} of {peak_gflops:.0f}",
}


def draw_impala(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw steps per second, and ratios."""
    names = [f"{row['architecture']}\n{row['path'].replace(' in', chr(10) + 'in')}" for _, row in rows.iterrows()]
    bars = axes.bar(names, rows["steps_per_second"], color=["silver", "tab:gray", "tab:blue", "tab:orange"] * 2)
    axes.bar_label(bars, [f"{ratio:.1f}x" for ratio in rows["over_plain"]])
    axes.tick_params(axis="x", labelsize="small")
    axes.margins(y=0.1)
    axes.set(ylabel="environment steps per second", title="IMPALA on Procgen")


# ---- Micro-batches: the automatic size against all others ----

NETWORKS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "ImpalaCNN 64x64x3": ({}, (3, 64, 64)),
    "NatureCNN 84x84x4": (dict(features_extractor_class=NatureCNN), (4, 84, 84)),
}
SIZES = {f"n{size}": size for size in (16, 32, 64, 128, 256, 512, 1024)}  # by columns


def speeds(network: str, precision: str) -> Measure:
    """Measure samples per second through one minibatch of 1,024, for each micro-batch size; and the automatic size."""
    keep_freed_memory()
    kwargs, shape = NETWORKS[network]
    mixed_precision = "bf16" if precision == "bf16" else None
    sizes: Sizes = dict(n_steps=64, batch_size=1024, max_grad_norm=None)
    model = image_model(images(16, shape), kwargs, mixed_precision=mixed_precision, **sizes)
    ready(model)
    collect(model)
    batch = next(model.rollout_buffer.get(1024))

    def measure() -> dict[str, float]:
        found = {name: 1024 / seconds(partial(policy_minibatch, model, batch, size)) for name, size in SIZES.items()}
        return {**found, "auto": float(model.resolved_micro_batch_size() or 1024)}

    return measure


def run_micro_batches() -> pd.DataFrame:
    """Measure both networks in both precisions."""
    contestants = [(network, precision) for network in NETWORKS for precision in ("float32", "bf16")]
    found = medians({", ".join(one): (speeds, one) for one in contestants}, n_threads=N_THREADS)
    found["auto_over_best"] = [row[f"n{row['auto']:.0f}"] / row[list(SIZES)].max() for _, row in found.iterrows()]
    return found.reset_index().round(3)


MICRO_BATCHES = {
    "samples/s by micro-batch size": "{contestant}",
    **{str(size): f"{{{name}:.0f}}" for name, size in SIZES.items()},
    "automatic": "{auto:.0f}",
    "of the best": "{auto_over_best:.0%}",
}


def draw_micro_batches(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw samples per second against the size."""
    for _, row in rows.iterrows():
        (line,) = axes.plot(list(SIZES.values()), row[list(SIZES)], marker=".", label=row["contestant"])
        auto = row[f"n{row['auto']:.0f}"]
        axes.plot(row["auto"], auto, marker="o", markersize=10, fillstyle="none", color=line.get_color())
    axes.set(xscale="log", xlabel="micro-batch size (circle: automatic)", ylabel="samples per second", title="Micro-batches")
    axes.set_xticks(list(SIZES.values()), [str(size) for size in SIZES.values()])
    axes.set_ylim(0, 1.35 * rows[list(SIZES)].to_numpy().max())
    axes.legend(fontsize="small", loc="upper left")


# ---- Memory: the process's peak over the bytes of the stored observations ----


def peak_bytes() -> int:
    """Return the most memory that this process had, by Linux's count (``getrusage`` counts what the parent had, too)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def one_phase(n_policy_iterations: int, channels: tuple[int, ...]) -> Measure:
    """Measure one phase of 64 environments x 256 steps of 64x64x3 images."""

    def measure() -> dict[str, float]:
        network = dict(channels=channels, n_blocks=2 if len(channels) > 1 else 0)
        sizes: Sizes = dict(n_steps=N_STEPS, n_epochs=1, n_aux_epochs=1, n_policy_iterations=n_policy_iterations)
        sizes |= dict(batch_size=BATCH_SIZE, aux_batch_size=AUX_BATCH_SIZE)
        model = image_model(images(N_ENVS), dict(features_extractor_kwargs=network), **sizes)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of the present
        start, n_steps = peak_bytes(), N_ENVS * N_STEPS * n_policy_iterations
        model.learn(n_steps)
        return dict(stored=n_steps * 3 * 64 * 64 / 1e6, start=start / 1e6, peak=peak_bytes() / 1e6)

    return measure


def run_memory() -> pd.DataFrame:
    """Measure phases of several lengths, one after the other."""
    rows = []
    for sizes in ((4, (4,)), (8, (4,)), (16, (4,)), (2, (16, 32, 32))):
        turn = take_turns({"": (one_phase, sizes)}, n_threads=N_THREADS, n_turns=1, warm_up=False)
        rows.append(turn.assign(n_policy_iterations=sizes[0], channels="-".join(map(str, sizes[1]))))
    table = pd.concat(rows)[["n_policy_iterations", "channels", "stored", "start", "peak"]]
    return table.assign(constant=table["peak"] - 1.15 * table["stored"]).round(1)


def memory_table(rows: pd.DataFrame) -> str:
    """Return the table, and a sentence on the growth."""
    small = rows[rows["channels"] == "4"]
    slope = np.polyfit(small["stored"], small["peak"], 1)[0]
    columns = {
        "N_π": "{n_policy_iterations}",
        "channels": "{channels}",
        "stored observations, MB": "{stored:.0f}",
        "peak of the process": "{peak:.0f}",
        "before training": "{start:.0f}",
        "peak - 1.15 stored": "{constant:.0f}",
    }
    return f"{formatted(rows, columns)}\n\nGrowth of the peak per stored byte (N_π = 4 to 16): {slope:.3f}."


# ---- The cost of options: a phase with observations in files that are mapped into memory, and with recomputed LSTM states ----

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def stored(storage: str, cold: bool) -> Measure:
    """
    Measure seconds to store, to read and to train an epoch with 4 rollouts of 64 environments x 256 steps of 64x64x3 images,
    805 MB.

    :param cold: whether the system has forgotten the files' pages before they are read
    """
    sizes: Sizes = dict(n_steps=N_STEPS, n_epochs=1, batch_size=BATCH_SIZE, n_policy_iterations=4, aux_batch_size=8 * N_STEPS)
    model = image_model(images(N_ENVS), {}, aux_buffer_kwargs=dict(storage=storage), **sizes)
    ready(model)
    collect(model)
    for _ in model.rollout_buffer.get(BATCH_SIZE):  # which orders it
        pass

    def read_everything() -> None:
        for batch in model.aux_buffer.minibatches(8):
            assert len(batch.value_targets) > 0

    def measure() -> dict[str, float]:
        model.aux_buffer.reset()
        store = sum(seconds(lambda: model.aux_buffer.add(model.rollout_buffer)) for _ in range(4))
        model.aux_buffer.recorded = th.zeros(4 * N_ENVS, N_STEPS, 15)
        if cold:  # nothing has touched the pages yet, so the system can forget them
            os.sync()
            DROP_CACHES.write_text("1")
        read = seconds(read_everything)
        batch = next(model.aux_buffer.minibatches(8))
        train = seconds(lambda: auxiliary_minibatch(model, batch, 64))
        return dict(store=store, read=read, train=train * N_ENVS * 4 / 8)

    return measure


def recurrent(recompute_states: bool) -> Measure:
    """Measure a phase of CartPole with LSTMs of 64 units, 16 rollouts of 8 environments x 32 steps."""
    env, lstm = make_vec_env("CartPole-v1", 8, seed=0), dict(lstm_hidden_size=64)
    sizes: Sizes = dict(n_steps=32, batch_size=256, n_epochs=20, n_policy_iterations=16)
    model = RecurrentPPG("MlpLstmPolicy", env, recompute_states=recompute_states, policy_kwargs=lstm, device="cpu", **sizes)
    ready(model)
    return lambda: dict(seconds=seconds(lambda: phase(model)))


def run_options() -> pd.DataFrame:
    """Measure both options."""
    contestants = {"memory": (stored, ("memory", False)), "mmap": (stored, ("mmap", False))}
    if os.access(DROP_CACHES, os.W_OK):
        contestants["mmap, cold"] = (stored, ("mmap", True))
    found = medians(contestants, n_threads=N_THREADS)
    whole = found["store"] + N_AUX_EPOCHS * (found["read"] + found.loc["memory", "train"])  # the same code
    parts = {f"storing and {N_AUX_EPOCHS} auxiliary epochs, ImpalaCNN": whole, "reading alone": found["read"]}
    rows = [
        dict(option=f"{name}: {part}", without=times["memory"], ratio=times[name] / times["memory"])
        for name in found.index.drop("memory")
        for part, times in parts.items()
    ]
    times = medians({name: (recurrent, (name == "recomputed",)) for name in ("stored", "recomputed")})["seconds"]
    ratio = times["recomputed"] / times["stored"]
    rows.append(dict(option="recomputed LSTM states: a phase", without=times["stored"], ratio=ratio))
    return pd.DataFrame(rows).round(4)


OPTIONS = {"with": "{option}", "seconds without": "{without:.2f}", "ratio": "{ratio:.2f}"}
