"""RL Zoo's commands as a user types them: child processes, real files."""

import inspect
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from sb3_ppg import PPG
from sb3_ppg.zoo.registration import hyperparameter_file, register


def run(*arguments: str, cwd: Path, fails: bool = False) -> str:
    """``python -m sb3_ppg ...`` in a folder of its own; what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "sb3_ppg", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, output
    return output


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder in which ``train`` was run, as ``make train`` runs it but shorter."""
    folder = tmp_path_factory.mktemp("zoo")
    output = run(
        *("train", "--env", "CartPole-v1", "-n", "2000", "--eval-freq", "1000", "--seed", "1", "--progress"),
        *("-params", "aux_learning_rate:'lin_0.002'"),
        cwd=folder,
    )
    assert "Loading hyperparameters from" in output and "100%" in output
    return folder


def test_train_uses_our_algorithm_and_our_hyperparameters(trained):
    run_folder = trained / "logs" / "ppg" / "CartPole-v1_1"
    assert {"CartPole-v1.zip", "best_model.zip", "evaluations.npz"} <= {path.name for path in run_folder.iterdir()}
    saved = yaml.load((run_folder / "CartPole-v1" / "config.yml").read_text(), Loader=yaml.UnsafeLoader)
    ours = yaml.safe_load(hyperparameter_file("ppg").read_text())["CartPole-v1"]
    assert {**ours, "aux_learning_rate": "lin_0.002"} == dict(saved)
    model = PPG.load(run_folder / "CartPole-v1.zip", device="cpu")
    assert model.num_timesteps >= 2000 and model.n_policy_iterations == ours["n_policy_iterations"]
    assert model.aux_lr_schedule(0.5) == pytest.approx(0.001)


def test_the_model_loads_where_the_zoo_is_not_installed(trained, tmp_path):
    """No class of RL Zoo is pickled into it."""
    with zipfile.ZipFile(trained / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip") as file:
        assert b"rl_zoo3" not in file.read("data")
    code = (
        "import sys; sys.modules['rl_zoo3'] = None\n"
        "from sb3_ppg import PPG\n"
        f"print(PPG.load({str(trained / 'logs' / 'ppg' / 'CartPole-v1_1' / 'CartPole-v1.zip')!r}).lr_schedule(1.0))"
    )
    assert float(subprocess.check_output([sys.executable, "-c", code], text=True)) > 0


def test_enjoy(trained):
    output = run("enjoy", "--env", "CartPole-v1", "--no-render", "-n", "600", cwd=trained)
    assert "Loading logs/ppg/CartPole-v1_1/CartPole-v1.zip" in output
    assert "Mean reward" in output or "Episode Reward" in output


def test_report(trained):
    output = run("report", "--env", "CartPole-v1", "--episodes", "5", cwd=trained)
    folder = Path("logs/ppg/CartPole-v1_1")
    assert "Mean return over 5 episodes: " in output
    for line in (
        f"Model:          {folder / 'CartPole-v1.zip'}",
        f"Logs:           {folder}",
        str(folder / "learning_curve.png"),
    ):
        assert line in output
    assert (trained / folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_report_evaluates_the_environment_that_was_trained(trained):
    run("train", "--env", "CartPole-v1", "-n", "1024", "-f", "short", "--env-kwargs", "max_episode_steps:12", cwd=trained)
    output = run("report", "--env", "CartPole-v1", "-f", "short", "--episodes", "20", cwd=trained)
    mean = float(output.split("Mean return over 20 episodes: ")[1].split()[0])
    assert mean <= 12


def test_report_says_what_is_missing(trained):
    assert "no training of ppg on Pendulum-v1 below logs" in run("report", "--env", "Pendulum-v1", cwd=trained, fails=True)
    assert "--episodes 0" in run("report", "--episodes", "0", cwd=trained, fails=True)


def test_other_algorithms_still_work(tmp_path):
    run("train", "--algo", "ppo", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", cwd=tmp_path)
    assert (tmp_path / "logs" / "ppo" / "CartPole-v1_1" / "CartPole-v1.zip").exists()


def test_an_entry_point_with_its_list_of_scripts(tmp_path):
    output = run(cwd=tmp_path)
    assert "usage: sb3-ppg SCRIPT" in output and "train" in output and "enjoy" in output
    assert "nonsense is none of them" in run("nonsense", cwd=tmp_path, fails=True)


def test_register_twice_is_once():
    from rl_zoo3.exp_manager import ExperimentManager

    register()
    patched = ExperimentManager.__init__, ExperimentManager._preprocess_schedules
    register()
    assert patched == (ExperimentManager.__init__, ExperimentManager._preprocess_schedules)


def test_a_missing_extra_says_how_to_get_it(tmp_path):
    code = "import sys; sys.modules['rl_zoo3'] = None; sys.argv = ['sb3-ppg', 'train']; import sb3_ppg.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and 'pip install "sb3-ppg[zoo]"' in done.stderr


def test_every_entry_of_our_file_makes_a_model():
    """All keys that RL Zoo does not consume are arguments of PPG."""
    consumed = {
        "n_timesteps",
        "n_envs",
        "normalize",
        "env_wrapper",
        "vec_env_wrapper",
        "frame_stack",
        "callback",
        "env_kwargs",
    }
    arguments = set(inspect.signature(PPG.__init__).parameters)
    entries = yaml.safe_load(hyperparameter_file("ppg").read_text())
    assert {"default", "CartPole-v1", "Pendulum-v1"} <= entries.keys()
    for name, entry in entries.items():
        assert entry.keys() - consumed <= arguments, name
