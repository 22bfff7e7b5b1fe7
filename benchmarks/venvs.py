"""Virtual environments for packages that have no place in that of the project."""

import fcntl
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

FOLDER = Path("logs/benchmarks/venvs").absolute()
SBX = "--no-deps --requirement benchmarks/sbx.txt"


def make_venv(folder: Path, pip: str) -> list[str]:
    """Make a virtual environment above this one; return the command that installs packages in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (_packages(folder) / "below.pth").write_text(sysconfig.get_paths()["purelib"])
    (folder / "constraints.txt").write_text("torch==2.13.0")
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q"]
    return [*command, "-c", str(folder / "constraints.txt"), *pip.split()]


def attempt(command: list[str], seconds: int, **options: Any) -> tuple[str, str]:
    """
    Run a command in another process, whose end is no end of ours.

    :param seconds: after which it is killed
    :param options: those of ``subprocess.run``
    :return: the last line that it printed, and why it failed, without paths of this machine (empty: it did not)
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        return "", f"took more than {seconds} seconds"
    print(done.stdout, done.stderr, file=sys.stderr)
    last = [line for line in done.stderr.splitlines() if line.strip() and "notice" not in line] or [""]
    said = re.sub(r"(/\S+/site-packages| at 0x\w+)", "", last[-1].strip())[:200]
    printed = done.stdout.strip().splitlines() or [""]
    return printed[-1], f"{said} (status {done.returncode})" if done.returncode else ""


def installed(name: str, pip: str) -> tuple[Path, Path]:
    """
    Return the interpreter and the folder of packages of a virtual environment, in which they are installed once.

    :param pip: arguments of ``pip install``, or of several, with "; " between them
    """
    folder, done = FOLDER / name, FOLDER / f"{name}.done"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be installing them
        if not done.exists():
            for words in pip.split("; "):
                subprocess.run(make_venv(folder, words), check=True)
            done.touch()
    return folder / "bin" / "python", _packages(folder)


def _packages(folder: Path) -> Path:
    return Path(sysconfig.get_paths(vars={"base": str(folder)})["purelib"])
