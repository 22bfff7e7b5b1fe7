"""Virtual environments for packages that have no place in that of the project."""

import fcntl
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path("logs/benchmarks/venvs").absolute()
SBX = "--no-deps --requirement benchmarks/sbx.txt"


def make_venv(folder: Path, pip: str) -> list[str]:
    """Make a virtual environment above this one; return the command that installs packages in it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (_packages(folder) / "below.pth").write_text(sysconfig.get_paths()["purelib"])
    (folder / "constraints.txt").write_text("torch==2.13.0")
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q"]
    return [*command, "-c", str(folder / "constraints.txt"), *pip.split()]


def installed(name: str, pip: str) -> tuple[Path, Path]:
    """Return the interpreter and the folder of packages of a virtual environment, in which they are installed once."""
    folder, done = FOLDER / name, FOLDER / f"{name}.done"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be installing them
        if not done.exists():
            subprocess.run(make_venv(folder, pip), check=True)
            done.touch()
    return folder / "bin" / "python", _packages(folder)


def _packages(folder: Path) -> Path:
    return Path(sysconfig.get_paths(vars={"base": str(folder)})["purelib"])
