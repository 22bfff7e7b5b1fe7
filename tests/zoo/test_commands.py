"""RL Zoo's commands for trained agents and BCQ as a user types them, with real files, and errors of all commands."""

import errno
import os
import pickle
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import optuna
import pytest
import yaml
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from stable_baselines3.common.save_util import load_from_pkl

import sb3_ppg
from sb3_ppg import PPG
from sb3_ppg.offline import BCQ, load_dataset
from sb3_ppg.saving.files import package_version
from sb3_ppg.zoo import compare, launcher
from sb3_ppg.zoo.hyperparameters import hyperparameter_file
from sb3_ppg.zoo.scripts import plot_learning_curve
from tests.helpers import ROOT, code_blocks, run, run_code
from tests.zoo.programs import MY_POLE, SMALL

pytestmark = pytest.mark.slow


def n_frames(video: Path) -> int:
    return imageio_ffmpeg.count_frames_and_secs(video)[0]


def test_train_uses_our_algorithm_and_our_hyperparameters(run_folder):
    """The model loads where the Zoo is not installed: none of its classes is pickled into it."""
    saved = yaml.load((run_folder / "CartPole-v1" / "config.yml").read_text(), Loader=yaml.UnsafeLoader)
    ours = yaml.safe_load(hyperparameter_file("ppg").read_text())["CartPole-v1"]
    given = {"aux_learning_rate": "lin_0.002", "n_value_epochs": 1, "value_learning_rate": "lin_0.004"}
    assert {**ours, **given, "compile_updates": False, "n_timesteps": 2000} == dict(saved)
    model = PPG.load(run_folder / "CartPole-v1.zip", device="cpu")
    assert model.num_timesteps >= 2000 and model.n_policy_iterations == ours["n_policy_iterations"]
    assert (model.aux_lr_schedule(0.5), model.value_lr_schedule(0.5)) == pytest.approx((0.001, 0.002))
    with zipfile.ZipFile(run_folder / "CartPole-v1.zip") as file:
        assert b"rl_zoo3" not in file.read("data")


# ---- report, enjoy ----


def test_report(trained, run_folder):
    """It says the return also where it cannot draw."""
    output = run("report", "--env", "CartPole-v1", "--episodes", "5", cwd=trained)
    written = f"logs/ppg/CartPole-v1_1/CartPole-v1.zip was written by sb3_ppg {package_version()}\n"
    assert written in output and written in run("enjoy", "--no-render", "-n", "5", cwd=trained)
    picture = run_folder / "learning_curve.png"
    assert re.search(r"Mean return over 5 episodes: [\d.]+ \+/- [\d.]+, with deterministic actions\n", output)
    assert str(picture.relative_to(trained)) in output and picture.read_bytes().startswith(b"\x89PNG")
    picture.unlink()
    picture.mkdir()
    output = run("report", "--episodes", "1", cwd=trained)
    picture.rmdir()
    assert "Mean return over 1 episodes" in output and "Learning curve: none, [Errno 21] Is a directory" in output


def test_a_learning_curve_counts_the_steps_of_the_agent(tmp_path):
    """SB3's ``Monitor`` counts frames, also those that a wrapper around it skips, as Atari's does."""
    skipped = ["n_envs:1", "env_wrapper:'rl_zoo3.wrappers.FrameSkip'"]
    run("train", "--env", "CartPole-v1", "-n", "256", "--eval-freq", "-1", "-params", *skipped, cwd=tmp_path)
    with patch.object(Figure, "savefig", autospec=True) as savefig:
        plot_learning_curve(tmp_path / "logs" / "ppg" / "CartPole-v1_1", "", Path())
    steps = savefig.call_args.args[0].axes[0].lines[0].get_xdata()
    assert 200 < max(steps) <= 256


