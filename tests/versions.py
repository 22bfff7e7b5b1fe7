"""
Run the fast tests with the lowest versions that pyproject.toml allows, those of constraints.txt and the newest, each in a new
environment with a Python of its own, and write the table of docs/versions.md.

    python -m tests.versions python3.11 python3.12 python3.13
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.helpers import ROOT
from tests.release import that_run

PAGE = ROOT / "docs" / "versions.md"
EXTRAS = ("zoo", "plots", "tensorboard", "export", "atari", "box2d", "mujoco", "minigrid", "minatar")
NOT_LOWEST = ("offline",)  # Minari needs NumPy 2
TOOLS = ("hypothesis", "ipykernel", "nbclient", "onnxruntime", "pytest")
LIST_VERSIONS = "import sys, importlib.metadata as m; print(sys.version.split()[0], *map(m.version, sys.argv[1:]))"
TEST_OF_THE_TABLE = "tests/test_packaging.py::test_the_page_on_versions"


def lower_bounds() -> dict[str, str]:
    """Return the lowest versions that pyproject.toml declares, by package: the dependencies, then those of ``EXTRAS``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][extra] for extra in ("hub", *EXTRAS))
    found = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in sum(extras, project["dependencies"]))
    return {each[1]: each[2] for each in found if each}


def try_out(python: str, extras: tuple[str, ...], constraints: dict[str, str]) -> list[str]:
    """
    Install the package with these versions by package, the newest of others, and run the fast tests; fail if one does. Return
    the versions of Python and the packages in ``lower_bounds``, and the number of tests that passed.
    """
    with TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own, pinned = Path(folder, "bin", "python"), Path(folder, "constraints.txt")
        pinned.write_text("\n".join(f"{name}=={version}" for name, version in constraints.items()))
        install = [own, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--upgrade", "pip"], check=True)
        subprocess.run([*install, "-c", pinned, "-e", f".[{','.join(extras)}]", *TOOLS], check=True, cwd=ROOT)
        versions = subprocess.check_output([own, "-c", LIST_VERSIONS, *lower_bounds()], text=True)
        tests = [own, "-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", f"--deselect={TEST_OF_THE_TABLE}"]
        output = subprocess.run(tests, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout
        print(output)
        # Not the exit status: old versions of torch leave temporary files, which is no fault of ours
        (counts,) = re.findall(r"^=+ (\d+ .*) in [\d.]+s", output, re.MULTILINE)
        assert not re.search("failed|error", counts), counts
        return [*(version.split("+")[0] for version in versions.split()), *re.findall(r"(\d+) passed", counts)]


def table(*results: list[str]) -> str:
    """Return a table in Markdown of the results of ``try_out``."""
    names = ["Python", *(f"`{name}`" for name in lower_bounds()), "fast tests that passed"]
    rows = [("", "lowest", "constraints.txt", "newest"), ("---",) * 4, *zip(names, *results, strict=True)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    found = that_run(sys.argv[1:])
    lowest, middle, newest = found[0], found[len(found) // 2], found[-1]
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    page = table(
        try_out(lowest, EXTRAS, lower_bounds()),
        try_out(middle, EXTRAS + NOT_LOWEST, pinned),
        try_out(newest, EXTRAS + NOT_LOWEST, {}),
    )
    PAGE.write_text(re.sub(r"\|  \| lowest \|.*\n(\|.*\n)*", lambda _: page, PAGE.read_text()))
