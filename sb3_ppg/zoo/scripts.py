"""Scripts of RL Zoo (rl_zoo3 2.9.2) that need more around them than ``repairs``, one function each."""

import argparse
import glob
import importlib
import itertools
import pickle
import runpy
import shutil
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import rl_zoo3.train
import yaml
from huggingface_sb3 import EnvironmentName
from rl_zoo3 import ALGOS
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppg.distributed import agreed
from sb3_ppg.errors import ArgumentError
from sb3_ppg.play import Player
from sb3_ppg.zoo.environments import check_is_registered
from sb3_ppg.zoo.repairs import ffmpeg_on_path

CURVES = ("timesteps", "mean", "std_error", "last_evals")  # in the files of `all_plots`


def train() -> None:
    """Run the script, if its environment and the model to begin with exist."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("-i", "--trained-agent")
    parser.add_argument("--gym-packages", nargs="+", default=[])
    args, _ = parser.parse_known_args()
    with agreed():
        for package in args.gym_packages:
            importlib.import_module(package)
        check_is_registered(args.env)
        entry_point = gymnasium.registry[args.env].entry_point
        if isinstance(entry_point, str):  # an extra may be missing, which would end worker processes
            gymnasium.envs.registration.load_env_creator(entry_point)
        if args.trained_agent is not None and not Path(args.trained_agent).is_file():
            raise ArgumentError(f"-i {args.trained_agent} does not exist")
    rl_zoo3.train.train()


def acting_with_epsilon(epsilon: float) -> AbstractContextManager:
    """Let the agents of all algorithms that are loaded within a block act as a ``Player`` does."""
    loaders = {name: SimpleNamespace(load=partial(_load_player, cls, epsilon)) for name, cls in ALGOS.items()}
    return patch.dict(ALGOS, loaders if epsilon else {})


def _load_player(algorithm: type[BaseAlgorithm], epsilon: float, *args: Any, **kwargs: Any) -> Player:
    print(f"Epsilon: {epsilon}")
    return Player(algorithm.load(*args, **kwargs), epsilon)


def record_training() -> None:
    """Run the script in a temporary folder, because it removes all files in its own, and copy the videos from there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", type=EnvironmentName, default="CartPole-v1")
    parser.add_argument("--algo")
    parser.add_argument("-f", "--folder")
    parser.add_argument("-o", "--output-folder", type=Path)
    parser.add_argument("--exp-id", type=int, default=0)
    args, _ = parser.parse_known_args()
    is_asked_for_help = {"-h", "--help"} & {*sys.argv}
    run = "" if is_asked_for_help else rl_zoo3.utils.get_model_path(args.exp_id, args.folder, args.algo, args.env)[2]
    with ffmpeg_on_path(), TemporaryDirectory() as made:
        sys.argv += ["-o", made]
        runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)
        shutil.copytree(made, args.output_folder or Path(run) / "videos", dirs_exist_ok=True)


def plot_train() -> None:
    """Run the script, which looks for folders with the environment's name in theirs, where a slash is a dash."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-e", "--env", nargs="+", type=EnvironmentName, default=[])
    args, _ = parser.parse_known_args()
    sys.argv += ["-e", *args.env] if args.env else []
    importlib.import_module("rl_zoo3.plots").plot_train()


def all_plots() -> None:
    """Run the script with one folder for each kind of run, as it takes all runs in a folder for seeds of one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for options in ("-a --algos", "-f --exp-folders", "-l --labels"):
        parser.add_argument(*options.split(), nargs="+", default=[])
    parser.add_argument("-e", "--env", nargs="+", type=EnvironmentName, default=[])
    parser.add_argument("-o", "--output")
    args, _ = parser.parse_known_args()
    if args.labels and len(args.labels) != len(args.exp_folders):
        raise ArgumentError("--labels needs one label for each folder of --exp-folders")
    folders: list[str] = []
    labels: list[str] = []
    with TemporaryDirectory() as temporary:
        for folder, label in zip(args.exp_folders, args.labels or args.exp_folders, strict=True):
            pairs = itertools.product(map(str.lower, args.algos), args.env)
            kinds = [_kinds(Path(folder, algo).glob(f"*{glob.escape(env)}*/evaluations.npz")) for algo, env in pairs]
            if not any(kinds):
                what = f"{', '.join(args.algos)} on {', '.join(args.env)}"
                raise ArgumentError(f"there are no evaluations of {what} in {folder}: `train --eval-freq` makes them")
            curves = [[*itertools.chain(*runs)] for runs in itertools.zip_longest(*kinds, fillvalue=[])]
            if len(curves) > 1:
                print(f"Runs in {folder} that differ in length, settings, environment or first model are drawn apart:")
            for number, runs in enumerate(curves, 1):
                folders.append(f"{temporary}/{len(folders)}")
                labels.append(label)
                if len(curves) > 1:
                    labels[-1] += f" ({number})"
                    print(f"{labels[-1]}: {', '.join(map(str, runs))}")
                for run in runs:
                    copy = Path(folders[-1], *run.parts[-2:])
                    copy.mkdir(parents=True, exist_ok=True)
                    shutil.copy(run / "evaluations.npz", copy)
        sys.argv += ["-e", *args.env, "-f", *folders, "-l", *labels]
        importlib.import_module("rl_zoo3.plots").all_plots()
    if args.output is not None:
        _complete(Path(f"{args.output}.pkl"))


def _kinds(evaluations: Iterable[Path]) -> list[list[Path]]:
    """Group the folders of runs: those of a group can be seeds of one."""
    kinds: dict[str, list[Path]] = {}
    for run in sorted(path.parent for path in evaluations):
        settings = [path.read_text() for path in run.glob("*/config.yml")]
        for path in run.glob("*/args.yml"):
            options = yaml.unsafe_load(path.read_text())
            settings += [str(options.get(name) or "") for name in ("env_kwargs", "eval_env_kwargs", "trained_agent")]
        kinds.setdefault(str(settings), []).append(run)
    return list(kinds.values())


def _complete(file: Path) -> None:
    """
    Complete saved results for ``plot_from_file``, which fails if there is a single run, whose last evaluations are saved as a
    number, and if an environment lacks one of the curves.
    """
    results = pickle.loads(file.read_bytes())
    environments = [results[name] for name in results.keys() - {"results_table"}]
    labels = {label for curves in environments for label in curves}
    for curves in environments:
        for label in sorted(labels):
            curves.setdefault(label, {**dict.fromkeys(CURVES, np.zeros(0)), "mean_per_eval": np.zeros((0, 0))})
            curves[label]["last_evals"] = np.atleast_1d(curves[label]["last_evals"])
    file.write_bytes(pickle.dumps(results))