@pytest.mark.parametrize("algo", ["ppg", "ppo"])
def test_agents_play_by_the_seed_of_the_command_and_with_epsilon(algo, trained):
    """The run's own seed, which is in the model, does not count."""
    agent = ("--algo", algo, "--env", "CartPole-v1")
    for command, others in (
        (("report", *agent, "--episodes", "3", "--stochastic", "--seed=0"), "--seed=2"),
        (("enjoy", *agent, "--no-render", "-n", "200", "--epsilon=0.5"), "--epsilon=0"),
    ):
        first, again, other = (run(*command, *given, cwd=trained).partition("Mean")[2] for given in ((), (), (others,)))
        assert first == again != other


class Pull(CartPoleEnv):
    def __init__(self, number, **options):
        super().__init__(**options)
        self.gravity = number(3)


def test_every_command_makes_the_environment_with_the_options_of_the_hyperparameters(tmp_path, monkeypatch):
    monkeypatch.setitem(gym.registry, "Pull-v0", EnvSpec("Pull-v0", Pull))
    given = (*SMALL, "env_kwargs:dict(number=float,max_episode_steps=5)")
    run("train", "--env", "Pull-v0", "-n", "64", "--eval-freq", "64", *given, cwd=tmp_path)
    folder = tmp_path / "logs" / "ppg" / "Pull-v0_1"
    assert np.load(folder / "evaluations.npz")["ep_lengths"].max() == 5
    assert "Mean episode length: 5.00" in run("enjoy", "--env", "Pull-v0", "--no-render", "-n", "20", cwd=tmp_path)
    assert "over 2 episodes: 5.00" in run("report", "--env", "Pull-v0", "--episodes", "2", cwd=tmp_path)
    run("record_video", "--env", "Pull-v0", "-n", "20", cwd=tmp_path)
    assert n_frames(next((folder / "videos").glob("*.mp4"))) == 21


