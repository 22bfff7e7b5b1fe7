"""RL Zoo's commands as a user types them, with real files. Where the process itself matters, it is one of its own."""

import errno
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import optuna
import pytest
import torch as th
import yaml
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.envs.registration import EnvSpec
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from stable_baselines3 import PPO

import sb3_ppg
from sb3_ppg import PPG
from sb3_ppg.zoo import ALGOS, launcher
from sb3_ppg.zoo.hyperparameters import hyperparameter_file
from sb3_ppg.zoo.interrupted import make_run_folder
from sb3_ppg.zoo.report import agent_parser, is_deterministic
from tests.helpers import ROOT, run, wait_for
from tests.zoo.programs import end_of, output_of, program

pytestmark = pytest.mark.slow
SMALL = (
    "-params",
    "compile_updates:False",
    "n_envs:2",
    "n_steps:32",
    "batch_size:32",
    "n_policy_iterations:2",
    "aux_batch_size:32",
)


@pytest.fixture(scope="module")
def run_folder(trained) -> Path:
    return trained / "logs" / "ppg" / "CartPole-v1_1"


def test_train_uses_our_algorithm_and_our_hyperparameters(run_folder):
    assert {"CartPole-v1.zip", "best_model.zip", "evaluations.npz"} <= {path.name for path in run_folder.iterdir()}
    saved = yaml.load((run_folder / "CartPole-v1" / "config.yml").read_text(), Loader=yaml.UnsafeLoader)
    ours = yaml.safe_load(hyperparameter_file("ppg").read_text())["CartPole-v1"]
    assert {**ours, "aux_learning_rate": "lin_0.002", "n_timesteps": 2000} == dict(saved)
    model = PPG.load(run_folder / "CartPole-v1.zip", device="cpu")
    assert model.num_timesteps >= 2000 and model.n_policy_iterations == ours["n_policy_iterations"]
    assert model.aux_lr_schedule(0.5) == pytest.approx(0.001)


def test_the_value_epochs_may_have_a_schedule_in_the_zoo(tmp_path):
    given = ("-params", "n_value_epochs:1", "value_learning_rate:'lin_0.002'", *SMALL[1:])
    run("train", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", *given, cwd=tmp_path)
    model = PPG.load(tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip", device="cpu")
    assert model.value_lr_schedule(0.5) == pytest.approx(0.001)


def test_the_model_loads_where_the_zoo_is_not_installed(run_folder):
    """No class of RL Zoo is pickled into it."""
    with zipfile.ZipFile(run_folder / "CartPole-v1.zip") as file:
        assert b"rl_zoo3" not in file.read("data")
    code = (
        "import sys; sys.modules['rl_zoo3'] = None\n"
        "from sb3_ppg import PPG\n"
        f"print(PPG.load({str(run_folder / 'CartPole-v1.zip')!r}).lr_schedule(1.0))"
    )
    assert float(subprocess.check_output([sys.executable, "-c", code], text=True)) > 0


def test_report(trained):
    output = run("report", "--env", "CartPole-v1", "--episodes", "5", cwd=trained)
    folder = Path("logs/ppg/CartPole-v1_1")
    assert re.search(r"Mean return over 5 episodes: [\d.]+ \+/- [\d.]+, with deterministic actions\n", output)
    for line in (
        f"Model:          {folder / 'CartPole-v1.zip'}",
        f"Logs:           {folder}",
        str(folder / "learning_curve.png"),
    ):
        assert line in output
    assert (trained / folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("env_id", "options", "deterministic"),
    [
        ("CartPole-v1", [], True),
        ("CartPole-v1", ["--stochastic"], False),
        ("MiniGrid-DoorKey-8x8-v0", [], False),
        ("MiniGrid-DoorKey-8x8-v0", ["--deterministic"], True),
        ("BreakoutNoFrameskip-v4", [], False),
    ],
)
def test_report_acts_as_enjoy_does(env_id, options, deterministic):
    args = agent_parser("").parse_args(options)
    args.env = EnvironmentName(env_id)
    assert is_deterministic(args) is deterministic


@pytest.mark.parametrize("algo", ["ppg", "ppo"])
@pytest.mark.parametrize("actions", ["--deterministic", "--stochastic"])
def test_report_plays_by_its_own_seed(algo, actions, trained):
    """And not by that of the training, which is in the model."""
    command = ("report", "--algo", algo, "--env", "CartPole-v1", "--episodes", "5", actions, "--seed")
    first, second, again = (run(*command, seed, cwd=trained).partition("Mean return")[2] for seed in ("0", "2", "0"))
    assert first == again != second


@pytest.mark.parametrize("algo", ["ppg", "ppo"])
def test_agents_play_with_epsilon(algo, trained):
    """With an epsilon of 1 all actions are samples; the same seed plays the same episodes."""
    options = ("--algo", algo, "--env", "CartPole-v1", "--no-render", "-n", "300")
    plain, none, some, again, all_samples, stochastic = (
        run("enjoy", *options, *given, cwd=trained).partition("Loading")[2]
        for given in ([], ["--epsilon", "0"], ["--epsilon", "0.5"], ["--epsilon=0.5"], ["--epsilon", "1"], ["--stochastic"])
    )
    assert plain == none and some == again and len({plain, some, all_samples, stochastic}) == 4
    printed = run("report", *options[:4], "--epsilon", "0.5", "--episodes", "2", cwd=trained)
    assert "with deterministic actions\n" in printed and "Epsilon:        0.5\n" in printed


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("--epsilon 2", "`epsilon`=2.0 cannot work: use a number from 0 to 1"),
        ("--epsilon 0.1 --stochastic", "`epsilon`=0.1 cannot work: all actions are samples already; use .*--deterministic"),
    ],
)
@pytest.mark.parametrize("script", ["enjoy --no-render", "report"])
def test_an_epsilon_that_cannot_work_is_named(script, given, complaint, trained):
    printed = run(*script.split(), "--env", "CartPole-v1", *given.split(), cwd=trained, fails=True)
    assert re.search(complaint, printed) and "Traceback" not in printed


