"""Runs of RL Zoo's ``train`` in several processes, started by ``torchrun`` itself."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import yaml
from stable_baselines3.common.monitor import load_results

from sb3_ppg import PPG, latest_checkpoint
from sb3_ppg.distributed import gather, rank
from sb3_ppg.zoo import launcher, sharing
from tests import helpers
from tests.helpers import ROOT, free_port, in_processes, wait_for
from tests.zoo.programs import end_of, program

pytestmark = pytest.mark.slow
TRAIN = ["-m", "sb3_ppg", "train", "--env", "CartPole-v1", "--seed", "3"]
SMALL = "-params compile_updates:False n_envs:2 n_steps:16 batch_size:16 n_policy_iterations:3 aux_batch_size:16".split()


def start(arguments: list[str], cwd: Path, *options: str, n: int = 2, **environment: str) -> subprocess.Popen:
    return program(["-m", "torch.distributed.run", "--nproc-per-node", str(n), *options, *arguments], cwd, **environment)


def test_two_processes_are_one_run_that_goes_on_when_one_is_killed(tmp_path):
    """
    One folder, one evaluation, one log; monitor files of all environments; steps are those of all. ``--max-restarts`` needs no
    change to the command line, and keeps everything in the folder.
    """
    options = "--env Deadly-v0 --gym-packages tests.zoo.programs --eval-freq 96 --eval-episodes 1 --save-freq 64 --seed 3"
    options += " --run-folder logs/ppg/Deadly-v0_1"
    command = ["-m", "sb3_ppg", "train", *options.split(), "-n", "576", *SMALL, "normalize:True"]
    code, output = end_of(start(command, tmp_path, "--standalone", "--max-restarts", "1", DEADLY="1:100"))
    assert code == 0, output
    (run,) = (tmp_path / "logs" / "ppg").iterdir()
    (steps,) = re.findall(r"Going on after (\d+) steps", output)
    assert 64 <= int(steps) <= 100 * 4 and int(steps) % 64 == 0
    assert output.count("Seed: 3") == 2 and output.count("Saving to ") == 1  # in the first process, before and after the kill
    assert "A restart will begin a new run" not in output
    assert PPG.load(run / "Deadly-v0.zip").num_timesteps == 576 and (run / "Deadly-v0" / "vecnormalize.pkl").exists()
    evaluated = np.load(run / "evaluations.npz")["timesteps"]
    assert list(evaluated) == list(range(96, 577, 96))  # those of before the kill, too, and none twice
    assert {steps_of(path) for path in run.glob("rl_model_*.zip")} == {*range(64, 577, 64)}
    assert {path.name for path in run.glob("*.monitor.csv")} == {f"{number}.monitor.csv" for number in range(8)}
    episodes = [(run / f"{number}.monitor.csv").read_text().splitlines()[2:] for number in range(8)]
    lengths = [tuple(row.split(",")[1] for row in rows) for rows in episodes]
    assert len({*zip(lengths[:4], lengths[4:], strict=True)}) == 4  # no process repeats another


def test_nodes_may_come_and_go(tmp_path):
    """
    Two agents as two nodes: one begins alone, another joins and is killed; steps and statistics go on. When the first is
    killed, too, the same command goes on in one process.
    """
    port = free_port()
    folder = ["--run-folder", "logs/ppg/CartPole-v1_1"]
    train = [*TRAIN, "-n", "1000000", "--save-freq", "64", "--eval-freq", "-1", *folder, *SMALL]
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
    steps = [int(number) for number in re.findall(r"Going on after (\d+) steps", output)]
    assert len(steps) == 2 and 0 < steps[0] < steps[1] <= n_together
    assert output.count("from another number of processes: the phase starts over") >= 2
    kept = len({steps_of(path) for path in run.glob("*.npz")})
    assert kept in (2, 3)  # two checkpoints have their rollouts, or three where the kill came before the oldest left

    before = latest(run)
    options = ["--log-interval", "4"]  # what is shown may differ
    with patch.object(PPG, "train", side_effect=KeyboardInterrupt):
        output = helpers.run(*train[2:], *options, cwd=tmp_path)
    checkpoint = f"{run.relative_to(tmp_path)}/rl_model_{before}_steps.zip"
    assert f"Going on after {before} steps, from {checkpoint}, with seed 3" in output
    assert len(list(run.parent.iterdir())) == 1
    assert 0 < load_results(str(run))["l"].sum() <= before + 32  # episodes of steps that were lost are not counted


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


# ---- several commands and scripts in the same two processes ----

TRACKER = """
from unittest.mock import MagicMock

