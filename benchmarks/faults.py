"""
Kill one run thirty times, and compare it with an undisturbed one.

SIGKILL goes to one process, to all processes and to torchrun's agent, in turn and at random moments: every other time after
the run has moved on, otherwise perhaps while the processes start. The agent restarts processes (``--max-restarts``); when the
agent dies, the same command is given again.

Writes results/faults.csv and faults.md in a quarter of an hour on two cores.

    python -m benchmarks.faults
"""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import psutil

from benchmarks.harness import RESULTS, processor
from benchmarks.tables import page
from sb3_ppg import PPG

N_KILLS, N_STEPS = 30, 1_000_000
KINDS = ("one process", "all processes", "the agent")
LAUNCHER = "-m torch.distributed.run --nproc-per-node 2 --max-restarts 100"
TRAINING = "-m sb3_ppg train --env CartPole-v1 --seed 1 --save-freq 4000 --eval-freq 50000 --eval-episodes 20 --resume -n"
COMMAND = [sys.executable, *f"{LAUNCHER} {TRAINING} {N_STEPS}".split()]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


class Run:
    """
    The command, and its progress according to its output.

    :param folder: folder in which it runs
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.n_steps = self.n_starts = self.n_logs = 0
        self.resumed: list[int] = []
        self.start()

    def start(self) -> None:
        """Give the command, for the first time or again."""
        pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.agent = subprocess.Popen(COMMAND, cwd=self.folder, env=ENVIRONMENT, **pipes)
        self.n_starts += 1
        threading.Thread(target=self._read, args=(self.agent.stdout,), daemon=True).start()

    def _read(self, output: Any) -> None:
        for line in output:
            if match := re.search(r"total_timesteps +\| (\d+)", line):
                self.n_steps, self.n_logs = int(match[1]), self.n_logs + 1
            elif match := re.search(r"Going on after (\d+) steps", line):
                self.resumed.append(int(match[1]))

    def kill(self, kind: str, choice: random.Random) -> None:
        """Kill processes of one of ``KINDS`` as soon as there are any."""
        workers: list[psutil.Process] = []
        while not workers:
            workers = [one for one in psutil.Process(self.agent.pid).children() if "sb3_ppg" in one.cmdline()]
        victims: dict[str, list[Any]] = dict(zip(KINDS, ([choice.choice(workers)], workers, [self.agent]), strict=True))
        for victim in victims[kind]:
            victim.send_signal(signal.SIGKILL)
        if kind == "the agent":
            self.agent.wait()
            self.start()


def disturb(folder: Path) -> tuple[pd.DataFrame, int]:
    """
    Kill a run at random moments, and wait for its end.

    :return: for each kill its kind, the steps logged before it, the steps from which the run went on; the number of times
        that the command was given
    """
    choice, run = random.Random(0), Run(folder)
    rows: list[dict[str, Any]] = []
    for kill in range(N_KILLS):
        n_logs = run.n_logs
        while kill % 2 == 1 and run.n_logs == n_logs:
            time.sleep(0.1)
        time.sleep(choice.uniform(1, 10))
        assert run.agent.poll() is None, "the run has ended before all kills"
        rows.append({"kind": KINDS[kill % len(KINDS)], "steps": run.n_steps, "resumed": len(run.resumed)})
        run.kill(rows[-1]["kind"], choice)
        print(rows[-1], flush=True)
    assert run.agent.wait() == 0
    for row in rows:  # the first time after the kill; 0 if there was no checkpoint yet
        row["resumed"] = next(iter(run.resumed[row["resumed"] :]), 0)
    return pd.DataFrame(rows), run.n_starts


def ending(folder: Path) -> tuple[str, np.ndarray]:
    """Describe a run's end; return also the steps of its evaluations."""
    (run,) = (folder / "logs" / "ppg").iterdir()
    with np.load(run / "evaluations.npz") as kept:
        steps, last_return = kept["timesteps"], kept["results"][-1].mean()
    n_steps = PPG.load(run / "CartPole-v1.zip", device="cpu").num_timesteps
    return f"{n_steps:,} steps, {len(steps)} evaluations, the last return {last_return:.0f}", steps


if __name__ == "__main__":
    with TemporaryDirectory() as disturbed, TemporaryDirectory() as calm:
        rows, n_starts = disturb(Path(disturbed))
        subprocess.run(COMMAND, cwd=calm, env=ENVIRONMENT, check=True, capture_output=True)
        (end, evaluated), (calm_end, calm_evaluated) = ending(Path(disturbed)), ending(Path(calm))
    same = "the same" if np.array_equal(evaluated, calm_evaluated) else "other"
    lost = (rows["steps"] - rows["resumed"]).clip(lower=0)
    text = page(
        "Kills",
        f"`python -m benchmarks.faults`: CartPole-v1, {N_STEPS:,} steps in two processes, {N_KILLS} times SIGKILL at random "
        f"moments, in turn to {', '.join(KINDS)}; a checkpoint every 4,096 steps. {processor()}.",
        f"- Steps lost at a kill, according to the log: {lost.median():,.0f} in the median, {lost.max():,.0f} at most.\n"
        f"- The command was given {n_starts} times; all of them trained in one folder.\n"
        f"- With kills: {end}.\n"
        f"- Without kills: {calm_end}, evaluated at {same} steps.",
    )
    rows.to_csv(RESULTS / "faults.csv", index=False)
    (RESULTS / "faults.md").write_text(text)
    print(text)
