"""Imports go one way: downwards."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "sb3_ppg"
# From bottom to top. A module may import modules of its own layer and of lower layers
LAYERS = [
    ["errors", "protocols", "arguments"],
    ["losses", "actions", "policies.extractors", "distributed", "buffers.system_memory"],
    ["policies", "environments"],
    ["optim", "callbacks", "play"],
    ["buffers", "objectives", "distributed.exchange", "saving"],
    ["training", "offline"],
    ["ppg", "recurrent", "maskable", "family"],
    ["", "hub", "export"],
    ["zoo", "__main__"],
]
MODULES = sorted(str(path.relative_to(PACKAGE).with_suffix("")).replace("/", ".") for path in PACKAGE.rglob("*.py"))


def layer(module: str) -> int:
    """Return the layer of the longest listed name that the module's name begins with."""
    module = "" if module == "__init__" else module.removesuffix(".__init__")
    found = [
        (len(name), place)
        for place, names in enumerate(LAYERS)
        for name in names
        if module == name or (name and module.startswith(f"{name}."))
    ]
    assert found, f"{module} is in no layer"
    return max(found)[1]


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
                found.add(".".join(parts))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_lead_downwards(module):
    upwards = {name for name in imports(module) if layer(name) > layer(module)}
    assert not upwards, f"{module} imports {upwards}"


def test_the_check_can_fail():
    assert layer("ppg") > layer("objectives.ewma") > layer("losses") and "ppg" in imports("recurrent")
    assert layer("distributed.collectives") < layer("optim.epoch") and "losses" in imports("objectives.paper")
