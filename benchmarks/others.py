"""
PPG and PPO on eight environments of other people, for which nobody here has tuned anything.

The list was fixed before the first run, and all are in the table. Both algorithms have all their defaults, and PPO also runs
with ``VecNormalize(norm_obs=False)``, because PPG does not depend on the scale of rewards. Each training has six minutes of a
core. The packages have the versions of environments.yml, each in a virtual environment that only its own runs see.

    python -m benchmarks.others [run|speed|report] [--jobs 2] [--only highway]
"""

import argparse
import importlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from benchmarks import venvs
from benchmarks.environments import PACKAGES
from benchmarks.harness import RESULTS
from benchmarks.scores import improvements, interquartile_means
from sb3_ppg import PPG
from sb3_ppg.comparison.report import VIEWS, Comparison, page, table
from sb3_ppg.comparison.scores import Estimate
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
    "2048": Task("gymnasium-2048", "gymnasium_2048", "gymnasium_2048/TwentyFortyEight-v0", dict(max_episode_steps=5000)),
}
NORMALIZED = "PPO, normalized rewards"
CONTESTANTS: dict[str, tuple[type[BaseAlgorithm], bool]] = {  # whether VecNormalize scales the rewards
    "PPG": (PPG, False),
    "PPO": (PPO, False),
    NORMALIZED: (PPO, True),
}


class Seeded(VecEnvWrapper):
    """Passes a seed to SuperSuit's environments at the next reset, because their own ``seed`` fails."""

    venv: Any
    seed = VecEnv.seed

    def reset(self) -> np.ndarray:
        observations, _ = self.venv.venv.reset(self._seeds[0])
        self._reset_seeds()
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()


def make_env(name: str, is_normalized: bool) -> VecEnv:
    """Make an environment of a task."""
    task = TASKS[name]
    importlib.import_module(task.module)
    if name == "spread":  # three agents with one policy
        supersuit = importlib.import_module("supersuit")
        agents = supersuit.pettingzoo_env_to_vec_env_v1(importlib.import_module("mpe2.simple_spread_v3").parallel_env())
        env: VecEnv = VecMonitor(Seeded(supersuit.concat_vec_envs_v1(agents, 1, base_class="stable_baselines3")))
    else:
        env = make_vec_env(partial(gym.make, task.env_id, **task.arguments), 1)
    return VecNormalize(env, norm_obs=False) if is_normalized else env


def study(name: str, n_seeds: int = N_SEEDS, n_jobs: int = 1) -> Study:
    """Return the comparison of the contestants on a task."""
    contestants = {}
    for contestant, (algorithm, is_normalized) in CONTESTANTS.items():
        arguments = dict(policy=TASKS[name].policy, device="cpu")
        settings = described({"algorithm": algorithm, **arguments, "normalized": is_normalized, **TASKS[name]._asdict()})
        make = FromClass(algorithm, partial(make_env, name, is_normalized), arguments, 1)
        contestants[contestant] = (make, settings)
    return Study(TASKS[name].env_id, contestants, FOLDER / name, None, SECONDS, n_seeds, 20, n_jobs, 1)


@contextmanager
def installed(name: str) -> Iterator[None]:
    """Install the packages of a task; processes that are started in the block find them before those of the project."""
    package = TASKS[name].package
    _, packages = venvs.installed(package, PACKAGES[package]["pip"])
    sys.path.insert(0, str(packages))
    yield
    sys.path.remove(str(packages))


def better(found: Iterable[Comparison], other: str, view: str) -> Estimate:
    """Return the probability that a training of PPG has a higher return than one of another contestant, mean over tasks."""
    returns = [one.returns(view) for one in found]
    n_seeds = min(len(own) for one in returns for own in one.values())
    ours, theirs = (np.hstack([one[name][:n_seeds] for one in returns]) for name in ("PPG", other))
    return improvements({"PPG": ours}, theirs)["PPG"]


def summary(found: dict[str, Comparison]) -> str:
    """Return the page of the tasks that have been begun."""
    lines = []
    for name, one in found.items():
        task, means = TASKS[name], {view: interquartile_means(one.returns(view)) for view in VIEWS}
        for contestant in CONTESTANTS:
            curves = one.curves_of(contestant)
            cells = [f"{curves.index[-1]:,}", f"{1e6 / one.speed.loc[contestant, 'seconds']:,.0f}", curves.shape[1]]
            for view in VIEWS:
                cells.append(f"{means[view][contestant]:.2f}")
                cells.append("" if contestant == "PPG" else str(better([one], contestant, view)))
            lines.append([f"{task.package}: {task.env_id}", contestant, *cells])
    for contestant in list(CONTESTANTS)[1:]:
        pooled = [cell for view in VIEWS for cell in ("", better(found.values(), contestant, view))]
        lines.append([f"All {len(found)}", contestant, "", "", "", *pooled])
    head = ["environment", "", "steps", "steps/s", "seeds"]
    head += [column for view in VIEWS for column in (f"return, same {view}", "P(PPG is better)")]
    return page(
        "Environments of other packages",
        f"`python -m benchmarks.others`. All defaults, one environment, {SECONDS:.0f} s of a core per training. Interquartile "
        "means of the latest 20 episodes of training, and the probability that a training of PPG is better, with 95 % "
        "stratified bootstrap intervals (rliable) from three seeds on. The list was fixed before the first run.",
        table(head, lines),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="run", choices=["run", "speed", "report"])
    parser.add_argument("--jobs", default=1, type=int, help="runs at a time")
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS), help="only these")
    options = parser.parse_args()
    numbers_of_seeds = {"run": range(1, N_SEEDS + 1), "speed": [1], "report": []}[options.command]
    for n_seeds, name in itertools.product(numbers_of_seeds, options.only):  # the first seed of all tasks comes first
        with installed(name):
            one = study(name, n_seeds, options.jobs)
            one.speed() if options.command == "speed" else one.compare()
    begun = [name for name in TASKS if not (first := study(name, 1)).runs.missing(first.wanted)]
    if begun:
        (RESULTS / "others.md").write_text(summary({name: study(name).result() for name in begun}))
