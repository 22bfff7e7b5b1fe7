"""
Memory over a long training: the resident memory of a process after each phase, for each kind of observation and algorithm, and
for SB3's PPO at the same steps. Some minutes.
"""

import gc
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import psutil
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.harness import Experiment
from benchmarks.tables import machines, page, table
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG

N_ENVS, N_STEPS, N_POLICY_ITERATIONS = 8, 8, 4
PHASE = N_ENVS * N_STEPS * N_POLICY_ITERATIONS
N_PHASES = 40
# So large that one more rollout would be seen
VECTOR = spaces.Box(-1, 1, (6000,))
FLOAT_IMAGES = spaces.Box(0, 1, (4, 40, 40))
IMAGES = spaces.Box(0, 255, (16, 40, 40), np.uint8)
DICT = spaces.Dict(image=IMAGES, vector=VECTOR)
SCALED = dict(normalize_images=False, features_extractor_kwargs=dict(features_dim=32, normalized_image=True))
SMALL = dict(features_extractor_kwargs=dict(features_dim=32))
CASES: dict[str, tuple[type[PPG], str, spaces.Space, dict[str, Any]]] = {
    "vectors": (PPG, "MlpPolicy", VECTOR, {}),
    "float images": (PPG, "CnnPolicy", FLOAT_IMAGES, SCALED),
    "uint8 images": (PPG, "CnnPolicy", IMAGES, SMALL),
    "Dict": (PPG, "MultiInputPolicy", DICT, dict(features_extractor_kwargs=dict(cnn_output_dim=32))),
    "LSTM": (RecurrentPPG, "MlpLstmPolicy", VECTOR, dict(lstm_hidden_size=16)),
    "masks": (MaskablePPG, "MlpPolicy", VECTOR, {}),
}


class RandomEnv(gym.Env):
    """Random observations; half of the actions are possible."""

    def __init__(self, observation_space: spaces.Space):
        self.observation_space, self.action_space = observation_space, spaces.Discrete(4)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.n_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        return self.observation_space.sample(), float(action == 1), self.n_steps >= 30, False, {}

    def action_masks(self) -> np.ndarray:
        """Return which actions are possible."""
        return np.arange(4) % 2 == self.n_steps % 2


def resident_memory(case: str, n_phases: int, algorithm: str = "PPG") -> list[float]:
    """
    Return the resident memory after each phase of a training, in MB. In a process of its own, or memory that others have freed
    is counted.

    :param case: one of ``CASES``
    :param algorithm: "PPO" for SB3's, else that of the case
    """
    th.set_num_threads(1)
    cls, policy, space, policy_kwargs = CASES[case]
    arguments: dict[str, Any] = dict(n_steps=N_STEPS, n_epochs=1, batch_size=N_ENVS * N_STEPS, seed=0, device="cpu")
    if algorithm != "PPO":
        arguments |= dict(n_policy_iterations=N_POLICY_ITERATIONS, n_aux_epochs=1, aux_batch_size=16)
    made: type[BaseAlgorithm] = PPO if algorithm == "PPO" else cls
    model = made(policy, make_vec_env(lambda: RandomEnv(space), N_ENVS), policy_kwargs=policy_kwargs, **arguments)
    gc.freeze()  # objects that are there are not gone through each time
    resident = []
    for _ in range(n_phases):
        model.learn(PHASE, reset_num_timesteps=False)
        gc.collect()
        resident.append(psutil.Process().memory_info().rss / 2**20)
    return resident


def in_a_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns that is called in a new process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.soak"])  # imported once for all calls
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *args).result()


def wanted() -> list[dict[str, Any]]:
    names = {case: [cls.__name__, "PPO"] if cls is PPG else [cls.__name__] for case, (cls, *_) in CASES.items()}
    return [dict(case=case, algorithm=name) for case, algorithms in names.items() for name in algorithms]


def train(training: dict[str, Any], folder: Path) -> tuple[pd.DataFrame, None]:
    """Measure a training; a row for each phase."""
    memory = resident_memory(training["case"], N_PHASES, training["algorithm"])
    return pd.DataFrame({"phase": range(1, 1 + len(memory)), "megabytes": np.round(memory, 1)}), None


def report(experiment: Experiment) -> str:
    rows, lines = experiment.rows(), []
    for (case, algorithm), own in rows.groupby(["case", "algorithm"], sort=False):
        memory = own.sort_values("phase")["megabytes"].to_numpy()
        some = [memory[1], memory[7], memory[len(memory) // 2], memory[-1]]
        lines.append([case, algorithm, *(f"{one:.0f}" for one in some), f"{memory[-1] / memory[1]:.3f}"])
    return page(
        "Resident memory over a long training",
        f"`python -m benchmarks.soak`: random observations, {N_ENVS} environments, phases of {PHASE:,} steps. MB after the "
        f"phase. {machines(rows)}",
        table(["observations", "algorithm", "phase 2", "phase 8", "middle", "last", "last over phase 2"], lines),
    )


SOAK = Experiment("soak", wanted, train, report)

if __name__ == "__main__":
    SOAK.main()
