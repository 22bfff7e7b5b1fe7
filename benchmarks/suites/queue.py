"""Which trainings come next, and the rows that they leave."""

import fcntl
import multiprocessing
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import yaml

from benchmarks.machine import end_with_parent
from benchmarks.suites.contestants import CONTESTANTS, LEADING, TASKS, Training, contestants_on
from benchmarks.suites.training import Outcome, train

RESULTS = Path(__file__).parents[1] / "results"


class Results(NamedTuple):
    """
    The rows of all trainings, their learning curves and their settings. Several processes may add to them.

    :param folder: where they are
    """

    folder: Path = RESULTS

    def rows(self) -> pd.DataFrame:
        """One of each training."""
        return self._read("suites.csv")

    def curves(self) -> pd.DataFrame:
        """About fifty points of each training, whose row a kill may have kept from being written: it was run again then."""
        return self._read("suites_curves.csv").drop_duplicates(["settings", "seed", "steps"], keep="last")

    def speed(self) -> pd.DataFrame:
        """Seconds per million steps, in turns on one machine, of those tasks where this was measured."""
        return self._read("suites_speed.csv", ["task", "contestant", "seconds", "machine"])

    def add_speed(self, table: pd.DataFrame) -> None:
        """
        :param table: of some tasks, in place of what is known of them
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        known = self.speed()
        others = known[~known["task"].isin(table["task"])]
        pd.concat([others, table] if len(others) else [table]).to_csv(self.folder / "suites_speed.csv", index=False)

    def _read(self, name: str, columns: Sequence[str] = ("suite", "steps", "settings", "seed")) -> pd.DataFrame:
        file = self.folder / name
        return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=list(columns))

    def has(self, training: Training) -> bool:
        """Whether it was run with these settings, by whatever name."""
        rows = self.rows()
        return bool(((rows["settings"] == training.hash()) & (rows["seed"] == training.seed)).any())

    def add(self, training: Training, outcome: Outcome) -> None:
        """
        :param training: that is over
        :param outcome: what it left
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / ".suites.lock"):
            tables = {"suites_curves.csv": outcome.curve, "suites.csv": pd.DataFrame([outcome.row])}
            for name, table in tables.items():
                file = self.folder / name
                table.to_csv(file, mode="a", index=False, header=not file.exists())
            file = self.folder / "suites_settings.yml"
            known = yaml.safe_load(file.read_text()) if file.exists() else {}
            file.write_text(yaml.safe_dump(known | {training.hash(): training.settings()}))


@contextmanager
def locked(file: Path, wait: bool = True) -> Iterator[None]:
    """
    :param file: that one process at a time holds
    :param wait: for the one that holds it
    :raises BlockingIOError: if another does, and this one does not wait
    """
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def trainings(
    suites: Iterable[str] = (),
    tasks: Iterable[str] = (),
    contestants: Iterable[str] = (),
    seeds: Iterable[int] = (),
    n_timesteps: int | None = None,
) -> list[Training]:
    """
    Those of the tables, or of a part of them: presets before ablations, the first seeds first.

    :param suites: only these
    :param tasks: only these, by the names of their environments
    :param contestants: only these, in this order
    :param seeds: only these
    :param n_timesteps: in place of the tasks'
    """
    suites, tasks, names, seeds = list(suites), list(tasks), list(contestants), list(seeds)
    chosen = [
        Training(task, name, seed, n_timesteps or task.n_timesteps)
        for name in names or CONTESTANTS
        for task in TASKS
        for seed in seeds or range(task.n_seeds)
        if (not suites or task.suite in suites) and (not tasks or task.env_id in tasks) and name in contestants_on(task)
    ]
    return sorted(chosen, key=lambda training: (training.contestant not in LEADING and not names, training.seed))


def run_one(training: Training, results: Results, folder: Path) -> dict | None:
    """
    :param training: to run, unless its row is there or another process runs it
    :param results: to add to
    :param folder: of all trainings: what is needed to go on is removed at the end, episodes and logs stay
    :return: its row
    """
    folder = folder / f"{training.hash()}_{training.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / "lock", wait=False):
            if results.has(training):
                return None
            outcome = train(training, folder)
            results.add(training, outcome)
            for name in ("checkpoints", "zoo"):
                shutil.rmtree(folder / name, ignore_errors=True)
            return outcome.row
    except BlockingIOError:
        return None


def run(chosen: list[Training], results: Results, folder: Path, n_jobs: int) -> None:
    """
    Train what is missing, each in a process of its own.

    :param chosen: in the order in which they are wanted
    :param results: to add to
    :param folder: for what is needed to go on after an interruption
    :param n_jobs: how many at a time
    """
    missing = [training for training in chosen if not results.has(training)]
    print(f"{len(chosen)} trainings, {len(missing)} to run", flush=True)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_jobs, mp_context=spawn, initializer=end_with_parent, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(run_one, training, results, folder) for training in missing]):
            if (row := done.result()) is not None:
                print(row, flush=True)
