"""
PPG and PPO on eight environments of other people, for which nobody here has tuned anything.

The list was fixed before the first run, and all are in the table. Both algorithms have all their defaults, and PPO also runs
with ``VecNormalize(norm_obs=False)``, because PPG does not depend on the scale of rewards. Each training has six minutes of a
core. Each package is installed in a folder that only its own runs see; use one command for each (``--only``).

    python -m benchmarks.others [run] [--jobs 2] [--only highway]
    python -m benchmarks.others report
"""

import argparse
import importlib
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from benchmarks.harness import RESULTS
from benchmarks.scores import improvements, interquartile_means
from sb3_ppg import PPG
from sb3_ppg.comparison.report import VIEWS, Comparison, page, table
from sb3_ppg.comparison.study import Study
from sb3_ppg.comparison.training import FromClass, described

FOLDER, PACKAGES = RESULTS / "others", Path("logs/benchmarks/others").absolute()
SECONDS, N_SEEDS = 360.0, 5


class Task(NamedTuple):
    """
    :param pip: its requirements
    :param module: registers the environments
    :param env_id: ID
    :param arguments: of ``gymnasium.make``
    :param policy: class of the policies
    """

    pip: str
    module: str
    env_id: str
    arguments: Mapping[str, Any] = {}
    policy: str = "MlpPolicy"


ROBOTS = "gymnasium-robotics==1.4.2 mujoco==3.3.7"
TASKS = {
    "highway": Task("highway-env==1.12.1", "highway_env", "highway-fast-v0"),
    "flappy": Task("flappy-bird-gymnasium==0.4.0", "flappy_bird_gymnasium", "FlappyBird-v0", dict(use_lidar=False)),
    "maze": Task(ROBOTS, "gymnasium_robotics", "PointMaze_UMazeDense-v3", policy="MultiInputPolicy"),
    "panda": Task("panda-gym==3.0.7", "panda_gym", "PandaReachDense-v3", policy="MultiInputPolicy"),
    "bullet": Task("pybullet-envs-gymnasium==0.6.0", "pybullet_envs_gymnasium", "HopperBulletEnv-v0"),
    "metaworld": Task("metaworld==3.1.1", "metaworld", "Meta-World/MT1", dict(env_name="reach-v3", seed=0)),
    "spread": Task("mpe2==1.1.1 pettingzoo==1.27.0 supersuit==3.11.0", "mpe2", "simple_spread_v3"),  # through SuperSuit
    "2048": Task("gymnasium-2048==0.1.2", "gymnasium_2048", "gymnasium_2048/TwentyFortyEight-v0"),
}
NORMALIZED = "PPO, normalized rewards"
CONTESTANTS: dict[str, tuple[type[BaseAlgorithm], bool]] = {  # whether VecNormalize scales the rewards
    "PPG": (PPG, False),
    "PPO": (PPO, False),
    NORMALIZED: (PPO, True),
}


def make_env(name: str, is_normalized: bool) -> VecEnv:
    """Make an environment of a task."""
    task = TASKS[name]
    importlib.import_module(task.module)
    if name == "spread":  # three agents with one policy
        supersuit = importlib.import_module("supersuit")
        agents = supersuit.pettingzoo_env_to_vec_env_v1(importlib.import_module("mpe2.simple_spread_v3").parallel_env())
        env: VecEnv = VecMonitor(supersuit.concat_vec_envs_v1(agents, 1, base_class="stable_baselines3"))
    else:
        env = make_vec_env(partial(gym.make, task.env_id, **task.arguments), 1)
    return VecNormalize(env, norm_obs=False) if is_normalized else env


def study(name: str, n_jobs: int = 1) -> Study:
    """Return the comparison of the contestants on a task."""
    contestants = {}
    for contestant, (algorithm, is_normalized) in CONTESTANTS.items():
        arguments = dict(policy=TASKS[name].policy, device="cpu")
        settings = described({"algorithm": algorithm, **arguments, "normalized": is_normalized, **TASKS[name]._asdict()})
        make = FromClass(algorithm, partial(make_env, name, is_normalized), arguments, 1)
        contestants[contestant] = (make, settings)
    return Study(TASKS[name].env_id, contestants, FOLDER / name, None, SECONDS, N_SEEDS, 20, n_jobs, 1)


def install(name: str) -> None:
    """Install the packages of a task, unless they are there, before those of the project."""
    folder = PACKAGES / name
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
        subprocess.run([*pip, *TASKS[name].pip.split()], check=True)
    sys.path.insert(0, str(folder))


def summary(found: dict[str, Comparison]) -> str:
    """Return the page of all tasks."""
    lines = []
    for name, one in found.items():
        for contestant in CONTESTANTS:
            steps = one.curves_of(contestant).index[-1]
            cells = [f"{steps:,}", f"{1e6 / one.speed.loc[contestant, 'seconds']:,.0f}"]
            for view in VIEWS:
                returns = one.returns(view)
                cells.append(f"{interquartile_means(returns)[contestant]:.1f}")
                is_first = contestant == "PPG"
                cells.append("" if is_first else str(improvements({"PPG": returns["PPG"]}, returns[contestant])["PPG"]))
            task = TASKS[name]
            lines.append([f"{task.pip.split()[0]}: [{task.env_id}](others/{name}/compare.md)", contestant, *cells])
    head = [
        "environment",
        "",
        "steps",
        "steps/s",
        "return, same steps",
        "P(PPG is better)",
        "same seconds",
        "P(PPG is better)",
    ]
    return page(
        "Environments of other packages",
        f"`python -m benchmarks.others`. All defaults, one environment, {SECONDS:.0f} s of a core per training, {N_SEEDS} "
        "seeds. Interquartile means of the latest 20 episodes of training, and the probability that a training of PPG is "
        "better, with 95 % stratified bootstrap intervals (rliable). The list was fixed before the first run; an environment "
        "that is missing has not been run yet.",
        table(head, lines),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="run", choices=["run", "speed", "report"])
    parser.add_argument("--jobs", default=1, type=int, help="runs at a time")
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS), help="only these")
    options = parser.parse_args()
    for each in options.only:
        install(each)
        if options.command == "speed":
            study(each).speed()
        elif options.command == "run":
            study(each, options.jobs).compare()
    studies = {name: study(name) for name in TASKS}
    complete = {name: one.result() for name, one in studies.items() if not one.runs.missing(one.wanted)}
    (RESULTS / "others.md").write_text(summary(complete))
