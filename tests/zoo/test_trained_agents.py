"""The agents under ``pretrained``, and ``--pretrained``."""

import itertools
import os
import re

import pytest
from huggingface_sb3 import EnvironmentName

from benchmarks import pretrained
from benchmarks.starts import tuned_entries
from benchmarks.suites.contestants import TASKS
from sb3_ppg.zoo import ALGOS, patched
from sb3_ppg.zoo.scripts import agent_parser, evaluate, is_deterministic, load_agent
from sb3_ppg.zoo.sharing import unpack
from tests.helpers import ROOT, run

pytestmark = pytest.mark.slow
FOLDER = ROOT / "pretrained"
AGENTS = sorted(path for path in FOLDER.glob("*/*"))


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: str(folder.relative_to(FOLDER)))
def test_an_agent_is_as_good_as_its_card_says(folder, tmp_path):
    card = (folder / "README.md").read_text()
    ((mean, std, how),) = re.findall(r"Mean return \*\*(-?[\d.]+) ± ([\d.]+)\*\* .* with (\w+) actions", card)
    mean, std, deterministic = float(mean), float(std), {"deterministic": True, "stochastic": False}[how]
    agent = next(agent for agent in pretrained.AGENTS if agent.name == str(folder.relative_to(FOLDER)))
    env_name, options = EnvironmentName(agent.env_id), ["--algo", agent.algo, "-f", str(tmp_path), "--device", "cpu"]
    unpack(folder, agent.algo, env_name, tmp_path / agent.algo / f"{env_name}_1")
    args = agent_parser("", n_episodes=5).parse_args(options)
    args.env = env_name
    with patched():
        evaluation = evaluate(load_agent(args)[0], args)
    assert evaluation.deterministic == deterministic
    args.deterministic = True
    assert is_deterministic(args)
    args.stochastic = True
    assert not is_deterministic(args)
    assert abs(evaluation.mean - mean) <= 4 * std / 5**0.5 + 1e-2


@pytest.mark.parametrize("algo", ALGOS)
def test_every_tuned_entry_has_an_agent(algo):
    """For entries of many environments: each that the suites have. Those whose files are large are left out."""
    env_ids = [[task.env_id for task in TASKS if task.suite == name] or [name] for name in tuned_entries(algo)]
    names = {f"{algo}/{EnvironmentName(env_id)}" for env_id in itertools.chain(*env_ids)} - {*pretrained.LEFT_OUT}
    assert names == {agent.name for agent in pretrained.AGENTS if agent.algo == algo}
    assert names == {f"{algo}/{path.name}" for path in AGENTS if path.parent.name == algo}
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 30e6


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(tmp_path):
    """Another command may read it: files are not written in place."""
    folder = AGENTS[0]
    place = (folder.parent.name, EnvironmentName(folder.name), tmp_path / "run")
    unpack(folder, *place)
    (model,) = (tmp_path / "run").glob("*.zip")
    whole = model.read_bytes()
    with model.open("rb") as reader:
        unpack(folder, *place)
        assert reader.read() == whole and os.fstat(reader.fileno()).st_nlink == 0


def test_the_commands(tmp_path):
    """An agent is unpacked as a training like others, here in a folder of one's own."""
    assert "Mean reward: 500" in run("enjoy", "--env", "CartPole-v1", "--pretrained", "--no-render", "-n", "600", cwd=tmp_path)
    assert "Mean return over 2 episodes: 500.0" in run("report", "--pretrained", "--episodes", "2", cwd=tmp_path)
    unpacked = tmp_path / "logs" / "pretrained" / "ppg" / "CartPole-v1_1"
    assert (unpacked / "learning_curve.png").exists() and (unpacked / "evaluations.npz").exists()
    options = ("-n", "64", "-params", "n_envs:1", "n_steps:64", "compile_updates:False", "--eval-freq", "-1")
    output = run("train", "--env", "CartPole-v1", "--pretrained", *options, cwd=tmp_path)
    assert "Loading pretrained agent" in output and "the phase starts over" not in output


def test_agents_of_the_working_folder_come_first(tmp_path):
    (tmp_path / "pretrained" / "ppg" / "CartPole-v1").mkdir(parents=True)
    assert "pretrained/ppg/CartPole-v1 holds no model" in run("report", "--pretrained", cwd=tmp_path, fails=True)
