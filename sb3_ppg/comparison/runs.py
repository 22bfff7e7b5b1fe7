"""Runs of ``sb3-ppg train``, each in a process and a folder of its own."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback
from tqdm import tqdm
from typing_extensions import override

from sb3_ppg.errors import ArgumentError

FINISHED = "finished"  # file in the folder of a run that has ended well
EPISODES = "episodes.csv"
N_POINTS = 50  # of a curve
STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
# `sb3-ppg`, which ends with the process that has started it, even if that is killed: then its input ends
PROGRAM = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
from sb3_ppg.zoo.launcher import main
main()
"""


def machine() -> str:
    """Return the processor's name and its number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def short_hash(content: Any) -> str:
    """Return eight hexadecimal digits that change with a text, or with the values of other content."""
    text = content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def code_hashes(packages: Collection[str], named: Iterable[str]) -> dict[str, str]:
    """
    Return hashes of the code that decides what runs do: the files of this package, those that words of a command name, and
    all imported modules that are not installed or belong to one of ``packages``.
    """
    package = Path(__file__).parents[1]
    files: dict[str, Any] = {str(file.relative_to(package)): file for file in package.rglob("*.py")}
    files |= {word: word for word in named}
    for name, module in [*sys.modules.items()]:
        file, top = Path(getattr(module, "__file__", None) or ""), name.split(".")[0]
        is_installed = not {"site-packages", "dist-packages"}.isdisjoint(file.parts) or str(file).startswith(STANDARD_LIBRARY)
        if top not in ("__main__", package.name) and (top in packages or not is_installed):
            files[name] = file
    found = {name: Path(file) for name, file in files.items() if os.path.isfile(file)}  # not `is_file`: words may be long
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in found.items()}


class Episodes(BaseCallback):
    """
    Writes the steps, seconds and return of each episode to a file. A run that goes on keeps those until its checkpoint.

    :param file: name of a CSV file
    :param clock: function of ``time`` that measures seconds
    """

    def __init__(self, file: str, clock: str = "perf_counter") -> None:
        super().__init__()
        self.file, self.clock = Path(file), getattr(time, clock)

    @override
    def _on_training_start(self) -> None:
        known = pd.read_csv(self.file) if self.file.exists() else pd.DataFrame(columns=["steps", "seconds", "return"])
        known = known[known["steps"] <= self.num_timesteps]
        known.to_csv(self.file, index=False)
        self.start = self.clock() - known["seconds"].max() if len(known) else self.clock()
        self.stream = self.file.open("a", buffering=1)

    @override
    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.stream.write(f"{self.num_timesteps},{self.clock() - self.start:.3f},{info['episode']['r']}\n")
        return True


@dataclass(eq=False)
class Run:
    """
    A run of ``train``, on one thread unless its options say otherwise.

    :param folder: where it writes, and nothing else does
    :param options: those of ``train``, except its folder and changes to the hyperparameters
    :param n_timesteps: its length, which is among the options, too
    :param params: changes to the hyperparameters, NAME:VALUE
    :param clock: see ``Episodes``
    """

    folder: Path
    options: Sequence[str]
    n_timesteps: int
    params: Sequence[str] = ()
    clock: str = "perf_counter"

    @property
    def is_finished(self) -> bool:
        """Return whether the process has ended well."""
        return (self.folder / FINISHED).exists()

    def start(self) -> subprocess.Popen:
        """
        Start the process, which goes on from a checkpoint if there is one. There is none unless the options have a
        ``--save-freq``, because seconds are those of training. Ctrl-C does not reach it: ``train`` would save its model.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        recorder = {f"{__name__}.Episodes": dict(file=str((self.folder / EPISODES).resolve()), clock=self.clock)}
        no_checkpoint = ["--save-freq", str(2 * self.n_timesteps)]
        words = ["train", "--num-threads", "1", *no_checkpoint, *self.options, "--run-folder", str(self.folder)]
        command = [sys.executable, "-c", PROGRAM, *words, "-params", *self.params, f"callback:{recorder}"]
        streams: dict[str, Any] = dict(stdin=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(command, stdout=log, env={**os.environ, "OMP_NUM_THREADS": "1"}, **streams)

    def finish(self, status: int) -> None:
        """
        Mark the run as finished.

        :raises ArgumentError: if the process has failed, or if no episode has ended
        """
        if status != 0:
            log = self.folder / "log.txt"
            end = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise ArgumentError(f"a run has ended with status {status}; the end of {log}:\n{end}")
        if self.curve().empty:
            advice = "use more, or a Monitor around the environment"
            raise ArgumentError(f"no episode has ended within {self.n_timesteps} steps: {advice}")
        (self.folder / FINISHED).touch()

    def progress(self) -> int:
        """Return the number of steps at the end of the latest episode, or of the run if it is finished."""
        if self.is_finished:
            return self.n_timesteps
        file = self.folder / EPISODES
        lines = file.read_text().splitlines()[1:] if file.exists() else []
        return min(int(lines[-1].split(",")[0]), self.n_timesteps) if lines else 0

    def episodes(self) -> pd.DataFrame:
        """Return steps, seconds and return of each episode."""
        return pd.read_csv(self.folder / EPISODES)

    def curve(self, n_points: int = N_POINTS, n_latest: int = 20) -> pd.DataFrame:
        """Return the mean return of the latest episodes, and seconds, at evenly spaced steps after the first episode."""
        episodes, grid = self.episodes(), np.linspace(0, self.n_timesteps, n_points + 1)[1:].astype(int)
        smooth = episodes.assign(**{"return": episodes["return"].rolling(n_latest, min_periods=1).mean()})
        n_over = np.searchsorted(episodes["steps"], grid, side="right")  # episodes that were over then
        points = smooth.iloc[n_over[n_over > 0] - 1][["seconds", "return"]].round(2)
        return points.assign(steps=grid[n_over > 0]).reset_index(drop=True)

    def evaluation(self) -> tuple[float, float]:
        """Return mean and standard deviation of the returns in the latest evaluation; NaN if there is none that ended."""
        file = self.folder / "evaluations.npz"
        if not file.exists():
            return np.nan, np.nan
        with np.load(file) as evaluations:
            returns = evaluations["results"][-1]
        return round(float(returns.mean()), 2), round(float(returns.std()), 2)


def carry_out(runs: Sequence[Run], n_jobs: int = 1) -> None:
    """
    Carry out the runs that are not finished, and show when all will be. The first that fails ends the others.

    :param n_jobs: runs at a time
    :raises ArgumentError: if a run fails
    """
    unfinished = [run for run in runs if not run.is_finished]
    print(f"{len(runs)} runs, {len(unfinished)} to carry out", flush=True)
    processes: dict[Run, subprocess.Popen] = {}
    waiting, total = [*unfinished], sum(run.n_timesteps for run in unfinished)
    # Without a terminal there is no bar, and only a line for each run
    with tqdm(total=total, unit="step", unit_scale=True, smoothing=0, disable=None) as bar:
        try:
            while waiting or processes:
                while waiting and len(processes) < n_jobs:
                    run = waiting.pop(0)
                    processes[run] = run.start()
                time.sleep(0.5)
                for run, process in [*processes.items()]:
                    if process.poll() is not None:
                        run.finish(process.returncode)
                        del processes[run]
                        bar.write(f"{run.folder}: {run.curve()['return'].iloc[-1]:.1f} after {run.n_timesteps} steps")
                bar.update(sum(run.progress() for run in unfinished) - bar.n)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
