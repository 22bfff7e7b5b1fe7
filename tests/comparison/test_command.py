"""``sb3-ppg compare`` from its options to the picture, and its runs, which are those of ``train``."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import psutil
import pytest

from sb3_ppg import PPG, ArgumentError
from sb3_ppg.comparison.runs import PROGRAM, Run, carry_out
from sb3_ppg.zoo import compare
from tests.helpers import ROOT, run, wait_for

ENTRY = "CartPole-v1: {policy: MlpPolicy, n_timesteps: 1000, n_steps: 32, batch_size: 32}"
# Hyperparameters in Python: a class as a value, and one as a name
PYTHON_ENTRY = """
import gymnasium
from torch import nn
wrappers = [{gymnasium.wrappers.TimeLimit: {"max_episode_steps": 9}}]
hyperparams = {"CartPole-v1": dict(policy="MlpPolicy", n_timesteps=1, n_steps=32, env_wrapper=wrappers)}
hyperparams["CartPole-v1"] |= dict(policy_kwargs={"activation_fn": nn.ReLU}, learning_rate=lambda left: 1e-3 * left)
"""
# Ends when an action is far from zero, which without exploration it is only at a time limit; PPO in a class of the user's
MODULE = """
import gymnasium, numpy as np
from gymnasium import spaces
from rl_zoo3 import ALGOS
from stable_baselines3 import PPO