def init(**_):
    with open("begun", "a") as file:
        file.write("one\\n")
    return MagicMock()
"""


def tracked() -> int:
    """Train; return how many agents this process unpacks."""
    sys.path.insert(0, os.getcwd())
    sys.argv = ["sb3-ppg", *TRAIN[2:], *"-n 32 --eval-freq -1 --track --pretrained".split(), *SMALL]
    with patch.object(sharing, "unpack", wraps=sharing.unpack) as unpack:
        launcher.main()
    return unpack.call_count


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


REFUSED = [
    ("-optimize", "a search for hyperparameters is for one process"),
    ("--algo ppo", "ppo trains in one process; under torchrun use one of ppg"),
    (f"{'-params n_steps:16 ' * 20} --seed {{rank}}", "`command` differs between the processes, ..."),
    ("--env CartPol-v1", "there is no environment CartPol-v1"),
]


def refused() -> list[str]:
    """Return what ``sb3-ppg`` says to each command in this process, or its exit status."""
    said = []
    for options, _ in REFUSED:
        sys.argv = ["sb3-ppg", "train", *options.format(rank=rank()).split()]
        try:
            launcher.main()
        except SystemExit as end:
            said.append(str(end.code))
    return said


def all_of_these(codes: list[str]) -> tuple[int, list[str], list[str]]:
    return tracked(), run_scripts(codes), refused()


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> tuple[Path, list[tuple]]:
    """The folder in which two processes have worked, and what they return."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "wandb.py").write_text(TRACKER)
    code, resumable = helpers.code_blocks("docs/distributed.md")
    codes = [code.replace("100_000", "2048"), *(resumable.replace("100_000", n) for n in ("4096", "8192"))]
    return folder, in_processes(all_of_these, folder, codes)


def test_several_processes_are_tracked_as_one_run_and_begin_with_an_agent_that_one_unpacks(two):
    folder, results = two
    assert [n_unpacked for n_unpacked, *_ in results] == [1, 0]
    assert (folder / "begun").read_text() == "one\n"


def test_several_processes_refuse_what_they_cannot_do(two):
    (*_, first), (*_, second) = two[1]
    for text, (_, message) in zip(first, REFUSED, strict=True):
        assert text.startswith(f"sb3-ppg train: {message}"), text
    assert "'--seed', '0']" in first[2] and "'--seed', '1']" in first[2]
    assert second == first


def test_an_error_in_all_processes_is_told_once(tmp_path):
    code, output = end_of(start(["-m", "sb3_ppg", "train", "--env", "CartPol-v1"], tmp_path, "--standalone"))
    assert code == 1 and output.count("sb3-ppg train: there is no environment CartPol-v1") == 1
    assert "there is no environment CartPol-v1" in output.split("Root Cause")[1]


def test_the_lines_of_the_page(two):
    """The scripts in Python train in two processes; clusters' programs can read the scripts for them."""
    folder, ((_, first, _), (_, second, _)) = two
    assert first == second == ["", "ppg_model_4096_steps.zip", "ppg_model_8192_steps.zip"]  # the third one goes on
    model = PPG.load(folder / "ppg_cartpole.zip")
    assert model.num_timesteps == 2048 and model.n_envs == 4
    resumed = PPG.load(latest_checkpoint(folder / "checkpoints"))
    assert resumed.num_timesteps == 8192 and resumed.n_aux_phases == 8192 // (2 * 4 * 128 * 4)

    scripts = ROOT / "docs" / "distributed"
    subprocess.run(["bash", "-n", str(scripts / "slurm.sh")], check=True)
    job = yaml.safe_load((scripts / "pytorchjob.yml").read_text())["spec"]
    (container,) = job["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    for command in ([*container["command"], *container["args"]], (scripts / "slurm.sh").read_text().split()):
        train = command[command.index("-m") :]
        assert train[1:3] == ["sb3_ppg", "train"] and {"--run-folder", "--env", "-n"} <= set(train)
