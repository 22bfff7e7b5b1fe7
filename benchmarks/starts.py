"""
Every entry of our hyperparameter files that is not tuned, started by RL Zoo and trained far enough to show that it works:
through whole phases, the largest of which are made smaller where the table says so.

A row has the mean returns of the first and the last fifth of the episodes that ended, which in so few steps need not differ,
and of the last auxiliary phase how far the policy moved and how well its auxiliary head explains the targets. A value that is
logged and not finite ends the run with an error.

    python -m benchmarks.starts run [--jobs 2] # those that starts.csv lacks
    python -m benchmarks.starts report

Writes results/starts.csv and starts.md.
"""

import argparse
import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the processes that are started

import numpy as np
import pandas as pd
import torch as th
import yaml
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import CSVOutputFormat, Logger

from benchmarks.machine import end_with_parent, processor
from benchmarks.suites.training import make
from sb3_ppg import PPG
from sb3_ppg.zoo import ALGOS
from sb3_ppg.zoo.hyperparameters import hyperparameter_file

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "starts.csv"
N_PHASES = 2
MAX_TIMESTEPS = 150_000  # of more phases than one
# Environments of the entries that are for many, of all algorithms or of one
EXAMPLES = {
    "ppg_mask/default": "InvalidActionsDiscrete-v0",
    "default": "FrozenLake-v1",
    "atari": "BreakoutNoFrameskip-v4",
    "minigrid": "MiniGrid-SimpleCrossingS9N1-v0",
    "minatar": "MinAtar/Freeway-v1",
    "procgen": "CoinrunEasy-v0",
    "procgen-paper": "StarpilotHard-v0",
    "procgen-npi16": "StarpilotHard-v0",
}
# On two cores a phase of 64 environments or more takes hours with images of 64 x 64
SMALLER = dict(n_envs=16, n_policy_iterations=2)


class StopAfter(BaseCallback):
    """
    Ends a training when whole iterations are over: in the first step of the next one.

    :param n_timesteps: of these iterations
    """

    def __init__(self, n_timesteps: int):
        super().__init__()
        self.n_timesteps = n_timesteps

    def _on_step(self) -> bool:
        return self.num_timesteps <= self.n_timesteps


