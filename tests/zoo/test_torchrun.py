"""Trainings of RL Zoo's ``train`` in several processes, started by ``torchrun`` itself, and interrupted ones."""

import contextlib
import gc
import io
import os
import re
import runpy
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import load_results

from sb3_ppg import PPG, PhasicCheckpointCallback, latest_checkpoint
from sb3_ppg.distributed.collectives import gather, rank
from sb3_ppg.zoo import launcher, trained_agents
from sb3_ppg.zoo.interrupted import MARKER, Marker, forget_later_episodes, interrupted_run
from tests import helpers
from tests.distributed.several import free_port, in_processes
from tests.helpers import ROOT, wait_for
from tests.zoo.programs import end_of, program

pytestmark = pytest.mark.slow
TRAIN = ["-m", "sb3_ppg", "train", "--env", "CartPole-v1", "--seed", "3"]
SMALL = [
    "-params",
    "compile_updates:False",
    "n_envs:2",
    "n_steps:16",
    "batch_size:16",
    "n_policy_iterations:3",
    "aux_batch_size:16",
]
# An environment whose process kills itself once, in a run of two, after so many steps
DEADLY = """
import os, signal
import gymnasium as gym

class Deadly(gym.Wrapper):
    def step(self, action):
        mark, rank, (victim, n) = "died", os.environ.get("RANK", "0"), os.environ["DEADLY"].split(":")
        self.n = getattr(self, "n", 0) + 1
        if rank == victim and self.n == int(n) and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)

gym.register("Deadly-v0", lambda **kwargs: Deadly(gym.make("CartPole-v1", **kwargs)), max_episode_steps=500)
"""


def start(arguments: list[str], cwd: Path, *options: str, n: int = 2, **environment: str) -> subprocess.Popen:
    rendezvous = () if {"--rdzv-endpoint", "--standalone"} & {*options} else ("--master-port", str(free_port()))
    agent = ["-m", "torch.distributed.run", "--nproc-per-node", str(n), *rendezvous, *options]
    return program([*agent, *arguments], cwd, **environment)


