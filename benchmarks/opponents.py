"""
PPG beside PPO at its best: RL Zoo's entry for an environment, and PPG's own entry without the auxiliary phase and with
normalized rewards. Where both have their defaults, PPO's rewards are normalized, because PPG does not depend on their scale.

    python -m benchmarks.opponents run --jobs 2 --match Acrobot-v1    # can be killed and started again
    python -m benchmarks.opponents report

A run is one of ``sb3-ppg train``; the measure, the seconds and the verdict are those of ``sb3-ppg compare``. The environments
of other packages were chosen before the first run; each package is in a virtual environment that only its own runs see.
"""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import yaml
from rl_zoo3 import ALGOS
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from typing_extensions import override

from benchmarks import venvs
from benchmarks.defaults import TASKS
from benchmarks.environments import PACKAGES
from benchmarks.evaluations import commit
from benchmarks.harness import Experiment, Outcome, Report, defaults_of, machines
from benchmarks.suites.contestants import Settings, entry, zoo_entry
from sb3_ppg import PPG
from sb3_ppg.comparison.report import N_LAST, VIEWS, Comparison, page, table
from sb3_ppg.comparison.runs import Run, short_hash
from sb3_ppg.comparison.scores import interquartile_means

SEEDS = range(5)
PIP = {name: package["pip"] for name, package in PACKAGES.items()} | {"sbx": venvs.SBX}
NORMALIZED = "dict(norm_obs=False, norm_reward=True)"
RATES = (1 / 3, 1.0, 3.0)  # factors of both algorithms' learning rate


class Match(NamedTuple):
    """
    Contestants in one environment, the first of which is compared with each of the others.

    :param env_id: ID
    :param n_timesteps: length of a run
    :param contestants: by name, the algorithm's name in RL Zoo and its entry
    :param package: name in ``PIP`` of a package that has a virtual environment of its own
    :param module: registers the environment
    :param env_kwargs: arguments of ``gymnasium.make``
    """

    env_id: str
    n_timesteps: int
    contestants: Mapping[str, tuple[str, Settings]]
    package: str = ""
    module: str = "benchmarks.suites.contestants"
    env_kwargs: Mapping[str, Any] = {}


def without_phase(settings: Settings) -> Settings:
    """Return PPG's entry as one of PPO with normalized rewards."""
    own = defaults_of(PPG).keys() - defaults_of(PPO).keys()
    return {"normalize": NORMALIZED, **{name: value for name, value in settings.items() if name not in own}}


def with_entries(env_id: str, n_timesteps: int, zoo_id: str = "") -> Match:
    """Return PPG with its entry against PPO with both."""
    own = entry("ppg", env_id)
    opponents = {"PPO, RL Zoo's entry": ("ppo", zoo_entry("ppo", zoo_id or env_id))}
    opponents["PPO, PPG's entry"] = ("ppo", without_phase(own))
    return Match(env_id, n_timesteps, {"PPG": ("ppg", own), **opponents})


def with_defaults(env_id: str, n_timesteps: int, *package: Any, policy: str = "MlpPolicy", **further: Any) -> Match:
    """Return PPG with its defaults against PPO with its own, with normalized rewards, and then also with a higher rate."""
    settings: Settings = dict(policy=policy, **further)
    normalized = {**settings, "normalize": NORMALIZED}
    opponents = {"PPO, normalized rewards": ("ppo", normalized)}
    opponents["PPO, normalized rewards, rate 5e-4"] = ("ppo", {**normalized, "learning_rate": 5e-4})
    return Match(env_id, n_timesteps, {"PPG": ("ppg", settings), **opponents, "PPO": ("ppo", settings)}, *package)


def with_rates(env_id: str) -> Match:
    """Return both algorithms with their defaults and three learning rates."""
    found = {}
    for algorithm, more in (("ppg", {}), ("ppo", dict(normalize=NORMALIZED))):
        rate = defaults_of(ALGOS[algorithm])["learning_rate"]
        for factor in sorted(RATES, key=lambda factor: factor != 1):
            settings = dict(policy="MlpPolicy", learning_rate=float(f"{rate * factor:.2g}"), **more)
            found[f"{algorithm.upper()}, rate {settings['learning_rate']:g}"] = (algorithm, settings)
    return Match(env_id, TASKS[env_id].n_timesteps, found)


