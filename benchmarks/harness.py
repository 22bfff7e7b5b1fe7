"""
One harness for all benchmarks: which runs there are, and the commands.

A benchmark is an ``Experiment``: the runs that it wants, how one is carried out, and what their rows say. Most are runs of
``sb3-ppg train``, see ``trained``. Rows lie in ``results/<name>.csv``, learning curves in ``results/<name>_curves.csv``.

    python -m benchmarks.<name> [run] [--jobs 2]    # trains what has no row, one thread each, then writes the report
    python -m benchmarks.<name> list                # what has no row
    python -m benchmarks.<name> report              # tables and pictures from the rows

``run`` can be killed at any time and started again.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from matplotlib.figure import Figure
from tqdm import tqdm

from sb3_ppg.comparison.runs import Run, machine, short_hash

RESULTS = Path(__file__).parent / "results"
LOGS = Path("logs/benchmarks")
Outcome = tuple[dict[str, Any], pd.DataFrame | None]  # columns of a row; a learning curve with column "steps"
Report = Mapping[str, str | Figure]  # pages and pictures, by file name


def commit() -> str:
    """Return the commit of the package, with a "+" if its files differ from it."""
    options: dict[str, Any] = dict(cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=True)
    changed = subprocess.run(["git", "status", "--porcelain", "sb3_ppg"], **options).stdout.strip()
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], **options).stdout.strip() + ("+" if changed else "")


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of all parameters."""
    return {name: parameter.default for name, parameter in signature(function).parameters.items()}


# ---- ways to carry out a run ----


def trained(
    folder: Path,
    algorithm: str,
    env_id: str,
    settings: Mapping[str, Any],
    seed: int,
    n_timesteps: int,
    *options: str,
    **how: Any,
) -> Run:
    """
    Carry out a run of ``sb3-ppg train``, unless it has been finished. Its seconds are those of the processor.

    :param settings: hyperparameters, in the form of RL Zoo's files
    :param options: further options, which replace those that are the same
    :param how: further arguments of ``Run``
    """
    config = folder / "settings.yml"
    config.write_text(yaml.safe_dump({env_id: {"n_timesteps": n_timesteps, **settings}}))
    words = ["--algo", algorithm, "--env", env_id, "-conf", str(config), "-n", str(n_timesteps), "--seed", str(seed)]
    run = Run(folder / "run", [*words, "--device", "cpu", "--eval-freq", "-1", *options], n_timesteps, **how)
    if not run.is_finished:
        run.finish(run.start().wait())
    return run


