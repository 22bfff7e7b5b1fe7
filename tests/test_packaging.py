"""What is installed: the hyperparameter files, and a package that imports without its extras."""

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
from tests.helpers import ROOT

pytestmark = pytest.mark.slow


def test_the_wheel_has_the_hyperparameters(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert {"sb3_ppg/hyperparams/ppg.yml", "sb3_ppg/py.typed", "sb3_ppg/zoo/launcher.py"} <= names
        assert not any(name.startswith(("tests", "benchmarks", "examples", "pretrained")) for name in names)
        file.extractall(tmp_path / "site")
        (metadata,) = (file.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    check_links(metadata)
    code = (
        "from sb3_ppg.zoo.registration import ALGOS, hyperparameter_file as f\n"
        "print(all(f(algo).is_file() for algo in ALGOS), f('ppg'))"
    )
    found = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path / "site")
    assert found.startswith("True") and str(tmp_path / "site" / "sb3_ppg" / "hyperparams" / "ppg.yml") in found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_a_clone_leaves_files_with_checksums_as_they_are():
    """Git for Windows would write other ends of lines."""
    files = subprocess.check_output(["git", "ls-files", "*SHA256SUMS", "*/model.json"], cwd=ROOT, text=True).split()
    found = subprocess.check_output(["git", "check-attr", "text", "--", *files], cwd=ROOT, text=True).splitlines()
    assert len(found) == len(files) > 10 and all(line.endswith(": text: unset") for line in found)


def check_links(metadata: str) -> None:
    """What PyPI shows: pictures and links that lead to the repository, to files that are there, and no relative ones."""
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    repository = "https://github.com/sb3-ppg/sb3_ppg/blob/main/"
    pictures = "https://raw.githubusercontent.com/sb3-ppg/sb3_ppg/main/"
    inside = [target for target in targets if target.startswith((repository, pictures))]
    assert all(target.startswith(("https://", "#")) for target in targets)
    assert all((ROOT / target.removeprefix(repository).removeprefix(pictures)).exists() for target in inside)
    assert {target.endswith(".png") for target in inside if target.startswith(pictures)} == {True} and len(inside) > 10
    assert f"Project-URL: Repository, {repository.removesuffix('/blob/main/')}" in metadata
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^##+ (.+)$", metadata, re.MULTILINE)}
    assert {target[1:] for target in targets if target.startswith("#")} <= {re.sub(r"[^\w-]", "", name) for name in headings}


DOCS = ROOT / "docs"


def table_of(page: str) -> list[list[str]]:
    """The rows of the first table of a page, without its head."""
    text = re.split(r"\n\n(?=\|)", (DOCS / page).read_text())[1].split("\n\n")[0]
    return [[cell.strip(" `") for cell in row.strip("|").split("|")] for row in text.splitlines()[2:]]


def defaults_of(*classes: type) -> dict[str, object]:
    """Of the first one's constructor, and of those that it passes the rest on to."""
    named = {}
    for cls in classes:
        named |= {name: one.default for name, one in signature(cls).parameters.items() if name not in named}
    return named


@pytest.mark.parametrize(
    "theirs, ours, differing",
    [
        (PPO, [PPG], dict(n_steps=1024, clip_range=0.3)),
        (RecurrentPPO, [RecurrentPPG, PPG], {}),
        (MaskablePPO, [MaskablePPG, PPG], dict(n_steps=1024, clip_range=0.3)),
    ],
)
def test_the_defaults_are_those_of_the_counterparts(theirs, ours, differing):
    """But for those that the pages name."""
    counterpart, own = defaults_of(theirs), defaults_of(*ours)
    assert counterpart | differing == {name: own[name] for name in counterpart}
    assert list(signature(PPG).parameters)[: len(signature(PPO).parameters)] == list(signature(PPO).parameters)
    page = (DOCS / "migration.md").read_text()
    assert "but for `n_steps=1024` (PPO: 2,048) and\n`clip_range=0.3` (0.2), its default" in page


def test_the_pages_name_the_length_of_a_phase():
    parameters, page = signature(PPG).parameters, (DOCS / "migration.md").read_text()
    n_rollouts, n_steps = (parameters[name].default for name in ("n_policy_iterations", "n_steps"))
    assert f"{n_steps} x 1 x {n_rollouts} = {n_steps * n_rollouts:,}" in page
    assert f"with eight, {8 * n_steps * n_rollouts:,}" in page


def test_the_pages_name_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for name, *_ in table_of("install.md")} == extras.keys() - {"dev"}


def test_importing_needs_no_extra():
    extras = [
        "rl_zoo3",
        "envpool",
        "matplotlib",
        "pandas",
        "huggingface_hub",
        "safetensors",
        "tensorboard",
        "ale_py",
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({extras!r})); import sb3_ppg; print(sb3_ppg.__version__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip()
