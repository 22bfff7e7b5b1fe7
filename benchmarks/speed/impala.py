"""
IMPALA on Procgen: the fast path in float32 and in bfloat16 against the same code as others would run it: contiguous weights,
images divided by 255, memory as glibc manages it, and whole minibatches in one pass, or micro-batches of 128; GFLOP/s over the
machine's best matrix product in that type.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch as th
from matplotlib.axes import Axes
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.turns import Measure, collect, medians, ready, seconds
from sb3_ppg import PPG, ImpalaCNN
from sb3_ppg.buffers.rollouts import order_by_environment
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.optim.micro_batches import keep_freed_memory
from sb3_ppg.optim.steps import minibatch_losses
from sb3_ppg.optim.update import optimize_epoch

N_THREADS = os.cpu_count() or 1
N_ENVS, N_STEPS, N_AUX_EPOCHS = 64, 256, 6
BATCH_SIZE, AUX_BATCH_SIZE = 2048, 1024
N_SEQUENCES = AUX_BATCH_SIZE // N_STEPS  # of an auxiliary minibatch


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
    sizes: dict[str, Any] = dict(batch_size=BATCH_SIZE, aux_batch_size=AUX_BATCH_SIZE, n_steps=N_STEPS, n_policy_iterations=32)
    others: dict[str, Any] = dict(n_epochs=1, max_grad_norm=None, device="cpu", seed=0)
    model = PPG("CnnPolicy", env, policy_kwargs=network, **sizes, **others, **PATHS[path])
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

    def step(name: str, loss: Callable, optimizer: Any, batch: Any) -> None:
        losses = partial(minibatch_losses, model, loss, model.coefficients())
        optimize_epoch(name, [model.policy], optimizer, [batch], losses, size)

    def policy_step() -> None:
        batch = next(model.rollout_buffer.get(BATCH_SIZE))
        step("policy", model.objective.joint_losses, model.policy.optimizer, batch)

    def auxiliary_step() -> None:
        batch = next(model.aux_buffer.minibatches(N_SEQUENCES))
        step("auxiliary", model.objective.auxiliary_losses, model.aux_optimizer, batch)

    @th.no_grad()
    def recorded(inputs: tuple) -> th.Tensor:
        return model.objective.recorded(model.policy, inputs)

    def uniform(batch: Any) -> th.Tensor:
        return th.full((len(batch.observations), 15), -float(np.log(15)))

    def measure() -> dict[str, float]:
        rollout = seconds(lambda: collect(model)) + seconds(lambda: order_by_environment(model.rollout_buffer))
        policy = seconds(policy_step)
        model.aux_buffer.reset()
        model.aux_buffer.add(model.rollout_buffer)
        model.aux_buffer.record(uniform, 1)
        batch = next(model.aux_buffer.minibatches(N_SEQUENCES))
        inputs = model.network_inputs(batch)
        record = seconds(lambda: recorded(inputs))
        return dict(rollout=rollout, policy=policy, record=record, auxiliary=seconds(auxiliary_step))

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


def run() -> pd.DataFrame:
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


COLUMNS = {
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