def launched(arguments: list[str]) -> str:
    """Return what ``sb3-ppg`` prints in this process of several."""
    sys.argv = ["sb3-ppg", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        launcher.main()
    return output.getvalue()


def test_two_processes_are_one_training(tmp_path):
    """One folder, one evaluation, one log; monitor files of all environments; steps are those of all."""
    options = "-n 384 --eval-freq 192 --eval-episodes 1 --save-freq 128 -f logs --log-interval 1"
    output = "".join(in_processes(launched, tmp_path, [*TRAIN[2:], *options.split(), *SMALL]))
    (run,) = (tmp_path / "logs" / "ppg").iterdir()
    assert output.count("Seed: 3") == 1 and output.count("Saving to ") == 1
    assert [int(n) for n in re.findall(r"total_timesteps +\| (\d+)", output)][-2:] == [384, 384]
    assert list(np.load(run / "evaluations.npz")["timesteps"]) == [192, 384]
    assert {path.name for path in run.glob("*.monitor.csv")} == {f"{number}.monitor.csv" for number in range(4)}
    checkpoints = {path.name for path in run.glob("rl_model_*")}
    assert {name for name in checkpoints if name.endswith(".zip")} == {f"rl_model_{n}_steps.zip" for n in (128, 256, 384)}
    assert {name.split(".", 1)[1] for name in checkpoints if "384" in name} == {
        "zip", "aux_buffer.0_of_2.npz", "aux_buffer.1_of_2.npz"
    }  # fmt: skip
    assert not (run / "unfinished.json").exists()
    episodes = [(run / f"{number}.monitor.csv").read_text().splitlines()[2:] for number in range(4)]
    assert len({tuple(row.split(",")[0] for row in rows) for rows in episodes}) == 4  # no process repeats another


def unpacked_and_launched(arguments: list[str]) -> int:
    """Return how many agents this process unpacks."""
    with patch.object(trained_agents, "unpack", wraps=trained_agents.unpack) as unpack:
        launched(arguments)
    return unpack.call_count


def test_one_process_unpacks_the_agent_that_all_begin_with(tmp_path):
    options = "--pretrained -n 128 --eval-freq -1"
    assert in_processes(unpacked_and_launched, tmp_path, [*TRAIN[2:], *options.split(), *SMALL]) == [1, 0]


def test_a_killed_process_goes_on_from_the_latest_checkpoint(tmp_path):
    """``--max-restarts`` needs no change to the command line, and keeps everything in the folder."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    train = "-m sb3_ppg train --env Deadly-v0 --gym-packages deadly --eval-freq 96 --eval-episodes 1 --save-freq 64"
    (tmp_path / "mine.yml").write_text(
        "Deadly-v0:\n  n_timesteps: 768\n  policy: MlpPolicy\n  n_envs: 2\n  n_steps: 16\n  batch_size: 16\n"
        "  n_policy_iterations: 3\n  normalize: true\n"
    )
    command = [*train.split(), "-conf", "mine.yml"]
    code, output = end_of(start(command, tmp_path, "--standalone", "--max-restarts", "1", DEADLY="1:100"))
    assert code == 0, output
    (run,) = (tmp_path / "logs" / "ppg").iterdir()
    (steps,) = re.findall(r"Going on after (\d+) steps", output)
    assert 64 <= int(steps) <= 100 * 4 and int(steps) % 64 == 0
    evaluated = np.load(run / "evaluations.npz")["timesteps"]
    assert list(evaluated) == list(range(96, 769, 96))  # those of before the kill, too, and none twice
    assert (run / "Deadly-v0" / "vecnormalize.pkl").exists() and (run / "Deadly-v0.zip").exists()
    assert len(list(run.glob("*.monitor.csv"))) == 8 and not (run / "unfinished.json").exists()


def test_only_the_same_command_goes_on_and_only_when_its_process_has_ended(tmp_path, capsys):
    command = {"arguments": ["-n", "100"], "hyperparameters": {"gamma": 0.9}}
    folder, broken = tmp_path / "CartPole-v1_2", tmp_path / "CartPole-v1_10"
    for run in (folder, broken):
        run.mkdir()

    def claimed(command):
        """Not for long: the marker is gone when it is no longer held, as when its process ends."""
        found = interrupted_run(tmp_path, command)
        return found and (found[0].path.parent, *found[1:])

    assert claimed(command) is None
    marker = Marker(folder)
    marker.write(command, seed=5)
    assert claimed(command) is None  # it is at work
    del marker
    assert claimed(command) == (folder, 5, None)
    checkpoint = folder / "rl_model_64_steps.zip"
    with zipfile.ZipFile(checkpoint, "w") as archive:
        archive.writestr("data", "{}")
    taken_up = interrupted_run(tmp_path, command)
    assert taken_up[2] == checkpoint and claimed(command) is None  # it is taken up once
    del taken_up
    for other in ({**command, "arguments": ["-n", "200"]}, {**command, "hyperparameters": {"gamma": 0.99}}):
        assert claimed(other) is None
    for bad in ("", "[]", "{", '{"command": ["x"]'):
        (broken / MARKER).write_text(bad)
        assert claimed(command) == (folder, 5, checkpoint)
        assert f"{broken / MARKER} cannot be read" in capsys.readouterr().out
    marker = Marker(folder)
    marker.write(command, seed=5)
    marker.remove()
    assert not (folder / MARKER).exists()


def test_a_run_goes_on_whatever_the_kill_has_left(tmp_path, monkeypatch, capsys):
    """After all steps, but before the last model; with files that the Zoo was writing."""
    monkeypatch.chdir(tmp_path)
    options = "-n 64 --save-freq 32 --eval-freq 32 --eval-episodes 1 -params n_envs:2 n_steps:16 batch_size:16 normalize:True"
    command = ["sb3-ppg", *TRAIN[2:], *options.split()]
    monkeypatch.setattr(sys, "argv", command.copy())

    def kill(self, model):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ExperimentManager, "save_trained_model", kill)
        launcher.main()
    gc.collect()  # the lock of the one that was killed
    run = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    for name in ("evaluations.npz", "CartPole-v1/vecnormalize.pkl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[: len(whole) // 2])
    other_seed = [word.replace("3", "4") if word == "3" else word for word in command]
    monkeypatch.setattr(sys, "argv", other_seed)
    launcher.main()
    assert "Going on" not in capsys.readouterr().out and (run.parent / "CartPole-v1_2").exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    spelled_otherwise = ["--n-timesteps=64", *TRAIN[3:], f"--log-folder={tmp_path / 'logs'}", *options.split()[2:]]
    monkeypatch.setattr(sys, "argv", ["sb3-ppg", "train", *spelled_otherwise])
    launcher.main()
    assert "It has taken all its steps" in capsys.readouterr().out
    assert PPG.load(run / "CartPole-v1.zip").num_timesteps == 64 and not (run / MARKER).exists()


def test_episodes_after_the_checkpoint_are_forgotten(tmp_path):
    """They are played once more: each step counts once in learning curves."""
    env = make_vec_env("CartPole-v1", 2, monitor_dir=str(tmp_path))
    model = PPG("MlpPolicy", env, n_steps=128, batch_size=64, n_policy_iterations=4, seed=0, device="cpu")
    model.learn(256, callback=PhasicCheckpointCallback(1, tmp_path))
    at_checkpoint = load_results(str(tmp_path))
    model.learn(1024, reset_num_timesteps=False)
    assert load_results(str(tmp_path))["l"].sum() > 1000
    (tmp_path / "9.monitor.csv").write_text("")  # cut short
    for path in tmp_path.glob("[01].monitor.csv"):
        path.write_text(f"{path.read_text()}20.0,2")  # in the middle of a row
    forget_later_episodes(tmp_path, latest_checkpoint(tmp_path))
    (tmp_path / "9.monitor.csv").unlink()
    kept = load_results(str(tmp_path))
    assert list(kept["l"]) == list(at_checkpoint["l"]) and 0 < kept["l"].sum() <= 256
    forget_later_episodes(tmp_path, None)  # it has ended before its first checkpoint
    assert load_results(str(tmp_path))["l"].sum() == 0


def test_each_interrupted_training_goes_on_in_its_own_tensorboard_folder(tmp_path, monkeypatch):
    options = "-n 96 --save-freq 32 --eval-freq -1 --tensorboard-log tb --log-interval 1"
    commands = [["train", "--env", "CartPole-v1", *options.split(), *SMALL, "--seed", seed] for seed in "12"]
    learn_from_rollout = PPG.train

    def fail(model):
        if model.num_timesteps == 64:
            raise RuntimeError("the machine is gone")
        learn_from_rollout(model)

    with monkeypatch.context() as patch:
        patch.setattr(PPG, "train", fail)
        for command in commands:
            assert "the machine is gone" in helpers.run(*command, cwd=tmp_path, fails=True)
    gc.collect()  # the locks of those that were killed
    logs = tmp_path / "tb" / "CartPole-v1"
    assert {path.name for path in logs.iterdir()} == {"PPG_1", "PPG_2"}
    for number, command in enumerate(commands, 1):
        before = {path: len(list(path.iterdir())) for path in logs.iterdir()}
        assert "Going on after 32 steps" in helpers.run(*command, cwd=tmp_path)
        assert [path.name for path in logs.iterdir() if len(list(path.iterdir())) > before[path]] == [f"PPG_{number}"]
    helpers.run(*commands[0], cwd=tmp_path)  # a new training
    assert (logs / "PPG_3").exists()


TRACKER = """
from types import SimpleNamespace

def init(**_):
    with open("begun", "a") as file:
        file.write("one\\n")
    return SimpleNamespace(config=SimpleNamespace(setdefaults=print))
"""


def tracked(arguments: list[str]) -> str:
    sys.path.insert(0, os.getcwd())
    return launched(arguments)


def test_several_processes_are_tracked_as_one_run(tmp_path):
    (tmp_path / "wandb.py").write_text(TRACKER)
    in_processes(tracked, tmp_path, [*TRAIN[2:], *"-n 32 --eval-freq -1 --track".split(), *SMALL])
    assert (tmp_path / "begun").read_text() == "one\n"


def test_nodes_may_come_and_go(tmp_path):
    """
    Two agents as two nodes: one begins alone, another joins and is killed; steps and statistics go on. When the first is
    killed, too, the same command goes on in one process, which a scheduler ends: SIGTERM, between two iterations.
    """
    port, train = free_port(), [*TRAIN, "-n", "1000000", "--save-freq", "64", "--eval-freq", "-1", *SMALL]
    elastic = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--max-restarts", "3"]
    timeouts = "last_call_timeout=1,timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"
    elastic += ["--rdzv-conf", timeouts, "--rdzv-id", "one", "--monitor-interval", "0.5"]
    variables = dict(n=1, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # see the page
    first = start(train, tmp_path, *elastic, **variables)
    run = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    wait_for(lambda: any(run.glob("rl_model_*_steps.aux_buffer.npz")))
    second = start(train, tmp_path, *elastic, **variables)
    wait_for(lambda: any(run.glob("rl_model_*.aux_buffer.1_of_2.npz")))
    kill(second)
    n_together = latest(run)
    wait_for(lambda: any(steps_of(path) > n_together for path in run.glob("rl_model_*.aux_buffer.npz")))
    _, output = kill(first)
    steps = [int(one) for one in re.findall(r"Going on after (\d+) steps", output)]
    assert len(steps) == 2 and 0 < steps[0] < steps[1] <= n_together
    assert output.count("from another number of processes: the phase starts over") >= 2

    before = latest(run)
    again = program([*train, "--log-interval", "4"], tmp_path)  # what is shown may differ
    wait_for(lambda: latest(run) > before)
    again.terminate()
    code, output = end_of(again)
    assert code == 128 + signal.SIGTERM
    assert f"Going on with {run.relative_to(tmp_path)}, seed 3, from rl_model_" in output
    assert "A signal has ended the training after" in output and "the same command continues it" in output
    assert (run / "unfinished.json").exists() and len(list(run.parent.iterdir())) == 1
    assert 0 < load_results(str(run))["l"].sum() <= latest(run)  # episodes of steps that were lost are not counted
    # The end of its iteration was saved; two checkpoints have their rollouts
    assert (run / f"rl_model_{latest(run)}_steps.aux_buffer.npz").exists()
    assert len({steps_of(path) for path in run.glob("*.npz")}) == 2


def kill(agent: subprocess.Popen) -> tuple[int, str]:
    """Its workers do not train on, unseen."""
    workers = subprocess.check_output(["pgrep", "-P", str(agent.pid)], text=True).split()
    agent.kill()
    ended = end_of(agent)
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), 5)
    return ended


def steps_of(path: Path) -> int:
    return int(path.name.split("_")[2])


def latest(run: Path) -> int:
    return max(steps_of(path) for path in run.glob("rl_model_*.zip"))


def refused() -> list[str]:
    """Return what ``sb3-ppg`` says to each command in this process of two, and its exit status."""
    said = []
    for line in (
        "train --env CartPole-v1 -optimize",
        "train --env CartPole-v1 --algo ppo",
        "train --env CartPole-v1 -f /proc/version",  # a file
        f"train --env CartPole-v1 {'-params n_steps:16 ' * 20} --seed {rank()}",
        "enjoy --env CartPole-v1",
        "train --env CartPole-v1" if rank() == 0 else "enjoy --env CartPole-v1",
        "train --env CartPole-v1" if rank() == 0 else "train --env CartPole-v1 -f /proc/version",  # a file
        "train --env CartPol-v1",
        "train --env CartPole-v1 -f mine",  # where process 1 cannot write
    ):
        os.chdir(f"../process_{rank()}")
        sys.argv = ["sb3-ppg", *line.split()]
        try:
            launcher.main()
        except SystemExit as end:
            said.append(str(end.code))
    return said


def test_what_several_cannot_do_is_said_once(tmp_path):
    for name in ("start", "process_0", "process_1"):
        (tmp_path / name).mkdir()
    (tmp_path / "process_1" / "mine").write_text("a file")
    first, second = in_processes(refused, tmp_path / "start")
    for text, message in zip(
        first,
        (
            "sb3-ppg train: a search for hyperparameters is for one process",
            "sb3-ppg train: ppo trains in one process; under torchrun use one of ppg",
            "sb3-ppg train: [Errno 20] Not a directory: '/proc/version/ppg",
            "sb3-ppg train: `command` differs between the processes, ...",
            "sb3-ppg enjoy: enjoy is for one process: start it without torchrun",
            "sb3-ppg train: `command` differs between the processes, ['train', ",
            "sb3-ppg train: `command` differs between the processes, ['train', ",
            "sb3-ppg train: Environment `CartPol` doesn't exist.",
            "sb3-ppg train: process 1 of 2: NotADirectoryError: [Errno 20] Not a directory: ",
        ),
        strict=True,
    ):
        assert text.startswith(message), first
    assert "'--seed', '0']" in first[3] and "'--seed', '1']" in first[3]
    assert second == ["1"] * len(first)  # the first process of the machine has said it


def run_scripts(codes: list[str]) -> list[str]:
    """Run scripts one after another; return the name of the latest checkpoint after each."""
    latest_ones = []
    for code in codes:
        if rank() == 0:
            Path("script.py").write_text(code)
        gather(None)
        runpy.run_path("script.py")
        there = list(Path("checkpoints").glob("*.zip"))
        latest_ones.append(latest_checkpoint("checkpoints").name if there else "")
        gather(None)
    return latest_ones


def test_the_lines_of_the_page(tmp_path):
    """The scripts in Python train in two processes; clusters' programs can read the scripts for them."""
    page = (ROOT / "docs" / "distributed.md").read_text()
    code, resumable = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    codes = [code.replace("100_000", "4096"), *(resumable.replace("100_000", n) for n in ("4096", "8192"))]
    first, second = in_processes(run_scripts, tmp_path, codes)
    assert first == second == ["", "ppg_model_4096_steps.zip", "ppg_model_8192_steps.zip"]  # the third one goes on
    model = PPG.load(tmp_path / "ppg_cartpole.zip")
    assert model.num_timesteps == 4096 and model.n_envs == 4
    resumed = PPG.load(latest_checkpoint(tmp_path / "checkpoints"))
    assert resumed.num_timesteps == 8192 and resumed.n_aux_phases == 8192 // (2 * 4 * 128 * 4)

    scripts = ROOT / "docs" / "distributed"
    subprocess.run(["bash", "-n", str(scripts / "slurm.sh")], check=True)
    job = yaml.safe_load((scripts / "pytorchjob.yml").read_text())["spec"]
    (container,) = job["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    for command in ([*container["command"], *container["args"]], (scripts / "slurm.sh").read_text().split()):
        train = command[command.index("-m") :]
        assert train[1:3] == ["sb3_ppg", "train"] and {"--save-freq", "--env", "-n", "-f"} <= set(train)
