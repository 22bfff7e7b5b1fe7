"""Runs, each of which leaves a row in a CSV file and its learning curve in another; those without a row are carried out."""

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from sb3_ppg.comparison.workers import Worker

Run = Any  # by default a dictionary: the columns that are known before it is carried out
Outcome = tuple[dict[str, Any], pd.DataFrame | None]  # the other columns; a learning curve with column "steps"
BAR = "{percentage:3.0f}%|{bar}| {elapsed}{postfix}"


def machine() -> str:
    """Return the processor's name and its number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


class Runs:
    """
    The rows and curves of runs, in ``NAME.csv`` and ``NAME_curves.csv``.

    :param example: one of the runs, whose columns and types all have
    :param identity: the columns that identify a run; empty: all
    :param columns: from a run: its columns that are known before it is carried out
    """

    def __init__(
        self, folder: Path, name: str, example: Run, identity: Sequence[str] = (), columns: Callable[[Run], dict] = dict
    ) -> None:
        self.folder, self.name, self.columns = folder, name, columns
        self.types = {column: type(value) for column, value in columns(example).items()}
        self.identity = list(identity or self.types)

    def rows(self, runs: Iterable[Run] | None = None) -> pd.DataFrame:
        """Return the rows of these runs, or of all that have been carried out."""
        table = self._read(f"{self.name}.csv")
        if runs is not None:
            wanted = {self._key(run) for run in runs}
            table = table[[key in wanted for key in self._keys(table)]]
        return table

    def curves(self) -> pd.DataFrame:
        """Return the points of all curves."""
        return self._read(f"{self.name}_curves.csv", "steps")

    def missing(self, runs: Iterable[Run]) -> list[Run]:
        """Return the runs without a row, each once."""
        known = set(self._keys(self.rows()))
        return [run for key, run in {self._key(one): one for one in runs}.items() if key not in known]

    def add(self, run: Run, row: Mapping[str, Any], curve: pd.DataFrame | None = None) -> None:
        """Write the row and the curve of a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if curve is not None:
            file, known = self.folder / f"{self.name}_curves.csv", self.curves()
            again = np.array([key == self._key(run) for key in self._keys(known)], bool)
            if again.any():
                known[~again].to_csv(file, index=False)  # a kill came between the curve and its row
            _append(file, curve.assign(**dict(zip(self.identity, self._key(run), strict=True))))
        _append(self.folder / f"{self.name}.csv", pd.DataFrame([{**self.columns(run), "machine": machine(), **row}]))

    def carry_out(
        self,
        runs: Iterable[Run],
        train: Callable[[Run, Path], Outcome],
        log: Path,
        n_jobs: int = 1,
        n_threads: int = 1,
        seconds: Callable[[Run], float] = lambda run: 1.0,
    ) -> None:
        """
        Carry out the runs that are missing, each in a process of its own; show when all will have ended.

        :param train: from a run and a temporary folder; may call ``tell``
        :param log: file for what runs print
        :param n_jobs: runs at a time
        :param n_threads: number of torch's threads in each
        :param seconds: estimate of a run's length, relative to those of the others
        """
        missing, lock = self.missing(runs), threading.Lock()
        log.parent.mkdir(parents=True, exist_ok=True)
        costs = {self._key(run): seconds(run) for run in missing}
        done, workers, start = dict.fromkeys(costs, 0.0), set[Worker](), time.time()

        def advance(run: Run, fraction: float) -> None:
            with lock:
                done[self._key(run)] = min(1.0, fraction) * costs[self._key(run)]
                part = sum(done.values()) / sum(costs.values())
                left = (time.time() - start) * (1 / part - 1) if part > 0 else 0.0
                bar.set_postfix_str(f"ends at {time.strftime('%H:%M:%S', time.localtime(time.time() + left))}", refresh=False)
                bar.update(part - bar.n)

        def carry_out(run: Run) -> None:
            with Worker(n_threads, log) as worker, TemporaryDirectory() as folder:
                workers.add(worker)
                row, curve = worker(train, run, Path(folder), on_progress=lambda fraction: advance(run, fraction))
            with lock:
                self.add(run, row, curve)
            advance(run, 1.0)
            bar.write(", ".join(f"{name} {value}" for name, value in {**self.columns(run), **row}.items()))

        # Without a terminal there is no bar, and only a line for each run
        with tqdm(total=1.0, bar_format=BAR, disable=None) as bar, ThreadPoolExecutor(n_jobs) as threads:
            futures = [threads.submit(carry_out, run) for run in missing]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for worker in workers:
                    worker.process.kill()
                raise

    def _key(self, run: Run) -> tuple[Any, ...]:
        columns = self.columns(run)
        return tuple(columns[name] for name in self.identity)

    def _keys(self, table: pd.DataFrame) -> list[tuple]:
        return list(table[self.identity].itertuples(index=False, name=None))

    def _read(self, name: str, *further: str) -> pd.DataFrame:
        file = self.folder / name
        return pd.read_csv(file, dtype=self.types) if file.exists() else pd.DataFrame(columns=[*self.types, *further])


def _append(file: Path, table: pd.DataFrame) -> None:
    """Add rows to a CSV file, in the order of its columns."""
    if file.exists():
        table = table[list(pd.read_csv(file, nrows=0).columns)]
    table.to_csv(file, mode="a", index=False, header=not file.exists())
