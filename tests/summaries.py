"""
Refuse docstrings whose summary begins with a word that leaves it a fragment, which ruff cannot express.

    python -m tests.summaries [FILE OR FOLDER ...]
"""

import ast
import re
import sys
from pathlib import Path

FOLDERS = ("sb3_ppg", "benchmarks", "tests", "docs", "examples")
FRAGMENT = re.compile(r"(Of|That|Those|What|As|Whether|How|In(?! addition))\b")


def fragments(path: Path) -> list[str]:
    """Return a line for each summary of the file that begins like a fragment."""
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    summaries = [(getattr(node, "lineno", 1), (ast.get_docstring(node) or "").split("\n")[0]) for node in nodes]
    return [f"{path}:{line}: begin with a verb or a noun: {text}" for line, text in summaries if FRAGMENT.match(text)]


if __name__ == "__main__":
    places = [Path(name) for name in sys.argv[1:] or FOLDERS]
    files = sorted({file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))})
    found = [line for file in files for line in fragments(file)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
