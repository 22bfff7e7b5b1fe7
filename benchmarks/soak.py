"""
Does memory grow with training time? The resident memory of a process after each phase of a training, for each kind of
observation and algorithm, and for SB3's PPO at the same steps.

Writes results/soak.csv and results/soak.md. Some minutes.

    python -m benchmarks.soak [--phases 40]
"""

import argparse
import gc
import multiprocessing
import platform
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import psutil
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.learning import RESULTS
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG

N_ENVS, N_STEPS, N_POLICY_ITERATIONS = 8, 8, 4
PHASE = N_ENVS * N_STEPS * N_POLICY_ITERATIONS
# So large that a rollout more would be seen
VECTOR = spaces.Box(-1, 1, (6000,))
FLOAT_IMAGES = spaces.Box(0, 1, (4, 40, 40))
IMAGES = spaces.Box(0, 255, (16, 40, 40), np.uint8)
DICT = spaces.Dict(image=IMAGES, vector=VECTOR)


class _RandomEnv(gym.Env):
    """Random observations, half of the actions possible."""

    def __init__(self, observation_space: spaces.Space):
        self.observation_space, self.action_space = observation_space, spaces.Discrete(4)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.n_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n_steps += 1
        return self.observation_space.sample(), float(action == 1), self.n_steps >= 30, False, {}

    def action_masks(self) -> np.ndarray:
        return np.arange(4) % 2 == self.n_steps % 2


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


class _Memory(BaseCallback):
    """The resident memory at the beginning of each phase but the first, and at the end, in MB."""

    def __init__(self) -> None:
        super().__init__()
        self.resident: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > 0 and self.num_timesteps % PHASE == 0:
            self._measure()

    def _on_training_end(self) -> None:
        self._measure()

    def _measure(self) -> None:
        gc.collect()
        self.resident.append(psutil.Process().memory_info().rss / 2**20)


def resident_memory(case: str, n_phases: int, algorithm: str = "PPG") -> list[float]:
    """
    Train, for nothing but this. In a process of its own, or what others have freed is counted.

    :param case: one of ``CASES``
    :param n_phases: how long
    :param algorithm: "PPG" for that of the case, "PPO" for SB3's
    :return: the resident memory after each phase, in MB
    """
    th.set_num_threads(1)
    cls, policy, space, policy_kwargs = CASES[case]
    env = make_vec_env(lambda: _RandomEnv(space), N_ENVS)
    common: dict[str, Any] = dict(n_steps=N_STEPS, n_epochs=1, batch_size=N_ENVS * N_STEPS, seed=0, device="cpu")
    model: BaseAlgorithm
    if algorithm == "PPO":
        model = PPO(policy, env, policy_kwargs=policy_kwargs, **common)
    else:
        kwargs = dict(
            policy_kwargs=policy_kwargs, n_policy_iterations=N_POLICY_ITERATIONS, n_aux_epochs=1, aux_batch_size=16, **common
        )
        model = cls(policy, env, **kwargs)
    gc.freeze()  # what is there is not gone through each time
    memory = _Memory()
    model.learn(n_phases * PHASE, callback=memory)
    return memory.resident


def in_a_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """
    :param function: of a module that can be imported
    :param args: its arguments
    :return: what it returns
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.learning"])  # which imports what takes long
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *args).result()


def markdown(rows: pd.DataFrame) -> str:
    """The table."""
    lines = [
        "# Resident memory over a long training",
        "",
        f"`python -m benchmarks.soak`, {platform.machine()}, torch {th.__version__}: random observations, {N_ENVS} "
        f"environments, phases of {PHASE:,} steps. MB after the phase.",
        "",
        "| observations | algorithm | phase 2 | phase 8 | middle | last | last over phase 2 |",
        "|---|---|---|---|---|---|---|",
    ]
    for (case, algorithm), part in rows.groupby(["case", "algorithm"], sort=False):
        memory = part.sort_values("phase").megabytes.to_numpy()
        some = [memory[1], memory[7], memory[len(memory) // 2], memory[-1]]
        lines.append(f"| {case} | {algorithm} | {' | '.join(f'{one:.0f}' for one in some)} | {memory[-1] / memory[1]:.3f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=int, default=40, help="how long, at least 8")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case, (cls, policy, *_) in CASES.items():
        for algorithm in (cls.__name__, *(["PPO"] if policy in PPO.policy_aliases and cls is PPG else [])):
            memory = in_a_new_process(resident_memory, case, args.phases, algorithm)
            print(
                f"{case}, {algorithm}: {memory[1]:.0f} MB after phase 2, {memory[-1]:.0f} MB after phase {len(memory)}",
                flush=True,
            )
            rows += [dict(case=case, algorithm=algorithm, phase=n + 1, megabytes=round(mb, 1)) for n, mb in enumerate(memory)]
    table = pd.DataFrame(rows)
    table.to_csv(RESULTS / "soak.csv", index=False)
    (RESULTS / "soak.md").write_text(markdown(table))


if __name__ == "__main__":
    main()
