"""
The wheel in fresh environments: installed with RL Zoo and plots, it takes README.md's first steps, in an empty folder.

    python -m tests.release dist/sb3_ppg-0.1.0-py3-none-any.whl python3.11 python3.12 python3.13
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers import ROOT

EXTRAS = "zoo,plots"


def first_steps() -> tuple[str, list[list[str]]]:
    """
    :return: README.md's lines of Python, and its commands, the window left out
    """
    readme = (ROOT / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^sb3-ppg .*", readme, re.MULTILINE)]
    return code, [[*command, "--no-render"] if command[1] == "enjoy" else command for command in commands]


def try_out(wheel: Path, python: str) -> None:
    """
    :param wheel: to install
    :param python: the interpreter
    :raises subprocess.CalledProcessError: if a step fails
    """
    begin = time.monotonic()
    with TemporaryDirectory() as name:
        environment, folder = Path(name) / "environment", Path(name) / "empty"
        folder.mkdir()
        programs = environment / ("Scripts" if os.name == "nt" else "bin")

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode != 0:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
            done.check_returncode()
            return done.stdout

        run(python, "-m", "venv", str(environment))
        install = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
        run(*install, f"{wheel}[{EXTRAS}]")
        installed = time.monotonic() - begin
        code, commands = first_steps()
        run(str(programs / "python"), "-c", code)
        assert (folder / "ppg_cartpole.zip").exists()
        for program, *arguments in commands:
            output = run(str(programs / program), *arguments)
        assert "Mean return" in output, output  # of the report, the last one
        version = run(
            str(programs / "python"), "-c", "import sys, sb3_ppg; print(sys.version.split()[0], sb3_ppg.__version__)"
        )
    print(f"{version.strip()}: installed in {installed:.0f} s, first steps in {time.monotonic() - begin - installed:.0f} s")


def main() -> None:
    """The command. An interpreter that is not there is said to be missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="*", default=[sys.executable])
    args = parser.parse_args()
    there = [python for python in args.pythons if shutil.which(python)]
    print(*(f"{python} is not there" for python in args.pythons if python not in there), sep="\n")
    for python in there or [sys.executable]:
        try_out(args.wheel.absolute(), python)


if __name__ == "__main__":
    main()