class Start(NamedTuple):
    """
    What is started.

    :param algorithm: its name in RL Zoo
    :param entry: of its file
    :param settings: JSON of the entry, with its changes
    :param changes: JSON of what is smaller than the entry has it
    """

    algorithm: str
    entry: str
    settings: str
    changes: str

    @classmethod
    def of(cls, algorithm: str, entry: str, settings: dict[str, Any]) -> "Start":
        """
        :param settings: of the entry
        """
        large = entry.startswith("procgen") and settings["n_envs"] * settings["n_steps"] > 4096
        changes = {name: value for name, value in SMALLER.items() if large and settings.get(name, value) > value}
        return cls(algorithm, entry, json.dumps(settings | changes), json.dumps(changes))

    @property
    def env_id(self) -> str:
        return EXAMPLES.get(f"{self.algorithm}/{self.entry}", EXAMPLES.get(self.entry, self.entry))

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.settings.encode()).hexdigest()[:8]

    def run(self) -> dict[str, Any]:
        """
        :return: the row
        :raises FloatingPointError: if a logged value is not finite
        """
        th.set_num_threads(1)
        with TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
            model = make(self.algorithm, self.env_id, json.loads(self.settings), Path(folder))[1]
            assert isinstance(model, PPG)
            model._stats_window_size = 10**6  # all episodes are kept
            phase = model.n_steps * model.n_envs * model.n_policy_iterations
            n_phases = N_PHASES if N_PHASES * phase <= MAX_TIMESTEPS else 1
            model.set_logger(Logger(folder, [CSVOutputFormat(f"{folder}/progress.csv")]))
            start = time.process_time()
            # Of a longer training: schedules would have come to 0 at the end
            model.learn(2 * n_phases * phase, callback=StopAfter(n_phases * phase))
            seconds = time.process_time() - start
            return self._row(model, n_phases, n_phases * phase, seconds, pd.read_csv(f"{folder}/progress.csv"))

    def _row(self, model: PPG, n_phases: int, steps: int, seconds: float, progress: pd.DataFrame) -> dict[str, Any]:
        logged = progress.filter(regex="^(train|aux)/").ffill().iloc[-1]
        if not np.isfinite(logged.drop([name for name in logged.index if "explained" in name])).all():
            raise FloatingPointError(f"{self}: {logged.to_dict()}")
        has_phases = model.n_aux_epochs > 0  # DAAC's and IDAAC's have none
        assert (model.n_aux_phases > 0) == has_phases and model.ep_info_buffer is not None  # DNA's begin with the second
        returns = [episode["r"] for episode in model.ep_info_buffer]
        fifth = -(-len(returns) // 5)
        first, last = (float(np.mean(part)) if part else np.nan for part in (returns[:fifth], returns[-fifth:]))
        return dict(
            algorithm=self.algorithm,
            entry=self.entry,
            settings=self.hash,
            env_id=self.env_id,
            changes=self.changes,
            steps=steps,
            phases=n_phases,
            episodes=len(returns),
            first=round(first, 3),
            last=round(last, 3),
            aux_kl=f"{logged['aux/kl']:.1e}" if has_phases else "",
            aux_explained_variance=round(float(logged["aux/explained_variance"]), 3) if has_phases else "",
            seconds=round(seconds),
            machine=processor(),
        )


def starts() -> list[Start]:
    """Of every entry that is not tuned."""
    found = []
    for algorithm in ALGOS:
        entries = yaml.safe_load(hyperparameter_file(algorithm).read_text())
        tuned = tuned_entries(algorithm)
        found += [Start.of(algorithm, name, entry) for name, entry in entries.items() if name not in tuned]
    return found


def tuned_entries(algo: str) -> dict[str, str]:
    """
    :param algo: whose hyperparameter file
    :return: its entries below a comment that ends with "Tuned", and these comments
    """
    lines = hyperparameter_file(algo).read_text().splitlines()
    return {line.split(":")[0]: comment for comment, line in itertools.pairwise(lines) if comment.endswith("Tuned")}


def rows() -> pd.DataFrame:
    """One of each start, of present entries."""
    if not ROWS.exists():
        return pd.DataFrame(columns=["algorithm", "entry", "settings"])
    table = pd.read_csv(ROWS, keep_default_na=False)
    present = {(one.algorithm, one.entry, one.hash) for one in starts()}
    return table[[key in present for key in zip(table["algorithm"], table["entry"], table["settings"], strict=True)]]


def missing() -> list[Start]:
    """Those without a row."""
    table = rows()
    known = set(zip(table["algorithm"], table["entry"], table["settings"], strict=True))
    return [one for one in starts() if (one.algorithm, one.entry, one.hash) not in known]


def run(n_jobs: int) -> None:
    """
    :param n_jobs: how many at a time
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, mp_context=spawn, initializer=end_with_parent) as pool:
        for done in as_completed([pool.submit(one.run) for one in missing()]):
            row = done.result()
            print(row, flush=True)
            pd.DataFrame([row]).to_csv(ROWS, mode="a", index=False, header=not ROWS.exists())


def markdown() -> str:
    """The table."""
    table = rows()
    lines = [
        "# Entries that are not tuned, started",
        "",
        "`python -m benchmarks.starts run`, `report`: each by RL Zoo with seed 0 and one thread, in whole phases, which "
        "are the first half of its training. Returns are means of the first and the last fifth of the episodes; KL and "
        f"explained variance those of the last auxiliary phase. {' and '.join(table['machine'].unique())}.",
        "",
        "| algorithm | entry | environment | smaller | steps | phases | return (episodes) | KL | explained var. | steps/s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table.sort_values(["algorithm", "entry"]).itertuples():
        changes = ", ".join(f"{name}={value}" for name, value in json.loads(row.changes).items())
        returns = f"{row.first} to {row.last} ({row.episodes})" if row.episodes else "none ended"
        lines.append(
            f"| {row.algorithm} | {row.entry} | {row.env_id} | {changes} | {row.steps:,} | {row.phases} | {returns} | "
            f"{row.aux_kl} | {row.aux_explained_variance} | {row.steps / max(row.seconds, 1):,.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--jobs", default=1, type=int, help="at a time")
    args = parser.parse_args()
    if args.command == "run":
        run(args.jobs)
    text = markdown()
    (RESULTS / "starts.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
