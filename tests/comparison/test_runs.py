"""Runs: each is carried out once, in a process of its own, and leaves a row and a curve."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest

from sb3_ppg.comparison.runs import Runs
from sb3_ppg.comparison.workers import Worker, take_turns, tell
from sb3_ppg.errors import ArgumentError
from tests.helpers import ROOT, wait_for

TOSSES = [dict(coin=coin, seed=seed) for coin in ("1e5", "a pound") for seed in range(2)]


def toss(run, folder):
    assert folder.is_dir()
    tell(0.5)
    print("tossed")
    return {"heads": run["seed"] % 2}, pd.DataFrame({"steps": [1, 2], "return": [0.5, run["seed"]]})


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "results", "tosses", TOSSES[0])


def add(runs, *tosses):
    for one in tosses:
        runs.add(one, *toss(one, Path()))


@pytest.mark.slow
def test_what_is_missing_is_carried_out(runs, tmp_path):
    add(runs, TOSSES[1])
    log = tmp_path / "log.txt"
    runs.carry_out(TOSSES, toss, log, n_jobs=2)
    assert runs.missing(TOSSES) == [] and len(runs.rows()) == len(TOSSES) and len(runs.curves()) == 2 * len(TOSSES)
    assert log.read_text().count("tossed") == len(TOSSES) - 1
    assert set(runs.rows()["coin"]) == {"1e5", "a pound"}  # text that could be a number


@pytest.mark.slow
def test_a_run_that_fails_says_why_and_the_others_are_kept(runs, tmp_path):
    def fail(run, folder):
        if run["seed"] == 1:
            raise KeyError("the coin is lost")
        return toss(run, folder)

    with pytest.raises(RuntimeError, match="the coin is lost"):
        runs.carry_out(TOSSES[:2], fail, tmp_path / "log.txt")
    assert runs.missing(TOSSES[:2]) == [TOSSES[1]]


def test_rows_are_those_of_the_runs_that_are_wanted(runs):
    add(runs, *TOSSES)
    assert list(runs.rows(TOSSES[1:2])["heads"]) == [1] and len(runs.rows()) == 4
    assert list(runs.curves()["return"]) == [0.5, 0.0, 0.5, 1.0] * 2


def test_a_kill_between_curve_and_row_leaves_no_curve_twice(runs):
    add(runs, *TOSSES[:2])
    file = runs.folder / "tosses.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert runs.missing(TOSSES[:2]) == [TOSSES[1]]
    runs.add(TOSSES[1], {"heads": 1}, pd.DataFrame({"steps": [1, 2], "return": [7.0, 8.0]}))
    assert list(runs.curves()["return"]) == [0.5, 0.0, 7.0, 8.0] and len(runs.rows()) == 2


def refuse():
    raise ArgumentError("`coin`=0 cannot work")


@pytest.mark.slow
def test_a_worker_passes_on_results_progress_and_errors():
    heard = []
    with Worker() as worker:
        assert worker(lambda x: tell(0.25) or x + os.getpid(), 1, on_progress=heard.append) == worker.process.pid + 1
        assert heard == [0.25]
        with pytest.raises(ArgumentError, match="`coin`=0 cannot work"):
            worker(refuse)
        with pytest.raises(RuntimeError, match="ended with status 7"):
            worker(lambda: os._exit(7))


@pytest.mark.slow
def test_contestants_take_turns():
    def make(number):
        times = iter(range(10))
        return lambda: {"seconds": number + next(times)}

    turns = take_turns({"one": (make, (10,)), "two": (make, (20,))}, n_turns=2)
    assert list(turns["contestant"]) == ["one", "two"] * 3
    assert list(turns["turn"]) == [0, 0, 1, 1, 2, 2] and list(turns["seconds"]) == [10, 20, 11, 21, 12, 22]


@pytest.mark.slow
def test_a_comparison_that_is_killed_leaves_no_run_behind(tmp_path):
    """Even SIGKILL, after which it can tell its workers nothing, ends them. The script does not ask for ``__main__``."""
    program, file = tmp_path / "trains.py", tmp_path / "pid"
    program.write_text(
        "import os, pathlib, sys, time\n"
        "from sb3_ppg.comparison.workers import Worker\n"
        "def work(file):\n"
        "    pathlib.Path(file).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "Worker()(work, sys.argv[1])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(program), str(file)], env=environment) as queue:
        wait_for(lambda: file.exists() and file.read_text() != "")
        worker = psutil.Process(int(file.read_text()))
        queue.kill()
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
