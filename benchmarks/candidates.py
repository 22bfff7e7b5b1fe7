"""
Candidates for PPG's defaults, and what PPG's phase, value units and learning rate are worth beside PPO's.

    python -m benchmarks.candidates run --jobs 2    # can be killed and started again
    python -m benchmarks.candidates report

The rule, written before the first run. Runs: the fourteen environments of ``benchmarks.defaults``, seeds 20 to 24, one
environment, one thread. Measure: 20 deterministic episodes with the same seeds for all, at ten points of a run
(``benchmarks.evaluations``), as scores. A candidate may replace the defaults if all of this holds:

1. The difference of the mean of the curve to the defaults', averaged over seeds and then over environments, has a 95 %
   interval above 0 (bootstrap of the seeds within each environment and arm), and a permutation test of the same difference
   (labels exchanged within each environment) is below 5 % after Holm's correction for the number of candidates.
2. For the mean of the last three points, the lower end of the same interval is above -0.03.
3. In no environment is the mean of the curve lower by Welch's test at 5 %, with Holm's correction for fourteen
   environments.
4. In long runs (HalfCheetah, Hopper, Walker2d and LunarLander, 500,000 steps, five seeds), the lower end of the interval of
   the difference is above -0.03, for the curve and for the last three points.

Candidates are ``learning_rate=5e-4``, ``batch_size=32``, ``aux_learning_rate=1e-3`` and, in a second stage, those together
that satisfy 1 to 3. Of those that satisfy 1 to 3, the one with the highest mean of the curve is compared with each other one
by the interval of 1; among it and those that are not apart from it, the one with the smallest KL divergence per policy update
(mean of ``train/approx_kl``) is taken, and goes to 4. If that fails, the next one does. If none is left, the defaults stay.

Changed from the proposal: 20 episodes instead of 10, which take 2 % of a run, as an evaluation is then more precise; the test
behind "candidates are corrected by Holm" is named; a combination of candidates is a candidate.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from typing_extensions import override

from benchmarks.defaults import TASKS
from benchmarks.evaluations import in_own_process, learned
from benchmarks.harness import Experiment, Outcome, Report, machines
from sb3_ppg import PPG
from sb3_ppg.comparison.report import page, table
from sb3_ppg.objectives import Objective

SEEDS = range(20, 25)
BOOTSTRAPS = 10_000
VALUE_UNITS, NORMALIZED = "value units without phase", "VecNormalize(norm_obs=False)"
# By name: the algorithm, its arguments, and what is done besides
ARMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "PPG": ("PPG", {}, ""),
    "PPG, learning_rate 5e-4": ("PPG", dict(learning_rate=5e-4), ""),
    "PPG, batch_size 32": ("PPG", dict(batch_size=32), ""),
    "PPG, aux_learning_rate 1e-3": ("PPG", dict(aux_learning_rate=1e-3), ""),
    "PPO, normalized rewards": ("PPO", {}, NORMALIZED),
    "PPO, normalized rewards, learning_rate 5e-4": ("PPO", dict(learning_rate=5e-4), NORMALIZED),
    "PPG, value units without phase": ("PPG", {}, VALUE_UNITS),
    "PPG, phase without value units, normalized rewards": ("PPG", dict(normalize_value_targets=False), NORMALIZED),
    "PPO": ("PPO", {}, ""),
}
CANDIDATES = ["PPG, learning_rate 5e-4", "PPG, batch_size 32", "PPG, aux_learning_rate 1e-3"]


def wanted() -> Iterator[dict[str, Any]]:
    """Yield the runs of PPG and the candidates, then the others, seed by seed."""
    first = ["PPG", *CANDIDATES]
    for arms in (first, [name for name in ARMS if name not in first]):
        for seed in SEEDS:
            for env_id in TASKS:
                yield from (dict(arm=arm, env_id=env_id, seed=seed) for arm in arms)


class WithoutPhase(Objective):
    """PPG's losses, with value units, but no auxiliary phase."""

    @override
    def is_due(self, n_samples: int) -> bool:
        return False


def train(run: dict[str, Any], folder: Path) -> Outcome:
    return in_own_process(_train, **run)


def _train(arm: str, env_id: str, seed: int) -> Outcome:
    th.set_num_threads(1)
    name, arguments, besides = ARMS[arm]
    arguments = dict(arguments, objective=WithoutPhase) if besides == VALUE_UNITS else arguments
    env: VecEnv = DummyVecEnv([lambda: Monitor(gym.make(env_id))])
    if besides == NORMALIZED:
        env = VecNormalize(env, norm_obs=False)
    model = dict(PPG=PPG, PPO=PPO)[name]("MlpPolicy", env, seed=seed, device="cpu", **arguments)
    return learned(model, partial(gym.make, env_id), TASKS[env_id].n_timesteps)


# ---- the rule ----


def scores(rows: pd.DataFrame, arm: str, measure: str) -> np.ndarray:
    """Return the scores of an arm, (n_seeds, n_tasks); NaN where there is no row."""
    values = rows[rows["arm"] == arm].pivot(index="seed", columns="env_id", values=measure)
    values = values.reindex(index=list(SEEDS), columns=list(TASKS)).astype(float)
    return np.stack([task.scores(values[name].to_numpy()) for name, task in TASKS.items()], axis=1)


def interval(own: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Return the mean difference of scores, (n_seeds, n_tasks), and the ends of its 95 % interval, see 1 of the rule."""
    generator, (n_seeds, n_tasks) = np.random.default_rng(0), own.shape
    drawn = [generator.integers(n_seeds, size=(BOOTSTRAPS, n_seeds, n_tasks)) for _ in range(2)]
    means = [np.take_along_axis(each[None], order, 1).mean((1, 2)) for each, order in zip((own, other), drawn, strict=True)]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return float(own.mean() - other.mean()), float(low), float(high)


def permutation_p(own: np.ndarray, other: np.ndarray) -> float:
    """Return the two-sided p-value of the mean difference, see 1 of the rule."""
    generator, both = np.random.default_rng(0), np.concatenate([own, other])
    order = generator.random((BOOTSTRAPS, *both.shape)).argsort(axis=1)
    drawn = np.take_along_axis(both[None], order, 1)
    differences = drawn[:, : len(own)].mean((1, 2)) - drawn[:, len(own) :].mean((1, 2))
    return float((1 + (np.abs(differences) >= abs(own.mean() - other.mean()) - 1e-12).sum()) / (1 + BOOTSTRAPS))


def holm(p_values: list[float]) -> list[float]:
    """Return p-values with Holm's correction."""
    order, corrected, highest = np.argsort(p_values), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def report(experiment: Experiment) -> Report:
    """Return the table of the arms so far."""
    rows, lines = experiment.rows(), []
    complete = [arm for arm in ARMS if not np.isnan(scores(rows, arm, "curve_mean")).any()]
    for arm in complete:
        cells = [f"{scores(rows, arm, measure).mean():.3f}" for measure in ("curve_mean", "last_three")]
        lines.append([arm, *cells, f"{rows[rows['arm'] == arm]['approx_kl'].mean():.4f}"])
    text = page(
        "Candidates for the defaults",
        f"`python -m benchmarks.candidates`. {machines(rows)}",
        table(["", "score of the curve", "of the last three points", "KL"], lines),
    )
    return {"candidates.md": text}


CANDIDATES_RUNS = Experiment("candidates", wanted, train, report)

if __name__ == "__main__":
    CANDIDATES_RUNS.main()
