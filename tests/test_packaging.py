"""The wheel has what it needs and imports without extras, and constructors agree with their counterparts."""

import re
import subprocess
import sys
import tomllib
import zipfile
from inspect import signature

import pytest
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO

from sb3_ppg import PPG, MaskablePPG, RecurrentPPG
from sb3_ppg.errors import requirement
from tests.helpers import ROOT
from tests.versions import lower_bounds

REPOSITORY = "https://github.com/sb3-ppg/sb3_ppg"
EXTRAS = ["rl_zoo3", "envpool", "matplotlib", "pandas", "huggingface_hub", "safetensors", "tensorboard", "ale_py"]


@pytest.mark.slow
def test_the_wheel_imports_without_extras_and_has_the_hyperparameters_and_links_that_resolve(tmp_path):
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], check=True, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        file.extractall(tmp_path / "site")
        (metadata,) = (file.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {f"sb3_ppg/{path.relative_to(ROOT)}" for path in (ROOT / "hyperparams").glob("*.yml")} <= names
    assert {"sb3_ppg/py.typed", "sb3_ppg/zoo/launcher.py"} <= names
    assert not any(name.startswith(("tests", "benchmarks", "examples", "pretrained")) for name in names)
    code = (
        f"import sys; blocked = dict.fromkeys({EXTRAS!r}); sys.modules.update(blocked)\n"
        "import sb3_ppg\n"
        "for name in blocked: del sys.modules[name]\n"
        "from sb3_ppg.zoo.hyperparameters import hyperparameter_file as f\n"
        "print(f('ppg'), all(f(algo).is_file() for algo in sb3_ppg.zoo.ALGOS))"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path / "site")
    assert found.split() == [str(tmp_path / "site" / "sb3_ppg" / "hyperparams" / "ppg.yml"), "True"]
    # On PyPI, the README's relative pictures and links lead to the repository
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert all(target.startswith(("https://", "#")) for target in targets)
    inside = re.findall(
        rf"\]\((?:{REPOSITORY}/blob|https://raw.githubusercontent.com/sb3-ppg/sb3_ppg)/main/([^)#]+)", metadata
    )
    assert len(inside) > 10 and all((ROOT / path).exists() for path in inside)
    assert f"Project-URL: Repository, {REPOSITORY}" in metadata


@pytest.mark.parametrize(
    "counterpart, algorithm, differing",
    [
        (PPO, PPG, dict(n_steps=1024, clip_range=0.3)),
        (RecurrentPPO, RecurrentPPG, {}),
        (MaskablePPO, MaskablePPG, dict(n_steps=1024, clip_range=0.3)),
    ],
)
def test_arguments_have_the_defaults_of_the_counterpart(counterpart, algorithm, differing):
    theirs = {name: value.default for name, value in signature(counterpart).parameters.items()}
    ours = {name: value.default for cls in (PPG, algorithm) for name, value in signature(cls).parameters.items()}
    assert {name: ours[name] for name in theirs} == theirs | differing
    own = [*signature(PPG).parameters.values()]  # PPO's first, in its order
    n_positions = len(signature(PPO).parameters)
    assert [each.name for each in own[:n_positions]] == [*signature(PPO).parameters]
    assert all(each.kind is each.KEYWORD_ONLY for each in own[n_positions:])


def test_pages_install_the_package_from_where_messages_do():
    places = ("README.md", "docs", "examples", "hyperparams", "pretrained")
    paths = [path for place in places for path in (ROOT / place, *(ROOT / place).rglob("*.*")) if path.is_file()]
    pages = [path.read_text().replace('\\"', '"') for path in paths if path.suffix in (".md", ".yml", ".py", ".ipynb")]
    written = [extras for page in pages for extras in re.findall(r'pip install "?sb3-ppg[^\n]*', page)]
    assert written and all(requirement(line.split("[")[1].split("]")[0]) in line for line in written), written


def test_the_page_on_versions_has_every_lower_bound():
    page = (ROOT / "docs" / "versions.md").read_text()
    tried = {name: f"{version}.0" for name, version in re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \|", page, re.MULTILINE)}
    declared = lower_bounds()
    assert tried.keys() == declared.keys()
    assert all(tried[name].startswith(f"{version}.") for name, version in declared.items())


def test_the_page_on_installing_has_every_extra_and_the_progress_bar_needs_none():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert {*listed} == project["optional-dependencies"].keys() - {"dev"} and {"rich", "tqdm"} <= {*project["dependencies"]}
