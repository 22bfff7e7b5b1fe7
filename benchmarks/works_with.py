"""
Libraries around SB3: each script of ``examples/works_with`` runs in a virtual environment of its own, above the packages of
this one. Its docstring begins with the libraries' names, and has the commands that install them.

    python -m benchmarks.works_with run --script ppg_imitation.py
"""

import ast
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import Experiment
from benchmarks.venvs import attempt, installed
from tests.hub_server import TOKEN, HubServer

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "examples" / "works_with"
TOO_LONG = 1800  # seconds, for each command
VERSIONS = "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]), sep=', ')"


def docstring(script: Path) -> str:
    """Return the docstring of a script."""
    return ast.get_docstring(ast.parse(script.read_text())) or ""


def libraries(script: Path) -> list[str]:
    """Return the names under which PyPI knows the libraries of a script."""
    return docstring(script).split(":")[0].split(", ")


def wanted() -> list[dict[str, str]]:
    """Return all scripts, with what pip installs for them; empty: the project has it."""
    commands = {path: re.findall(r"``pip install ([^`\"]+)``", docstring(path)) for path in sorted(SCRIPTS.glob("*.py"))}
    return [dict(script=path.name, pip="; ".join(" ".join(one.split()) for one in own)) for path, own in commands.items()]


def train(run: dict[str, str], folder: Path) -> tuple[dict[str, Any], None]:
    """Run a script where its libraries are installed, with a Hub of its own."""
    folder, script = folder.absolute(), SCRIPTS / run["script"]
    python = str(installed(f"works_with_{script.stem}", run["pip"])[0]) if run["pip"] else sys.executable
    versions, _ = attempt([python, "-c", VERSIONS, *libraries(script)], TOO_LONG)
    start = time.perf_counter()
    with HubServer() as server:
        own = dict(PYTHONPATH=str(ROOT), HF_ENDPOINT=server.url, HF_TOKEN=TOKEN, HF_HOME=str(folder / "hub"))
        printed, reason = attempt([python, str(script)], TOO_LONG, cwd=folder, env={**os.environ, **own})
    row: dict[str, Any] = dict(libraries=versions, outcome=f"fails: {reason}" if reason else f"works: {printed}")
    return {**row, "seconds": round(time.perf_counter() - start)}, None


# No report: docs/works_with.md has the table, which tests/test_docs.py compares with the rows
WORKS_WITH = Experiment("works_with", wanted, train, report=lambda _: {}, identity=("script",))

if __name__ == "__main__":
    WORKS_WITH.main()
