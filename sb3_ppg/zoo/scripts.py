"""Scripts of RL Zoo that need more around them than its functions repaired (rl_zoo3 2.9.2), one function each."""

import argparse
import importlib
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import yaml
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from rl_zoo3.utils import get_model_path, get_trained_models

from sb3_ppg.errors import ArgumentError
from sb3_ppg.zoo.ffmpeg import provide_ffmpeg
from sb3_ppg.zoo.patches import Patches


def record_training() -> None:
    """It calls ``ffmpeg`` through a shell, with its folder as it stands: it gets one of its own, and the videos move."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo")
    parser.add_argument("-f", "--folder")
    parser.add_argument("-o", "--output-folder")
    parser.add_argument("--exp-id", type=int, default=0)
    args, _ = parser.parse_known_args()
    with Patches() as patches, TemporaryDirectory() as made:
        provide_ffmpeg(patches)
        sys.argv += ["-o", made]
        runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)
        log_path = get_model_path(args.exp_id, args.folder, args.algo, EnvironmentName(args.env))[2]
        folder = Path(args.output_folder or Path(log_path) / "videos")
        shutil.copytree(made, folder, dirs_exist_ok=True)
    print(f"The videos are in {folder.absolute()}")


def benchmark() -> None:
    """It does not say how long it takes. After each agent we know how long it took, and about how long the others will."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--log-dir", required=True)
    parser.add_argument("-n", "--n-timesteps", type=int, default=150_000)
    args, _ = parser.parse_known_args()
    n_agents = len(get_trained_models(args.log_dir)) if Path(args.log_dir).is_dir() else 0
    call, durations = subprocess.call, []

    def timed_call(*args: Any, **kwargs: Any) -> int:
        start = time.perf_counter()
        return_code = call(*args, **kwargs)
        durations.append(time.perf_counter() - start)
        left = max(0, n_agents - len(durations))
        print(f"It took {durations[-1]:.0f} s (agents left: {left}, about {left * np.mean(durations) / 60:.0f} minutes)")
        return return_code

    with Patches() as patches:
        patches.replace(subprocess, "call", timed_call)
        if not {"-h", "--help"} & set(sys.argv):
            if n_agents == 0:
                raise ArgumentError(f"{args.log_dir} holds no trained agents: --log-dir names the folder of trainings")
            print(f"{args.log_dir} holds {n_agents} agents. Each plays {args.n_timesteps:,} steps (-n); 150,000 take minutes")
        runpy.run_module("rl_zoo3.benchmark", run_name="__main__", alter_sys=True)


def plot_train() -> None:
    """It draws one algorithm; ``-a ppg ppo`` draws several in one picture, each curve with its algorithm's name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", "--algo", nargs="+")
    parser.add_argument("-w", "--episode-window", default="100")
    args, others = parser.parse_known_args()
    script = importlib.import_module("rl_zoo3.plots.plot_train")
    for algo in args.algo:
        sys.argv[1:] = ["--algo", algo.lower(), "--episode-window", args.episode_window, *others]
        with Patches() as patches:
            drawing = _with(plt, plot=partial(_plot_with_the_name, algo), show=lambda: None)
            patches.replace(script, "plt", drawing)
            try:
                script.plot_train()
            except FileNotFoundError as error:
                print(f"There is no training of {algo}: no folder {error.filename}")
    if not plt.gca().lines:
        of_success = " and logs successes" if "success" in others else ""
        print(f"There is no curve: no training has {args.episode_window} episodes, the window of the mean (-w){of_success}")
    plt.show()


def _plot_with_the_name(algo: str, *args: Any, label: str, **kwargs: Any) -> None:
    _plot(*args, label=f"{algo.upper()} {label}", **kwargs)


def _plot(x: np.ndarray, *args: Any, **kwargs: Any) -> None:
    """A curve of a single point as a dot: there is no line to see."""
    plt.plot(x, *args, marker="o" if np.size(x) == 1 else None, **kwargs)


def all_plots() -> None:
    """
    It takes trainings that go on from another's model (``-i``) for further seeds, leaves out those with a single evaluation
    or draws nothing of it, and says 0.0 where there is no evaluation.
    """
    script = importlib.import_module("rl_zoo3.plots.all_plots")
    with Patches() as patches:
        patches.replace(script, "os", _with(os, listdir=_Seeds()))
        patches.replace(script, "plt", _with(plt, plot=_plot))
        patches.replace(script, "np", _with(np, squeeze=lambda values: np.atleast_1d(np.squeeze(values))))
        tables = _with(script.pytablewriter, MarkdownTableWriter=_table_writer(script.pytablewriter.MarkdownTableWriter))
        patches.replace(script, "pytablewriter", tables)
        script.all_plots()


def _table_writer(original: type) -> type:
    class TableWriter(original):
        """Of tables that do not name a number where there is none."""

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
    """The model that a training began with, as the command line named it; empty if it began with none."""
    for file in run.glob("*/args.yml"):
        return yaml.load(file.read_text(), Loader=yaml.UnsafeLoader).get("trained_agent") or ""
    return ""


def plot_from_file() -> None:
    """
    It fails at the last evaluations of a single run, which are saved as a number, and at an environment on which not all were
    evaluated; it draws nothing of a single evaluation, and its title is that of other environments.
    """
    script = importlib.import_module("rl_zoo3.plots.plot_from_file")
    with Patches() as patches:
        patches.replace(script, "pickle", SimpleNamespace(load=_load_results))
        patches.replace(script, "plt", _with(plt, plot=_plot, title=_title))
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
    if text != "PyBullet envs":
        plt.title(text, **kwargs)


def _with(module: ModuleType, **others: Any) -> SimpleNamespace:
    """A module's names, some of them standing for something else."""
    return SimpleNamespace(**{**vars(module), **others})
