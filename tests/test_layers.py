"""Imports, also those for type hints, go one way: down the table of modules in CONTRIBUTING.md."""

import ast
import re

import pytest

from tests.helpers import ROOT

PACKAGE = ROOT / "sb3_ppg"
MODULES = sorted(str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".") for path in PACKAGE.rglob("*.py"))


def rows() -> list[list[str]]:
    """Return the modules and folders of each row of the table, from top to bottom."""
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| module | contents |\n|---|---|\n")[1].split("\n\n")[0]
    return [re.findall(r"`(\w+)(?:/|\.py)`", line.split("|")[1]) for line in table.splitlines()]


ROWS = {name: number for number, names in enumerate(rows()) for name in names}


def row(module: str) -> int:
    return ROWS[module.split(".")[0]]


def imports(module: str) -> set[str]:
    """Return the imported modules of this package; ``from sb3_ppg import x`` counts as x if that is a module."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    found = set()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            names = [f"{node.module}.{name}" for name in names]
        for name in names:
            if name.split(".")[0] == "sb3_ppg":
                parts = name.split(".")[1:]
                while parts and ".".join(parts) not in MODULES and f"{'.'.join(parts)}.__init__" not in MODULES:
                    parts = parts[:-1]
                found.add(".".join(parts) or "__init__")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_lead_downwards(module):
    upwards = {name for name in imports(module) if row(name) < row(module)}
    assert not upwards, f"{module} imports {upwards}"


def test_the_modules_of_a_folder_do_not_import_each_other_in_a_circle():
    importers = {
        module: {part for name in imports(module) for part in (name, f"{name}.__init__") if part in MODULES}
        for module in MODULES
    }
    while free := {module for module, names in importers.items() if not names}:
        importers = {module: names - free for module, names in importers.items() if module not in free}
    assert not importers


def test_the_check_can_fail():
    assert row("ppg") < row("objectives.ewma") < row("losses") and "ppg" in imports("recurrent")
    assert "zoo.launcher" in imports("__main__")
