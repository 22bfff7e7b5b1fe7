"""The examples run and print their results."""

import re
import runpy
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import nbformat
import pytest
from nbclient import NotebookClient
from stable_baselines3.common.env_util import make_atari_env, make_vec_env

from benchmarks import works_with
from tests.helpers import ROOT

EXAMPLES = ROOT / "examples"
# Arguments of each one's `main` that make it short, and what it prints at its end
SCRIPTS = {
    "quick_start": (dict(more_timesteps=1), r"Return over 20 episodes: \d+ \+- \d+\n[\s\S]*Trained for \d+ steps\n"),
    "one_file": ({}, r"Return over 20 episodes: \d+ \+- \d+\n"),
    "training_script": (dict(n_episodes=1), r"Return over 1 episodes: -\d+ \+- \d+\n"),
    "atari": (dict(n_steps=8, n_episodes=1), r"Return over 1 episodes: -?\d+ \+- 0\n"),
    "pettingzoo_agents": ({}, r"Return of an agent over 120 episodes: -?\d.\d+ \+- \d.\d+\n"),
    "procgen": (dict(n_envs=8, n_steps=8, n_episodes=1), r"training levels: (0|10).0\nMean return on all levels: (0|10).0\n"),
    "own_environment": (dict(n_episodes=5), r"Return over 5 episodes: -?\d.\d \+- \d.\d\n"),
    "lstm": ({}, r"Return over 20 episodes: \d+ \+- \d+\n"),
    "masks": ({}, r"It wins \d+% of its games\nWith \d+ matches left it takes [1-5]\n"),
    "parameterized_actions": (dict(n_episodes=2), r"return of -?\d.\d+\nIt begins with \{'choice': np.int64\([012]\), .*\}\n"),
    "finetune": (dict(n_episodes=1), r"with wind, before: -?\d+ \+- 0\nReturn with wind, after: -?\d+ \+- 0\n"),
    "share_and_load": ({}, r"model.safetensors +[\d,]+ bytes\nReturn over 20 episodes: \d+ \+- \d+\n"),
}


def make_one_env(env, n_envs=1, **kwargs):
    return make_vec_env(env, **kwargs)


# Names of a script in place of which these make its episodes or rollouts short: a game that random actions lose soon
SHORTER = {
    "parameterized_actions": dict(make_vec_env=make_one_env),
    "training_script": dict(make_vec_env=make_one_env),
    "atari": dict(make_atari_env=partial(make_atari_env, env_kwargs=dict(max_num_frames_per_episode=200))),
    "procgen": dict(GAME="LeaperEasy-v0"),
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
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    main.__globals__.update(SHORTER.get(name, {}))
    main(total_timesteps=1, **arguments)
    assert re.search(printed + r"\Z", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("run", works_with.wanted(), ids=lambda run: run["script"])
def test_a_script_with_another_library_runs(run, tmp_path):
    """`python -m benchmarks.works_with` runs all of them; here, those whose libraries are installed."""
    for name in works_with.libraries(works_with.SCRIPTS / run["script"]):
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    row, _ = works_with.train({**run, "pip": ""}, tmp_path)
    assert row["outcome"].startswith("works: ")


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
    text = "\n".join(cell.source for cell in notebook.cells)
    budget, phase = (int(re.search(rf"{name} = ([\d_,]+)", text)[1].replace(",", "")) for name in ("N_TIMESTEPS", "16 x 4"))
    printed = "".join(part.get("text", "") for cell in notebook.cells for part in cell.get("outputs", []))
    steps = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) steps: return", printed)]
    assert steps == [*range(phase, budget + 1, phase)]  # it is stored as its code runs
    for cell in notebook.cells:
        cell.source = re.sub(r"(N_TIMESTEPS|n_eval_episodes|n_epochs) ?= ?[\d_]+", r"\1=1", cell.source)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    check_outputs(notebook)


def check_outputs(notebook: nbformat.NotebookNode) -> None:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert any(re.match(r"Return over 20 episodes: -?\d+", output.get("text", "")) for output in outputs)
