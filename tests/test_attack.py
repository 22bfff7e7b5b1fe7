"""A sample of the hostile files that ``make attack`` reads; and whether those who watch would see what they are to see."""

import os
import random
import re
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sb3_ppg.errors import ModelFormatError
from tests.attack import harness
from tests.attack.__main__ import SOURCES, run
from tests.attack.harness import Attack, attempt, run_in_processes
from tests.attack.models import UNCHANGED

pytestmark = pytest.mark.slow

PER_FAMILY = {"models": 5, "states": 8}


@pytest.mark.parametrize("source", SOURCES)
def test_a_sample_of_hostile_files(source):
    """Each is refused, or read and works; nothing else happens."""
    results = list(run([source], PER_FAMILY.get(source, 50)))
    assert [result for result in results if result.is_finding] == []
    unchanged = [result.outcome for result in results if result.name.endswith(UNCHANGED)]
    assert unchanged and set(unchanged) == {"loaded"}
    outcomes = Counter(result.outcome for result in results)
    assert outcomes["refused"] > 50 and outcomes["loaded"] > 5, outcomes


def write_beside(folder: Path) -> None:
    (folder / "new").write_text("x")


def refuse(message: str) -> None:
    raise ModelFormatError(message)


def refuse_and_draw(folder: Path) -> None:
    random.random()
    refuse("no")


def take_memory(folder: Path) -> None:
    np.ones(2**27).sum()


def take_time(folder: Path) -> None:
    start = time.process_time()
    while time.process_time() < start + 1.5:
        pass


def import_what_it_names(folder: Path) -> None:
    sys.modules.pop("stringprep", None)
    __import__("stringprep")


MISDEEDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is written": (write_beside, "open .*new.* to write"),
    "a file is removed": (lambda folder: (folder / "there").unlink(), "os.remove"),
    "a module is imported": (import_what_it_names, "import .*stringprep"),
    "a process is started": (lambda folder: subprocess.run(["true"]), "subprocess.Popen"),
    "a shell is started": (lambda folder: os.system("true"), "os.system"),
    "a socket is opened": (lambda folder: socket.socket().close(), "socket"),
    "code is evaluated": (lambda folder: eval("1 + 1"), "exec|compile"),
    "another error": (lambda folder: {}["x"], "raised KeyError"),
    "not even an Exception": (lambda folder: sys.exit(), "raised SystemExit"),
    "a generator is used": (lambda folder: np.random.rand(), "changed a global generator"),
    "a generator is used by what is refused": (refuse_and_draw, "changed a global generator"),
    "much memory is taken": (take_memory, r"took 1\d\d\d MB"),
    "much time is taken": (take_time, r"took \d"),
    "a message commands": (lambda folder: warnings.warn("\x1b[2J", stacklevel=1), "wrote"),
    "a print commands": (lambda folder: print("\r"), "wrote"),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_what_a_file_must_not_lead_to_is_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "SECONDS", 1.0 if "time" in name else 60.0)
    load, finding = MISDEEDS[name]
    result = attempt(Attack(name, lambda folder: (folder / "there").touch(), load), tmp_path)
    assert result.is_finding and re.search(finding, result.outcome), result


def test_what_may_come_of_a_file(tmp_path):
    assert attempt(Attack("refused", lambda folder: None, lambda folder: refuse("no")), tmp_path).outcome == "refused"
    assert attempt(Attack("read", lambda folder: None, Path.iterdir), tmp_path).outcome == "loaded"
    seeded = Attack("seeded", lambda folder: None, lambda folder: np.random.seed(0), sets_generators=True)
    assert attempt(seeded, tmp_path).outcome == "loaded"
    broken = Attack("broken", lambda folder: None, lambda folder: 0, use=lambda loaded: 1 / loaded)
    assert "could not be used: ZeroDivisionError" in attempt(broken, tmp_path).outcome


PROCESS = """
import ctypes, sys, time
from pathlib import Path
from tests.attack import harness
harness.SECONDS_TO_HANG = 1.0
loads = [len, lambda folder: ctypes.string_at(0), len, lambda folder: time.sleep(60), str]
attacks = [harness.Attack(str(number), lambda folder: None, load) for number, load in enumerate(loads)]
harness.work(attacks, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
"""


def test_what_ends_or_stops_the_process_is_found_and_the_others_go_on(tmp_path):
    results = list(run_in_processes([sys.executable, "-c", PROCESS], 0, 1, tmp_path))
    assert [result.name for result in results] == list("01234")
    assert "ended the process with -11" in results[1].outcome and "ended the process with 1" in results[3].outcome
    assert [result.is_finding for result in results] == [True, True, True, True, False]
    with pytest.raises(RuntimeError, match="ended with"):
        list(run_in_processes([sys.executable, "-c", "pass"], 0, 1, tmp_path))
