"""Runs of ``sb3-ppg train``, each in a process and a folder of its own."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from sb3_ppg.comparison.evaluations import Evaluations
from sb3_ppg.errors import ArgumentError

FINISHED = "finished"  # file in the folder of a run that has ended well
# Run `sb3-ppg`, and end when the process that started it ends or is killed, because the input ends then. On Windows, a thread
# that reads the input would block imports of NumPy (numpy#24290), so the thread waits for the starting process instead
PROGRAM = """
import os, sys, threading
def end():
    try:
        if sys.platform == "win32":
            import psutil
            psutil.Process(int(os.environ["SB3_PPG_PARENT"])).wait()
        else:
            sys.stdin.read()
    finally:
        os._exit(1)
threading.Thread(target=end, daemon=True).start()
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


@dataclass(eq=False)
class Run:
    """A run of ``train``, on one thread unless its options say otherwise."""

    folder: Path  # where it writes, and nothing else does
    options: Sequence[str]  # those of `train`, except its folder and changes to the hyperparameters
    n_timesteps: int  # its length, which is among the options, too
    params: Sequence[str] = ()  # changes to the hyperparameters, NAME:VALUE
    clock: str = "processor"  # see `Evaluations`
    python: str = sys.executable  # interpreter

    @property
    def file(self) -> Path:
        """Return the file that `Evaluations` writes."""
        return self.folder / "evaluations.csv"

    @property
    def is_finished(self) -> bool:
        """Return whether the process has ended well."""
        return (self.folder / FINISHED).exists()

    def start(self) -> subprocess.Popen:
        """
        Start the process, which continues from a checkpoint if there is one. Without ``--save-freq`` in the options, none is
        saved, because saving would count as training time. Ctrl-C does not reach the process: ``train`` would save its model.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        arguments = dict(file=str(self.file.resolve()), n_timesteps=self.n_timesteps, clock=self.clock)
        callback = {f"{Evaluations.__module__}.{Evaluations.__qualname__}": arguments}
        no_checkpoint = ["--save-freq", str(2 * self.n_timesteps)]
        words = ["train", "--num-threads", "1", *no_checkpoint, *self.options, "--run-folder", str(self.folder)]
        command = [self.python, "-c", PROGRAM, *words, "-params", *self.params, f"callback:{callback}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SB3_PPG_PARENT": str(os.getpid())}
        alone = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # on Windows, where there are no sessions
        streams: dict[str, Any] = dict(stdin=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        with (self.folder / "log.txt").open("a") as log:
            return subprocess.Popen(command, stdout=log, env=environment, creationflags=alone, **streams)

    def finish(self, status: int) -> None:
        """Mark the run as finished, or raise an ``ArgumentError`` if its process has failed."""
        if status != 0:
            log = self.folder / "log.txt"
            end = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise ArgumentError(f"a run has ended with status {status}; the end of {log}:\n{end}")
        (self.folder / FINISHED).touch()

    def progress(self) -> int:
        """Return the number of steps in the latest row, or those of the run if it is finished."""
        if self.is_finished:
            return self.n_timesteps
        lines = self.file.read_text().splitlines()[1:] if self.file.exists() else []
        return min(int(lines[-1].split(",")[0]), self.n_timesteps) if lines else 0

    def rows(self) -> pd.DataFrame:
        """Return the rows that `Evaluations` has written."""
        return pd.read_csv(self.file)


def carry_out(runs: Sequence[Run], n_jobs: int = 1) -> None:
    """
    Carry out the unfinished runs, and show when all will be finished. The first run that fails ends the others.

    :param n_jobs: runs at a time
    :raises ArgumentError: if a run fails
    """
    unfinished, start = [run for run in runs if not run.is_finished], time.monotonic()
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
                        rows, done = run.rows(), sum(run.progress() for run in unfinished)
                        left = f"all end in about {(time.monotonic() - start) * (total / done - 1) / 60:.0f} min"
                        steps, seconds = f"{run.n_timesteps:,} steps", f"{rows['seconds'].iloc[-1]:,.0f} {run.clock} seconds"
                        bar.write(f"{run.folder}: return {rows['return'].iloc[-1]:.1f}, {steps}, {seconds}; {left}")
                bar.update(sum(run.progress() for run in unfinished) - bar.n)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