def test_failed_runs_do_not_hide_the_one_that_has_a_model(run_folder, tmp_path):
    """Their numbers are not used again, though. The one with a model is of an older RL Zoo, which wrote fewer arguments."""
    runs = tmp_path / "logs" / "ppg"
    shutil.copytree(run_folder, runs / "CartPole-v1_1")
    written = runs / "CartPole-v1_1" / "CartPole-v1" / "args.yml"
    arguments = yaml.unsafe_load(written.read_text())
    del arguments["eval_env_kwargs"]
    written.write_text(yaml.dump(arguments))
    shutil.copytree(run_folder / "CartPole-v1", runs / "CartPole-v1_7" / "CartPole-v1")
    output = run("enjoy", "--env", "CartPole-v1", "--no-render", "-n", "10", "--load-best", cwd=tmp_path)
    assert "Loading logs/ppg/CartPole-v1_1/best_model.zip" in output
    assert "Model:          logs/ppg/CartPole-v1_1/CartPole-v1.zip" in run("report", "--episodes", "2", cwd=tmp_path)
    training = ("train", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", *SMALL)
    assert "Saving to logs/ppg/CartPole-v1_8" in run(*training, cwd=tmp_path)


# ---- videos, benchmark ----


def test_record_training_without_a_system_ffmpeg(trained, run_folder, children_in_place):
    """One video of all checkpoints, the last and the best model, with their names in the picture, and the same as a GIF."""
    output = run("record_training", "--env", "CartPole-v1", "-n", "10", "-g", cwd=trained, PATH="")
    folder = run_folder / "videos"
    parts = [path.name for path in folder.glob("*-step-0-to-step-10.mp4")]
    assert sorted(name.split("-ppg-")[0] for name in parts) == [
        *("best-model", "checkpoint-1024", "checkpoint-2048", "final-model")
    ]
    assert len(children_in_place) == len(parts) and not any("--deterministic" in command for command in children_in_place)
    assert "Error" not in output
    assert n_frames(folder / "training.mp4") == sum(n_frames(folder / name) for name in parts)
    assert (folder / "training.gif").read_bytes().startswith(b"GIF8")


def test_record_training_with_an_ffmpeg_that_fails_is_an_error(trained, tmp_path, children_in_place, monkeypatch):
    (tmp_path / "ffmpeg").write_text('#!/bin/sh\n[ "$1" = -i ] && cp "$2" "$7"\n')  # writes names, and joins nothing
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    options = ("--env", "CartPole-v1", "-n", "10", "-o", str(tmp_path / "videos"))
    assert "ffmpeg could not join the videos" in run("record_training", *options, cwd=trained, fails=True)
    assert len([*(tmp_path / "videos").glob("*.mp4")]) == len(children_in_place) > 0


def test_record_training_of_a_run_without_a_last_model(trained, run_folder, tmp_path, children_in_place):
    shutil.copytree(run_folder, tmp_path / "logs" / "ppg" / "CartPole-v1_1")
    folder = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    checkpoints = [path.name for path in folder.glob("rl_model_*")]
    for names, n_models in ((["CartPole-v1.zip", "best_model.zip"], 2), (checkpoints, 1)):
        kept = {name: (folder / name).read_bytes() for name in names}
        for name in names:
            (folder / name).unlink()
        run("record_training", "--env", "CartPole-v1", "-n", "10", cwd=tmp_path)
        assert n_frames(folder / "videos" / "training.mp4") == n_models * 10
        for name in names[1:]:
            (folder / name).write_bytes(kept[name])


def test_benchmark(trained, tmp_path, monkeypatch, children_in_place):
    """Also of an environment whose name has a slash."""
    monkeypatch.setitem(gym.registry, "Mine/Pole-v0", EnvSpec("Mine/Pole-v0", CartPoleEnv, max_episode_steps=20))
    logs, mine = tmp_path / "elsewhere", tmp_path / "elsewhere" / "ppg" / "Mine-Pole-v0_1"
    shutil.copytree(trained / "logs", logs)
    shutil.copytree(logs / "ppg" / "CartPole-v1_1", mine)
    (mine / "CartPole-v1.zip").rename(mine / "Mine-Pole-v0.zip")
    (mine / "CartPole-v1").rename(mine / "Mine-Pole-v0")
    arguments = mine / "Mine-Pole-v0" / "args.yml"
    arguments.write_text(arguments.read_text().replace("- - env\n    - CartPole-v1", "- - env\n    - Mine/Pole-v0"))
    options = ("--log-dir", "elsewhere", "--benchmark-dir", "benchmarked", "-n", "300", "--no-hub", "--num-threads", "1")
    run("benchmark", *options, cwd=tmp_path)
    lines = (tmp_path / "benchmark.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if "Pole-v" in line]
    assert sorted(row[1:3] for row in rows) == [["ppg", "CartPole-v1"], ["ppg", "Mine-Pole-v0"], ["ppo", "CartPole-v1"]]
    assert all(float(row[3]) > 5 and row[5] == "2k" for row in rows)  # trained with -n 2000


def test_videos_and_benchmarks_of_an_environment_of_ones_own(tmp_path, monkeypatch):
    """The processes that these scripts start know it, too."""
    (tmp_path / "my_pole.py").write_text(MY_POLE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    which = ("--env", "MyPole-v0", "--gym-packages", "my_pole")
    run("train", *which, "-n", "64", "--eval-freq", "-1", *SMALL, cwd=tmp_path)
    run("record_training", *which, "-n", "5", cwd=tmp_path)
    assert n_frames(tmp_path / "logs/ppg/MyPole-v0_1/videos/training.mp4") == 6
    output = run("benchmark", "-n", "30", "--gym-packages", "my_pole", cwd=tmp_path)
    assert "Error during evaluation" not in output and "MyPole-v0" in (tmp_path / "benchmark.md").read_text()


# ---- plots ----


def test_plots_compare_ppg_with_ppo(trained, run_folder, tmp_path):
    """Pictures are files where there is no display; all_plots, which leaves out runs shorter than the longest, counts runs."""
    for number in (1, 2):
        shutil.copytree(run_folder, tmp_path / "logs" / "ppg" / f"CartPole-v1_{number}")
        shutil.copytree(trained / "logs" / "ppo" / "CartPole-v1_1", tmp_path / "logs" / "ppo" / f"CartPole-v1_{number}")
    options = ("-a", "ppg", "ppo", "-e", "CartPole-v1")
    assert "CartPole-v1-PPG-logs: 2" in run("all_plots", *options, "-o", "c", "--no-million", cwd=tmp_path)
    assert pickle.loads((tmp_path / "c.pkl").read_bytes())["CartPole-v1"]["PPG-logs"]["last_evals"].shape == (2,)
    plt.close("all")
    run("plot_from_file", "-i", "c", "-o", "bars.png", "--format", "png", "-b", cwd=tmp_path)
    run("plot_train", "-e", "CartPole-v1", "-f", "logs", "-w", "5", cwd=tmp_path)
    assert len(plt.figure("Training Episodic Reward").axes[0].lines) == 2
    for picture in ("training_episodic_reward.png", "results_cartpole-v1.png", "bars.png", "sensitivity_box_plot.png"):
        pixels = plt.imread(tmp_path / picture)
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10, picture


# ---- record_dataset, BCQ ----

BCQ_AGENT = ("--algo", "bcq", "--env", "Pendulum-v1")
BCQ_SMALL = (*BCQ_AGENT, "-params", "policy_kwargs:dict(net_arch=[8],vae_net_arch=[8])", "n_play_samples:5", "n_envs:2")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Iterator[Path]:
    """A folder with an agent, a Minari store with its data, and a BCQ that has learned from it."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder / "store"))
        run("train", "--env", "Pendulum-v1", "-n", "64", "--eval-freq", "-1", *SMALL, cwd=folder)
        options = ("--dataset", "pendulum/new-v0", "-n", "450", "--noise", "0.1", "--stochastic")
        said = run("record_dataset", "--env", "Pendulum-v1", *options, cwd=folder)
        assert "Recorded 450 steps as pendulum/new-v0: 2 whole episodes, mean return -" in said
        options = ("-n", "30", "--eval-freq", "20", "--save-freq", "20", "--progress", "--seed", "0", "--save-replay-buffer")
        run("train", *BCQ_SMALL, "--dataset", "pendulum/new-v0", *options, cwd=folder)
        yield folder


def test_a_recording_has_the_agents_environment(recorded):
    data = load_dataset("pendulum/new-v0")
    assert data.ends.tolist() == [199, 399, 449] and not data.terminations.any()
    np.testing.assert_allclose(data.observations[:, 0] ** 2 + data.observations[:, 1] ** 2, 1, atol=1e-5)  # not normalized


def test_bcq_is_trained_continued_evaluated_and_recorded(recorded):
    """It continues with other data, although the old ones are in its folder."""
    folder = recorded / "logs/bcq/Pendulum-v1_1"
    assert "pendulum/new-v0" in (folder / "Pendulum-v1/config.yml").read_text()
    assert BCQ.load(folder / "Pendulum-v1.zip").num_timesteps == 30
    assert np.load(folder / "evaluations.npz")["timesteps"].tolist() == [20]
    run("record_dataset", "--env", "Pendulum-v1", "--dataset", "pendulum/short-v0", "-n", "250", cwd=recorded)
    continued = ("-n", "10", "-i", str(folder / "Pendulum-v1.zip"), "--save-replay-buffer")
    run("train", *BCQ_SMALL, "--dataset", "pendulum/short-v0", *continued, cwd=recorded)
    newest = max((recorded / "logs/bcq").glob("*/Pendulum-v1.zip"), key=lambda path: path.stat().st_mtime)
    assert BCQ.load(newest)._n_updates == 40
    assert load_from_pkl(newest.with_name("replay_buffer.pkl")).size() == 250
    said = run("report", *BCQ_AGENT, "--episodes", "1", cwd=recorded)  # its monitor file has no rows
    assert "Mean return over 1 episodes" in said and "has no training episodes and no evaluations.npz" in said
    run("enjoy", *BCQ_AGENT, "-n", "5", "--no-render", cwd=recorded)
    run("record_video", *BCQ_AGENT, "-n", "5", cwd=recorded)
    assert list((newest.parent / "videos").glob("*.mp4"))


def test_bcq_is_searched(recorded):
    options = "--dataset pendulum/new-v0 -optimize --n-trials 1 -n 10 --n-evaluations 1 --eval-episodes 1 --no-optim-plots"
    said = run("train", *BCQ_SMALL, *options.split(), cwd=recorded)  # an episode has more steps than the training has updates
    assert "The best trial is number 0" in said and "given up" not in said


def test_a_comparison_reads_the_hyperparameters_of_a_module_afresh_and_takes_a_data_set(tmp_path, monkeypatch):
    (tmp_path / "my_settings.py").write_text('hyperparams = {"Pendulum-v1": dict(policy="MlpPolicy", n_timesteps=1)}')
    monkeypatch.syspath_prepend(tmp_path)
    for options, names, found in (
        ("-conf ppg:my_settings", ("ppg: n_epochs=1", "ppg"), [dict(n_epochs=1), {}]),
        ("--dataset pendulum/new-v0 -conf bcq:my_settings", ("bcq",), [dict(dataset="pendulum/new-v0")]),
    ):
        monkeypatch.setattr(sys, "argv", f"compare --env Pendulum-v1 {options}".split())
        args, _ = compare.parse()
        assert [compare.contestant(name, args)[2] for name in names] == [dict(policy="MlpPolicy") | own for own in found]


# ---- the launcher ----


@pytest.fixture(scope="module")
def broken(trained, tmp_path_factory) -> Path:
    """A folder with runs, and with hyperparameter files that cannot be used."""
    folder = tmp_path_factory.mktemp("broken") / "files"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("CartPole-v1_[2-9]*"))
    (folder / "mine.yml").write_text("CartPole-v1: {policy: MlpPolicy, n_timesteps: 100, n_aux_epoch: 3}")
    optuna.create_study(study_name="ppg", storage=JournalStorage(JournalFileBackend(str(folder / "study.log"))))
    return folder


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("train --env CartPol-v1", "there is no environment CartPol-v1; nearest: CartPole-v1"),
        ("train --env mine:MyEnv-v0", "and --env ENV, not MODULE:ENV"),
        ("enjoy --env MyEnv-v0", "If a module of yours registers it, use --gym-packages"),
        ("train -conf ppgg.yml", "train: [Errno 2] No such file or directory: 'ppgg.yml'"),
        ("train -params learning_rate:'3e-4'", "use a number, which in YAML has a dot (3.0e-4), or a linear schedule"),
        ("train -params learning_rate:'exp_3e-4'", "`learning_rate`='exp_3e-4' cannot work (in "),
        ("train -params learning_rate:'lin_3e-4_1e-5'", "`learning_rate`='lin_3e-4_1e-5' cannot work (in "),
        ("train --gym-packages no_such_module", "No module named 'no_such_module': install it, or add the folder"),
        ("train --storage study.log --study-name ppg --trial-id 7", "no such trial of study 'ppg' in study.log"),
        ("train --trial-id 1", "use --storage and --study-name"),
        ("train -conf mine.yml", "'n_aux_epoch' (in mine.yml, on the command line or in a study); nearest: n_aux_epochs"),
        ("train --algo dna --env PongNoFrameskip-v4", "has no hyperparameters for PongNoFrameskip-v4: write an entry"),
        ("train --env Pendulum-v1 -conf mine.yml", "mine.yml has no hyperparameters for Pendulum-v1: write an entry"),
        ("train -optimize -i logs/ppg/CartPole-v1_1/CartPole-v1.zip", "-i cannot work with -optimize: a search begins"),
        ("train --env Pendulum-v1 -params noise_type:'normal' noise_std:0.1", "PPG has no hyperparameter 'noise_"),
        ("enjoy --env Pendulum-v1", "No model found for ppg on Pendulum-v1"),
        ("enjoy --load-checkpoint 1025", "1025_steps.zip; nearest: logs/ppg/CartPole-v1_1/rl_model_1024_steps.zip"),
        ("report --exp-id 7", "CartPole-v1_7 folder was not found; there are logs/ppg/CartPole-v1_1/"),
        ("enjoy --no-render --epsilon 2", "`epsilon`=2.0 cannot work: use a number from 0 to 1"),
        ("enjoy --env CartPole-v0 --pretrained", "nearest: ppg/CartPole-v1"),
        ("train --algo bcq --env Pendulum-v1", "BCQ learns from recorded data: name it with --dataset"),
        ("train --algo bcq --env Pendulum-v1 --dataset pendulum/old-v0", "Dataset pendulum/old-v0 not found"),
        ("compare --env CartPole-v1 -n 9 -conf mine.yml", "-conf mine.yml cannot work: write ALGO:FILE"),
        ("compare --env CartPole-v1 -n 9 -params learning_rate:'3e-4'", "`learning_rate`='3e-4' cannot work (in "),
        ("compare --env CartPole-v1 -n 9 -params n_aux_epochs:3", "PPO has no hyperparameter 'n_aux_epochs' (in "),
        ("compare --env CartPole-v1 -n 9 -conf pgp:mine.yml", "write ALGO:FILE, for algorithms that are compared"),
        (
            "compare --env CartPole-v1 --algo ppg",
            "--algo cannot work: use --algos, --seeds, -f for the folder or -params for a trial",
        ),
        ("compare --env CartPole-v1 --storage s.log", "--storage cannot work: use --algos"),
        ("compare --env CartPole-v1 -n 9 -params policy_kwargs:'dict('", "'ppg' cannot work (SyntaxError"),
        ("compare --env CartPole-v1 --seed=3", "--seed=3 cannot work: use --algos"),
        ("load_from_hub --algo ppo --env CartPole-v1 --revision 1a2b", "--revision and --allow cannot work: RL Zoo fetches"),
        ("benchmark --no-hub --log-dir logz", "benchmark: [Errno 2] No such file or directory: 'logz'"),
        ("push_to_hub --algo ppo --env CartPole-v1 -orga me", "--algo ppo cannot work: models of ppg, "),
        ("tain", "there is no script tain; nearest: train"),
    ],
)
def test_bad_input_is_one_line(command, complaint, broken):
    printed = run(*command.split(), cwd=broken, fails=True)
    assert complaint in printed and "Traceback" not in printed


def test_help_lists_the_scripts_and_the_version_is_the_packages():
    assert all(f"  {name} " in run("--help") for name in launcher.SCRIPTS)
    assert run("--version") == f"{sb3_ppg.__version__}\n"


@pytest.mark.parametrize(("number", "is_said"), [(errno.ENOSPC, True), (errno.EAGAIN, False)])
def test_a_full_disk_is_one_line(number, is_said, monkeypatch):
    monkeypatch.setattr(launcher, "run", Mock(side_effect=OSError(number, "model.zip could not be written")))
    assert run("train", fails=True).endswith("could not be written") == is_said


def test_scripts_of_the_page(tmp_path, capsys):
    """A file of the user's own imports the Zoo's scripts; the processes that they start know our algorithms."""
    first, second = code_blocks("docs/guides/zoo.md")
    arguments = ["mine.py", "--algo", "ppg", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", "-f", "logs", *SMALL]
    run_code(first.replace("train()", f"import sys; sys.argv = {arguments!r}; train()"), cwd=tmp_path)
    assert (tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip").exists()
    run_code(second, cwd=tmp_path)
    printed = capsys.readouterr().out
    assert "Evaluating ppg on CartPole-v1" in printed and "Error during evaluation" not in printed
