"""The examples run and print their results."""

import re
import runpy

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers import ROOT

EXAMPLES = ROOT / "examples"
# Arguments of each one's `main` that make it short, and its output
SCRIPTS = {
    "quick_start": (
        dict(total_timesteps=1, more_timesteps=1),
        r"Return over 20 episodes: \d+ \+- \d+\n[\s\S]*Trained for \d+ steps\n",
    ),
    "training_script": (dict(total_timesteps=1), r"Return over 20 episodes: -\d+ \+- \d+\n"),
    "atari": (dict(total_timesteps=1, n_steps=8, n_episodes=1), r"Return over 1 episodes: -\d+ \+- 0\n"),
    "pettingzoo_agents": (dict(total_timesteps=1), r"Return of an agent over 120 episodes: -?\d.\d+ \+- \d.\d+\n"),
    "procgen": (
        dict(total_timesteps=1, n_envs=8, n_steps=8, n_episodes=1),
        r"Mean return on the training levels: (0|10).0\nMean return on all levels: (0|10).0\n",
    ),
    "own_environment": (dict(total_timesteps=1, n_episodes=5), r"Return over 5 episodes: -?\d.\d \+- \d.\d\n"),
    "lstm": (dict(total_timesteps=1), r"Return over 20 episodes: \d+ \+- \d+\n"),
    "masks": (dict(total_timesteps=1), r"It wins \d+% of its games\nWith \d+ matches left it takes [1-5]\n"),
    "parameterized_actions": (
        dict(total_timesteps=1),
        r"It docks with a return of -?\d.\d+\nIt begins with \{'choice': np.int64\([012]\), .*\}\n",
    ),
    "share_and_load": (dict(total_timesteps=1), r"model.safetensors +[\d,]+ bytes\nReturn over 20 episodes: \d+ \+- \d+\n"),
}


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_its_results(name, tmp_path, monkeypatch, capsys):
    if name == "pettingzoo_agents":
        pytest.importorskip("supersuit")  # which `dev` does not install
    monkeypatch.chdir(tmp_path)
    arguments, printed = SCRIPTS[name]
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**arguments)
    assert re.search(printed + r"\Z", capsys.readouterr().out)


@pytest.mark.slow
def test_the_notebook_runs_and_is_stored_with_its_outputs(tmp_path, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)  # as in a terminal
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):  # write nothing into the user's home
        monkeypatch.setenv(name, str(tmp_path / name))
    file = EXAMPLES / "first_steps.ipynb"
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert file.stat().st_size < 200_000
    check_outputs(notebook)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    first.source, n_changed = re.subn(r"N_TIMESTEPS = [\d_]+", "N_TIMESTEPS = 1", first.source)
    assert n_changed == 1
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    check_outputs(notebook)


def check_outputs(notebook: nbformat.NotebookNode) -> None:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert any(re.match(r"Return over 20 episodes: -?\d+", output.get("text", "")) for output in outputs)