def with_memory(env_id: str, n_timesteps: int) -> Match:
    """Return RecurrentPPG and RecurrentPPO with their defaults, and each with its own and the other's entry."""
    default: Settings = dict(policy="MlpLstmPolicy")
    own, zoo = entry("ppg_lstm", env_id), zoo_entry("ppo_lstm", env_id)
    contestants = {
        "RecurrentPPG": ("ppg_lstm", default),
        "RecurrentPPO": ("ppo_lstm", default),
        "RecurrentPPO, normalized rewards": ("ppo_lstm", {**default, "normalize": NORMALIZED}),
        "RecurrentPPG, its entry": ("ppg_lstm", own),
        "RecurrentPPO, its entry": ("ppo_lstm", zoo),
        "RecurrentPPG, RL Zoo's entry": ("ppg_lstm", zoo),
    }
    return Match(env_id, n_timesteps, contestants)


def with_builds(env_id: str, n_timesteps: int) -> Match:
    """Return PPG, compiled and eager, against the PPO of SB3 and of SBX (JAX), all with the same settings."""
    shared: Settings = dict(policy="MlpPolicy", n_envs=8, n_steps=256, batch_size=64, n_epochs=10, normalize=NORMALIZED)
    contestants = {
        "PPG, compiled": ("ppg", dict(shared, compile_updates=True)),
        "PPG, eager": ("ppg", dict(shared, compile_updates=False)),
        "SB3's PPO": ("ppo", shared),
        "SBX's PPO": ("sbx_ppo", shared),
    }
    return Match(env_id, n_timesteps, contestants, "sbx", "benchmarks.opponents")


class SbxPPO:
    """SBX's PPO, which only the processes of its runs can import."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("sbx").PPO(*args, **kwargs)


ALGOS["sbx_ppo"] = SbxPPO  # type: ignore[assignment]


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


def three_agents(env: VecEnv) -> VecEnv:
    """Return the environments of three agents with one policy, in place of one, with its seed."""
    supersuit, spread = importlib.import_module("supersuit"), importlib.import_module("mpe2.simple_spread_v3")
    agents = supersuit.pettingzoo_env_to_vec_env_v1(spread.parallel_env())
    seeded = Seeded(supersuit.concat_vec_envs_v1(agents, 1, base_class="stable_baselines3"))
    seeded.seed(env._seeds[0])
    return VecMonitor(seeded)


BULLET = ("pybullet-envs-gymnasium", "pybullet_envs_gymnasium")
MANY = "MultiInputPolicy"  # for observations of several parts
AGENTS = dict(vec_env_wrapper="benchmarks.opponents.three_agents")
MATCHES = {
    **{name: with_entries(name, 1_000_000) for name in ("Acrobot-v1", "LunarLander-v3", "LunarLanderContinuous-v3")},
    **{f"{name}-v5": with_entries(f"{name}-v5", 1_000_000, f"{name}-v4") for name in ("Hopper", "HalfCheetah", "Walker2d")},
    "CartPole without velocities": with_memory("CartPoleNoVel-v1", 100_000),
    "LunarLander-v3, same settings": with_builds("LunarLander-v3", 500_000),
    "HalfCheetah-v5, same settings": with_builds("HalfCheetah-v5", 1_000_000),
    "HopperBullet": with_defaults("HopperBulletEnv-v0", 400_000, *BULLET),
    "FlappyBird": with_defaults(
        "FlappyBird-v0", 600_000, "flappy-bird-gymnasium", "flappy_bird_gymnasium", dict(use_lidar=False)
    ),
    "Highway": with_defaults("highway-fast-v0", 20_000, "highway-env", "highway_env"),
    "PointMaze": with_defaults("PointMaze_UMazeDense-v3", 600_000, "gymnasium-robotics", "gymnasium_robotics", policy=MANY),
    "PandaReach": with_defaults("PandaReachDense-v3", 225_000, "panda-gym", "panda_gym", policy=MANY),
    "Meta-World reach": with_defaults("Meta-World/MT1", 330_000, "metaworld", "metaworld", dict(env_name="reach-v3", seed=0)),
    "Simple spread": with_defaults("CartPole-v1", 650_000, "supersuit", "mpe2", **AGENTS),
    "2048": with_defaults(
        *("gymnasium_2048/TwentyFortyEight-v0", 350_000, "gymnasium-2048", "gymnasium_2048", dict(max_episode_steps=5000))
    ),
    "BipedalWalker-v3": with_entries("BipedalWalker-v3", 2_000_000),
    "BipedalWalkerHardcore-v3": with_entries("BipedalWalkerHardcore-v3", 2_000_000),
    **{f"{name}, rates": with_rates(name) for name in ("LunarLander-v3", "Hopper-v5", "HalfCheetah-v5", "Acrobot-v1")},
}

_environ = Lock()  # of this process, which its children inherit


@dataclass(eq=False)
class PackageRun(Run):
    """
    A run whose process finds the modules of a package before those of the project.

    :param package: name in ``PIP``; empty: none
    """

    package: str = ""

    @override
    def start(self) -> Popen:
        with _environ:
            folders = [os.getcwd()]
            if self.package:
                folders.insert(0, str(venvs.installed(self.package, PIP[self.package])[1]))
            os.environ["PYTHONPATH"] = os.pathsep.join(folders)
            return super().start()


def columns(run: tuple[str, str, int]) -> dict[str, Any]:
    """Return the columns of a run's row that are known before; the settings are a hash of all that decides what is learned."""
    name, contestant, seed = run
    match = MATCHES[name]
    algorithm, settings = match.contestants[contestant]
    decisive = [algorithm, defaults_of(ALGOS[algorithm]) | settings, match.env_id, match.n_timesteps, match.env_kwargs]
    return dict(match=name, contestant=contestant, seed=seed, settings=short_hash(decisive))


