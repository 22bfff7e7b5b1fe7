"""
Install the wheel with RL Zoo and plots into fresh environments, and take README.md's first steps in an empty folder.

    python -m tests.release dist/sb3_ppg-0.1.0-py3-none-any.whl python3.11 python3.12 python3.13
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers import ROOT


def try_out(wheel: Path, python: str) -> None:
    """Install a wheel for an interpreter, and fail if one of the steps does."""
    readme = (ROOT / "README.md").read_text()
    code = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^sb3-ppg .*", readme, re.MULTILINE)]
    with TemporaryDirectory() as environment, TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", environment], check=True)

        def run(program: str, *arguments: str) -> str:
            command = [str(Path(environment, "bin", program)), *arguments]
            return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout

        run("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), f"{wheel}[zoo,plots]")
        run("python", "-c", code)
        assert Path(folder, "ppg_cartpole.zip").exists()
        for program, command, *options in commands:
            output = run(program, command, *options, *(["--no-render"] if command == "enjoy" else []))
        assert "Mean return" in output, output  # from the report, the last command
        print(run("python", "-c", "import sys, sb3_ppg; print(sys.version.split()[0], sb3_ppg.__version__, 'works')"), end="")


def that_run(pythons: list[str]) -> list[str]:
    """Return the interpreters that run, or else this one; one on the path may be pyenv's, for a version that it has not."""
    statuses = {python: subprocess.run(f"{python} -c ''", shell=True, capture_output=True).returncode for python in pythons}
    found = [python for python, status in statuses.items() if status == 0]
    print(*(f"{python} does not run: skipped" for python in pythons if python not in found), sep="\n")
    return found or [sys.executable]


if __name__ == "__main__":
    wheel, *pythons = sys.argv[1:]
    for python in that_run(pythons):
        try_out(Path(wheel).absolute(), python)
