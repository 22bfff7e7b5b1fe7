"""Train algorithms in an environment, and say which one is better in steps and in seconds."""

import argparse
import ast
import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import yaml
from huggingface_sb3 import EnvironmentName
from rl_zoo3 import ALGOS
from rl_zoo3.utils import StoreDict

from sb3_ppg.checking import policy_for
from sb3_ppg.comparison.study import Study
from sb3_ppg.comparison.training import Contestant, Made, described
from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.zoo.environments import check_is_registered
from sb3_ppg.zoo.manager import Manager
from sb3_ppg.zoo.registration import register


@dataclass(frozen=True)
class FromZoo:
    """
    Makes a model as ``sb3-ppg train`` does.

    :param algorithm: its name in RL Zoo
    :param config: file of hyperparameters; None: the algorithm's own
    :param changes: changes to the entry
    :param packages: modules that register environments
    """

    algorithm: str
    env_id: str
    config: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    vec_env: str = "dummy"
    packages: Sequence[str] = ()
    device: str = "auto"

    def __call__(self, seed: int, folder: Path) -> Made:
        manager = self.manager(seed, folder)
        setup = manager.setup_experiment()
        assert setup is not None
        manager.seed += 1000
        return Made(setup[0], lambda n_envs=1: manager.create_envs(n_envs, eval_env=True), manager.deterministic_eval)

    def manager(self, seed: int = 0, folder: Path = Path()) -> Manager:
        """Return the manager of a run whose files are in a folder."""
        register()
        for package in self.packages:
            importlib.import_module(package)
        options: dict[str, Any] = dict(eval_freq=-1, verbose=0, seed=seed, config=self.config, vec_env_type=self.vec_env)
        options |= dict(hyperparams=dict(self.changes), env_kwargs=dict(self.env_kwargs), device=self.device)
        return Manager(argparse.Namespace(), self.algorithm, self.env_id, str(folder / "zoo"), **options)

    def contestant(self) -> Contestant:
        """Return it with the hyperparameters of its entry."""
        with contextlib.redirect_stdout(None):
            manager = self.manager()
            hyperparameters, _ = manager.read_hyperparameters()
        hyperparameters.pop("n_timesteps", None)  # of the entry, in place of which is the command's
        if self.algorithm.startswith("ppg"):
            manager._check_hyperparameters(hyperparameters)
        return self, described({"algorithm": self.algorithm, **hyperparameters, "env_kwargs": self.env_kwargs})


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--env", required=True, help="environment ID")
    parser.add_argument(
        "--algos", nargs="+", default=["ppg", "ppo"], help="RL algorithms; the first is compared with the others"
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("-n", "--n-timesteps", type=int, help="steps of each training")
    length.add_argument("--seconds", type=float, help="seconds of each training, instead: each takes the steps that fit")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each algorithm (fewer than 4: no intervals)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--num-threads", type=int, default=1, help="threads of PyTorch in each")
    parser.add_argument("--defaults", action="store_true", help="all hyperparameters are the algorithms' defaults")
    parser.add_argument("-conf", "--conf-file", nargs="+", default=[], metavar="ALGO:FILE", help="hyperparameter files")
    parser.add_argument(
        *("--set", "-set"), nargs="+", action="append", default=[], metavar="NAME=VALUE", help="a variant: ppg:n_epochs=3 ..."
    )
    parser.add_argument("--vec-env", choices=["dummy", "subproc"], default="dummy", help="VecEnv type")
    parser.add_argument("--env-kwargs", nargs="+", action=StoreDict, default={}, help="options of the environment")
    parser.add_argument("--gym-packages", nargs="+", default=[], help="modules that register further environments")
    parser.add_argument("--eval-episodes", type=int, default=20, help="deterministic episodes after each training")
    parser.add_argument("--target", type=float, help="return to which steps and seconds are counted")
    parser.add_argument("--device", default="auto", help="PyTorch device")
    parser.add_argument("-f", "--folder", type=Path, help="where to write (default: logs/compare/ENV)")
    args = parser.parse_args()
    for package in args.gym_packages:
        importlib.import_module(package)
    check_is_registered(args.env)
    folder = args.folder or Path("logs", "compare", EnvironmentName(args.env))
    folder.mkdir(parents=True, exist_ok=True)
    configs = dict(text.partition(":")[::2] for text in args.conf_file)
    makers = {name: (name, {}) for name in args.algos} | dict(map(_variant, args.set))
    if not configs.keys() <= {algorithm for algorithm, _ in makers.values()}:
        raise ArgumentError(f"-conf {' '.join(args.conf_file)} cannot work: write ALGO:FILE, for algorithms that are compared")
    contestants = {}
    for name, (algorithm, changes) in makers.items():
        if algorithm not in ALGOS:
            raise ArgumentError(f"there is no algorithm {algorithm!r}{nearest(algorithm, ALGOS)}")
        config = str(_defaults(args, algorithm, folder)) if args.defaults else configs.get(algorithm)
        options = (args.env_kwargs, args.vec_env, args.gym_packages, args.device)
        contestants[name] = FromZoo(algorithm, args.env, config, changes, *options).contestant()
    budget = (args.n_timesteps, args.seconds, args.seeds, args.eval_episodes, args.jobs, args.num_threads)
    Study(args.env, contestants, folder, *budget).compare(args.target)


def _variant(words: Sequence[str]) -> tuple[str, tuple[str, dict[str, Any]]]:
    """Return name, algorithm and changes of a variant, written ``ppg:n_epochs=3 ent_coef=0.01``."""
    algorithm, _, first = words[0].partition(":")
    changes = {}
    for word in (first, *words[1:]):
        name, is_set, text = word.partition("=")
        if not is_set:
            raise ArgumentError(f"--set {' '.join(words)} cannot work: write --set ppg:n_epochs=3 ent_coef=0.01")
        try:
            changes[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            changes[name] = text
    return f"{algorithm} {' '.join((first, *words[1:]))}", (algorithm, changes)


def _defaults(args: argparse.Namespace, algorithm: str, folder: Path) -> Path:
    """Write a file in which an algorithm has nothing except the policy that the observations need."""
    env = gym.make(args.env, **args.env_kwargs)
    policy = policy_for(env.observation_space)
    env.close()
    file = folder / f"{algorithm}_defaults.yml"
    policy = policy.replace("Policy", "LstmPolicy") if "lstm" in algorithm else policy
    file.write_text(yaml.safe_dump({args.env: dict(policy=policy, n_timesteps=1)}))
    return file
