"""
PPG and PPO on eight environments of other people, for which nobody here has tuned anything.

The list was fixed before the first run, and all are in the table. Both algorithms have all their defaults, and PPO also runs
with ``VecNormalize(norm_obs=False)``, because PPG does not depend on the scale of rewards. Each training has six minutes of a
core. The packages have the versions of environments.yml, each in a virtual environment that only its own runs see.

    python -m benchmarks.others [run] [--jobs 2] [--only highway]
    python -m benchmarks.others report
"""

import argparse
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from benchmarks import venvs
from benchmarks.environments import PACKAGES
from benchmarks.harness import RESULTS
from benchmarks.scores import interquartile_means
from sb3_ppg import PPG
from sb3_ppg.comparison.report import VIEWS, Comparison, page, table
from sb3_ppg.comparison.study import Study
from sb3_ppg.comparison.training import FromClass, described

FOLDER = RESULTS / "others"
SECONDS, N_SEEDS = 360.0, 5


class Task(NamedTuple):
    """
    :param package: its name in environments.yml
    :param module: registers the environments
    :param env_id: ID
    :param arguments: of ``gymnasium.make``
    :param policy: class of the policies
    """

    package: str
    module: str
    env_id: str
    arguments: Mapping[str, Any] = {}
    policy: str = "MlpPolicy"


TASKS = {
    "highway": Task("highway-env", "highway_env", "highway-fast-v0"),
    "flappy": Task("flappy-bird-gymnasium", "flappy_bird_gymnasium", "FlappyBird-v0", dict(use_lidar=False)),
    "maze": Task("gymnasium-robotics", "gymnasium_robotics", "PointMaze_UMazeDense-v3", policy="MultiInputPolicy"),
    "panda": Task("panda-gym", "panda_gym", "PandaReachDense-v3", policy="MultiInputPolicy"),
    "bullet": Task("pybullet-envs-gymnasium", "pybullet_envs_gymnasium", "HopperBulletEnv-v0"),
    "metaworld": Task("metaworld", "metaworld", "Meta-World/MT1", dict(env_name="reach-v3", seed=0)),
    "spread": Task("supersuit", "mpe2", "simple_spread_v3"),
    "2048": Task("gymnasium-2048", "gymnasium_2048", "gymnasium_2048/TwentyFortyEight-v0"),
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


@contextmanager
def installed(name: str) -> Iterator[None]:
    """Install the packages of a task; processes that are started in the block find them before those of the project."""
    package = TASKS[name].package
    _, packages = venvs.installed(package, PACKAGES[package]["pip"])
    sys.path.insert(0, str(packages))
    yield
    sys.path.remove(str(packages))


def summary(found: dict[str, Comparison]) -> str:
    """Return the page of all tasks."""
    lines = []
    for name, one in found.items():
        task, means = TASKS[name], {view: interquartile_means(one.returns(view)) for view in VIEWS}
        for contestant in CONTESTANTS:
            steps = one.curves_of(contestant).index[-1]
            cells = [f"{steps:,}", f"{1e6 / one.speed.loc[contestant, 'seconds']:,.0f}"]
            for view in VIEWS:
                cells.append(f"{means[view][contestant]:.1f}")
                cells.append("" if contestant == "PPG" else str(one.first_is_better(contestant, view)))
            lines.append([f"{task.package}: [{task.env_id}](others/{name}/compare.md)", contestant, *cells])
    better = "P(PPG is better)"
    head = ["environment", "", "steps", "steps/s", "return, same steps", better, "return, same seconds", better]
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
        with installed(each) if options.command != "report" else nullcontext():
            if options.command == "speed":
                study(each).speed()
            elif options.command == "run":
                study(each, options.jobs).compare()
    studies = {name: study(name) for name in TASKS}
    complete = {name: one.result() for name, one in studies.items() if not one.runs.missing(one.wanted)}
    (RESULTS / "others.md").write_text(summary(complete))
