"""The examples run, print what they say, and are short enough to be read."""

import re
import runpy

import nbformat
import pytest
from nbclient import NotebookClient

from tests.helpers import ROOT

EXAMPLES = ROOT / "examples"
# Arguments of each one's `main` that make it short, and what it then prints
SCRIPTS = {
    "quick_start": (
        dict(total_timesteps=1, more_timesteps=1),
        r"Return over 20 episodes: \d+ \+- \d+\nTrained for \d+ steps\n",
    ),
    "procgen": (
        dict(total_timesteps=1, n_envs=8, n_steps=8, n_episodes=1),
        r"Mean return on the levels it has seen: (0|10).0\nMean return on all levels: (0|10).0\n",
    ),
    "own_environment": (dict(total_timesteps=1, n_episodes=5), r"Return over 5 episodes: -?\d.\d \+- \d.\d\n"),
    "lstm": (dict(total_timesteps=1), r"Return over 20 episodes: \d+ \+- \d+\n"),
    "masks": (dict(total_timesteps=1), r"It wins \d+% of its games\nOf \d+ matches it takes [1-5]\n"),
    "share_and_load": (dict(total_timesteps=1), r"model.safetensors +[\d,]+ bytes\nReturn over 20 episodes: \d+ \+- \d+\n"),
}


def test_there_is_a_test_for_each():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SCRIPTS.keys()
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments, printed = SCRIPTS[name]
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**arguments)
    assert re.search(printed + r"\Z", capsys.readouterr().out)


@pytest.mark.slow
def test_the_notebook(tmp_path, monkeypatch):
    """With a budget of one rollout, in a kernel of its own. It comes without outputs."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # as in a terminal
    for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):  # nothing of it in anybody's home
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    cells[0].source, n_changed = re.subn(r"N_TIMESTEPS = [\d_]+", "N_TIMESTEPS = 1", cells[0].source)
    assert n_changed == 1
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert any(re.match(r"Return over 20 episodes: -?\d+", output.get("text", "")) for output in outputs)
