"""The code on the pages runs, the commands are understood, links resolve, and the reference is complete."""

import importlib.util
import inspect
import pydoc
import re
import runpy
import shlex
import sys

import numpy as np
import pandas as pd
import pytest
import torch as th

from sb3_ppg import PPG, ModelFormatError, RecurrentPPG, hub
from tests.helpers import ROOT, code_blocks, learn_and_log

DOCS = ROOT / "docs"
GENERATED = ("results", "examples")  # folders that the site's build writes
RESULTS = sorted(ROOT.glob("benchmarks/results/*.md"))
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if path.parent.name not in GENERATED)]
# tests/zoo runs the code of these
IN_OTHER_TESTS = {DOCS / "guides" / "zoo.md", DOCS / "distributed.md"}
PUBLIC = (
    "sb3_ppg",
    "sb3_ppg.objectives",
    "sb3_ppg.hub",
    "sb3_ppg.environments",
    "sb3_ppg.zoo",
    "sb3_ppg.export",
    "sb3_ppg.offline",
)


def run(code: str, n_timesteps: int = 1) -> dict:
    """Run it with a smaller budget, and return its names."""
    names: dict = {}
    exec(re.sub(r"(?<=learn\()[\d_]+", str(n_timesteps), code), names)
    return names


# Entry points for users, whose docstrings have an example
EXAMPLES = {
    "sb3_ppg": "PPG RecurrentPPG MaskablePPG NormalizedRewardRolloutBuffer PhasicCallback Player check",
    "sb3_ppg.hub": "save_pretrained push",
    "sb3_ppg.environments": "EnvPoolVecEnv",
}


def example(module: str, name: str) -> str:
    docstring = inspect.getdoc(getattr(importlib.import_module(module), name))
    (code,) = re.findall(r"::\n\n((?: {4}.*\n|\n)+)", docstring)
    return inspect.cleandoc(code)


PLACES = {page: code_blocks(page) for page in PAGES if page not in IN_OTHER_TESTS}
BLOCKS = {code: f"{page.relative_to(ROOT)}-{n}" for page, blocks in PLACES.items() for n, code in enumerate(blocks)}
BLOCKS |= {example(module, name): f"{module}-{name}" for module, names in EXAMPLES.items() for name in names.split()}


