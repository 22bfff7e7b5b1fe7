"""
PPG and PPO on eight environments of other people, for which nobody here has tuned anything.

The list was fixed before the first run, and all are in the table. Both algorithms have all their defaults, and PPO also runs
with ``VecNormalize(norm_obs=False)``, because PPG does not depend on the scale of rewards. A run has the steps that fit into
six minutes of a core at the speeds in others_speed.csv (measured in turns at commit 76f21b7, as the first seed was trained and
evaluated; runs beside other programs took 271 to 814 s). What carried them out is this module at commit b623e2e;
``benchmarks.opponents`` has these environments with the measure of ``sb3-ppg compare``.

    python -m benchmarks.others report
"""

from typing import Any

import numpy as np
import pandas as pd

from benchmarks.harness import RESULTS, Experiment, Report, listed, machines
from benchmarks.scores import interquartile_means
from sb3_ppg.comparison.report import VIEWS, page, table

SECONDS, N_SEEDS = 360.0, 5
SPEED = pd.read_csv(RESULTS / "others_speed.csv").set_index(["task", "contestant"])
NORMALIZED = "PPO, normalized rewards"
CONTESTANTS = ("PPG", "PPO", NORMALIZED)
TASKS = {  # package and environment
    "highway": ("highway-env", "highway-fast-v0"),
    "flappy": ("flappy-bird-gymnasium", "FlappyBird-v0"),
    "maze": ("gymnasium-robotics", "PointMaze_UMazeDense-v3"),
    "panda": ("panda-gym", "PandaReachDense-v3"),
    "bullet": ("pybullet-envs-gymnasium", "HopperBulletEnv-v0"),
    "metaworld": ("metaworld", "Meta-World/MT1"),
    "spread": ("supersuit", "simple_spread_v3"),
    "2048": ("gymnasium-2048", "gymnasium_2048/TwentyFortyEight-v0"),
}


def wanted() -> list[dict[str, Any]]:
    """Return the runs; the first seed of all tasks comes first."""
    return [dict(task=task, contestant=name, seed=seed) for seed in range(N_SEEDS) for task in TASKS for name in CONTESTANTS]


def returns(task: str, view: str, curves: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return each contestant's returns at the last steps, or seconds by the measured speeds, that all reach, (n_seeds, 1)."""
    own = curves[curves["task"] == task].join(SPEED, ["task", "contestant"], rsuffix=" of a million")
    own["seconds"] = own["compiling"] + own["steps"] * own["seconds of a million"] / 1e6
    runs = {name: [run for _, run in own[own["contestant"] == name].groupby("seed")] for name in CONTESTANTS}
    end = min(run[view].iloc[-1] for of_seeds in runs.values() for run in of_seeds)
    return {name: np.array([[np.interp(end, run[view], run["return"])] for run in runs[name]]) for name in CONTESTANTS}


def report(experiment: Experiment) -> Report:
    """Return the page of the tasks that have been begun."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    n_begun = rows.groupby("task")["contestant"].nunique()
    for task in [task for task in TASKS if n_begun.get(task) == len(CONTESTANTS)]:
        means = [interquartile_means(returns(task, view, curves)) for view in VIEWS]
        for contestant in CONTESTANTS:
            own = rows[(rows["task"] == task) & (rows["contestant"] == contestant)]
            evaluated = ", ".join(f"{row.mean:.2f} ± {row.std:.2f}" for row in own[["mean", "std"]].itertuples())
            cells = [f"{own['steps'].mean():,.0f}", listed(own["seconds"], 0), evaluated]
            cells += [str(mean[contestant]) for mean in means]
            lines.append([": ".join(TASKS[task]), contestant, *cells])
    head = ["environment", "", "steps", "seconds", "after training: 20 deterministic episodes"]
    head += [f"in training, same {view}" for view in VIEWS]
    text = page(
        "Environments of other packages",
        f"`python -m benchmarks.others`. {machines(rows)} All defaults, one environment, one seed, which ranks nothing. After "
        "training: mean and standard deviation of 20 deterministic episodes. In training: mean of the latest 20 episodes, "
        "with exploration, at the end of the environment's shortest run. The steps of a run were expected to take "
        f"{SECONDS:.0f} s of a core, by speeds measured before; the runs took {rows['seconds'].min():.0f} to "
        f"{rows['seconds'].max():.0f} s, with other programs beside them. The same seconds are those of the speeds. The list "
        "was fixed before the first run.",
        table(head, lines),
    )
    return {"others.md": text}


OTHERS = Experiment("others", wanted, None, report)

if __name__ == "__main__":
    OTHERS.main()
