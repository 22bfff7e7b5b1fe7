"""A comparison from beginning to end: speed, trainings, report."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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


@dataclass
class Study:
    """
    A comparison whose files are in a folder; arguments that are not listed here are those of ``compare``.

    :param title: name of the environment
    """

    title: str
    contestants: Mapping[str, Contestant]
    folder: Path
    n_timesteps: int | None
    seconds: float | None
    n_seeds: int
    n_eval_episodes: int
    n_jobs: int
    n_threads: int

    def __post_init__(self) -> None:
        if len(self.contestants) < 2:
            names = list(self.contestants)
            raise ArgumentError(f"a comparison needs two contestants, and there are {len(names)}: {names}")
        if (self.n_timesteps is None) == (self.seconds is None):
            raise ArgumentError("a training needs a length: steps or seconds, and not both")
        for name in ("n_timesteps", "n_seeds", "n_jobs", "n_threads"):
            if (value := getattr(self, name)) is not None:
                check_value(name, value, count(1))
        limit = f"{self.seconds:g} seconds" if self.n_timesteps is None else f"{self.n_timesteps} steps"
        self.keys = {
            name: dict(contestant=name, limit=limit, settings=short_hash(json.dumps(settings, sort_keys=True)))
            for name, (_, settings) in self.contestants.items()
        }
        self.wanted = [{**key, "seed": seed} for seed in range(self.n_seeds) for key in self.keys.values()]
        self.runs = Runs(self.folder, "compare", self.wanted[0])
        self.speeds = Runs(self.folder, "compare_speed", {**self.keys[next(iter(self.keys))], "n_threads": 1})

    def compare(self, target: float | None = None) -> Comparison:
        """Measure, train what is missing, and write the report."""
        measured, n_episodes = self.speed(), self.n_eval_episodes
        makers = {name: make for name, (make, _) in self.contestants.items()}
        lengths = {name: self.length(measured.loc[name]) for name in makers}

        def carry_out(run: Run, folder: Path) -> Outcome:
            name = run["contestant"]
            return train(makers[name], run["seed"], lengths[name], folder, n_episodes)

        def seconds(run: Run) -> float:
            own = measured.loc[run["contestant"]]
            return own["compiling"] + lengths[run["contestant"]] * own["seconds"] / 1e6

        print(f"{len(self.wanted)} trainings, {len(self.runs.missing(self.wanted))} to carry out", flush=True)
        self.runs.carry_out(self.wanted, carry_out, self.folder / "log.txt", self.n_jobs, self.n_threads, seconds)
        found = self.result(target)
        found.picture().savefig(self.folder / "compare.png")
        (self.folder / "compare.md").write_text(found.page())
        print(f"{found.verdict()}\nSaved {self.folder / 'compare.png'}, compare.md and compare.csv")
        return found

    def result(self, target: float | None = None) -> Comparison:
        """Return what has been measured."""
        curves = self.runs.curves().merge(pd.DataFrame(self.wanted))
        settings = {name: settings for name, (_, settings) in self.contestants.items()}
        return Comparison(self.title, self.runs.rows(self.wanted), curves, self.speed(), settings, target)

    def length(self, measured: "pd.Series[float]") -> int:
        """Return the number of steps of a training, given the contestant's speed."""
        if self.n_timesteps is not None:
            return self.n_timesteps
        assert self.seconds is not None
        n_timesteps = int((self.seconds - measured["compiling"]) / measured["seconds"] * 1e6)
        if n_timesteps < 1:
            raise ArgumentError(f"{self.seconds:g} seconds are too few: {measured['compiling']:.0f} pass with compiling")
        return n_timesteps

    def speed(self) -> pd.DataFrame:
        """Return the speed of each contestant, which is measured unless it is known."""
        keys = [{**key, "n_threads": self.n_threads} for key in self.keys.values()]
        if self.speeds.missing(keys):
            print("Measuring the speed: nothing else should run", flush=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            length = self.n_timesteps or 1e9
            contestants = {name: (_measurement, (make, length)) for name, (make, _) in self.contestants.items()}
            turns = take_turns(contestants, self.n_threads, N_TURNS, log=self.folder / "log.txt")
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
