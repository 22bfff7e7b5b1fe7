"""
PPG and PPO on eight environments of other people, for which nobody here has tuned anything.

The list was fixed before the first run, and all are in the table. Both algorithms have all their defaults, and PPO also runs
with ``VecNormalize(norm_obs=False)``, because PPG does not depend on the scale of rewards. A run has the steps that fit into
six minutes of a core at the speeds in others_speed.csv (measured in turns at commit 76f21b7, as the first seed was trained and
evaluated; runs beside other programs took 271 to 814 s).
The packages have the versions of environments.yml, each in a virtual environment that only its own runs see.

    python -m benchmarks.others [run|report] [--jobs 2] [--only highway]
"""

import argparse
import importlib
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from typing_extensions import override

from benchmarks import venvs
from benchmarks.environments import PACKAGES
from benchmarks.episodes import Episodes, curve
from benchmarks.harness import LOGS, RESULTS, Experiment, Report, listed, machines
from benchmarks.scores import interquartile_means
from sb3_ppg.comparison.report import VIEWS, page, table
from sb3_ppg.comparison.runs import Run, carry_out

SECONDS, N_SEEDS = 360.0, 5
SPEED = pd.read_csv(RESULTS / "others_speed.csv").set_index(["task", "contestant"])
NORMALIZED = "PPO, normalized rewards"
CONTESTANTS = ("PPG", "PPO", NORMALIZED)
POLICY = dict(policy="MultiInputPolicy")  # for observations of several parts


class Task(NamedTuple):
    """
    :param package: its name in environments.yml
    :param module: registers the environments
    :param env_id: ID
    :param arguments: of ``gymnasium.make``
    :param settings: hyperparameters that are not defaults
    :param title: what the table calls it; empty: its ID
    """

    package: str
    module: str
    env_id: str
    arguments: Mapping[str, Any] = {}
    settings: Mapping[str, str] = {}
    title: str = ""


TASKS = {
    "highway": Task("highway-env", "highway_env", "highway-fast-v0"),
    "flappy": Task("flappy-bird-gymnasium", "flappy_bird_gymnasium", "FlappyBird-v0", dict(use_lidar=False)),
    "maze": Task("gymnasium-robotics", "gymnasium_robotics", "PointMaze_UMazeDense-v3", settings=POLICY),
    "panda": Task("panda-gym", "panda_gym", "PandaReachDense-v3", settings=POLICY),
    "bullet": Task("pybullet-envs-gymnasium", "pybullet_envs_gymnasium", "HopperBulletEnv-v0"),
    "metaworld": Task("metaworld", "metaworld", "Meta-World/MT1", dict(env_name="reach-v3", seed=0)),
    # Three agents in place of the environment of this ID
    "spread": Task(
        *("supersuit", "mpe2", "CartPole-v1", {}, dict(vec_env_wrapper="benchmarks.others.three_agents"), "simple_spread_v3")
    ),
    "2048": Task("gymnasium-2048", "gymnasium_2048", "gymnasium_2048/TwentyFortyEight-v0", dict(max_episode_steps=5000)),
}


class Seeded(VecEnvWrapper):
    """Passes a seed to SuperSuit's environments at the next reset, because their own ``seed`` fails."""

    venv: Any
    seed = VecEnv.seed

    @override
    def reset(self) -> np.ndarray:
        observations, _ = self.venv.venv.reset(self._seeds[0])
        self._reset_seeds()
        return observations

    @override
    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()


def three_agents(_: VecEnv) -> VecEnv:
    """Return the environments of three agents with one policy, in place of others."""
    supersuit, spread = importlib.import_module("supersuit"), importlib.import_module("mpe2.simple_spread_v3")
    agents = supersuit.pettingzoo_env_to_vec_env_v1(spread.parallel_env())
    return VecMonitor(Seeded(supersuit.concat_vec_envs_v1(agents, 1, base_class="stable_baselines3")))


def wanted() -> list[dict[str, Any]]:
    """Return the runs; the first seed of all tasks comes first."""
    return [dict(task=task, contestant=name, seed=seed) for seed in range(N_SEEDS) for task in TASKS for name in CONTESTANTS]


