"""The agents under ``pretrained``, and ``--pretrained``."""

import itertools
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_sb3 import EnvironmentName

from benchmarks import pretrained
from benchmarks.starts import tuned_entries
from benchmarks.suites.contestants import TASKS
from sb3_ppg import PPG, ArgumentError
from sb3_ppg.hub import save_pretrained
from sb3_ppg.zoo import ALGOS, launcher, patched
from sb3_ppg.zoo.report import evaluate, load_agent
from sb3_ppg.zoo.sharing import unpack
from tests.helpers import ROOT, run

pytestmark = pytest.mark.slow
FOLDER = ROOT / "pretrained"
AGENTS = sorted(path for path in FOLDER.glob("*/*"))
N_EPISODES = 5


def test_they_are_small():
    assert len(AGENTS) >= 10 and sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 20e6


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: str(folder.relative_to(FOLDER)))
def test_an_agent_is_as_good_as_its_card_says(folder, tmp_path):
    card = (folder / "README.md").read_text()
    ((mean, std, how),) = re.findall(r"Mean return \*\*(-?[\d.]+) ± ([\d.]+)\*\* .* with (\w+) actions", card)
    mean, std, deterministic = float(mean), float(std), {"deterministic": True, "stochastic": False}[how]
    agent = next(agent for agent in pretrained.AGENTS if agent.name == str(folder.relative_to(FOLDER)))
    env_name = EnvironmentName(agent.env_id)
    unpack(folder, agent.algo, env_name, tmp_path / "run", force=False, numbered=True)
    with patched():
        model = load_agent(
            agent.algo, agent.env_id, tmp_path / "run" / f"{env_name}.zip", tmp_path / "run" / env_name, device="cpu"
        )
        returns = evaluate(model, N_EPISODES, deterministic)
    assert abs(np.mean(returns) - mean) <= 4 * std / N_EPISODES**0.5 + 1e-2, returns


@pytest.mark.parametrize("algo", ALGOS)
def test_every_tuned_entry_has_an_agent(algo):
    """Of those for many environments, each that the suites have; but for those whose files are large."""
    env_ids = [[task.env_id for task in TASKS if task.suite == name] or [name] for name in tuned_entries(algo)]
    names = {f"{algo}/{EnvironmentName(env_id)}" for env_id in itertools.chain(*env_ids)}
    assert names - {*pretrained.LEFT_OUT} == {agent.name for agent in pretrained.AGENTS if agent.algo == algo}
    assert names - {*pretrained.LEFT_OUT} == {f"{algo}/{path.name}" for path in AGENTS if path.parent.name == algo}


def test_who_reads_a_file_that_is_unpacked_anew_reads_it_whole(tmp_path):
    """Another command, at the same time: files are not written in place."""
    folder = AGENTS[0]
    place = (folder.parent.name, EnvironmentName(folder.name), tmp_path / "run")
    unpack(folder, *place, force=True, numbered=False)
    (model,) = (tmp_path / "run").glob("*.zip")
    whole = model.read_bytes()
    with model.open("rb") as reader:
        unpack(folder, *place, force=True, numbered=False)
        assert reader.read() == whole and os.fstat(reader.fileno()).st_nlink == 0


def test_nothing_is_left_of_another_agent_in_its_place(tmp_path):
    """One without normalisation and evaluations; what a user made there stays."""
    name, run_folder = EnvironmentName("MountainCarContinuous-v0"), tmp_path / "run"
    unpack(FOLDER / "ppg" / name, "ppg", name, run_folder, force=True, numbered=False)
    (run_folder / "videos").mkdir()
    of_agent = [run_folder / name / "vecnormalize.pkl", run_folder / "evaluations.npz", run_folder / "learning_curve.png"]
    of_user = run_folder / "videos" / "learning_curve.png"
    for file in (of_agent[-1], of_user):
        file.write_bytes(b"a picture")
    assert all(file.exists() for file in of_agent)
    save_pretrained(PPG("MlpPolicy", name.gym_id, n_steps=64, device="cpu"), tmp_path / "other")
    unpack(tmp_path / "other", "ppg", name, run_folder, force=True, numbered=False)
    assert not any(file.exists() for file in of_agent) and of_user.exists()
    assert (run_folder / f"{name}.zip").exists() and "normalize: false" in (run_folder / name / "config.yml").read_text()


def test_the_commands(tmp_path):
    """In a folder of one's own; what is unpacked is a training like others."""
    assert "Mean reward: 500" in run("enjoy", "--env", "CartPole-v1", "--pretrained", "--no-render", "-n", "600", cwd=tmp_path)
    report = run("report", "--env", "CartPole-v1", "--pretrained", "--episodes", "5", cwd=tmp_path)
    assert "Mean return over 5 episodes: 500.0" in report
    unpacked = tmp_path / "logs" / "pretrained" / "ppg" / "CartPole-v1_1"
    assert (unpacked / "learning_curve.png").exists() and (unpacked / "evaluations.npz").exists()
    of_default = run("report", "--pretrained", "--episodes", "2", cwd=tmp_path)
    assert "Mean return over 2 episodes: 500.0" in of_default
    options = ("-n", "64", "-params", "n_envs:1", "n_steps:64", "--eval-freq", "-1")
    output = run("train", "--env", "CartPole-v1", "--pretrained", *options, cwd=tmp_path)
    assert "Loading pretrained agent" in output and "without those rollouts" not in output


@pytest.mark.parametrize("folder", AGENTS, ids=lambda folder: str(folder.relative_to(FOLDER)))
def test_everything_that_its_checksums_name_is_in_the_repository(folder):
    names = [line.split(maxsplit=1)[1].lstrip("*") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "logs/evaluations.npz" in names and {*names, "SHA256SUMS", "README.md"} == there


@pytest.mark.parametrize(
    ("command", "option", "other"),
    [
        ("train", "-i", ["-i", "mine.zip"]),
        ("train", "-i", ["--trained-agent=mine.zip"]),
        ("enjoy", "-f", ["--folder", "mine"]),
        ("report", "-f", ["-fmine"]),
    ],
)
def test_another_agent_beside_it_is_refused(command, option, other, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sb3-ppg", command, "--pretrained", *other])
    with pytest.raises(SystemExit, match=f"{option} and --pretrained name an agent each"):
        launcher.main()


def test_the_working_folders_agents_come_first(monkeypatch, tmp_path):
    from sb3_ppg.zoo import trained_agents

    for folder in ("mine/ppg/CartPole-v1", "package/ppg/CartPole-v1", "mine/ppo/CartPole-v1"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(trained_agents, "FOLDERS", [tmp_path / "mine", tmp_path / "package"])
    assert trained_agents.agent_folder("ppg", "CartPole-v1") == tmp_path / "mine/ppg/CartPole-v1"
    with pytest.raises(ArgumentError, match="there is no trained agent ppo/CartPole-v1"):
        trained_agents.agent_folder("ppo", "CartPole-v1")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (None, "there is no trained agent ppg/CartPole-v0; nearest: ppg/CartPole-v1"),
        ([], "the agents are in the repository, not in the installed package"),
    ],
)
def test_what_is_not_there_is_named(folders, message, tmp_path, monkeypatch):
    from sb3_ppg.zoo import trained_agents

    monkeypatch.chdir(tmp_path)
    if folders is not None:
        monkeypatch.setattr(trained_agents, "FOLDERS", [Path(folder) for folder in folders])
    monkeypatch.setattr(sys, "argv", ["sb3-ppg", "enjoy", "--env", "CartPole-v0", "--pretrained"])
    with pytest.raises(SystemExit, match=re.escape(message)):
        launcher.main()
