"""
One harness for all benchmarks: which runs there are, and the commands.

A benchmark is an ``Experiment``: the runs that it wants, how one is carried out, and what their rows say. Rows lie in
``results/<name>.csv``, learning curves in ``results/<name>_curves.csv``.

    python -m benchmarks.<name> [run] [--jobs 2]    # trains what has no row, one thread each, then writes the report
    python -m benchmarks.<name> list                # what has no row
    python -m benchmarks.<name> report              # tables and pictures from the rows

``run`` can be killed at any time and started again.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from sb3_ppg.comparison.runs import Outcome, Runs
from sb3_ppg.comparison.workers import Measure, take_turns

RESULTS = Path(__file__).parent / "results"
Report = Mapping[str, str | Figure]  # pages and pictures, by file name


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of all parameters."""
    return {name: parameter.default for name, parameter in signature(function).parameters.items()}


def measured(contestants: dict[str, tuple[Callable[..., Measure], tuple]], **options: Any) -> pd.DataFrame:
    """Return what all turns but the first measured; the options are those of ``take_turns``."""
    turns = take_turns(contestants, **options)
    return turns[turns["turn"] > 0].dropna(axis="columns", how="all")


@dataclass(frozen=True)
class Experiment:
    """
    A benchmark.

    :param name: name of its files
    :param wanted: returns all runs, the most informative first
    :param train: from a run and a temporary folder: its row and learning curve
    :param report: from the experiment: files to write in ``results``
    :param columns: from a run: the columns that are known before it is carried out
    :param identity: the columns that identify a row; empty: all of ``columns``
    :param commands: further commands, from the experiment and the runs that the options select
    :param results: folder of rows, tables and pictures
    """

    name: str
    wanted: Callable[[], Iterable[Any]]
    train: Callable[[Any, Path], Outcome]
    report: Callable[["Experiment"], Report]
    columns: Callable[[Any], dict[str, Any]] = dict
    identity: tuple[str, ...] = ()
    commands: Mapping[str, Callable[["Experiment", Sequence[Any]], None]] = field(default_factory=dict)
    results: Path = RESULTS

    @property
    def runs(self) -> Runs:
        """The rows that there are."""
        return Runs(self.results, self.name, next(iter(self.wanted())), self.identity, self.columns)

    def rows(self, present: bool = True) -> pd.DataFrame:
        """
        Return the rows of this experiment.

        :param present: only rows of runs that are wanted now, with their present settings
        """
        return self.runs.rows(self.wanted() if present else None)

    def curves(self) -> pd.DataFrame:
        """Return the points of all curves."""
        return self.runs.curves()

    def write(self) -> str:
        """Write the report's files and return its texts."""
        report = self.report(self)
        for name, content in report.items():
            if isinstance(content, Figure):
                content.savefig(self.results / name)
            else:
                (self.results / name).write_text(content)
        return "\n".join(str(content) for name, content in report.items() if name.endswith(".md"))

    def main(self) -> None:
        """Run the command line of the module that is executed."""
        parser = argparse.ArgumentParser(
            description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("command", nargs="?", default="run", choices=["run", "list", "report", *self.commands])
        parser.add_argument("--jobs", default=1, type=int, help="runs at a time")
        filters = list(self.runs.types)
        for name in filters:
            parser.add_argument(f"--{name}", nargs="*", help="only these")
        parser.add_argument("--only", nargs="*", help="only runs with one of these values in a column")
        args = parser.parse_args()
        runs = list(self.wanted())
        for name in filters:
            if (values := getattr(args, name)) is not None:
                runs = [run for run in runs if str(self.columns(run)[name]) in values]
        if args.only is not None:
            runs = [run for run in runs if {*map(str, self.columns(run).values())} & {*args.only}]
        if args.command in self.commands:
            self.commands[args.command](self, runs)
        elif args.command == "list":
            print(*(list(self.columns(run).values()) for run in self.runs.missing(runs)), sep="\n")
        else:
            if args.command == "run":
                self.runs.carry_out(runs, self.train, Path("logs/benchmarks", f"{self.name}.txt"), args.jobs)
            print(self.write())