def test_report_says_the_return_also_where_it_cannot_draw(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "logs" / "ppg" / "CartPole-v1_1")
    picture = tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "learning_curve.png"
    picture.unlink(missing_ok=True)
    picture.mkdir()
    output = run("report", "--env", "CartPole-v1", "--episodes", "1", cwd=tmp_path)
    assert "Mean return over 1 episodes" in output and "Learning curve: none, [Errno 21] Is a directory" in output


def test_report_evaluates_the_environment_that_was_trained(trained):
    run("train", "--env", "CartPole-v1", "-n", "1024", "-f", "short", "--env-kwargs", "max_episode_steps:12", cwd=trained)
    output = run("report", "--env", "CartPole-v1", "-f", "short", "--episodes", "20", cwd=trained)
    mean = float(output.split("Mean return over 20 episodes: ")[1].split()[0])
    assert mean <= 12


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


def test_record_video_without_a_system_ffmpeg(trained, run_folder):
    run("record_video", "--env", "CartPole-v1", "-n", "40", cwd=trained, PATH="")
    (video,) = (run_folder / "videos").glob("final-model-ppg-CartPole-v1-*.mp4")
    assert n_frames(video) == 41


def test_record_training_without_a_system_ffmpeg(trained, children_in_place):
    """One video of all checkpoints, the last and the best model, with their names in the picture, and the same as a GIF."""
    folder = trained / "my films'$(touch ran)"  # a shell has nothing to do with it
    (folder / "others").mkdir(parents=True)
    output = run("record_training", "--env", "CartPole-v1", "-n", "20", "-g", "-o", folder.name, cwd=trained, PATH="")
    assert "Error" not in output and not (trained / "ran").exists() and (folder / "others").exists()
    parts = [path.name for path in folder.glob("*-step-0-to-step-20.mp4")]
    assert sorted(name.split("-ppg-")[0] for name in parts) == [
        *("best-model", "checkpoint-1024", "checkpoint-2048", "final-model")
    ]
    assert n_frames(folder / "training.mp4") == sum(n_frames(folder / name) for name in parts)
    assert (folder / "training.gif").read_bytes().startswith(b"GIF8")


def n_frames(video: Path) -> int:
    return imageio_ffmpeg.count_frames_and_secs(video)[0]


