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
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest.mock import patch

import numpy as np
import rl_zoo3.utils
import yaml
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppg.errors import ArgumentError
from sb3_ppg.play import Player
from sb3_ppg.zoo.repairs import ffmpeg_on_path

CURVES = ("timesteps", "mean", "std_error", "last_evals")  # in the files of `all_plots`


def enjoy() -> None:
    """Run the script, with ``--epsilon`` for any algorithm."""
    # In the script's help, the launcher has added the option already
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, conflict_handler="resolve")
    parser.add_argument("--epsilon", type=float, default=0.0)
    args, sys.argv[1:] = parser.parse_known_args()
    script = importlib.import_module("rl_zoo3.enjoy")
    loaders = {name: SimpleNamespace(load=partial(_load_player, cls, args.epsilon)) for name, cls in script.ALGOS.items()}
    with patch.dict(script.ALGOS, loaders if args.epsilon else {}):
        script.enjoy()


def _load_player(algorithm: type[BaseAlgorithm], epsilon: float, *args: Any, **kwargs: Any) -> Player:
    return Player(algorithm.load(*args, **kwargs), epsilon)


def record_training() -> None:
    """Run the script in a temporary folder, whose name it gives to a shell unquoted, and copy the videos from there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", type=EnvironmentName, default="CartPole-v1")
    parser.add_argument("--algo")
    parser.add_argument("-f", "--folder")
    parser.add_argument("-o", "--output-folder", type=Path)
    parser.add_argument("--exp-id", type=int, default=0)
    args, _ = parser.parse_known_args()
    is_asked_for_help = {"-h", "--help"} & {*sys.argv}
    run = "" if is_asked_for_help else rl_zoo3.utils.get_model_path(args.exp_id, args.folder, args.algo, args.env)[2]
    folder = args.output_folder or Path(run) / "videos"
    with ffmpeg_on_path(), TemporaryDirectory() as made:
        sys.argv += ["-o", made]
        runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)
        shutil.copytree(made, folder, dirs_exist_ok=True)
    print(f"The videos are in {folder.absolute()}")


def plot_train() -> None:
    """Run the script, which looks for folders with the environment's name in theirs, where a slash is a dash."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-e", "--env", nargs="+", type=EnvironmentName, default=[])
    args, _ = parser.parse_known_args()
    sys.argv += ["-e", *args.env]
    importlib.import_module("rl_zoo3.plots.plot_train").plot_train()


def all_plots() -> None:
    """Run the script with one folder for each kind of training, as it takes all trainings in a folder for seeds of one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for options in ("-a --algos", "-f --exp-folders", "-l --labels"):
        parser.add_argument(*options.split(), nargs="+", default=[])
    parser.add_argument("-e", "--env", nargs="+", type=EnvironmentName, default=[])
    args, _ = parser.parse_known_args()
    if args.labels and len(args.labels) != len(args.exp_folders):
        raise ArgumentError("--labels needs one label for each folder of --exp-folders")
    folders, labels = [], []
    with TemporaryDirectory() as temporary:
        for folder, label in zip(args.exp_folders, args.labels or args.exp_folders, strict=True):
            pairs = itertools.product(map(str.lower, args.algos), args.env)
            kinds = [_kinds(Path(folder, algo).glob(f"*{glob.escape(env)}*/evaluations.npz")) for algo, env in pairs]
            if not any(kinds):
                what = f"{', '.join(args.algos)} on {', '.join(args.env)}"
                raise ArgumentError(f"there are no evaluations of {what} in {folder}: `train --eval-freq` makes them")
            if all(len(kind) <= 1 for kind in kinds):
                folders.append(folder)
                labels.append(label)
                continue
            print(f"Trainings in {folder} that differ in length, settings, environment or first model are drawn apart:")
            for number, runs in enumerate(itertools.zip_longest(*kinds, fillvalue=[]), 1):
                folders.append(f"{temporary}/{len(folders)}")
                labels.append(f"{label} ({number})")
                print(f"{labels[-1]}: {', '.join(map(str, itertools.chain(*runs)))}")
                for run in itertools.chain(*runs):
                    copy = Path(folders[-1], *run.parts[-2:])
                    copy.mkdir(parents=True, exist_ok=True)
                    shutil.copy(run / "evaluations.npz", copy)
        sys.argv += ["-e", *args.env, "-f", *folders, "-l", *labels]
        importlib.import_module("rl_zoo3.plots.all_plots").all_plots()


class PlainLoader(yaml.SafeLoader):
    """Reads the Zoo's files without making objects: an ``OrderedDict`` is read as a dictionary, others as their text."""

    def construct_python(self, kind: str, node: yaml.Node) -> Any:
        if isinstance(node, yaml.SequenceNode):
            values = self.construct_sequence(node, deep=True)
            return dict(values[0]) if kind.endswith("OrderedDict") else tuple(values)
        return self.construct_mapping(node, deep=True) if isinstance(node, yaml.MappingNode) else node.value


PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", PlainLoader.construct_python)


def _kinds(evaluations: Iterable[Path]) -> list[list[Path]]:
    """Group the folders of trainings: those of a group can be seeds of one."""
    kinds: dict[str, list[Path]] = {}
    for run in sorted(path.parent for path in evaluations):
        settings = [path.read_text() for path in run.glob("*/config.yml")]
        for path in run.glob("*/args.yml"):
            options = yaml.load(path.read_text(), Loader=PlainLoader)
            settings += [str(options.get(name) or "") for name in ("env_kwargs", "eval_env_kwargs", "trained_agent")]
        kinds.setdefault(str(settings), []).append(run)
    return list(kinds.values())


def plot_from_file() -> None:
    """
    Run the script on completed results: it fails if there is a single training, whose last evaluations are saved as a number,
    and if an environment lacks one of the trainings. Its ``-o`` saves only the bars; save the curves, too.
    """
    script = importlib.import_module("rl_zoo3.plots.plot_from_file")
    with (
        patch.object(script, "pickle", SimpleNamespace(load=_load_results)),
        patch.object(plt, "savefig", _save_curves_and_bars),
    ):
        script.plot_from_file()


def _save_curves_and_bars(output: str, format: str) -> None:
    path = Path(output)
    bars, curves = plt.gcf(), [label for label in plt.get_figlabels() if label.startswith("Results ")]
    places = {path.with_stem(f"{path.stem}_bars") if curves else path: bars}
    for label in curves:
        name = EnvironmentName(label.removeprefix("Results "))
        places[path if len(curves) == 1 else path.with_stem(f"{path.stem}_{name}")] = plt.figure(label)
    for place, figure in places.items():
        figure.savefig(place, format=path.suffix[1:] or format)
        print(f"Saved {place}")


def _load_results(file: BinaryIO) -> dict[str, Any]:
    results = pickle.load(file)
    environments = [results[name] for name in results.keys() - {"results_table"}]
    labels = {label for curves in environments for label in curves}
    for curves in environments:
        for label in sorted(labels):
            curves.setdefault(label, {**dict.fromkeys(CURVES, np.zeros(0)), "mean_per_eval": np.zeros((0, 0))})
            curves[label]["last_evals"] = np.atleast_1d(curves[label]["last_evals"])
    return results
