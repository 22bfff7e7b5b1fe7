"""Scripts of RL Zoo (rl_zoo3 2.9.2) that need more around them than ``repairs``, one function each."""

import argparse
import importlib
import os
import pickle
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO
from unittest.mock import patch

import numpy as np
import yaml
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from rl_zoo3.utils import get_model_path

from sb3_ppg.zoo.repairs import ffmpeg_on_path


def record_training() -> None:
    """Run the script with a folder of its own, whose name it gives to a shell unquoted, and move the videos afterwards."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo")
    parser.add_argument("-f", "--folder")
    parser.add_argument("-o", "--output-folder")
    parser.add_argument("--exp-id", type=int, default=0)
    args, _ = parser.parse_known_args()
    with ffmpeg_on_path(), TemporaryDirectory() as made:
        sys.argv += ["-o", made]
        runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)
        log_path = get_model_path(args.exp_id, args.folder, args.algo, EnvironmentName(args.env))[2]
        folder = Path(args.output_folder or Path(log_path) / "videos")
        shutil.copytree(made, folder, dirs_exist_ok=True)
    print(f"The videos are in {folder.absolute()}")


def plot_train() -> None:
    """Run the script, which draws one algorithm, for each of several (``-a ppg ppo``) in one picture."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", "--algo", nargs="+")
    parser.add_argument("-w", "--episode-window", default="100")
    args, others = parser.parse_known_args()
    script = importlib.import_module("rl_zoo3.plots.plot_train")
    for algo in args.algo:
        sys.argv[1:] = ["--algo", algo.lower(), "--episode-window", args.episode_window, *others]
        with patch.object(script, "plt", _with(plt, plot=partial(_plot, f"{algo.upper()} "), show=lambda: None)):
            try:
                script.plot_train()
            except FileNotFoundError as error:
                print(f"There is no training of {algo}: no folder {error.filename}")
    if not plt.gca().lines:
        of_success = " and logs successes" if "success" in others else ""
        print(f"There is no curve: no training has {args.episode_window} episodes, the window of the mean (-w){of_success}")
    _show()


def _plot(prefix: str, x: np.ndarray, *args: Any, **kwargs: Any) -> None:
    """Draw a curve, and a single point as a dot: there is no line to see."""
    if prefix:
        kwargs["label"] = prefix + kwargs["label"]
    plt.plot(x, *args, marker="o" if np.size(x) == 1 else None, **kwargs)


def _show() -> None:
    """Show all figures; without a display, save them."""
    if plt.get_backend().lower() != "agg":
        plt.show()
        return
    for number in plt.get_fignums():
        file = Path(f"{plt.figure(number).get_label() or number}.png".replace(" ", "_").replace("/", "-").lower())
        plt.figure(number).savefig(file)
        print(f"No display: saved as {file}")


def all_plots() -> None:
    """
    Run the script, which counts trainings that go on from another's model (``-i``) as further seeds, fails at environments
    with a single evaluation or draws nothing of it, and writes 0.0 where there is no evaluation.
    """
    script = importlib.import_module("rl_zoo3.plots.all_plots")
    writer = _table_writer(script.pytablewriter.MarkdownTableWriter)
    with patch.multiple(
        script,
        os=_with(os, listdir=_Seeds()),
        plt=_with(plt, plot=partial(_plot, ""), show=_show),
        np=_with(np, squeeze=lambda values: np.atleast_1d(np.squeeze(values))),
        pytablewriter=_with(script.pytablewriter, MarkdownTableWriter=writer),
    ):
        script.all_plots()


def _table_writer(original: type) -> type:
    class TableWriter(original):
        """Writes no number where there is none."""

        def write_table(self, **kwargs: Any) -> None:
            for row in self.value_matrix:  # which is saved afterwards
                row[:] = ["no evaluation" if cell == "0.0 +/- 0.0" else cell for cell in row]
            super().write_table(**kwargs)

    return TableWriter


class _Seeds:
    """``os.listdir`` of an algorithm's log folder, without the trainings that go on from another's model."""

    def __init__(self) -> None:
        self.left_out: set[Path] = set()

    def __call__(self, folder: str) -> list[str]:
        names = os.listdir(folder)
        going_on = {name for name in names if _goes_on_from(Path(folder) / name)}
        for run in sorted(Path(folder) / name for name in going_on):
            if run not in self.left_out:
                print(f"Left out: {run}, which went on from {_goes_on_from(run)}")
            self.left_out.add(run)
        return [name for name in names if name not in going_on]


def _goes_on_from(run: Path) -> str:
    """Return the model that a training began with, as its command line named it, or an empty string."""
    for file in run.glob("*/args.yml"):
        return yaml.load(file.read_text(), Loader=yaml.UnsafeLoader).get("trained_agent") or ""
    return ""


def plot_from_file() -> None:
    """
    Run the script, which fails at the last evaluations of a single training, which are saved as a number, and at an
    environment on which not all algorithms were evaluated, and draws nothing of a single evaluation.
    """
    script = importlib.import_module("rl_zoo3.plots.plot_from_file")
    drawing = _with(plt, plot=partial(_plot, ""), title=_title, show=_show)
    with patch.multiple(script, pickle=SimpleNamespace(load=_load_results), plt=drawing):
        script.plot_from_file()


def _load_results(file: BinaryIO) -> dict[str, dict[str, Any]]:
    results = pickle.load(file)
    tables = {env: curves for env, curves in results.items() if env != "results_table"}
    everyone = set().union(*tables.values())
    for env, algorithms in tables.items():
        for curves in algorithms.values():
            curves["last_evals"] = np.atleast_1d(curves["last_evals"])
        if missing := everyone - set(algorithms):
            print(f"Left out: {env}, where there is no evaluation of {', '.join(sorted(missing))}")
            del results[env]
    return results


def _title(text: str, **kwargs: Any) -> None:
    if text != "PyBullet envs":  # a title of other environments
        plt.title(text, **kwargs)


def _with(module: ModuleType, **others: Any) -> SimpleNamespace:
    """Return a module's names, some of which stand for something else."""
    return SimpleNamespace(**{**vars(module), **others})