class EndsAfterNoise(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 0, (1,)), spaces.Box(-2, 2, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, bool(abs(action[0]) > 1), False, {}

class Mine(PPO):
    def __init__(self, *args, **kwargs):
        self.own = kwargs.pop("own", 1)
        super().__init__(*args, **{"n_steps": 32, "batch_size": 32, **kwargs})

gymnasium.register("Noise-v0", EndsAfterNoise, max_episode_steps=50)
ALGOS["mine"] = Mine
"""


def before_the_first_run(*command: str, cwd: Path) -> str:
    """Return what the command says before it starts a run."""
    with patch.object(Run, "start", side_effect=RuntimeError):
        return run(*command, cwd=cwd, fails=True)


@pytest.mark.slow
def test_the_command_from_two_tiny_runs_to_the_picture(tmp_path):
    """Runs are known by their content: a run whose entry has changed is another one."""
    mine = tmp_path / "mine.yml"
    mine.write_text(ENTRY)
    variant = "ppg: n_aux_epochs=2 n_policy_iterations=2"
    command = ["compare", "--env", "CartPole-v1", "--algos", "ppo", variant, "-conf", "ppo:mine.yml", "ppg:mine.yml"]
    command += ["-n", "320", "--jobs", "2", "--eval-episodes", "2", "--device", "cpu", "-params", "gamma:1-0.1", "-f", "here"]
    output = run(*command, "--seeds", "1", cwd=tmp_path)
    folder = tmp_path / "here"
    assert output.count("With --seeds 1 nothing can be told apart") == 2 and "--seeds 5 would do" in output
    assert "2 runs, 2 to carry out" in output and output.count("processor seconds; all end in about") == 2
    assert output.count("not apart") == 2
    assert (folder / "compare.png").stat().st_size > 10_000
    rows, curves = pd.read_csv(folder / "compare.csv"), pd.read_csv(folder / "compare_curves.csv")
    assert set(rows["contestant"]) == set(curves["contestant"]) == {"ppo", variant}
    for _, curve in curves.groupby("contestant"):
        assert list(curve["steps"]) == [*range(0, 321, 32)] and curve["return"].between(5, 500).all()
    page = (folder / "compare.md").read_text()
    assert f"# ppo or {variant} in CartPole-v1?" in page and "n_policy_iterations: 2" in page and "gamma: 0.9" in page
    line = re.search(r"command: sb3-ppg (train --algo ppg .*)", page)[1]
    run(*shlex.split(line), "-f", "again", cwd=tmp_path)
    again = PPG.load(tmp_path / "again" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip")
    assert (again.n_aux_epochs, again.n_policy_iterations, again.gamma) == (2, 2, 0.9)
    next(folder.glob("ppo_*/0/finished")).unlink()
    assert "2 runs, 1 to carry out" in before_the_first_run(*command, cwd=tmp_path)  # with as many seeds as before
    mine.write_text(ENTRY.replace("32}", "16}"))
    assert "2 runs, 2 to carry out" in before_the_first_run(*command, "--seeds", "1", cwd=tmp_path)


@pytest.mark.slow
def test_hyperparameters_in_python(tmp_path):
    """
    Only a run of its own is played later, for which its hyperparameters must be read again. With ``--defaults``, an algorithm
    with a file has those of its file.
    """
    (tmp_path / "mine.py").write_text(PYTHON_ENTRY)
    refused = run("train", "--env", "CartPole-v1", "-conf", "mine.py", "-n", "40", cwd=tmp_path, fails=True)
    assert "no lambdas, in a module" in refused and not (tmp_path / "logs").exists()
    command = "compare --env CartPole-v1 --algos ppg ppg:n_epochs=2 -conf ppg:mine.py -n 40 --seeds 1 -f here"
    command += " --eval-episodes 1"
    assert "2 runs, 2 to carry out" in run(*command.split(), cwd=tmp_path)
    assert "torch.nn.modules.activation.ReLU" in (tmp_path / "here" / "compare.md").read_text()
    assert pd.read_csv(tmp_path / "here" / "compare.csv")["return_at_end"].le(9).all()
    assert "2 runs, 0 to carry out" in run(*command.split(), cwd=tmp_path)
    assert "2 runs, 0 to carry out" in run(*command.split(), "--defaults", cwd=tmp_path)
    (tmp_path / "mine.py").write_text(PYTHON_ENTRY.replace("1e-3", "1e-4"))
    assert "2 runs, 2 to carry out" in before_the_first_run(*command.split(), cwd=tmp_path)


@pytest.mark.slow
def test_a_verdict_after_more_seeds_counts_the_looks(tmp_path, monkeypatch):
    """Also if another comparison in the same folder begins and ends during the first one."""
    (tmp_path / "mine.yml").write_text(ENTRY)
    command = ["compare", "--env", "CartPole-v1", "-conf", "ppo:mine.yml", "ppg:mine.yml", "-n", "40", "--jobs", "2"]
    command += ["--eval-episodes", "1", "--seeds"]
    carried_out, exchanged = compare.carry_out, ("--algos", "ppo", "ppg")

    def with_another_one(*args: Any) -> None:
        monkeypatch.undo()
        run(*command, "1", *exchanged, cwd=tmp_path)
        carried_out(*args)

    monkeypatch.setattr(compare, "carry_out", with_another_one)
    assert "p <= 0.0250" in (first := run(*command, "1", cwd=tmp_path)) and "verdict 1" in first
    assert "p <= 0.0125" in (second := run(*command, "2", cwd=tmp_path)) and "4 runs, 2 to carry out" in second
    assert "verdict 1" in run(*command, "1", cwd=tmp_path) and "verdict 2" in run(*command, "2", *exchanged, cwd=tmp_path)


@pytest.mark.slow
def test_classes_and_environments_of_a_module(tmp_path):
    """Also where the run is played later."""
    (tmp_path / "noise.py").write_text(MODULE)
    command = ["compare", "--env", "Noise-v0", "--algos", "ppg", "mine: own=2", "--gym-packages", "noise", "--defaults"]
    command += ["-n", "512", "--seeds", "1", "--jobs", "2", "-f", "here"]
    run(*command, cwd=tmp_path)
    rows = pd.read_csv(tmp_path / "here" / "compare.csv")
    assert set(rows["contestant"]) == {"ppg", "mine: own=2"}
    assert (rows["return_at_end"] == 50).all() and (rows["seconds"] > 0).all()
    assert "here/mine_defaults.yml" in (tmp_path / "here" / "compare.md").read_text()
    del sys.modules["noise"]
    (folder,) = (tmp_path / "here").glob("mine_*/0")
    assert "50.00 +/- 0.00" in run("report", "--run-folder", str(folder), "--gym-packages", "noise", cwd=tmp_path)
    del sys.modules["noise"]
    assert "2 runs, 0 to carry out" in run(*command, cwd=tmp_path)
    del sys.modules["noise"]
    (tmp_path / "noise.py").write_text(MODULE.replace("1.0, bool", "2.0, bool"))
    assert "2 runs, 2 to carry out" in before_the_first_run(*command, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_that_is_ended_leaves_no_run_behind(how, tmp_path):
    """Even SIGKILL, after which it can tell them nothing, ends the runs; Ctrl-C does not finish them."""
    command = "compare --env CartPole-v1 -n 999999 --seeds 1 --jobs 2 -f here"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "sb3_ppg", *command.split()]
    as_in_a_terminal = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells let background jobs ignore it
    with subprocess.Popen(words, cwd=tmp_path, env=environment, preexec_fn=as_in_a_terminal) as compare:
        wait_for(lambda: len([*tmp_path.glob("here/*/0/evaluations.csv")]) == 2)
        children = psutil.Process(compare.pid).children()
        compare.send_signal(how)
    assert len(children) == 2
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children))
    assert not [*tmp_path.glob("here/*/0/CartPole-v1.zip")] and not [*tmp_path.glob("here/*/0/finished")]


def test_on_windows_a_run_waits_for_the_process_that_started_it_without_reading():
    start, _ = PROGRAM.split("threading.Thread(")
    code = f"import psutil, sys; sys.platform, sys.stdin = 'win32', None\n{start}print('begins', flush=True); end()"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        environment = {**os.environ, "SB3_PPG_PARENT": str(parent.pid)}
        streams = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child = subprocess.Popen([sys.executable, "-c", code], env=environment, **streams)
        assert child.stdout.readline() == "begins\n"
        time.sleep(0.2)
        assert child.poll() is None
    assert child.wait(10) == 1


@pytest.mark.slow
def test_a_run_that_fails_shows_the_end_of_its_log(tmp_path):
    failing = Run(tmp_path / "0", ["--algo", "ppg", "--env", "CartPole-v1", "-n", "64", "--device", "abacus"], 64)
    with pytest.raises(ArgumentError, match=r"(?s)ended with status 1; the end of .*log.txt:\n.*abacus"):
        carry_out([failing, Run(tmp_path / "1", ["--algo", "ppg", "-n", "64"], 64)])
    assert not failing.is_finished and not (tmp_path / "1").exists()
