"""Programs that tests start, and end by signals, and small settings of runs."""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import rl_zoo3
from matplotlib import pyplot as plt

from sb3_ppg import MaskablePPG
from tests.helpers import ROOT

SMALL = "-params compile_updates:False n_envs:2 n_steps:32 batch_size:32 n_policy_iterations:2 aux_batch_size:32".split()

# A module that registers an environment
MY_POLE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class MyPole(CartPoleEnv):
    pass


gymnasium.register("MyPole-v0", "my_pole:MyPole", max_episode_steps=20)
"""


def program(arguments: list[str], cwd: Path, *, start_new_session: bool = False, **environment: str) -> subprocess.Popen:
    """Start a program whose output goes to a file: a pipe that nobody reads would stop it."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment}
    variables["PYTHONPATH"] = f"{ROOT}{os.pathsep}{cwd}"
    path = cwd / f"output_{len(list(cwd.glob('output_*')))}"
    with path.open("w") as output:
        streams: Any = dict(stdout=output, stderr=output, start_new_session=start_new_session)
        started = subprocess.Popen([sys.executable, *arguments], cwd=cwd, env=variables, **streams)
    vars(started)["output"] = path
    return started


def output_of(started: subprocess.Popen) -> str:
    return vars(started)["output"].read_text()


def end_of(started: subprocess.Popen) -> tuple[int, str]:
    """Wait for a program; return its exit status and its output."""
    return started.wait(timeout=150), output_of(started)


class Deadly(gym.Wrapper):
    """Kills its process once, that of a rank and after a number of steps that an environment variable has."""

    n = 0

    def step(self, action):
        rank, n = os.environ["DEADLY"].split(":")
        self.n += 1
        if os.environ.get("RANK", "0") == rank and self.n == int(n) and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)


gym.register("Deadly-v0", lambda **kwargs: Deadly(gym.make("CartPole-v1", **kwargs)), max_episode_steps=500)


def register_and_repair() -> None:
    """Compare what the Zoo's modules and classes consist of, and what else its scripts change, before and after."""
    names = "callbacks exp_manager hyperparams_opt load_from_hub train utils plots.plot_train".split()
    modules = [rl_zoo3, *(importlib.import_module(f"rl_zoo3.{name}") for name in names), subprocess, plt]
    owners = [*modules, MaskablePPG, *(cls for module in modules for cls in vars(module).values() if isinstance(cls, type))]
    tables = ("ALGOS", "HYPERPARAMS_SAMPLER", "HYPERPARAMS_CONVERTER")
    plt.get_backend()  # which is chosen when it is first asked for

    def state() -> dict:
        found = {(owner, name): value for owner in owners for name, value in vars(owner).items()}
        return found | {(table, name): value for table in tables for name, value in vars(rl_zoo3.exp_manager)[table].items()}

    def changes(before: dict) -> set:
        after = state()
        return {key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)}

    before = state()
    from sb3_ppg.zoo import ALGOS, patched, register

    register()
    managers = {(module, "ExperimentManager") for module in (rl_zoo3.exp_manager, rl_zoo3.train)}
    assert changes(before) == managers | {(table, algo) for table in tables for algo in (*ALGOS, "bcq")}
    registered = state()
    register()
    assert not changes(registered)
    with patched():
        assert len(changes(registered)) > 5
        assert rl_zoo3.create_test_env is rl_zoo3.utils.create_test_env is not registered[rl_zoo3.utils, "create_test_env"]
    assert not changes(registered)