def test_benchmark(trained, children_in_place):
    logs = (trained / "logs").rename(trained / "elsewhere")
    options = ("--log-dir", "elsewhere", "--benchmark-dir", "benchmarked", "-n", "600", "--no-hub", "--num-threads", "1")
    output = run("benchmark", *options, cwd=trained)
    logs.rename(trained / "logs")
    assert "Evaluating ppg on CartPole-v1" in output and "Evaluating ppo on CartPole-v1" in output
    table = (trained / "benchmark.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "CartPole-v1" in line]
    assert {row[1] for row in rows} == {"ppg", "ppo"} and all(float(row[3]) > 5 for row in rows)
    assert {row[5] for row in rows} == {"2k"}  # trained with -n 2000


def test_benchmark_of_an_environment_whose_name_has_a_slash(tmp_path, monkeypatch, children_in_place):
    monkeypatch.setitem(gym.registry, "Mine/Pole-v0", EnvSpec("Mine/Pole-v0", CartPoleEnv, max_episode_steps=20))
    run("train", "--env", "Mine/Pole-v0", "-n", "64", "--eval-freq", "-1", *SMALL, cwd=tmp_path)
    run("benchmark", "-n", "60", "--no-hub", "--num-threads", "1", cwd=tmp_path)
    assert re.search(r"ppg *\|Mine-Pole-v0\|", (tmp_path / "benchmark.md").read_text())


@pytest.mark.parametrize("cls", [PPG, PPO])
def test_benchmark_says_the_steps_of_a_training_that_was_interrupted(cls, tmp_path, monkeypatch, children_in_place):
    """Ctrl-C in the third rollout of 1,000 steps."""
    train = cls.train

    def interrupted(model):
        if model.num_timesteps == 3000:
            raise KeyboardInterrupt
        train(model)

    monkeypatch.setattr(cls, "train", interrupted)
    small = ("-params", "n_envs:2", "n_steps:500", "batch_size:500", "n_epochs:1", "learning_rate:0.001", "clip_range:0.2")
    options = ("--algo", cls.__name__.lower(), "--env", "CartPole-v1", "-n", "20000", "--eval-freq", "-1")
    run("train", *options, *small, cwd=tmp_path)
    run("benchmark", "-n", "600", "--no-hub", "--num-threads", "1", cwd=tmp_path)
    assert "|CartPole-v1|" in (tmp_path / "benchmark.md").read_text()
    assert re.search(r"\|\s*3k\s*\|", (tmp_path / "benchmark.md").read_text())


def test_plots_compare_ppg_with_ppo(trained):
    """The pictures are files where there is no display."""
    run("plot_train", "-e", "CartPole-v1", "-f", "logs", "-w", "5", cwd=trained)
    options = ("-a", "ppg", "ppo", "-e", "CartPole-v1", "-f", "logs")
    output = run("all_plots", *options, "-o", "comparison", "--no-million", cwd=trained)
    assert "PPG" in output and "PPO" in output
    results = pickle.loads((trained / "comparison.pkl").read_bytes())["CartPole-v1"]
    assert set(results) == {"PPG-logs", "PPO-logs"} and all(curve["mean"].shape == (2,) for curve in results.values())
    assert "differ" not in output
    run("plot_from_file", "-i", "comparison", "-o", "curves.png", "-b", cwd=trained)
    for picture in ("training_episodic_reward.png", "results_cartpole-v1.png", "curves.png", "curves_bars.png"):
        pixels = plt.imread(trained / picture)
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10, picture


def test_trainings_that_are_no_seeds_of_one_are_drawn_apart(trained, tmp_path):
    """Two seeds; one of another length, one in another environment, and one that began with a model."""
    runs = tmp_path / "logs" / "ppg"
    for number in range(1, 6):
        shutil.copytree(trained / "logs" / "ppg" / "CartPole-v1_1", runs / f"CartPole-v1_{number}")
    for number, name, old, new in (
        (2, "config.yml", "2000", "4000"),
        (4, "args.yml", "- env_kwargs\n    - null", "- env_kwargs\n    - {max_episode_steps: 9}"),
        (5, "args.yml", "- trained_agent\n    - ''", "- trained_agent\n    - model.zip"),
    ):
        file = runs / f"CartPole-v1_{number}" / "CartPole-v1" / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    options = ("-a", "ppg", "ppo", "-e", "CartPole-v1", "-f", "logs", str(trained / "logs"), "-o", "c", "--no-display")
    output = run("all_plots", *options, "-l", "mine", "other", cwd=tmp_path)
    assert "mine (1): logs/ppg/CartPole-v1_1, logs/ppg/CartPole-v1_3\nmine (2): logs/ppg/CartPole-v1_2\n" in output
    results = pickle.loads((tmp_path / "c.pkl").read_bytes())["CartPole-v1"]
    n_seeds = {label: curve["mean_per_eval"].shape[1] for label, curve in results.items()}
    assert n_seeds == {"PPG-mine (1)": 2, **{f"PPG-mine ({n})": 1 for n in (2, 3, 4)}, "PPG-other": 1, "PPO-other": 1}


def test_plots_find_environments_whose_names_have_a_slash(trained, tmp_path):
    """Names of folders have a dash in its place."""
    shutil.copytree(trained / "logs" / "ppg" / "CartPole-v1_1", tmp_path / "logs" / "ppg" / "MinAtar-Breakout-v1_1")
    which = ("-e", "MinAtar/Breakout-v1", "-f", "logs")
    run("plot_train", *which, "-w", "5", cwd=tmp_path)
    assert len(plt.figure("Training Episodic Reward").axes[0].lines) == 1
    run("all_plots", *which, "-o", "comparison", "--no-display", cwd=tmp_path)
    results = pickle.loads((tmp_path / "comparison.pkl").read_bytes())
    assert set(results["MinAtar-Breakout-v1"]) == {"PPG-logs"}


def test_plots_read_the_files_of_trainings_without_making_objects(trained, tmp_path):
    shutil.copytree(trained / "logs" / "ppg" / "CartPole-v1_1", tmp_path / "logs" / "ppg" / "CartPole-v1_1")
    arguments = tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1" / "args.yml"
    options = "{g: !!python/object/apply:os.system [touch ran], n: !!python/tuple [1, 2]}"
    text = arguments.read_text().replace("- - env_kwargs\n    - null", f"- - env_kwargs\n    - {options}")
    assert options in text
    arguments.write_text(text)
    run("all_plots", "-e", "CartPole-v1", "-f", "logs", "-o", "comparison", "--no-display", cwd=tmp_path)
    assert (tmp_path / "comparison.pkl").exists() and not (tmp_path / "ran").exists()


def test_plots_of_environments_with_other_kinds_of_trainings(tmp_path):
    """Two lengths of one environment were trained, and one of the other."""
    curve = {name: np.arange(2.0) for name in ("timesteps", "mean", "std_error")}
    curve |= {"last_evals": np.arange(3.0), "mean_per_eval": np.ones((2, 3))}
    one, two = {"PPG-logs (1)": curve}, {"PPG-logs (1)": curve, "PPG-logs (2)": curve}
    for name, environments in (("more", {"a": two, "b": one}), ("fewer", {"a": one, "b": two})):
        results = {**environments, "results_table": {"headers": [], "value_matrix": []}}
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(results))
        output = run("plot_from_file", "-i", name, "-o", f"{name}.png", cwd=tmp_path)
        assert "keys: ['PPG-logs (1)', 'PPG-logs (2)']" in output and (tmp_path / f"{name}_b.png").exists()