@pytest.mark.slow
@pytest.mark.parametrize("code", BLOCKS.keys(), ids=BLOCKS.values())
def test_code_of_a_page_or_a_docstring_runs(code, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "hub" in code:
        request.getfixturevalue("hub_server")
    if "mo_gymnasium" in code:
        pytest.importorskip("mo_gymnasium")  # which `dev` does not install
    names = run(code, 1100 if "Checkpoint" in code else 1)
    assert "model" not in names or names["model"].num_timesteps >= ("learn(" in code)
    budgets = [int(budget) for budget in re.findall(r"(?<=learn\()[\d_]+", code)]
    if budgets and isinstance(model := names.get("model"), PPG) and model.n_aux_epochs > 0:
        assert max(budgets) >= 3 * model.n_steps * model.n_envs * model.n_policy_iterations  # learn advises that


@pytest.mark.slow
def test_the_objective_that_a_page_shows_learns_and_is_shared(tmp_path):
    code = code_blocks("docs/extending.md")[0]
    names: dict = {}
    exec(code, names)
    model, cls = names["model"], names["RewardPrediction"]
    assert type(model.objective) is cls and model.n_aux_phases == 4
    observations = th.as_tensor(model.rollout_buffer.observations).reshape(-1, 4)[:64]
    with th.no_grad():
        latent = model.policy.evaluate(observations).latent_pi
        predicted = model.objective.head(th.cat([latent, th.eye(2).repeat(32, 1)], dim=1))
    assert (predicted - 1).abs().mean() < 0.3  # every reward of CartPole is 1; an untrained head predicts about 0
    recurrent = RecurrentPPG("MlpLstmPolicy", "CartPole-v1", n_steps=64, n_policy_iterations=2, objective=cls)
    assert 0 < learn_and_log(recurrent, 128)["aux/reward_loss"] < 2
    with pytest.raises(ModelFormatError, match="RewardPrediction"):
        hub.save_pretrained(model, tmp_path)
    hub.save_pretrained(model, tmp_path, custom_objects={"RewardPrediction": cls})
    loaded = hub.from_pretrained(tmp_path, custom_objects={"RewardPrediction": cls})
    np.testing.assert_array_equal(loaded.objective.head.bias.detach(), model.objective.head.bias.detach())


# A model's file, a study that has finished trials, a Hub
NEEDS_MORE = r"\.zip|^(?!.* -optimize).*--study-name|-orga|\.\.\."
WRITTEN = [text for page in PAGES for text in re.findall(r"sb3-ppg train (?:[^`#\n\\]|\\\n)*", page.read_text())]
COMMANDS = sorted({" ".join(text.replace("\\\n", "").split()) for text in WRITTEN})  # lines may be continued


class Understood(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("command", [line for line in COMMANDS if not re.search(NEEDS_MORE, line)])
def test_a_command_of_a_page_is_understood(command, tmp_path, monkeypatch):
    """Run it up to the moment when its training would begin."""
    pytest.importorskip("rl_zoo3")
    if "--track" in command:
        pytest.importorskip("wandb")
    from rl_zoo3.exp_manager import ExperimentManager

    from sb3_ppg.zoo import launcher

    def stop(*_):
        raise Understood

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ExperimentManager, "create_callbacks", stop)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(Understood):
        launcher.main()


def test_the_reference_has_every_public_name_and_every_name_that_a_page_uses():
    pages = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    names = re.findall(r"^\.\. (?:autoclass|autofunction|autoexception|py:data):: (\S+)", pages, re.MULTILINE)
    modules = [importlib.import_module(name) for name in re.findall(r"^\.\. automodule:: (\S+)", pages, re.MULTILINE)]
    names += [f"{module.__name__}.{name}" for module in modules for name in getattr(module, "__all__", vars(module))]
    listed = [id(thing) for thing in map(pydoc.locate, names) if thing is not None]
    for module in map(importlib.import_module, PUBLIC):
        assert [name for name in module.__all__ if id(getattr(module, name)) not in listed] in ([], ["__version__"])
    for page in (path for path in PAGES if path.parent.name != "reference"):
        used = re.findall(r"\bsb3_ppg(?:\.\w+)+", page.read_text())
        imports = re.findall(r"^ *from (sb3_ppg[\w.]*) import ([\w, ]+)", page.read_text(), re.MULTILINE)
        used += [f"{module}.{name.strip()}" for module, several in imports for name in several.split(",")]
        things = {name: pydoc.locate(name) for name in used if name != "sb3_ppg.__version__"}
        assert [name for name, thing in things.items() if not (inspect.ismodule(thing) or id(thing) in listed)] == [], page


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_pages_outside_the_site_resolve(page):
    """Sphinx checks the links of the site."""
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", (ROOT / page).read_text()):
        target = ROOT / (path or page)
        assert target.exists(), path
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor[1:] in {re.sub(r"[^\w-]", "", name.lower().replace(" ", "-")) for name in headings}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS], ids=lambda page: page.name)
def test_a_table_says_which_probabilities_do_not_tell_algorithms_apart(page):
    for lines in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines.splitlines())
        cells = [row[column] for row in rows for column, title in enumerate(head) if "better" in title]
        for cell in cells:
            if interval := re.search(r"\((\d\.\d+) to (\d\.\d+)\)", cell):
                assert (float(interval[1]) <= 0.5 <= float(interval[2])) == cell.endswith(", not apart")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_code_fit_into_a_narrow_window(page):
    for code in re.findall(r"```(?:python|bash)\n(.*?)```", page.read_text(), re.DOTALL):
        assert [line for line in code.splitlines() if len(line) > 88] == []


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_a_page_of_results_names_a_command_that_exists_now_or_at_a_commit(page):
    commands = re.findall(r"`python -m (benchmarks\.\w+)(.*?)(?:\. |$)", page.read_text(), re.MULTILINE)
    assert commands and all("at commit" in rest or importlib.util.find_spec(module) for module, rest in commands)


def test_the_site_names_the_files_of_a_table_and_their_hours():
    pytest.importorskip("myst_nb")
    text = runpy.run_path(str(DOCS / "conf.py"))["origin"](ROOT / "benchmarks" / "results" / "offline.md")
    assert "[offline.csv]" in text and "4.5 hours in its column `seconds`" in text and "_curves" not in text


def test_the_page_of_libraries_has_what_was_run():
    table = (DOCS / "works_with.md").read_text().split("What does not work")[0]
    rows = pd.read_csv(ROOT / "benchmarks/results/works_with.csv").set_index("script")
    assert sorted(re.findall(r"works_with/(\w+\.py)", table)) == sorted(rows.index)
    assert sorted(rows.index) == sorted(path.name for path in (ROOT / "examples/works_with").glob("*.py"))
    assert rows.outcome.str.startswith("works: ").all()
    packages = (ROOT / "benchmarks/environments.yml").read_text()
    for line in re.findall(r"^\| .*\d.*", table, re.MULTILINE):
        versions = line.split("|")[3].strip().split(", ")
        if scripts := re.findall(r"works_with/(\w+\.py)", line):
            assert versions == re.findall(r" (\d\S*?)(?:,|$)", ", ".join(rows.libraries[scripts])), line
        else:
            assert all(f"=={version}" in packages for version in versions), line
