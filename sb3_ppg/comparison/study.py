"""A comparison from beginning to end: speed, trainings, report."""

import hashlib
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd

from sb3_ppg.arguments import check_value, count
from sb3_ppg.comparison.report import Comparison
from sb3_ppg.comparison.runs import Outcome, Run, Runs
from sb3_ppg.comparison.training import Contestant, Make, speed, train
from sb3_ppg.comparison.workers import Measure, take_turns
from sb3_ppg.errors import ArgumentError

N_TURNS = 3  # in addition to the first one
SHORTEST_TURN = 1.0  # second


def short_hash(text: str) -> str:
    """Return eight hexadecimal digits that change with the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class Budget(NamedTuple):
    """The arguments of ``compare`` with these names."""

    n_timesteps: int | None
    seconds: float | None
    n_seeds: int
    n_eval_episodes: int
    n_jobs: int
    n_threads: int


class Study:
    """
    A comparison whose files are in a folder.

    :param title: name of the environment
    """

    def __init__(self, title: str, contestants: Mapping[str, Contestant], budget: Budget, folder: Path) -> None:
        if len(contestants) < 2:
            raise ArgumentError(f"a comparison needs two contestants, and there are {len(contestants)}: {list(contestants)}")
        if (budget.n_timesteps is None) == (budget.seconds is None):
            raise ArgumentError("a training needs a length: steps or seconds, and not both")
        for name in ("n_timesteps", "n_seeds", "n_jobs", "n_threads"):
            if (value := getattr(budget, name)) is not None:
                check_value(name, value, count(1))
        self.title, self.contestants, self.budget, self.folder = title, contestants, budget, folder
        limit = f"{budget.seconds:g} seconds" if budget.n_timesteps is None else f"{budget.n_timesteps} steps"
        self.keys = {
            name: dict(contestant=name, limit=limit, settings=short_hash(json.dumps(one.settings, sort_keys=True)))
            for name, one in contestants.items()
        }
        self.wanted = [{**key, "seed": seed} for seed in range(budget.n_seeds) for key in self.keys.values()]
        self.runs = Runs(folder, "compare", self.wanted[0])
        self.speeds = Runs(folder, "compare_speed", {**self.keys[next(iter(self.keys))], "n_threads": 1})

    def compare(self, target: float | None = None) -> Comparison:
        """Measure, train what is missing, and write the report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        measured = self.speed()
        lengths = {name: self.length(measured.loc[name]) for name in self.contestants}

        def seconds(run: Run) -> float:
            return (
                measured.loc[run["contestant"], "compiling"]
                + lengths[run["contestant"]] * measured.loc[run["contestant"], "seconds"] / 1e6
            )

        n_missing = len(self.runs.missing(self.wanted))
        print(f"{len(self.wanted)} trainings, {n_missing} to carry out", flush=True)
        makers = {name: one.make for name, one in self.contestants.items()}
        work = partial(_train, makers, lengths, self.budget.n_eval_episodes)
        self.runs.carry_out(self.wanted, work, self.folder / "log.txt", self.budget.n_jobs, self.budget.n_threads, seconds)
        found = self.result(target)
        found.picture().savefig(self.folder / "compare.png")
        (self.folder / "compare.md").write_text(found.page())
        print(f"{found.verdict()}\nSaved {self.folder / 'compare.png'}, compare.md and compare.csv")
        return found

    def result(self, target: float | None = None) -> Comparison:
        """Return what has been measured."""
        curves = self.runs.curves().merge(pd.DataFrame(self.wanted))
        settings = {name: one.settings for name, one in self.contestants.items()}
        return Comparison(self.title, self.runs.rows(self.wanted), curves, self.speed(), settings, target)

    def length(self, measured: "pd.Series[float]") -> int:
        """Return the number of steps of a training, given the contestant's speed."""
        if self.budget.n_timesteps is not None:
            return self.budget.n_timesteps
        assert self.budget.seconds is not None
        n_timesteps = int((self.budget.seconds - measured["compiling"]) / measured["seconds"] * 1e6)
        if n_timesteps < 1:
            raise ArgumentError(
                f"{self.budget.seconds:g} seconds are too few: {measured['compiling']:.0f} pass with compiling"
            )
        return n_timesteps

    def speed(self) -> pd.DataFrame:
        """Return the speed of each contestant, which is measured unless it is known."""
        keys = [{**key, "n_threads": self.budget.n_threads} for key in self.keys.values()]
        if self.speeds.missing(keys):
            print("Measuring the speed: nothing else should run", flush=True)
            makers = {name: one.make for name, one in self.contestants.items()}
            length = self.budget.n_timesteps or 1e9
            contestants = {name: (_measurement, (make, length)) for name, make in makers.items()}
            turns = take_turns(contestants, self.budget.n_threads, N_TURNS, log=self.folder / "log.txt")
            for key in keys:
                own = turns[turns["contestant"] == key["contestant"]]
                per_million, warm_up = own["seconds"].median(), own.iloc[0]
                compiling = warm_up["compiled"] * max(0.0, warm_up["first"] - warm_up["steps"] * per_million / 1e6)
                self.speeds.add(key, {"compiling": round(compiling, 2), "seconds": round(per_million, 3)})
        rows = self.speeds.rows(keys).drop_duplicates("contestant", keep="last")
        return rows.set_index("contestant")[["compiling", "seconds"]]


def _measurement(make: Make, length: float) -> Measure:
    with TemporaryDirectory() as folder:
        return speed(make(0, Path(folder)).model, length, time.perf_counter, SHORTEST_TURN)


def _train(makers: Mapping[str, Make], lengths: Mapping[str, int], n_episodes: int, run: Run, folder: Path) -> Outcome:
    return train(makers[run["contestant"]], run["seed"], lengths[run["contestant"]], folder, n_episodes)
