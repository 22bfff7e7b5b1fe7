"""What one hostile file may lead to, and the processes in which thousands are read."""

import faulthandler
import io
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th

from sb3_ppg.errors import ModelFormatError

SECONDS, MEGABYTES = 5.0, 500.0  # for one file
SECONDS_TO_HANG = 60.0  # after which the process that reads it is ended


class Attack(NamedTuple):
    """
    One hostile input.

    :param name: it says what was done to which file; the part before the first ":" is a family of similar ones
    :param write: puts the files into an empty folder
    :param load: reads that folder as a user would. What it raises other than ``ModelFormatError`` is a finding
    :param use: what a user would do with what was loaded. Whatever it raises is a finding
    :param sets_generators: whether a file that is read may set the global generators, because it was saved for that
    """

    name: str
    write: Callable[[Path], Any]
    load: Callable[[Path], Any]
    use: Callable[[Any], Any] = lambda loaded: None
    sets_generators: bool = False


class Result(NamedTuple):
    """
    :param name: of the attack
    :param outcome: "refused" or "loaded", or what it should not have done
    :param is_finding: whether it should not have
    """

    name: str
    outcome: str
    is_finding: bool


class Finding(Exception):
    """Something that a hostile file should not have led to."""


# ---- what is watched while a file is read ----

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.", "pty."),
    *(
        "socket.",
        "urllib.",
        "http.",
        "ftplib.",
        "smtplib.",
        "webbrowser.",
        "ctypes.",
        "pickle.",
        "marshal.",
        "exec",
        "compile",
    ),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate"),
    *("os.chdir", "os.putenv", "os.kill", "os.utime", "shutil.", "tempfile.", "signal.", "sys.set", "gc.", "import"),
)
_events: list[str] | None = None  # those seen since watching began


def _hook(event: str, arguments: tuple) -> None:
    if _events is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool(flags & WRITING) if isinstance(flags, int) else any(letter in (mode or "") for letter in "wax+")
        if writes and path != os.devnull:
            _events.append(f"open {path!r} to write")
    elif event.startswith(FORBIDDEN):
        _events.append(f"{event} {arguments!r:.200}")


_hooked = False


@contextmanager
def watched() -> Iterator[list[str]]:
    """The forbidden events of a block, as they happen."""
    global _events, _hooked
    if not _hooked:
        sys.addaudithook(_hook)  # for the rest of the process: hooks cannot be removed
        _hooked = True
    events: list[str] = []
    _events = events
    try:
        yield events
    finally:
        _events = None


def _generator_states() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, keys.tobytes(), rest, th.get_rng_state().numpy().tobytes()


def _resident_megabytes(peak: bool) -> float:
    name = "VmHWM:" if peak else "VmRSS:"
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024


def _forget_the_peak() -> None:
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")


# ---- one attack ----


def attempt(attack: Attack, folder: Path) -> Result:
    """
    :param attack: to try
    :param folder: empty
    :return: what came of it
    """
    attack.write(folder)
    try:
        return Result(attack.name, _load_and_use(attack, folder), False)
    except Finding as finding:
        return Result(attack.name, str(finding), True)
    except BaseException as error:
        return Result(attack.name, f"raised {type(error).__name__}: {error!s:.300}", True)


def _load_and_use(attack: Attack, folder: Path) -> str:
    states, megabytes, seconds = _generator_states(), _resident_megabytes(peak=False), time.process_time()
    _forget_the_peak()
    loaded, refusal = None, None
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed), watched() as events:
        warnings.simplefilter("always")
        try:
            loaded = attack.load(folder)
        except ModelFormatError as error:
            refusal = str(error)
    seconds, megabytes = time.process_time() - seconds, _resident_megabytes(peak=True) - megabytes
    _expect(not events, f"did {events}")
    _expect(seconds < SECONDS, f"took {seconds:.1f} s")
    _expect(megabytes < MEGABYTES, f"took {megabytes:.0f} MB")
    said = [printed.getvalue(), *(str(warning.message) for warning in caught)]
    for text in [refusal or "", *(text.replace("\n", " ") for text in said)]:
        _expect(text.isprintable(), f"wrote {text!r:.300}")
        _expect(len(text) < 100_000, f"wrote {len(text)} characters")
    _expect(_generator_states() == states or (refusal is None and attack.sets_generators), "changed a global generator")
    if refusal is not None:
        return "refused"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attack.use(loaded)
        except Exception as error:
            raise Finding(f"was loaded, and could not be used: {type(error).__name__}: {error!s:.300}") from error
    return "loaded"


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Finding(otherwise)


# ---- processes ----


def work(attacks: list[Attack], start: int, step: int, folder: Path) -> None:
    """
    The process that reads: says how many attacks there are; then which it begins and what came of it, a line of JSON each.

    :param attacks: all of them
    :param start: number of the first to try
    :param step: how many further on the next one is
    :param folder: for their files
    """
    print(json.dumps({"n_attacks": len(attacks)}), flush=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    repr(th.ones(1))  # torch imports what it needs to print tensors when it first does
    for number in range(start, len(attacks), step):
        print(json.dumps({"number": number, "name": attacks[number].name}), flush=True)
        faulthandler.dump_traceback_later(SECONDS_TO_HANG, exit=True)
        there = folder / str(number)
        there.mkdir(parents=True)
        result = attempt(attacks[number], there)
        shutil.rmtree(there)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"number": number, **result._asdict()}), flush=True)


def run_in_processes(command: list[str], start: int, step: int, folder: Path) -> Iterator[Result]:
    """
    Try attacks in a process of their own, and in another one after an attack has ended it.

    :param command: which calls ``work``; start, step and folder are added to it
    :param start: number of the first attack
    :param step: how many further on the next one is
    :param folder: for files
    :return: what came of each
    """
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    n_attacks = start + 1
    while start < n_attacks:
        place = folder / f"from_{start}"
        place.mkdir(parents=True)
        arguments = [str(start), str(step), str(place)]
        begun: dict[str, Any] = {}
        with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for said in (json.loads(line) for line in process.stdout if line.startswith("{")):
                n_attacks = said.get("n_attacks", n_attacks)
                begun = said
                if "outcome" in said:
                    yield Result(said["name"], said["outcome"], said["is_finding"])
                    start += step
        shutil.rmtree(place)
        if start < n_attacks and "name" not in begun:
            raise RuntimeError(f"the process that reads hostile files ended with {process.returncode}")
        if start < n_attacks:
            yield Result(begun["name"], f"ended the process with {process.returncode}", True)
            start += step
