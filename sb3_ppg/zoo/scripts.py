"""Scripts of RL Zoo (rl_zoo3 2.9.2) that need more around them than ``repairs``, one function each."""

import argparse
import importlib
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
    log_path = rl_zoo3.utils.get_model_path(args.exp_id, args.folder, args.algo, args.env)[2]
    folder = args.output_folder or Path(log_path) / "videos"
    with ffmpeg_on_path(), TemporaryDirectory() as made:
        sys.argv += ["-o", made]
        runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)
        shutil.copytree(made, folder, dirs_exist_ok=True)
    print(f"The videos are in {folder.absolute()}")


def plot_from_file() -> None:
    """Run the script, which fails at the last evaluations of a single training: they are saved as a number."""
    script = importlib.import_module("rl_zoo3.plots.plot_from_file")
    with patch.object(script, "pickle", SimpleNamespace(load=_load_results)):
        script.plot_from_file()


def _load_results(file: BinaryIO) -> dict[str, Any]:
    results = pickle.load(file)
    for environment in results.keys() - {"results_table"}:
        for curves in results[environment].values():
            curves["last_evals"] = np.atleast_1d(curves["last_evals"])
    return results