def take_turns(contestants: Mapping[str, tuple]) -> pd.DataFrame:
    """
    Measure contestants alternately, each in its own process, so that what the machine does meanwhile falls on all of them.

    :param contestants: by name, a function that makes a measurement, and its arguments
    :return: a row for each of five turns and each contestant, with what it measured; turn 0, before them, is for warming up
    """
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        processes = {name: stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"))) for name in contestants}
        for turn in range(6):
            for name, process in processes.items():
                rows.append({"contestant": name, "turn": turn, **process.submit(_measure, *contestants[name]).result()})
                print(rows[-1], flush=True)
    return pd.DataFrame([row for row in rows if row["turn"] > 0])


_prepared: list[Callable[[], dict[str, float]]] = []  # the measurement of the contestant whose process this is


def _measure(make: Callable[..., Any], *arguments: Any) -> dict[str, float]:
    if not _prepared:
        _prepared.append(make(*arguments))
    return _prepared[0]()


# ---- experiments ----


@dataclass(frozen=True)
class Experiment:
    """
    A benchmark.

    :param name: name of its files
    :param wanted: returns all runs, the most informative first
    :param train: from a run and its folder: its row and learning curve
    :param report: from the experiment: files to write in ``results``
    :param columns: from a run: the columns that are known before it is carried out
    :param identity: the columns that identify a row; empty: all of ``columns``
    """

    name: str
    wanted: Callable[[], Iterable[Any]]
    train: Callable[[Any, Path], Outcome]
    report: Callable[["Experiment"], Report]
    columns: Callable[[Any], dict[str, Any]] = dict
    identity: tuple[str, ...] = ()

    @property
    def types(self) -> dict[str, type]:
        """Return the columns that are known before a run is carried out, with their types."""
        return {column: type(value) for column, value in self.columns(next(iter(self.wanted()))).items()}

    def rows(self, present: bool = True) -> pd.DataFrame:
        """
        Return the rows of this experiment.

        :param present: only rows of runs that are wanted now, with their present settings
        """
        table = self._read(f"{self.name}.csv")
        if present:
            wanted = {self._key(run) for run in self.wanted()}
            table = table[[key in wanted for key in self._keys(table)]]
        return table

    def curves(self) -> pd.DataFrame:
        """Return the points of all curves, the latest of a run that was killed between its curve and its row."""
        return self._read(f"{self.name}_curves.csv", "steps").drop_duplicates([*self._identity, "steps"], keep="last")

    def missing(self, runs: Iterable[Any]) -> list[Any]:
        """Return the runs without a row, each once."""
        known = set(self._keys(self.rows(present=False)))
        return [run for key, run in {self._key(run): run for run in runs}.items() if key not in known]

    def add(self, run: Any, row: Mapping[str, Any], curve: pd.DataFrame | None = None) -> None:
        """Write the row and the curve of a run."""
        if curve is not None:
            identity = dict(zip(self._identity, self._key(run), strict=True))
            _append(RESULTS / f"{self.name}_curves.csv", curve.assign(**identity))
        columns = {**self.columns(run), "machine": machine(), **row, "commit": commit()}
        _append(RESULTS / f"{self.name}.csv", pd.DataFrame([columns]))

    def carry_out(self, runs: Iterable[Any], n_jobs: int = 1) -> None:
        """Carry out the runs that are missing. The first that fails ends the others."""
        pairs = [(run, LOGS / self.name / short_hash(self._key(run))) for run in self.missing(runs)]
        for _, folder in pairs:
            folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(n_jobs) as threads:
            futures = {threads.submit(self.train, *pair): pair for pair in pairs}
            try:
                for future in tqdm(as_completed(futures), total=len(futures), disable=None):
                    (run, folder), (row, curve) = futures[future], future.result()
                    self.add(run, row, curve)
                    shutil.rmtree(folder)
                    tqdm.write(", ".join(f"{name} {value}" for name, value in {**self.columns(run), **row}.items()))
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)  # with which the other runs end

    def write(self) -> str:
        """Write the report's files and return its texts."""
        report = self.report(self)
        for name, content in report.items():
            if isinstance(content, Figure):
                content.savefig(RESULTS / name)
            else:
                (RESULTS / name).write_text(content)
        return "\n".join(str(content) for name, content in report.items() if name.endswith(".md"))

    def main(self) -> None:
        """Run the command line of the module that is executed."""
        os.environ["OMP_NUM_THREADS"] = "1"  # for the processes
        about, form = sys.modules["__main__"].__doc__, argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=about, formatter_class=form)
        parser.add_argument("command", nargs="?", default="run", choices=["run", "list", "report"])
        parser.add_argument("--jobs", default=1, type=int, help="runs at a time")
        for name in self.types:
            parser.add_argument(f"--{name}", nargs="*", help="only these")
        args = parser.parse_args()
        runs = list(self.wanted())
        for name in self.types:
            if (values := getattr(args, name)) is not None:
                runs = [run for run in runs if str(self.columns(run)[name]) in values]
        if args.command == "list":
            print(*(list(self.columns(run).values()) for run in self.missing(runs)), sep="\n")
        else:
            if args.command == "run":
                self.carry_out(runs, args.jobs)
            print(self.write())

    @property
    def _identity(self) -> list[str]:
        return list(self.identity or self.types)

    def _key(self, run: Any) -> tuple[Any, ...]:
        columns = self.columns(run)
        return tuple(columns[name] for name in self._identity)

    def _keys(self, table: pd.DataFrame) -> list[tuple]:
        return list(table[self._identity].itertuples(index=False, name=None))

    def _read(self, name: str, *further: str) -> pd.DataFrame:
        file = RESULTS / name
        return pd.read_csv(file, dtype=self.types) if file.exists() else pd.DataFrame(columns=[*self.types, *further])


def _append(file: Path, table: pd.DataFrame) -> None:
    """Add rows to a CSV file, in the order of its columns; a column that it lacks is added, with empty cells."""
    if file.exists():
        known = pd.read_csv(file, nrows=0).columns
        columns = known.append(table.columns.difference(known, sort=False))
        if len(columns) > len(known):
            pd.read_csv(file, dtype=str, keep_default_na=False).reindex(columns=columns).to_csv(file, index=False)
        table = table.reindex(columns=columns)
    table.to_csv(file, mode="a", index=False, header=not file.exists())


# ---- reports ----


def machines(rows: pd.DataFrame) -> str:
    """Return a sentence that names the machines of the rows."""
    return f"{' and '.join(rows['machine'].unique())}."