def wanted() -> list[tuple[str, str, int]]:
    """Return the runs, match after match, seed by seed."""
    return [(name, each, seed) for name, match in MATCHES.items() for seed in SEEDS for each in match.contestants]


def train(run: tuple[str, str, int], folder: Path) -> Outcome:
    match = MATCHES[run[0]]
    algorithm, settings = match.contestants[run[1]]
    config = folder / "settings.yml"
    config.write_text(yaml.safe_dump({match.env_id: {**settings, "n_timesteps": match.n_timesteps}}))
    words = ["--algo", algorithm, "--env", match.env_id, "-conf", str(config), "-n", str(match.n_timesteps)]
    words += ["--seed", str(run[2]), "--gym-packages", match.module, "--device", "cpu", "--eval-freq", "-1"]
    n_eval_envs = 1 if "vec_env_wrapper" in settings else 20  # where one environment has several agents
    words += ["--eval-episodes", "20", "--n-eval-envs", str(n_eval_envs)]
    arguments = [f"{name}:{value!r}" for name, value in match.env_kwargs.items()]
    words += ["--env-kwargs", *arguments] if arguments else []
    done = PackageRun(folder / "run", words, match.n_timesteps, package=match.package)
    done.finish(done.start().wait())
    curve = done.rows()
    last = curve.iloc[-1][["seconds", "compile_seconds", "training_return"]].to_dict()
    return {"return": round(float(curve["return"].iloc[-N_LAST:].mean()), 3), **last, "commit": commit()}, curve


def report(experiment: Experiment) -> Report:
    """Return a table of the matches of which all runs are there."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    n_rows, begun = rows.groupby("match").size(), []
    for name, match in MATCHES.items():
        if n_rows.get(name, 0) < len(SEEDS) * len(match.contestants):
            continue
        begun.append(name)
        points = curves[curves["match"] == name].merge(rows[["match", "contestant", "seed", "settings"]])
        compared = Comparison(name, points, {each: {} for each in match.contestants})
        returns = {view: interquartile_means({k: v[:, None] for k, v in compared.returns(view).items()}) for view in VIEWS}
        says = {(row[0], row[1]): f"{row[6].split(':')[0]}, {row[4]}" for row in compared.verdict()[1:]}
        means = rows[rows["match"] == name].groupby("contestant").mean(numeric_only=True)
        for each in match.contestants:
            cells = [cell for view in VIEWS for cell in (str(returns[view][each]), says.get((each, view), ""))]
            own = means.loc[each]
            cells += [f"{own['seconds']:,.0f}", f"{own['compile_seconds']:.0f}", f"{own['training_return']:.1f}"]
            lines.append([f"{name}, {match.n_timesteps:,} steps", each, *cells])
    present = rows[rows["match"].isin(begun)]
    head = ["", "", "return after the same steps", "the first is", "after the same seconds", "the first is", "seconds"]
    text = page(
        "PPG beside PPO at its best",
        f"`python -m benchmarks.opponents`, whose description says who PPO is. {machines(present)} Commit "
        f"{', '.join(present['commit'].unique())}. Five seeds; returns of 20 deterministic episodes, the same for all, means "
        f"of the last {N_LAST} of ten points; interquartile means with 95 % intervals. Verdicts: those of `sb3-ppg compare` "
        "for one environment: Mann-Whitney test with Holm's correction over opponents and views, 2.5 %; beside them the "
        "probability that a run of the first contestant is better. Seconds are those of the processor, without evaluations.",
        table([*head, "of which torch compiled", "in training"], lines),
    )
    return {"opponents.md": text}


OPPONENTS = Experiment("opponents", wanted, train, report, columns, ("match", "contestant", "seed", "settings"))

if __name__ == "__main__":
    OPPONENTS.main()