def run_of(task: str, contestant: str, seed: int) -> Run:
    """Return a run of ``sb3-ppg train``."""
    folder, own, speed = LOGS / "others" / task / f"{contestant}_{seed}", TASKS[task], SPEED.loc[task, contestant]
    settings = dict(policy="MlpPolicy") | dict(own.settings)
    if contestant == NORMALIZED:
        settings["normalize"] = "dict(norm_obs=False, norm_reward=True)"
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = Path(f"{folder}.yml")
    config.write_text(yaml.safe_dump({own.env_id: {**settings, "n_timesteps": 1}}))
    n_timesteps = int((SECONDS - speed["compiling"]) / speed["seconds"] * 1e6)
    words = ["--algo", contestant[:3].lower(), "--env", own.env_id, "-conf", str(config), "-n", str(n_timesteps)]
    words += ["--seed", str(seed), "--gym-packages", own.module, "--device", "cpu", "--eval-freq", "-1"]
    arguments = [f"{name}:{value!r}" for name, value in own.arguments.items()]
    options = [*words, *(["--env-kwargs", *arguments] if arguments else [])]
    return Run(folder, options, n_timesteps, clock="perf_counter", recorder=Episodes)


def carry_out_all(runs: Iterable[dict[str, Any]], n_jobs: int) -> None:
    """Carry out runs of one task, whose processes find its packages before those of the project."""
    found = {tuple(run.values()): run_of(**run) for run in runs}
    package = TASKS[next(iter(found))[0]].package
    os.environ["PYTHONPATH"] = f"{venvs.installed(package, PACKAGES[package]['pip'])[1]}{os.pathsep}{os.getcwd()}"
    carry_out([*found.values()], n_jobs)
    for (task, contestant, seed), run in found.items():
        last = run.rows().iloc[-1]
        row = dict(steps=int(last["steps"]), mean=np.nan, std=np.nan, seconds=round(last["seconds"], 1))
        OTHERS.add(dict(task=task, contestant=contestant, seed=seed), row, curve(run))


class Curves(NamedTuple):
    """The curves of one task, with columns contestant, seed, steps, seconds and return."""

    title: str
    points: pd.DataFrame

    def curves_of(self, name: str) -> list[pd.DataFrame]:
        """Return the curve of each seed."""
        return [own for _, own in self.points[self.points["contestant"] == name].groupby("seed")]

    def returns(self, view: str) -> dict[str, np.ndarray]:
        """Return each contestant's returns at the last steps or seconds that all runs reach, (n_seeds, 1)."""
        curves = {name: self.curves_of(name) for name in CONTESTANTS}
        end = min(own[view].iloc[-1] for name in CONTESTANTS for own in curves[name])
        return {name: np.array([[np.interp(end, own[view], own["return"])] for own in curves[name]]) for name in CONTESTANTS}


def task_curves(task: str, curves: pd.DataFrame) -> Curves:
    """Return the runs of a task, at the speeds that were measured."""
    own = curves[curves["task"] == task].join(SPEED, ["task", "contestant"], rsuffix=" of a million")
    own["seconds"] = own["compiling"] + own["steps"] * own["seconds of a million"] / 1e6
    return Curves(TASKS[task].title or TASKS[task].env_id, own)


def report(experiment: Experiment) -> Report:
    """Return the page of the tasks that have been begun."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    n_begun = rows.groupby("task")["contestant"].nunique()
    for task in [task for task in TASKS if n_begun.get(task) == len(CONTESTANTS)]:
        compared = task_curves(task, curves)
        means = [interquartile_means(compared.returns(view)) for view in VIEWS]
        for contestant in CONTESTANTS:
            own = rows[(rows["task"] == task) & (rows["contestant"] == contestant)]
            evaluated = ", ".join(f"{row.mean:.2f} ± {row.std:.2f}" for row in own[["mean", "std"]].itertuples())
            cells = [f"{own['steps'].mean():,.0f}", listed(own["seconds"], 0), evaluated]
            cells += [str(mean[contestant]) for mean in means]
            lines.append([f"{TASKS[task].package}: {compared.title}", contestant, *cells])
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", default="run", choices=["run", "report"])
    parser.add_argument("--jobs", default=1, type=int, help="runs at a time")
    parser.add_argument("--only", nargs="*", default=list(TASKS), choices=list(TASKS), help="only these")
    options = parser.parse_args()
    for seed, task in itertools.product(range(N_SEEDS if options.command == "run" else 0), options.only):
        if runs := OTHERS.missing(dict(task=task, contestant=name, seed=seed) for name in CONTESTANTS):
            carry_out_all(runs, options.jobs)
    print(OTHERS.write())
