"""
One harness for all benchmarks: which trainings there are, the rows they leave, and the commands.

A benchmark is an ``Experiment``: the trainings that it wants, how one is run, and what their rows say. Rows lie in
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
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th
import yaml
from matplotlib.figure import Figure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from benchmarks.machine import processor

RESULTS = Path(__file__).parent / "results"
Report = str | Mapping[str, str | Figure]  # the page, or pages and pictures by file name
Outcome = tuple[Any, pd.DataFrame | None]  # a row (a dictionary) or several (a table); a learning curve with column "steps"


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
    """
    End this process as soon as its parent has ended, even by SIGKILL: a queue that is killed leaves no training behind.
    """

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


def in_processes(n_processes: int, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns in the first of several processes, which are started as ``torchrun`` starts them."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=n_processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=function.__name__,
    )
    return elastic_launch(config, function)(*args)[0]


@dataclass(frozen=True)
class Experiment:
    """
    A benchmark.

    :param name: of its files
    :param wanted: all trainings, the most informative first; called with the values of ``options``
    :param train: from a training and a folder of its own: its row or rows, and its learning curve
    :param report: from the experiment: files to write in ``results``
    :param columns: from a training: the columns that are known before it is run
    :param identity: the columns that identify a row; empty: all of ``columns``
    :param settings: from a training: its settings, to be kept in ``results/<name>_settings.yml`` by the column "settings"
    :param options: further command line options, with the arguments of ``add_argument``
    :param commands: further commands, from the experiment and the trainings that the options select
    :param resumes: whether ``train`` continues from what an interrupted training left in its folder
    :param results: folder of rows, tables and pictures
    :param folder: of all trainings' folders
    """

    name: str
    wanted: Callable[..., Iterable[Any]]
    train: Callable[[Any, Path], Outcome]
    report: Callable[["Experiment"], Report]
    columns: Callable[[Any], dict[str, Any]] = dict
    identity: tuple[str, ...] = ()
    settings: Callable[[Any], dict[str, Any]] | None = None
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    commands: Mapping[str, Callable[["Experiment", Sequence[Any]], None]] = field(default_factory=dict)
    resumes: bool = False
    results: Path = RESULTS
    folder: Path = Path("logs/benchmarks")

    def key(self, training: Any) -> tuple[Any, ...]:
        """Return the values that identify the training's row."""
        columns = self.columns(training)
        return tuple(columns[name] for name in self.identity or columns)

    def rows(self, present: bool = True) -> pd.DataFrame:
        """
        :param present: only rows of trainings that are wanted now, with their present settings
        """
        table = self._read(f"{self.name}.csv")
        if present:
            wanted = {self.key(training) for training in self.wanted()}
            table = table[[key in wanted for key in self._keys(table)] if len(table) else slice(0)]
        return table

    def curves(self) -> pd.DataFrame:
        """Return the points of all curves."""
        return self._read(f"{self.name}_curves.csv", ["steps"])

    def missing(self, trainings: Sequence[Any]) -> list[Any]:
        """Return the trainings without a row, each once."""
        known = set(self._keys(self.rows(present=False)))
        return [training for key, training in {self.key(one): one for one in trainings}.items() if key not in known]

    def add(self, training: Any, outcome: Outcome) -> None:
        """Write the rows and the curve of a training; several processes may."""
        columns, (rows, curve) = self.columns(training), outcome
        table = pd.DataFrame([rows]) if isinstance(rows, dict) else rows
        table = table.assign(machine=table.get("machine", processor()))
        with locked(self.results / f".{self.name}.lock"):
            if curve is not None:
                file, known = self.results / f"{self.name}_curves.csv", self.curves()
                if (again := np.array([key == self.key(training) for key in self._keys(known)], bool)).any():
                    known[~again].to_csv(file, index=False)  # a kill came between the curve and its row
                _append(file, curve, dict(zip(self._identity(), self.key(training), strict=True)))
            _append(self.results / f"{self.name}.csv", table, columns)
            if self.settings is not None:
                file = self.results / f"{self.name}_settings.yml"
                known = yaml.safe_load(file.read_text()) if file.exists() else {}
                file.write_text(yaml.safe_dump(known | {columns["settings"]: self.settings(training)}))
        print(*columns.values(), table.drop(columns="machine").tail(1).to_dict("records")[0], flush=True)

    def run_one(self, training: Any) -> None:
        """Run a training, unless it has a row or another process runs it. Files that it leaves in its folder stay."""
        th.set_num_threads(1)
        folder = self.folder / self.name / hashlib.sha256(repr(self.key(training)).encode()).hexdigest()[:16]
        try:
            with locked(folder.with_suffix(".lock"), wait=False):
                if self.missing([training]):
                    if not self.resumes:
                        shutil.rmtree(folder, ignore_errors=True)
                    folder.mkdir(exist_ok=True)
                    self.add(training, self.train(training, folder))
                    for part in folder.iterdir():
                        if part.is_dir():
                            shutil.rmtree(part)
        except BlockingIOError:
            pass

    def run(self, trainings: Sequence[Any], n_jobs: int) -> None:
        """
        Run trainings that have no row, each in a process of its own.

        :param trainings: in the order in which they are wanted
        :param n_jobs: at a time
        """
        missing = self.missing(trainings)
        print(f"{len(trainings)} trainings, {len(missing)} to run", flush=True)
        with pool(n_jobs) as processes:
            for done in as_completed([processes.submit(self.run_one, training) for training in missing]):
                done.result()

    def write(self) -> str:
        """Write the report's files and return its texts."""
        self.results.mkdir(parents=True, exist_ok=True)
        report = self.report(self)
        files = {f"{self.name}.md": report} if isinstance(report, str) else report
        for name, content in files.items():
            if isinstance(content, Figure):
                content.savefig(self.results / name)
            else:
                (self.results / name).write_text(content)
        return "\n".join(content for content in files.values() if isinstance(content, str))

    def main(self) -> None:
        """Run the command line of the module that is executed."""
        filters = [name for name in self._example() if name not in self.options]
        parser = argparse.ArgumentParser(
            description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("command", nargs="?", default="run", choices=["run", "list", "report", *self.commands])
        parser.add_argument("--jobs", default=1, type=int, help="trainings at a time")
        parser.add_argument("--results", default=self.results, type=Path, help="folder of rows, tables and pictures")
        parser.add_argument("--folder", default=self.folder, type=Path, help="folder for unfinished trainings")
        for name in filters:
            parser.add_argument(f"--{name}", nargs="*", help="only these")
        for name, option in self.options.items():
            parser.add_argument(f"--{name}", **option)
        args = parser.parse_args()
        experiment = replace(self, results=args.results, folder=args.folder)
        if args.command == "report":
            print(experiment.write())
            return
        trainings = list(experiment.wanted(**{name: getattr(args, name) for name in self.options}))
        for name in filters:
            if (values := getattr(args, name)) is not None:
                trainings = [one for one in trainings if str(self.columns(one)[name]) in values]
        if args.command == "list":
            print(*(list(self.columns(one).values()) for one in experiment.missing(trainings)), sep="\n")
        elif args.command == "run":
            experiment.run(trainings, args.jobs)
            print(experiment.write())
        else:
            self.commands[args.command](experiment, trainings)

    def _example(self) -> dict[str, Any]:
        return self.columns(next(iter(self.wanted())))

    def _identity(self) -> list[str]:
        return list(self.identity or self._example())

    def _keys(self, table: pd.DataFrame) -> list[tuple]:
        return list(table[self._identity()].itertuples(index=False, name=None))

    def _read(self, name: str, further: Sequence[str] = ()) -> pd.DataFrame:
        example = self._example()
        file = self.results / name
        types = {name: type(value) for name, value in example.items()}
        return pd.read_csv(file, dtype=types) if file.exists() else pd.DataFrame(columns=[*example, *further])


def _append(file: Path, table: pd.DataFrame, columns: dict[str, Any]) -> None:
    """Add rows to a CSV file, in the order of its columns."""
    whole = pd.concat([pd.DataFrame([columns] * len(table)), table.reset_index(drop=True)], axis=1)
    if file.exists():
        whole = whole[list(pd.read_csv(file, nrows=0).columns)]
    whole.to_csv(file, mode="a", index=False, header=not file.exists())
