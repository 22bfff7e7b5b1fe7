"""
IMPALA on Procgen: the fast path in float32 and in bfloat16 against the same code as others would run it: contiguous weights,
images divided by 255, memory as glibc manages it, and whole minibatches in one pass, or micro-batches of 128; GFLOP/s over the
machine's best matrix product in that type. On a GPU the paper's setting.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch as th
from matplotlib.axes import Axes
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.phases import (
    N_AUX_EPOCHS,
    N_STEPS,
    N_THREADS,
    Section,
    auxiliary_minibatch,
    image_model,
    policy_minibatch,
)
from benchmarks.turns import Measure, collect, medians, ready, seconds
from sb3_ppg import PPG, ImpalaCNN
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.optim.micro_batches import keep_freed_memory


class PlainImpalaCNN(ImpalaCNN):
    """An ImpalaCNN that gets images that have been divided by 255."""

    scales_images = False


class Setting(NamedTuple):
    """The setting for a device: for two CPU cores; for a GPU the paper's."""

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


def make_model(device: str, architecture: str, path: str) -> PPG:
    """
    :param architecture: "dual" or "detached"
    :param path: one of the setting's
    """
    setting, plain = SETTINGS[device], path.startswith("plain")
    network: dict[str, Any] = dict(compile_mode="reduce-overhead") if "compiled" in path else {}
    network |= dict(architecture=architecture, features_extractor_class=PlainImpalaCNN if plain else ImpalaCNN)
    sizes = dict(batch_size=setting.batch_size, aux_batch_size=setting.aux_batch_size)
    sizes |= dict(n_steps=N_STEPS, n_epochs=1, n_policy_iterations=32)
    if path == "tf32":
        th.backends.cuda.matmul.fp32_precision = "tf32"
    model = image_model(
        VecNormalize(VecMonitor(EnvPoolVecEnv(setting.game, num_envs=setting.n_envs, seed=0)), norm_obs=False),
        network,
        device,
        max_grad_norm=None,
        micro_batch_size={"plain": None, "plain in 128s": 128}.get(path, "auto"),
        mixed_precision="bf16" if path.startswith("bf16") else None,
        **sizes,
    )
    if plain:
        for parameter in model.policy.parameters():
            parameter.data = parameter.data.contiguous()
    else:
        keep_freed_memory()
    ready(model)
    return model


def parts(device: str, architecture: str, path: str) -> Measure:
    """
    Measure the parts of a phase: a rollout, one minibatch of the policy phase, the record of π_old for one auxiliary
    minibatch, one auxiliary minibatch. All rollouts and minibatches of a phase cost the same.
    """
    model = make_model(device, architecture, path)
    n_sequences = SETTINGS[device].aux_batch_size // N_STEPS
    size = model.resolved_micro_batch_size()

    def uniform(batch: Any) -> th.Tensor:
        return th.full((len(batch.observations), 15), -float(np.log(15)), device=device)

    def measure() -> dict[str, float]:
        rollout = seconds(lambda: collect(model)) + seconds(lambda: next(model.rollout_buffer.get(1)))  # which orders it
        policy = seconds(lambda: policy_minibatch(model, next(model.rollout_buffer.get(model.batch_size)), size))
        model.aux_buffer.reset()
        model.aux_buffer.add(model.rollout_buffer)
        model.aux_buffer.record(uniform, 1)
        batch = next(model.aux_buffer.minibatches(n_sequences))
        record = seconds(lambda: model.recorded(batch))
        auxiliary = seconds(lambda: auxiliary_minibatch(model, next(model.aux_buffer.minibatches(n_sequences)), size))
        return dict(rollout=rollout, policy=policy, record=record, auxiliary=auxiliary)

    return measure


def seconds_per_step(row: pd.Series, setting: Setting) -> float:
    """Return the seconds of a whole phase per environment step."""
    per_step = row["rollout"] / (setting.n_envs * N_STEPS) + row["policy"] / setting.batch_size
    return per_step + (row["record"] + N_AUX_EPOCHS * row["auxiliary"]) / setting.aux_batch_size


def gigaflops_per_sample(architecture: str) -> float:
    """Count a forward and backward pass of the auxiliary loss through all networks."""
    model = make_model("cpu", architecture, "float32")
    observations = th.zeros(8, 3, 64, 64, dtype=th.uint8)
    with FlopCounterMode(display=False) as counter:
        evaluation = model.policy.evaluate_auxiliary(observations)
        (evaluation.aux_values + evaluation.values).sum().backward()
    return counter.get_total_flops() / 8 / 1e9


def peak_gigaflops(device: str) -> Measure:
    """Measure the best of the device's matrix products: several sizes, as ``mm`` and as a convolution with 1x1 kernels."""

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


def run(device: str = "cpu") -> pd.DataFrame:
    """Measure all paths, and the machine's peak."""
    setting = SETTINGS[device]
    contestants = [(device, architecture, path) for architecture in setting.architectures for path in setting.paths]
    found = medians(
        {" ".join(one[1:]): (parts, one) for one in contestants} | {"peak": (peak_gigaflops, (device,))},
        n_threads=N_THREADS,
        warm_up=device == "cuda",  # compilation; on a CPU a turn takes a minute
    )
    peaks = found.loc["peak"]
    table = found.drop(index="peak", columns=["float32", "bf16"]).reset_index(drop=True)
    table["architecture"], table["path"] = zip(*(one[1:] for one in contestants), strict=True)
    table["steps_per_second"] = 1 / table.apply(seconds_per_step, axis=1, setting=setting)
    plain = table[table["path"] == "plain"].set_index("architecture")["steps_per_second"]
    table["over_plain"] = table["steps_per_second"] / table["architecture"].map(plain)
    flops = {architecture: gigaflops_per_sample(architecture) for architecture in setting.architectures}
    table["gflops"] = table["architecture"].map(flops) * setting.aux_batch_size / table["auxiliary"]
    table["peak_gflops"] = [peaks["bf16" if path.startswith("bf16") else "float32"] for path in table["path"]]
    return table.assign(share=table["gflops"] / table["peak_gflops"]).round(4)


TABLE = {
    "architecture": "{architecture}",
    "path": "{path}",
    "steps/s": "{steps_per_second:.1f}",
    "over plain": "{over_plain:.2f}",
    "GFLOP/s training": "{gflops:.0f}",
    "of the peak": "{share:.0%} of {peak_gflops:.0f}",
}


def draw(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw steps per second, and ratios."""
    names = [f"{row['architecture']}\n{row['path'].replace(' in', chr(10) + 'in')}" for _, row in rows.iterrows()]
    bars = axes.bar(names, rows["steps_per_second"], color=["silver", "tab:gray", "tab:blue", "tab:orange"] * 2)
    axes.bar_label(bars, [f"{ratio:.1f}x" for ratio in rows["over_plain"]])
    axes.tick_params(axis="x", labelsize="small")
    axes.margins(y=0.1)
    axes.set(ylabel="environment steps per second", title="IMPALA on Procgen")


CPU = Section("IMPALA on Procgen (CoinrunEasy, 64 environments x 256 steps)", run, TABLE, draw)
CUDA = Section("IMPALA on Procgen, on a GPU (CoinrunHard, 256 environments x 256 steps)", partial(run, "cuda"), TABLE)
