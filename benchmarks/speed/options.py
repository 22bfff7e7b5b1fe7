"""
Cost of options: a phase with observations in files that are mapped into memory, and with recomputed LSTM states, over one
without.
"""

import os
from pathlib import Path
from typing import Any

import pandas as pd
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.speed.phases import (
    N_AUX_EPOCHS,
    N_STEPS,
    N_THREADS,
    Section,
    auxiliary_minibatch,
    image_model,
    images,
    iterations,
)
from benchmarks.turns import Measure, collect, medians, ready, seconds
from sb3_ppg import RecurrentPPG

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def stored(storage: str, cold: bool) -> Measure:
    """
    Measure seconds to store, to read and to train an epoch with 4 rollouts of 64 environments x 256 steps of 64x64x3 images,
    805 MB.

    :param cold: whether the system has forgotten the files' pages before they are read
    """
    sizes: dict[str, Any] = dict(
        n_steps=N_STEPS, n_epochs=1, batch_size=2048, n_policy_iterations=4, aux_batch_size=8 * N_STEPS
    )
    model = image_model(images(64), {}, aux_buffer_kwargs=dict(storage=storage), **sizes)
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
            DROP_CACHES.write_text("1")
        read = seconds(read_everything)
        batch = next(model.aux_buffer.minibatches(8))
        train = seconds(lambda: auxiliary_minibatch(model, batch, 64))
        return dict(store=store, read=read, train=train * 64 * 4 / 8)

    return measure


def recurrent(recompute_states: bool) -> Measure:
    """Measure a phase of CartPole with LSTMs of 64 units, 16 rollouts of 8 environments x 32 steps."""
    env, lstm = make_vec_env("CartPole-v1", 8, seed=0), dict(lstm_hidden_size=64)
    sizes: dict[str, Any] = dict(n_steps=32, batch_size=256, n_epochs=20, n_policy_iterations=16)
    model = RecurrentPPG("MlpLstmPolicy", env, recompute_states=recompute_states, policy_kwargs=lstm, device="cpu", **sizes)
    ready(model)
    return lambda: dict(seconds=seconds(lambda: iterations(model)))


def run() -> pd.DataFrame:
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


COLUMNS = {"with": "{option}", "seconds without": "{without:.2f}", "ratio": "{ratio:.2f}"}
OPTIONS = Section("Cost of options (mmap: 805 MB of 64x64x3 images)", run, COLUMNS)
