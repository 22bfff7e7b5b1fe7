"""Scripts of RL Zoo (rl_zoo3 2.9.2) that need more around them than ``repairs``, one function each."""

import argparse
import glob
import importlib
import itertools
import pickle
import runpy
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, BinaryIO
from unittest.mock import patch

import numpy as np
import rl_zoo3.utils
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt

from sb3_ppg.zoo.repairs import ffmpeg_on_path


def record_training() -> None:
    """Run the script with a folder of its own, whose name it gives to a shell unquoted, and move the videos afterwards."""
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


def all_plots() -> None:
    """Run the script, and say first which trainings it takes for seeds of one although their settings differ."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for options in ("-a --algos", "-e --env", "-f --exp-folders"):
        parser.add_argument(*options.split(), nargs="+", default=[])
    args, _ = parser.parse_known_args()
    for folder, algo, env in itertools.product(args.exp_folders, args.algos, args.env):
        runs = [path.parent for path in Path(folder, algo.lower()).glob(f"*{glob.escape(env)}*/evaluations.npz")]
        settings = {run: "".join(path.read_text() for path in run.glob("*/config.yml")) for run in sorted(runs)}
        if len({*settings.values()}) > 1:
            names = ", ".join(map(str, settings))
            print(f"These differ in length or hyperparameters, and are drawn as one: {names}. Use a folder (-f) for each kind")
    importlib.import_module("rl_zoo3.plots.all_plots").all_plots()


def plot_from_file() -> None:
    """
    Run the script, which fails at the last evaluations of a single training: they are saved as a number. Its ``-o`` saves the
    bars alone; here it saves the curves, and the bars beside them.
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
    for environment in results.keys() - {"results_table"}:
        for curves in results[environment].values():
            curves["last_evals"] = np.atleast_1d(curves["last_evals"])
    return results
