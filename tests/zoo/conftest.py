"""Runs that several tests read."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import run


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A folder in which PPG was trained, as ``make train`` does but shorter, and PPO."""
    folder = tmp_path_factory.mktemp("zoo")
    options = ("--env", "CartPole-v1", "-n", "2000", "--eval-freq", "1000", "--seed", "1")
    schedules = ("aux_learning_rate:'lin_0.002'", "n_value_epochs:1", "value_learning_rate:'lin_0.004'")
    output = run(
        *("train", *options, "--save-freq", "1000", "--progress", "-params", "compile_updates:False", *schedules), cwd=folder
    )
    assert "Loading hyperparameters from" in output and "100%" in output
    run("train", "--algo", "ppo", *options, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def run_folder(trained) -> Path:
    return trained / "logs" / "ppg" / "CartPole-v1_1"


@pytest.fixture
def children_in_place(monkeypatch) -> list[list[str]]:
    """Scripts that start others by our launcher run them in this process, where their commands are in this list."""
    original, commands = subprocess.call, list[list[str]]()

    def call(command: list[str], *args, **kwargs) -> int:
        if command[:3] != [sys.executable, "-m", "sb3_ppg"]:
            assert "enjoy.py" not in command and "rl_zoo3.record_video" not in command
            return original(command, *args, **kwargs)
        commands.append(command)
        run(*command[3:])
        return 0

    monkeypatch.setattr(subprocess, "call", call)
    return commands