def test_continue_training(trained, run_folder):
    """From the weights and the optimizers that were saved."""
    options = ("--env", "CartPole-v1", "-n", "1024", "--eval-freq", "-1", "-f", "more")
    run("train", *options, "-i", str(run_folder / "CartPole-v1.zip"), "-params", "learning_rate:0.0", cwd=trained)
    before = PPG.load(run_folder / "CartPole-v1.zip", device="cpu")
    after = PPG.load(trained / "more" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip", device="cpu")
    heads = ("value_net", "aux_value_net")  # whose units follow the returns, though the learning rate is 0
    for name, parameter in after.policy.state_dict().items():
        assert name.startswith(heads) or th.equal(parameter, before.policy.state_dict()[name]), name
    latent = th.randn(8, 64)
    for head in heads:
        th.testing.assert_close(
            getattr(after.policy, head)(latent), getattr(before.policy, head)(latent), rtol=1e-4, atol=1e-3
        )
    steps = [optimizer.state_dict()["state"][0]["step"] for optimizer in (before.policy.optimizer, after.policy.optimizer)]
    assert steps[1] > steps[0] > 0


def test_training_goes_on_exactly(tmp_path):
    """Stopped after 3 of 6 rollouts (N_π = 2) and continued, each counter and schedule going on; and once more."""
    options = ("train", "--env", "CartPole-v1", "--eval-freq", "-1", "--seed", "3", "--save-replay-buffer")
    run(*options, "-n", "192", "--save-freq", "64", "-f", "first", *SMALL, cwd=tmp_path)
    first = tmp_path / "first" / "ppg" / "CartPole-v1_1"
    assert {f"rl_model_{n}_steps{suffix}" for n in (64, 128, 192) for suffix in (".zip", ".aux_buffer.npz")} | {
        "CartPole-v1.aux_buffer.npz"
    } <= {path.name for path in first.iterdir()}
    resume = (*options, "--continue", "-i", str(first / "CartPole-v1.zip"))
    outputs = [run(*resume, "-n", "384", "-f", folder, *SMALL, cwd=tmp_path) for folder in ("second", "third")]
    assert all("Going on after 192 steps" in output and "CartPole-v1.aux_buffer.npz" in output for output in outputs)
    models = [
        PPG.load(tmp_path / folder / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip", device="cpu")
        for folder in ("second", "third")
    ]
    for model in models:
        assert model.num_timesteps == 384 and model.n_aux_phases == 3
        assert model.policy.optimizer.param_groups[0]["lr"] == 0  # which the file's schedule decreases to the end
    for a, b in zip(*(model.policy.parameters() for model in models), strict=True):
        assert th.equal(a, b)
    assert "trained for 192 steps already" in run(*resume, "-n", "192", *SMALL, cwd=tmp_path, fails=True)
    assert "--continue needs the model" in run(*options, "--continue", cwd=tmp_path, fails=True)
    joined = f"--trained-agent={first / 'CartPole-v1.zip'}"
    assert "trained for 192 steps already" in run(
        *options, "--continue", joined, "-n", "192", *SMALL, cwd=tmp_path, fails=True
    )


STRICT = f"""
import sys

import gymnasium
import numpy

sys.path.append({str(ROOT)!r})
from sb3_ppg import VectorRewards
from tests.helpers import NESTED, VECTOR, MaskedEnv, RandomEnv, VectorRewardEnv  # in which an invalid action is an error


class Filmed(RandomEnv):
    metadata = dict(render_modes=["rgb_array"], render_fps=50)

    def __init__(self, render_mode=None):
        super().__init__(VECTOR, NESTED)
        self.render_mode = render_mode

    def render(self):
        return numpy.full((64, 64, 3), self.steps, numpy.uint8)


gymnasium.register("Strict-v0", MaskedEnv, vector_entry_point=None)
gymnasium.register("Nested-v0", Filmed)
gymnasium.register("Goals-v0", lambda: VectorRewards(VectorRewardEnv(), weights=[1.0, 0.5]))
"""


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [("ppg_lstm", "CartPoleNoVel-v1"), ("ppg_mask", "Strict-v0"), ("ppg", "Nested-v0"), ("ppg", "Goals-v0")],
)
def test_every_command_knows_the_variants(algo, env_id, tmp_path):
    """
    LSTM states, masks, nested actions and vector rewards work wherever an agent acts: training, evaluation, searches, enjoy,
    report.
    """
    (tmp_path / "strict.py").write_text(STRICT)
    which = ("--algo", algo, "--env", env_id, "--gym-packages", "strict")
    small = (*SMALL, "reward_weights:[1.0,0.5]", "normalize:False") if env_id == "Goals-v0" else SMALL
    training = ("-n", "192", "--eval-freq", "64", "--eval-episodes", "2", "--seed", "1", *small)
    run("train", *which, *training, "--save-freq", "64", "--save-replay-buffer", cwd=tmp_path)
    folder = tmp_path / "logs" / algo / f"{env_id}_1"
    assert {"best_model.zip", "evaluations.npz", f"{env_id}.zip", f"{env_id}.aux_buffer.npz"} <= {
        path.name for path in folder.iterdir()
    }
    model = ALGOS[algo].load(folder / f"{env_id}.zip")
    assert model.num_timesteps == 192 and model.n_aux_phases == 1
    assert model.n_reward_components == (2 if env_id == "Goals-v0" else None)
    resume = ("-n", "256", "--eval-freq", "-1", "--continue", "-i", str(folder / f"{env_id}.zip"), *small)
    output = run("train", *which, *resume, cwd=tmp_path)
    assert "Going on after 192 steps" in output and "aux_buffer.npz" in output
    assert ALGOS[algo].load(tmp_path / "logs" / algo / f"{env_id}_2" / f"{env_id}.zip").n_aux_phases == 2

    for epsilon in ([], ["--epsilon", "0.5"]):
        played = run("enjoy", *which, "--no-render", "-n", "600", "--exp-id", "1", *epsilon, cwd=tmp_path)
        assert "Mean episode length" in played
        assert "over 5 episodes" in run("report", *which, "--episodes", "5", *epsilon, cwd=tmp_path)
    if env_id == "Nested-v0":
        run("record_video", "--env", env_id, "--exp-id", "1", "-n", "30", cwd=tmp_path)  # it has no --gym-packages
        assert n_frames(next((folder / "videos").glob("*.mp4"))) == 31
    search = ("-optimize", "--n-trials", "2", "--n-evaluations", "1", "--eval-episodes", "1", "--no-optim-plots", "-n", "1536")
    assert "Number of finished trials:  2" in run("train", *which, *search, "--seed", "1", cwd=tmp_path)


def test_ctrl_c_saves_the_model(tmp_path):
    """The training ends, and its model is there, as for PPO."""
    options = (
        "--env",
        "CartPole-v1",
        "-n",
        "1000000",
        "--eval-freq",
        "-1",
        "--save-replay-buffer",
        "-params",
        "compile_updates:False",
    )
    training = program(["-m", "sb3_ppg", "train", *options], tmp_path)
    wait_for(lambda: "n_updates" in output_of(training))
    training.send_signal(signal.SIGINT)
    code, output = end_of(training)
    assert code == 0 and "Traceback" not in output and "Saving to logs" in output, output
    folder = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    model = PPG.load(folder / "CartPole-v1.zip")
    assert model.num_timesteps > 0 and (folder / "CartPole-v1.aux_buffer.npz").exists()


class Broken(CartPoleEnv):
    def reset(self, **options):
        raise RuntimeError("the sensor is off")


@pytest.mark.parametrize("algo", ["ppg", "ppo"])
def test_an_error_before_the_first_step_is_what_is_shown(algo, tmp_path):
    """And not what the progress bar says to being ended before it was there."""
    gym.register("Broken-v0", Broken)
    try:
        line = f"train --algo {algo} --env Broken-v0 -n 100 --eval-freq -1 --progress"
        assert run(*line.split(), cwd=tmp_path, fails=True).endswith("RuntimeError: the sensor is off\n")
    finally:
        del gym.registry["Broken-v0"]


def test_failed_trainings_do_not_hide_the_one_that_has_a_model(run_folder, tmp_path):
    """Their numbers are not used again, though."""
    runs = tmp_path / "logs" / "ppg"
    shutil.copytree(run_folder, runs / "CartPole-v1_1")
    shutil.copytree(run_folder / "CartPole-v1", runs / "CartPole-v1_7" / "CartPole-v1")
    for options, model in (([], "CartPole-v1.zip"), (["--load-best"], "best_model.zip")):
        output = run("enjoy", "--env", "CartPole-v1", "--no-render", "-n", "10", *options, cwd=tmp_path)
        assert f"Loading logs/ppg/CartPole-v1_1/{model}" in output
    assert "Model:          logs/ppg/CartPole-v1_1/CartPole-v1.zip" in run("report", "--episodes", "2", cwd=tmp_path)
    training = ("train", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1")
    assert "Saving to logs/ppg/CartPole-v1_8" in run(*training, cwd=tmp_path)


def test_memory_tasks_of_minigrid(tmp_path):
    """Their observation has a text in it."""
    which = "--algo ppg_lstm --env MiniGrid-MemoryS7-v0"
    run(*f"train {which} -n 2000 --eval-freq 1000 --eval-episodes 1 --seed 1".split(), cwd=tmp_path)
    assert "Loading logs/ppg_lstm/MiniGrid-MemoryS7-v0_1" in run(*f"enjoy {which} --no-render -n 20".split(), cwd=tmp_path)
    assert "over 2 episodes" in run(*f"report {which} --episodes 2".split(), cwd=tmp_path)


def test_training_with_worker_processes(tmp_path):
    options = ("--vec-env", "subproc", "-params", "n_envs:2", "n_steps:32", "batch_size:64")
    run("train", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", *options, cwd=tmp_path)
    assert (tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip").exists()


def test_a_signal_to_the_workers_too_ends_between_two_iterations(tmp_path):
    """``timeout`` sends it so, and schedulers of clusters."""
    options = ("--env", "CartPole-v1", "-n", "1000000", "--save-freq", "640000", "--eval-freq", "-1")
    command = ["-m", "sb3_ppg", "train", *options, "--vec-env", "subproc", *SMALL]
    training = program(command, tmp_path, start_new_session=True)
    wait_for(lambda: "n_updates" in output_of(training))
    os.killpg(training.pid, signal.SIGTERM)
    code, said = end_of(training)
    assert code == 128 + signal.SIGTERM and "Traceback" not in said and "A signal has ended" in said, said
    (checkpoint,) = (tmp_path / "logs" / "ppg" / "CartPole-v1_1").glob("rl_model_*_steps.zip")
    assert int(checkpoint.name.split("_")[2]) % 64 == 0
    end = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):  # no worker is left
        while time.monotonic() < end:
            os.killpg(training.pid, 0)
            time.sleep(0.1)


def test_an_error_ends_the_workers(tmp_path):
    """The interpreter does not wait for them."""
    options = ("--vec-env", "subproc", "--eval-freq", "-1", "-params", "n_envs:2", "batch_size:-1")
    command = [sys.executable, "-m", "sb3_ppg", "train", "--env", "CartPole-v1", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "`batch_size`=-1" in done.stderr


def test_two_commands_at_once_have_folders_of_their_own(tmp_path):
    """The Zoo looks for the next number when it starts; another command may have taken it before the folder is made."""
    for number in (1, 2):
        (tmp_path / f"Mine-v1_{number}").mkdir()
    made = make_run_folder(str(tmp_path / "Mine-v1_1"))
    assert made == str(tmp_path / "Mine-v1_3") and Path(made).is_dir()


def test_a_log_folder_that_leads_nowhere_is_an_error(tmp_path):
    """For instance a link to a disk that is not mounted."""
    (tmp_path / "logs").symlink_to(tmp_path / "disk")
    with pytest.raises(FileExistsError, match="logs"):
        make_run_folder(str(tmp_path / "logs" / "Mine-v1_1"))


def test_a_users_own_checkpoint_callback_is_kept(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from stable_baselines3.common.callbacks import CheckpointCallback\n"
        "class Mine(CheckpointCallback):\n"
        "    def __init__(self):\n"
        "        super().__init__(save_freq=16, save_path='saved')\n"
    )
    options = ("--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1")
    run("train", *options, *SMALL, "callback:'mine.Mine'", cwd=tmp_path)
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {f"rl_model_{n}_steps.zip" for n in (32, 64)}


def test_trainings_from_a_checkpoint_have_seeds_of_their_own(tmp_path):
    """Its generators go on with ``--continue`` only."""
    env = ("train", "--env", "FrozenLake-v1", "--env-kwargs", "is_slippery:False", "--eval-freq", "-1", "-n", "128")
    run(*env, "--save-freq", "64", "--seed", "1", *SMALL, cwd=tmp_path)
    begin = ("-i", "logs/ppg/FrozenLake-v1_1/rl_model_128_steps.zip", *SMALL)
    for seed in ("5", "6"):
        run(*env, "--seed", seed, "-f", seed, *begin, cwd=tmp_path)
    other = run(*env, "-f", "other", *begin, "n_steps:64", cwd=tmp_path)  # whose rollouts those of the phase do not fit
    assert re.search(r"does not belong to this model: its n steps is \d+, the model's 64\. The phase starts over", other)
    models = [PPG.load(tmp_path / seed / "ppg" / "FrozenLake-v1_1" / "FrozenLake-v1.zip") for seed in ("5", "6")]
    assert not any(th.equal(*pair) for pair in zip(*(model.policy.parameters() for model in models), strict=True))


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("train --env CartPol-v1", "Environment `CartPol` doesn't exist. Did you mean: `CartPole`?"),
        ("train --env LunarLander-v2", "use `LunarLander-v3` instead"),
        ("train --algo pgp", "invalid choice: 'pgp'"),
        ("train -i logs/ppg/CartPole-v1_1/CartPole.zip", "nearest: CartPole-v1.zip"),
        ("train -i lgs/ppg/CartPole-v1_1/CartPole-v1.zip", "no 'lgs'"),
        ("train -conf ppgg.yml", "ppgg.yml does not exist"),
        ("enjoy -f log", "no 'log' in"),
        ("enjoy --env Pendulum-v1", "No model found for ppg on Pendulum-v1"),
        ("enjoy --load-checkpoint 1500", "nearest: logs/ppg/CartPole-v1_1/rl_model_"),
        ("record_training --env Acrobot-v1", "No model found for ppg on Acrobot-v1"),
        ("report --exp-id 7", "CartPole-v1_7 folder was not found; there are logs/ppg/CartPole-v1_1/"),
        ("report --episodes 0", "--episodes 0"),
        ("push_to_hub --env Pendulum-v1 -orga me", "No model found for ppg on Pendulum-v1"),
        ("push_to_hub -orga me --env CartPole-v1 --episodes 0", "--episodes 0"),
        ("train -params n_polcy_iterations:4", "PPG has no hyperparameter 'n_polcy_iterations'"),
        ("train -i logs/ppg/CartPole-v1_1/CartPole-v1.zip -params gama:0.9", "nearest: gamma"),
        ("train -params clip_range:-1.0", "`clip_range`"),
        ("train --env MountainCar-v0 -params aux_learning_rate:[1]", "`aux_learning_rate`=[1] cannot work"),
        ("train -params learning_rate:'3e-4'", "`learning_rate`='3e-4' cannot work (from"),
        ("train -params aux_learning_rate:'3e-4'", "use a number, which in YAML has a dot (3.0e-4), or a linear schedule"),
        ("train --gym-packages no_such_module", "No module named 'no_such_module' (--gym-packages): install it, or add"),
        ("enjoy --gym-packages no_such_module", "sb3-ppg enjoy: No module named 'no_such_module' (--gym-packages)"),
        ("report --gym-packages no_such_module", "sb3-ppg report: No module named 'no_such_module' (--gym-packages)"),
        ("train -conf mine.yml", "no hyperparameter 'n_aux_epoch' (from mine.yml, -params or a study); nearest: n_aux_epochs"),
        ("benchmark --no-hub --log-dir logz", "benchmark: [Errno 2] No such file or directory: 'logz'"),
        ("plot_train -a a2c -e CartPole-v1 -f logs", "plot_train: [Errno 2] No such file or directory: 'logs/a2c'"),
        ("plot_from_file -i comparisn", "plot_from_file: [Errno 2] No such file or directory: 'comparisn.pkl'"),
        ("record_training --pretrained", "unrecognized arguments: --pretrained"),
        ("train -params n_enws:4", "no hyperparameter 'n_enws' (from"),
        ("train -params n_enws:4", "nearest: n_envs"),
        ("train -params n_envs:0", "`n_envs`=0 cannot work"),
        ("train -params n_steps:abc", "-params n_steps:abc cannot be read (name 'abc' is not defined): use NAME:VALUE"),
        ("report --env-kwargs n_steps", "--env-kwargs n_steps cannot be read (invalid syntax"),
        ("train --env-kwargs gg:1", "sb3-ppg train: CartPoleEnv.__init__() got an unexpected keyword argument 'gg'"),
        ("train -params normalize:'dict('", "the hyperparameters cannot be read (from"),
        ("train -params env_wrapper:'a.b'", "ModuleNotFoundError: No module named 'a'"),
        ("train -params policy_kwargs:dict(net_arhc=[8])", "__init__() got an unexpected keyword argument 'net_arhc'"),
        ("train -conf damaged.yml", "damaged.yml is not YAML: mapping values are not allowed here"),
        ("train -conf list.yml", "list.yml is no hyperparameter file"),
        ("train -conf incomplete.yml", "the hyperparameter 'policy' is missing (from incomplete.yml"),
        ("train --env MyEnv-v0", "Environment `MyEnv` doesn't exist. If a module of yours registers it, use --gym-packages"),
        ("enjoy --env MyEnv-v0", "Environment `MyEnv` doesn't exist. If a module of yours registers it, use --gym-packages"),
        ("train --env mine:MyEnv-v0", "and --env ENV, not MODULE:ENV"),
        ("train --env CartPole", "No registered env with id: CartPole; nearest: CartPole-v1"),
        ("train -conf latin.yml", "latin.yml is not YAML: 'utf-8' codec can't decode"),
        ("train -conf logs.yml", "[Errno 21] Is a directory: 'logs.yml'"),
        ("train -conf mine.yml --env Acrobot-v1", "mine.yml has no hyperparameters for Acrobot-v1"),
        ("train -conf mine.py", "mine.py has no hyperparameters for CartPole-v1"),
        ("train -i mine.yml", "-i mine.yml is no .zip file"),
        ("train -params normalize:\"{'norm_ob':True}\"", "VecNormalize.__init__() got an unexpected keyword"),
        ("train -params monitor_kwargs:dict(info=('x',))", "Monitor.__init__() got an unexpected keyword argument 'info'"),
        ("train -conf wrapper.yml", "TimeLimit.__init__() got an unexpected keyword argument 'max_steps'"),
        ("all_plots -e Acrobot-v1 -f logs", "no evaluations of ppg on Acrobot-v1 in logs"),
        ("train --continue", "--continue needs the model"),
        ("nonsense", "there is no script nonsense"),
        ("tain", "there is no script tain; nearest: train"),
        ("train --storage study.log --study-name ppgg --trial-id 1", "there is no study 'ppgg' in study.log, or it has no"),
        ("train --storage study.log --study-name ppg --trial-id 7", "no study 'ppg' in study.log, or it has no trial 7"),
        ("train --storage study.log --study-name ppg", "no study 'ppg' in study.log, or it has no finished trial"),
        ("train --storage study.log", "use --storage and --study-name"),
        ("train --trial-id 1", "use --storage and --study-name"),
    ],
)
def test_bad_input_names_what_is_nearest(trained, command, complaint, tmp_path):
    # A copy, as some begin a training of their own
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("CartPole-v1_[2-9]*"))
    (tmp_path / "mine.yml").write_text("CartPole-v1: {policy: MlpPolicy, n_timesteps: 100, n_aux_epoch: 3}")
    (tmp_path / "damaged.yml").write_text("CartPole-v1:\n  n_timesteps: 100\n   policy: MlpPolicy\n")
    (tmp_path / "list.yml").write_text("- CartPole-v1\n")
    (tmp_path / "latin.yml").write_bytes(b"# \xe9\n")
    (tmp_path / "logs.yml").mkdir()
    (tmp_path / "mine.py").write_text("hyperparms = {}\n")
    wrapper = "{gymnasium.wrappers.TimeLimit: {max_steps: 9}}"
    (tmp_path / "wrapper.yml").write_text(f"CartPole-v1: {{policy: MlpPolicy, n_timesteps: 100, env_wrapper: {wrapper}}}")
    (tmp_path / "incomplete.yml").write_text("CartPole-v1: {n_timesteps: 100}")
    if "study.log" in command:
        storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
        optuna.create_study(study_name="ppg", storage=storage)
    printed = run(*command.split(), cwd=tmp_path, fails=True)
    assert complaint in printed and "Traceback" not in printed


def test_the_console_command_lists_the_scripts(tmp_path):
    output = subprocess.check_output([Path(sys.executable).parent / "sb3-ppg"], text=True, cwd=tmp_path)
    for name in [*launcher.SCRIPTS, "--pretrained", "--continue", "--epsilon"]:
        assert re.search(rf"^ +{name} +\w+", output, re.MULTILINE), name


def test_the_version():
    assert run("--version") == f"{sb3_ppg.__version__}\n"


@pytest.mark.parametrize(("number", "is_said"), [(errno.ENOSPC, True), (errno.ENOTDIR, True), (errno.ENOENT, False)])
def test_a_full_disk_is_one_line(number, is_said, monkeypatch):
    def fail(*_):
        raise OSError(number, "model.zip could not be written")

    monkeypatch.setattr(launcher, "run", fail)
    assert run("train", fails=True).endswith("could not be written") == is_said


@pytest.mark.parametrize("which", [0, 1])
def test_scripts_of_the_page(which, trained, tmp_path):
    """A file of the user's own imports the Zoo's scripts."""
    script = (ROOT / "docs" / "guides" / "zoo.md").read_text().split("```python")[1 + which].split("```")[0]
    (tmp_path / "mine.py").write_text(script)
    arguments = ["--algo", "ppg", "--env", "CartPole-v1", "-n", "256", "--eval-freq", "-1"]
    if which == 1:
        shutil.copytree(trained / "logs" / "ppg" / "CartPole-v1_1", tmp_path / "logs" / "ppg" / "CartPole-v1_1")
    done = subprocess.run([sys.executable, "mine.py", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if which == 0:
        assert (tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip").exists()
    else:
        assert "Evaluating ppg on CartPole-v1" in done.stdout and "Error during evaluation" not in done.stdout


@pytest.mark.parametrize("script", launcher.SCRIPTS)
def test_the_help_of_a_script_has_its_name_our_options_and_an_example(script):
    said = run(script, "--help")
    options = {"train": 2, "enjoy": 1, "report": 1, "record_video": 1, "record_dataset": 1}.get(script, 0)
    assert said.startswith(f"usage: sb3-ppg {script} [-h]") and f"Example: sb3-ppg {script} -" in said
    assert sum(f"[{option}]" in said for option in ("--pretrained", "--continue")) == options
    assert ("[--epsilon EPSILON]" in said) == (script in ("enjoy", "report"))
