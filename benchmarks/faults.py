"""
Thirty kills in one training: of one process, of all, of torchrun's agent, at random moments, starting up included. The agent
restarts processes (``--max-restarts``), and a loop around it starts the same command again. Counted: what was lost at each,
and whether the training reaches its budget and the return of one that nobody disturbed.

Writes results/faults.csv and faults.md. A quarter of an hour on two cores.

    python -m benchmarks.faults [--kills 30]
"""

import argparse
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

from benchmarks.machine import processor
from sb3_ppg import PPG

RESULTS = Path(__file__).parent / "results"
KINDS = ("one process", "all processes", "the agent")
LAUNCHER = "-m torch.distributed.run --nproc-per-node 2 --max-restarts 100"
TRAINING = "-m sb3_ppg train --env CartPole-v1 -n 1000000 --seed 1 --save-freq 4000 --eval-freq 50000 --eval-episodes 20"
COMMAND = [sys.executable, *f"{LAUNCHER} {TRAINING}".split()]


class Watched:
    """
    The command, and how far it has come, by what it prints.

    :param folder: in which it runs
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.n_steps = self.n_starts = 0
        self.going_on: list[int] = []
        self.start()

    def start(self) -> None:
        """Also again."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.agent = subprocess.Popen(
            COMMAND, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.n_starts += 1
        threading.Thread(target=self._read, args=(self.agent,), daemon=True).start()

    def _read(self, agent: subprocess.Popen) -> None:
        assert agent.stdout is not None
        for line in agent.stdout:
            if match := re.search(r"total_timesteps +\| (\d+)", line):
                self.n_steps = int(match[1])
            elif match := re.search(r"Going on after (\d+) steps", line):
                self.going_on.append(int(match[1]))

    def kill(self, kind: str, choice: random.Random) -> None:
        workers: list[psutil.Process] = []
        while not workers:  # the agent may be about to start them
            workers = [one for one in psutil.Process(self.agent.pid).children() if "sb3_ppg" in one.cmdline()]
        one = [choice.choice(workers)]
        by_kind: dict[str, list[Any]] = {"one process": one, "all processes": workers, "the agent": [self.agent]}
        for victim in by_kind[kind]:
            victim.send_signal(signal.SIGKILL)


def disturb(folder: Path, n_kills: int) -> tuple[pd.DataFrame, int]:
    """
    :return: a row for each kill: its kind, the steps that were logged, those from which the training went on; the starts of
        the command
    """
    choice, training = random.Random(0), Watched(folder)
    rows: list[dict[str, Any]] = []
    while len(rows) < n_kills:
        time.sleep(choice.uniform(2, 14))
        assert training.agent.poll() is None, "the training is over before all kills are made"
        kind = KINDS[len(rows) % len(KINDS)]
        before, n_before = training.n_steps, len(training.going_on)
        training.kill(kind, choice)
        if kind == "the agent":
            training.agent.wait()
            training.start()
        rows.append({"kind": kind, "steps": before, "resumed": n_before})
        print(rows[-1], training.n_steps, flush=True)
    assert training.agent.wait(timeout=600) == 0
    table = pd.DataFrame(rows)
    table["resumed"] = [training.going_on[n] if n < len(training.going_on) else 0 for n in table["resumed"]]
    return table, training.n_starts


def evaluations(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps of all evaluations, and their means."""
    (run,) = (folder / "logs" / "ppg").iterdir()
    with np.load(run / "evaluations.npz") as kept:
        return kept["timesteps"], kept["results"].mean(axis=1)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", default=30, type=int)
    args = parser.parse_args()
    with TemporaryDirectory() as name:
        disturbed, calm = Path(name) / "disturbed", Path(name) / "calm"
        for folder in (disturbed, calm):
            folder.mkdir()
        rows, n_starts = disturb(disturbed, args.kills)
        subprocess.run(COMMAND, cwd=calm, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
        evaluated, calm_evaluated = (evaluations(folder) for folder in (disturbed, calm))
        n_runs = len(list((disturbed / "logs" / "ppg").iterdir()))
        n_steps = PPG.load(disturbed / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip", device="cpu").num_timesteps
    rows.to_csv(RESULTS / "faults.csv", index=False)
    lost = (rows["steps"] - rows["resumed"]).clip(lower=0)
    (steps, returns), (calm_steps, calm_returns) = evaluated, calm_evaluated
    lines = [
        "# Kills",
        "",
        f"`python -m benchmarks.faults`: CartPole-v1, 1,000,000 steps in two processes, {len(rows)} times SIGKILL at random "
        f"moments, in turn to {', '.join(KINDS)}; a checkpoint every 4,096 steps. {processor()}.",
        "",
        f"- Lost at a kill: {lost.median():,.0f} steps in the median, {lost.max():,.0f} at most, by what was logged.",
        f"- The command was started {n_starts} times, and trained in {n_runs} folder.",
        f"- It ended after {n_steps:,} steps.",
        f"- It was evaluated {len(steps)} times, without kills {len(calm_steps)} times, "
        f"{'at the same steps' if np.array_equal(steps, calm_steps) else f'at other steps: {steps}, {calm_steps}'}; "
        f"last returns {returns[-1]:.0f} after {steps[-1]:,} steps, and {calm_returns[-1]:.0f} after {calm_steps[-1]:,}.",
    ]
    (RESULTS / "faults.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
