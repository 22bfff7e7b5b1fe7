"""
One harness for all benchmarks: which runs there are, the rows they leave, and the commands.

A benchmark is an ``Experiment``: the runs that it wants, how one is carried out, and what their rows say. Rows lie in
``results/<name>.csv``, learning curves in ``results/<name>_curves.csv``.

    python -m benchmarks.<name> [run] [--jobs 2]    # trains what has no row, one thread each, then writes the report
    python -m benchmarks.<name> list                # what has no row
    python -m benchmarks.<name> report              # tables and pictures from the rows

``run`` can be killed at any time and started again, also several times side by side.
"""

import argparse
import fcntl
import hashlib
import multiprocessing
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
Report = Mapping[str, str | Figure]  # pages and pictures, by file name
Outcome = tuple[dict[str, Any], pd.DataFrame | None]  # a row; a learning curve with column "steps"


def processor() -> str:
    """Return the processor's name and its number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def short_hash(text: str) -> str:
    """Return eight hexadecimal digits that change with the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of all parameters."""
    return {name: parameter.default for name, parameter in signature(function).parameters.items()}


@contextmanager
def locked(file: Path, wait: bool = True) -> Iterator[None]:
    """
    Hold a file that one process at a time can hold.

    :param wait: until the process that holds it lets it go
    :raises BlockingIOError: if another process holds it and this one does not wait
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, even by SIGKILL: a queue that is killed leaves no run behind."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def pool(n_processes: int) -> ProcessPoolExecutor:
    """Return a pool that runs each task in a new process with one thread, and ends with this process."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read when the new process imports torch
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(n_processes, mp_context=spawn, initializer=end_with_parent, max_tasks_per_child=1)


@dataclass(frozen=True)
class Experiment:
    """
    A benchmark.

    :param name: name of its files
    :param wanted: returns all runs, the most informative first
    :param train: from a run and a folder of its own, where an interrupted run may have left files: its row and learning curve
    :param report: from the experiment: files to write in ``results``
    :param columns: from a run: the columns that are known before it is carried out
    :param identity: the columns that identify a row; empty: all of ``columns``
    :param settings: from a run: its settings, to be kept in ``results/<name>_settings.yml`` by the column "settings"
    :param commands: further commands, from the experiment and the runs that the options select
    :param results: folder of rows, tables and pictures
    :param folder: parent of all runs' folders
    """

    name: str
    wanted: Callable[[], Iterable[Any]]
    train: Callable[[Any, Path], Outcome]
    report: Callable[["Experiment"], Report]
    columns: Callable[[Any], dict[str, Any]] = dict
    identity: tuple[str, ...] = ()
    settings: Callable[[Any], dict[str, Any]] | None = None
    commands: Mapping[str, Callable[["Experiment", Sequence[Any]], None]] = field(default_factory=dict)
    results: Path = RESULTS
    folder: Path = Path("logs/benchmarks")

    def key(self, run: Any) -> tuple[Any, ...]:
        """Return the values that identify the run's row."""
        columns = self.columns(run)
        return tuple(columns[name] for name in self.identity or columns)

    def rows(self, present: bool = True) -> pd.DataFrame:
        """
        Return the rows of this experiment.

        :param present: only rows of runs that are wanted now, with their present settings
        """
        table = self._read(f"{self.name}.csv")
        if present:
            wanted = {self.key(run) for run in self.wanted()}
            table = table[[key in wanted for key in self._keys(table)]]
        return table

    def curves(self) -> pd.DataFrame:
        """Return the points of all curves."""
        return self._read(f"{self.name}_curves.csv", "steps")

    def missing(self, runs: Iterable[Any]) -> list[Any]:
        """Return the runs without a row, each once."""
        known = set(self._keys(self.rows(present=False)))
        return [run for key, run in {self.key(one): one for one in runs}.items() if key not in known]

    def add(self, run: Any, outcome: Outcome) -> None:
        """Write the row and the curve of a run; several processes may."""
        columns, (row, curve) = self.columns(run), outcome
        with locked(self.results / f".{self.name}.lock"):
            if curve is not None:
                file, known = self.results / f"{self.name}_curves.csv", self.curves()
                again = np.array([key == self.key(run) for key in self._keys(known)], bool)
                if again.any():
                    known[~again].to_csv(file, index=False)  # a kill came between the curve and its row
                _append(file, curve.assign(**{name: columns[name] for name in self.identity or columns}))
            _append(self.results / f"{self.name}.csv", pd.DataFrame([{**columns, "machine": processor(), **row}]))
            if self.settings is not None:
                file = self.results / f"{self.name}_settings.yml"
                known = yaml.safe_load(file.read_text()) if file.exists() else {}
                file.write_text(yaml.safe_dump(known | {columns["settings"]: self.settings(run)}))
        print(*columns.values(), row, flush=True)

    def run_one(self, run: Any) -> None:
        """Carry out a run, unless it has a row or another process does. Files that it leaves in its folder stay."""
        folder = self.folder / self.name / hashlib.sha256(repr(self.key(run)).encode()).hexdigest()[:16]
        try:
            with locked(folder.with_suffix(".lock"), wait=False):
                if self.missing([run]):
                    folder.mkdir(exist_ok=True)
                    self.add(run, self.train(run, folder))
                    for part in folder.iterdir():
                        if part.is_dir():
                            shutil.rmtree(part)
        except BlockingIOError:
            pass

    def write(self) -> str:
        """Write the report's files and return its texts."""
        texts = []
        for name, content in self.report(self).items():
            if isinstance(content, Figure):
                content.savefig(self.results / name)
            else:
                (self.results / name).write_text(content)
                texts.append(content)
        return "\n".join(texts)

    def main(self) -> None:
        """Run the command line of the module that is executed."""
        parser = argparse.ArgumentParser(
            description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("command", nargs="?", default="run", choices=["run", "list", "report", *self.commands])
        parser.add_argument("--jobs", default=1, type=int, help="runs at a time")
        filters = list(self._example())
        for name in filters:
            parser.add_argument(f"--{name}", nargs="*", help="only these")
        args = parser.parse_args()
        runs = list(self.wanted())
        for name in filters:
            if (values := getattr(args, name)) is not None:
                runs = [run for run in runs if str(self.columns(run)[name]) in values]
        if args.command in self.commands:
            self.commands[args.command](self, runs)
        elif args.command == "list":
            print(*(list(self.columns(run).values()) for run in self.missing(runs)), sep="\n")
        else:
            if args.command == "run":
                missing = self.missing(runs)
                print(f"{len(runs)} runs, {len(missing)} to carry out", flush=True)
                with pool(args.jobs) as processes:
                    for done in as_completed([processes.submit(self.run_one, run) for run in missing]):
                        done.result()
            print(self.write())

    def _example(self) -> dict[str, Any]:
        return self.columns(next(iter(self.wanted())))

    def _keys(self, table: pd.DataFrame) -> list[tuple]:
        return list(table[list(self.identity or self._example())].itertuples(index=False, name=None))

    def _read(self, name: str, *further: str) -> pd.DataFrame:
        example, file = self._example(), self.results / name
        types = {name: type(value) for name, value in example.items()}
        return pd.read_csv(file, dtype=types) if file.exists() else pd.DataFrame(columns=[*example, *further])


def _append(file: Path, table: pd.DataFrame) -> None:
    """Add rows to a CSV file, in the order of its columns."""
    if file.exists():
        table = table[list(pd.read_csv(file, nrows=0).columns)]
    table.to_csv(file, mode="a", index=False, header=not file.exists())
