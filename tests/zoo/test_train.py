"""``train``: runs that go on and runs that are interrupted, and all variants."""

import gc
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock, patch

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor, load_results

from sb3_ppg import PPG, PhasicCheckpointCallback, VectorRewards, hub, latest_checkpoint
from sb3_ppg.zoo import ALGOS
from sb3_ppg.zoo.environments import CutEpisodes
from sb3_ppg.zoo.resuming import forget_later_episodes, locked_config, make_run_folder
from tests.helpers import NESTED, VECTOR, MaskedEnv, RandomEnv, VectorRewardEnv, changed, run, wait_for
from tests.zoo.programs import SMALL, end_of, output_of, program
from tests.zoo.test_commands import n_frames

pytestmark = pytest.mark.slow


def test_settings_of_ones_own_file_are_advised_on(tmp_path):
    """The settings of our files were run as they are."""
    (tmp_path / "mine.yml").write_text("CartPole-v1: {policy: MlpPolicy, n_timesteps: 64, n_steps: 64, batch_size: 64}")
    with pytest.warns(UserWarning, match="takes 24 optimizer steps"):
        run("train", "--env", "CartPole-v1", "-conf", "mine.yml", "--eval-freq", "-1", cwd=tmp_path)


def test_a_callback_leaves_the_settings_ours(tmp_path, recwarn):
    """Each run of ``compare`` has one, which measures."""
    callback = "callback:{'stable_baselines3.common.callbacks.StopTrainingOnMaxEpisodes': {'max_episodes': 9}}"
    run("train", "--env", "MountainCarContinuous-v0", "-n", "16", "--eval-freq", "-1", "-params", callback, cwd=tmp_path)
    messages = [str(warning.message) for warning in recwarn]
    assert any("auxiliary phase" in message for message in messages)
    assert not any("optimizer steps" in message for message in messages)


def test_an_evaluation_that_would_not_end_is_given_up(tmp_path):
    options = ["--gym-packages", __name__, "-n", "64", "--eval-freq", "64", "--eval-episodes", "1"]
    search = ["-optimize", "--n-trials", "1", "--n-evaluations", "1", "--no-optim-plots"]
    for further in ([], search):
        output = run("train", "--env", "Endless-v0", *options, *SMALL, *further, cwd=tmp_path)
        assert output.count("An evaluation was given up") == 1
    run("train", "--env", "Pendulum-v1", *options, *SMALL, cwd=tmp_path)  # whose episodes are longer than the training
    assert np.load(tmp_path / "logs" / "ppg" / "Pendulum-v1_1" / "evaluations.npz")["ep_lengths"] == 200


def test_episodes_that_a_wrapper_cuts_off_count(tmp_path):
    """It is around the Monitor."""
    limit, common = "env_wrapper:{'gymnasium.wrappers.TimeLimit':{'max_episode_steps':5}}", ["--eval-episodes", "2"]
    run("train", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "64", *common, *SMALL, limit, cwd=tmp_path)
    folder = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    assert (np.load(folder / "evaluations.npz")["results"] == 5).all()
    assert (load_results(folder)["l"] == 5).all()
    assert "Mean return over 2 episodes: 5.00" in run("report", "--episodes", "2", cwd=tmp_path)


class Marks(gym.Wrapper):
    """Replaces the infos."""

    def step(self, action):
        *step, _ = self.env.step(action)
        return *step, {"mark": 7}


def test_an_episode_is_reported_once_and_with_all_that_the_monitor_reports():
    limited = TimeLimit(Monitor(Marks(gym.make("CartPole-v1")), info_keywords=("mark",)), 2)
    seen = Marks(Monitor(gym.make("CartPole-v1", max_episode_steps=2)))
    for env, expected in ((limited, {"r": 2, "l": 2, "mark": 7}), (seen, {})):
        cut = CutEpisodes(env)
        cut.reset()
        infos = [cut.step(0)[-1] for _ in range(2)]
        assert "episode" not in infos[0] and infos[1].get("episode", {}).items() >= expected.items()
    assert "episode" not in infos[1]  # the Monitor has reported it, to a wrapper that does not pass it on


class Mine(CheckpointCallback):
    def __init__(self):
        super().__init__(save_freq=16, save_path="logs/ppg/CartPole-v1_1")


def test_a_users_checkpoints_are_saved_as_the_user_says(tmp_path):
    """SB3's class elsewhere, and a class of the user's in the run's folder: ours have auxiliary buffers."""
    own = {"save_freq": 20, "save_path": "mine", "save_vecnormalize": True}
    callbacks = [{"stable_baselines3.common.callbacks.CheckpointCallback": own}, f"{__name__}.Mine"]
    params = [f"callback:{callbacks}", "normalize:True"]
    run("train", "--env", "CartPole-v1", "-n", "64", "--eval-freq", "-1", *SMALL, *params, cwd=tmp_path)
    assert sorted(file.name for file in (tmp_path / "mine").iterdir()) == [
        "rl_model_40_steps.zip",
        "rl_model_vecnormalize_40_steps.pkl",
    ]
    saved = {path.name for path in (tmp_path / "logs/ppg/CartPole-v1_1").glob("rl_model_*_steps.*")}
    assert saved == {f"rl_model_{n}_steps.zip" for n in (32, 64)}


def test_a_larger_n_extends_a_run_exactly(tmp_path):
    """
    Stopped after 3 of 6 rollouts (N_π = 2) and continued, each counter and schedule going on; and once more, in a copy. A
    folder whose checkpoints were removed goes on from its model, which has the rollouts of the phase, too.
    """
    options = ("train", "--env", "CartPole-v1", "--eval-freq", "-1", "--seed", "3", "--save-replay-buffer")
    run(*options, "-n", "192", "--run-folder", "first", *SMALL, cwd=tmp_path)
    names = {"rl_model_128_steps", "rl_model_192_steps", "CartPole-v1"}
    assert {path.name.split(".")[0] for path in (tmp_path / "first").glob("*.aux_buffer.npz")} == names
    for name in ("second", "without_checkpoints"):
        shutil.copytree(tmp_path / "first", tmp_path / name)
    for path in (tmp_path / "without_checkpoints").glob("rl_model_*"):
        path.unlink()
    folders = [tmp_path / name for name in ("first", "second", "without_checkpoints")]
    outputs = [run(*options, "-n", "384", "--run-folder", str(folder), *SMALL, cwd=tmp_path) for folder in folders]
    models = [PPG.load(folder / "CartPole-v1.zip") for folder in folders]
    names = ["rl_model_192_steps", "rl_model_192_steps", "CartPole-v1"]
    for output, folder, name in zip(outputs, folders, names, strict=True):
        assert f"Going on after 192 steps, from {folder / name}.zip, with seed 3" in output
        assert f"Loading {folder / name}.aux_buffer.npz" in output
    for model in models:
        assert model.num_timesteps == 384 and model.n_aux_phases == 3
        assert model.policy.optimizer.param_groups[0]["lr"] == 0  # which the file's schedule decreases to the end
        assert not changed(model, models[0].policy.state_dict())


def test_a_prior_is_an_agent_of_the_zoo_or_a_shared_one_with_its_normalization(trained, tmp_path):
    """A PPO of RL Zoo in VecNormalize, a folder of ``hub``, and the model that goes on itself; never the agent's seed."""
    options = ("train", "--env", "CartPole-v1", "-n", "128", "--eval-freq", "-1", "--seed", "3")
    normalized = ("-params", "normalize:True", "n_envs:2", "n_steps:32", "batch_size:32", "n_timesteps:128")
    run(*options, "--algo", "ppo", *normalized, cwd=tmp_path)
    theirs = tmp_path / "logs" / "ppo" / "CartPole-v1_1"
    hub.save_pretrained(PPG.load(trained / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip"), tmp_path / "shared")
    own = tmp_path / "logs" / "ppg" / "CartPole-v1_1" / "CartPole-v1.zip"
    found = []
    for number, prior in enumerate((theirs / "CartPole-v1.zip", tmp_path / "shared", "self"), 1):
        continued = ("-i", str(own)) if prior == "self" else ()
        run(*options, *continued, "--prior", str(prior), *SMALL, "prior_coef:'lin_0.5'", cwd=tmp_path)
        found.append(PPG.load(tmp_path / f"logs/ppg/CartPole-v1_{number}/CartPole-v1.zip", device="cpu"))
    of_ppo, of_shared, of_self = (model.prior for model in found)
    with (theirs / "CartPole-v1" / "vecnormalize.pkl").open("rb") as file:
        np.testing.assert_array_equal(of_ppo.normalizer.obs_rms.mean, pickle.load(file).obs_rms.mean)
    assert [prior.name for prior in (of_ppo, of_shared, of_self)] == ["PPO", "PPG", "PPG"] and of_shared.normalizer is None
    assert not changed(PPG.load(own), of_self.policy.state_dict())
    assert found[0].prior_coef(0.5) == 0.25 and found[0].seed == 3
    message = run(*options, "--algo", "ppo", "--prior", "self", *normalized, cwd=tmp_path, fails=True)
    assert "--prior cannot work here: it is for runs, not searches, of ppg" in message


class Filmed(RandomEnv):
    metadata: ClassVar[dict] = dict(render_modes=["rgb_array"], render_fps=50)

    def __init__(self, render_mode=None):
        super().__init__(VECTOR, NESTED)
        self.render_mode = render_mode

    def render(self):
        return np.full((64, 64, 3), self.steps, np.uint8)


# For --gym-packages; in the tests' environments an invalid action is an error
gym.register("Strict-v0", MaskedEnv)
gym.register("Nested-v0", Filmed)
gym.register("Endless-v0", RandomEnv, kwargs=dict(episode_length=10**9))
gym.register("Goals-v0", lambda: VectorRewards(VectorRewardEnv(), weights=[1.0, 0.5]))


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [("ppg_lstm", "CartPoleNoVel-v1"), ("ppg_mask", "Strict-v0"), ("ppg", "Nested-v0"), ("ppg", "Goals-v0")],
)
def test_every_command_knows_the_variants(algo, env_id, tmp_path):
    """
    LSTM states, masks, nested actions and vector rewards work wherever an agent acts: training, evaluation, searches, enjoy,
    report.
    """
    which = ("--algo", algo, "--env", env_id, "--gym-packages", __name__)
    small = (*SMALL, "reward_weights:[1.0,0.5]", "normalize:False") if env_id == "Goals-v0" else SMALL
    training = ("-n", "192", "--eval-freq", "64", "--eval-episodes", "1", "--seed", "1", *small)
    run("train", *which, *training, cwd=tmp_path)
    folder = tmp_path / "logs" / algo / f"{env_id}_1"
    assert {"best_model.zip", "evaluations.npz"} <= {path.name for path in folder.iterdir()}
    model = ALGOS[algo].load(folder / f"{env_id}.zip")
    assert model.num_timesteps == 192 and model.n_aux_phases == 1
    assert model.n_reward_components == (2 if env_id == "Goals-v0" else None)
    for epsilon in ([], ["--epsilon", "0.5"]):
        assert "Mean episode length" in run("enjoy", *which, "--no-render", "-n", "150", *epsilon, cwd=tmp_path)
        said = run("report", *which, "--episodes", "1", *epsilon, cwd=tmp_path)
        assert re.search(f"over 1 episodes.* actions{', of which 50% are sampled' if epsilon else ''}\n", said)
    if env_id == "Nested-v0":
        run("record_video", "--env", env_id, "-n", "30", cwd=tmp_path)
        assert n_frames(next((folder / "videos").glob("*.mp4"))) == 31
    search = "-optimize --n-trials 1 --n-evaluations 1 --eval-episodes 1 --no-optim-plots -n 384 -params n_envs:2".split()
    assert "Number of finished trials:  1" in run("train", *which, *search, "--seed", "1", cwd=tmp_path)


@pytest.mark.parametrize("cls", [PPG, PPO])
def test_ctrl_c_saves_the_model_and_its_number_of_steps(cls, tmp_path, monkeypatch):
    """``benchmark`` shows the number. Here the signal comes in the third update, each after 64 steps."""
    monkeypatch.setattr(cls, "train", Mock(side_effect=[None, None, KeyboardInterrupt]))
    algo = cls.__name__.lower()
    small = ("-params", "n_envs:2", "n_steps:32", "batch_size:32", "n_epochs:1", "learning_rate:0.001", "clip_range:0.2")
    options = ("--env", "CartPole-v1", "-n", "20000", "--eval-freq", "-1", "--save-replay-buffer")
    assert "Saving to logs" in run("train", "--algo", algo, *options, *small, cwd=tmp_path)
    folder = tmp_path / "logs" / algo / "CartPole-v1_1"
    assert cls.load(folder / "CartPole-v1.zip").num_timesteps == 192
    assert (folder / "CartPole-v1.aux_buffer.npz").exists() == (cls is PPG)
    assert yaml.unsafe_load((folder / "CartPole-v1" / "config.yml").read_text())["n_timesteps"] == 192


def test_an_error_ends_the_workers():
    """The interpreter does not wait for them."""
    code = """
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv
from sb3_ppg.zoo.resuming import sigterm_blocked_in_children

with sigterm_blocked_in_children():
    env = make_vec_env("CartPole-v1", 1, vec_env_cls=SubprocVecEnv)
raise RuntimeError("an error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.endswith("RuntimeError: an error\n")


def test_runs_from_a_checkpoint_have_seeds_of_their_own(tmp_path):
    """Its generators go on with ``--run-folder`` only."""
    env = ("train", "--env", "FrozenLake-v1", "--env-kwargs", "is_slippery:False", "--eval-freq", "-1", "-n", "128")
    run(*env, "--save-freq", "64", "--seed", "1", *SMALL, cwd=tmp_path)
    begin = ("-i", "logs/ppg/FrozenLake-v1_1/rl_model_128_steps.zip", *SMALL)
    for seed in ("5", "6"):
        run(*env, "--seed", seed, "-f", seed, *begin, cwd=tmp_path)
    other = run(*env, "-f", "other", *begin, "n_steps:64", cwd=tmp_path)  # whose rollouts those of the phase do not fit
    assert re.search(r"does not belong to this model: its n steps is \d+, the model's 64\. The phase starts over", other)
    models = [PPG.load(tmp_path / seed / "ppg" / "FrozenLake-v1_1" / "FrozenLake-v1.zip") for seed in ("5", "6")]
    assert not any(th.equal(*pair) for pair in zip(*(model.policy.parameters() for model in models), strict=True))


# ---- folders of runs, --run-folder ----


def test_two_commands_at_once_have_folders_of_their_own(tmp_path):
    """
    The Zoo looks for the next number when it starts; another command may have taken it before the folder is made. A folder
    that leads nowhere, for instance a link to a disk that is not mounted, is an error.
    """
    for number in (1, 2):
        (tmp_path / f"Mine-v1_{number}").mkdir()
    made = make_run_folder(str(tmp_path / "Mine-v1_1"))
    assert made == str(tmp_path / "Mine-v1_3") and Path(made).is_dir()
    (tmp_path / "logs").symlink_to(tmp_path / "disk")
    with pytest.raises(FileExistsError, match="logs"):
        make_run_folder(str(tmp_path / "logs" / "Mine-v1_1"))


def killed(command: list[str], cwd: Path, owner: type, name: str, n_steps: int, error: Any = RuntimeError) -> str:
    """Run a command that is killed, or interrupted, when a model with so many steps calls a method; return its output."""
    method = getattr(owner, name)

    def kill(*args):
        if any(getattr(model, "num_timesteps", None) == n_steps for model in args):
            raise error
        method(*args)

    with patch.object(owner, name, kill):
        said = run(*command, cwd=cwd, fails=error is RuntimeError)
    gc.collect()  # unlocks the run, as the end of a process does
    return said


def test_the_last_agent_plays_while_its_run_is_extended(tmp_path):
    """With the statistics that it was trained with."""
    folder = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    command = ["train", "--env", "CartPole-v1", "--eval-freq", "-1", "--run-folder", str(folder)]
    run(*command, "-n", "128", "--save-freq", "64", *SMALL, "normalize:True", cwd=tmp_path)
    statistics = (folder / "CartPole-v1" / "vecnormalize.pkl").read_bytes()
    killed([*command, "-n", "256", *SMALL, "normalize:True"], tmp_path, PPG, "train", 192)
    assert "Mean return" in run("report", "--episodes", "1", cwd=tmp_path)
    command[-1] += "/rl_model_64_steps.zip"
    killed([*command, "-n", "256", *SMALL, "normalize:True"], tmp_path, PPG, "train", 128)
    assert (folder / "after_64_steps" / "CartPole-v1" / "vecnormalize.pkl").read_bytes() == statistics


class Simulated(CartPoleEnv):
    """Starts a program, and ends it when it is closed."""

    def __init__(self, render_mode=None):
        super().__init__(render_mode)
        self.simulator = subprocess.Popen(["sleep", "1000"])

    def close(self):
        self.simulator.terminate()
        self.simulator.wait(timeout=10)
        Path(f"closed_{self.simulator.pid}").touch()


gym.register("Simulated-v0", Simulated)


@pytest.mark.parametrize("vec_env", ["dummy", "subproc"])
def test_programs_that_environments_start_can_be_ended(vec_env, tmp_path):
    options = ["--gym-packages", __name__, "-n", "64", "--eval-freq", "-1", "--vec-env", vec_env]
    run("train", "--env", "Simulated-v0", *options, *SMALL, cwd=tmp_path)
    assert len(list(tmp_path.glob("closed_*"))) == 2


def test_workers_of_ars_get_the_manager(tmp_path):
    small = ["-params", "n_envs:2", "n_delta:2", "n_top:1"]
    output = run("train", "--algo", "ars", "--env", "CartPole-v1", "-n", "200", "--eval-freq", "-1", *small, cwd=tmp_path)
    assert "Saving to logs/ars/CartPole-v1_1" in output


def test_a_killed_run_goes_on_whatever_the_kill_has_left(tmp_path):
    """
    One kill comes before the first checkpoint, one amid the steps, with files that the Zoo was writing, another after all
    steps, before the last model. Each run has a folder of TensorBoard's of its own, and the seed with which it began.
    """
    options = "--save-freq 32 --eval-freq 32 --eval-episodes 1 --tensorboard-log tb --log-interval 1 -params n_envs:2"
    options += " n_steps:16 batch_size:16 normalize:True compile_updates:False"
    run_folder = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    command = ["train", "--env", "CartPole-v1", "-n", "64", "--run-folder", "logs/ppg/CartPole-v1_1", *options.split()]
    assert "Going on" not in killed([*command, "--seed", "2"], tmp_path, PPG, "train", 32)
    assert "Going on" not in killed([*command, "--seed", "3"], tmp_path, PPG, "train", 64)
    for name in ("evaluations.npz", "CartPole-v1/vecnormalize.pkl"):
        whole = (run_folder / name).read_bytes()
        (run_folder / name).write_bytes(whole[: len(whole) // 2])
    said = killed(command, tmp_path, ExperimentManager, "save_trained_model", 64)
    assert "Going on after 32 steps, from logs/ppg/CartPole-v1_1/rl_model_32_steps.zip, with seed 3" in said
    (tmp_path / "elsewhere").mkdir()
    others = ["--n-timesteps=64", "--eval-freq=32", f"--run-folder={run_folder}"]
    spelled_otherwise = ["train", *others, *command[1:3], *options.split()]
    said = run(*spelled_otherwise, cwd=tmp_path / "elsewhere")
    assert "Going on after 64 steps" in said and "It has taken all its steps" in said
    assert PPG.load(run_folder / "CartPole-v1.zip").num_timesteps == 64
    said = run(*command, cwd=tmp_path)
    assert said.endswith("The run in logs/ppg/CartPole-v1_1 is finished; a larger -n extends it\n")
    assert len(list((tmp_path / "tb/CartPole-v1/CartPole-v1_1").iterdir())) == 2  # of the first two, one of which never began
    assert "Mean reward" in run("enjoy", "--no-render", "-n", "500", cwd=tmp_path)


def test_ctrl_c_leaves_a_model_and_the_same_command_goes_on(tmp_path):
    command = ["train", *"--run-folder mine -n 96 --eval-freq -1 --seed 3".split(), *SMALL, "n_steps:16"]
    killed(command, tmp_path, PPG, "train", 64, KeyboardInterrupt)
    assert PPG.load(tmp_path / "mine" / "CartPole-v1.zip").num_timesteps == 64
    assert "Going on after 32 steps, from mine/rl_model_32_steps.zip" in run(*command, cwd=tmp_path)
    assert PPG.load(tmp_path / "mine" / "CartPole-v1.zip").num_timesteps == 96
    assert "Mean return" in run("report", "--run-folder", "mine", "--episodes", "1", cwd=tmp_path)
    with patch.object(PPG, "auxiliary_phase", side_effect=KeyboardInterrupt):  # in the last one, after all steps
        run(*command[:4], "128", *command[5:], cwd=tmp_path)
    said = run(*command[:4], "160", *command[5:], cwd=tmp_path)
    assert "Going on after 96 steps, from mine/rl_model_96_steps.zip" in said


def test_an_older_checkpoint_can_be_named(tmp_path):
    """When the command is given again, it goes on from its latest one."""
    command = ["train", "--run-folder", "mine", "-n", "128", "--eval-freq", "-1", "--seed", "3", *SMALL]
    run(*command, cwd=tmp_path)
    older = [*command[:2], "mine/rl_model_64_steps.zip", *command[3:]]
    shutil.copy(tmp_path / "mine" / "0.monitor.csv", tmp_path / "mine" / "eval.monitor.csv")  # as a user's callback may
    assert "Going on after 64 steps, from mine/rl_model_64_steps.zip" in run(*older, cwd=tmp_path)
    assert "is finished" in run(*older, cwd=tmp_path)
    killed([*older, "-n", "192"], tmp_path, PPG, "train", 192)
    assert "Going on after 128 steps" in run(*older, "-n", "192", cwd=tmp_path)
    other = [*command[:2], "mine/rl_model_128_steps.zip", "-n", "192", *command[5:]]
    killed(other, tmp_path, PPG, "train", 192)  # before its first checkpoint: those of the run before are set aside
    other[2] = str(tmp_path / other[2])
    assert "Going on after 128 steps" in run(*other, cwd=tmp_path)
    assert PPG.load(tmp_path / "mine" / "after_128_steps" / "CartPole-v1.zip").num_timesteps == 192
    for wrong in ("mine/rl_model_65_steps.zip", "", "mine/0.monitor.csv"):
        said = run(*command[:2], wrong, *command[3:], cwd=tmp_path, fails=True)
        assert f"--run-folder {wrong!r} cannot work: name a folder or, for ppg" in said


def test_a_finished_model_that_is_newer_than_the_checkpoints_is_extended(tmp_path):
    """With its episodes, and not those of an extension that was killed."""
    command = ["train", *"--run-folder mine --eval-freq -1 --seed 3".split()]
    run(*command, "-n", "64", *SMALL, cwd=tmp_path)
    run(*command, "-n", "256", "--save-freq", "0", *SMALL, cwd=tmp_path)
    n_steps = load_results(str(tmp_path / "mine"))["l"].sum()
    killed([*command, "-n", "512", "--save-freq", "0", *SMALL], tmp_path, PPG, "train", 512)
    said = killed([*command, "-n", "512", *SMALL], tmp_path, PPG, "train", 320)
    assert "Going on after 256 steps, from mine/CartPole-v1.zip" in said
    assert n_steps <= load_results(str(tmp_path / "mine"))["l"].sum() <= 320


def test_a_run_in_a_named_folder_has_twenty_checkpoints_unless_the_command_says_otherwise(tmp_path):
    for n, options in (20, []), (4, ["--save-freq", "640"]), (0, ["--save-freq", "0"]):
        folder = tmp_path / str(n)
        options = [*options, *SMALL, "n_epochs:1", "n_aux_epochs:0"]
        run("train", "--run-folder", str(folder), "-n", "2560", "--eval-freq", "-1", *options, cwd=tmp_path)
        assert len(list(folder.glob("rl_model_*.zip"))) == n


def test_a_folder_is_refused_with_other_settings_and_while_a_process_trains_there(tmp_path):
    """Settings from files count as those of the command line do; what is shown and saved may differ."""
    command = ["train", "--run-folder", "mine", "-n", "64", "--eval-freq", "-1", "--seed", "3", *SMALL]
    run(*command, cwd=tmp_path)
    config = yaml.unsafe_load((tmp_path / "mine" / "CartPole-v1" / "config.yml").read_text())
    (tmp_path / "mine.yml").write_text(yaml.safe_dump({"CartPole-v1": {**config, "gamma": 0.5}}))
    for changed_options, difference in (
        (["gamma:0.5", "n_aux_epochs:1"], f"gamma was {config['gamma']}, now it is 0.5; n_aux_epochs was "),
        (
            ["-conf", "mine.yml"],
            f"settings: gamma was {config['gamma']}, now it is 0.5. Give the run's, or name another folder",
        ),
        (["--seed", "4"], "settings: seed was 3, now it is 4. Give"),
        (["--algo", "ppo"], "algo was ppg, now it is ppo; "),
        (["--algo", "ppo", "--env", "Acrobot-v1"], "--run-folder mine cannot work: it is for CartPole-v1. Name another"),
        (["--prior", "mine/CartPole-v1.zip"], "prior was None, now it is mine/CartPole-v1.zip"),
        (["-optimize"], "--run-folder is for a run"),
    ):
        said = run(*command, *changed_options, cwd=tmp_path, fails=True)
        assert difference in said and "Traceback" not in said
    assert "is finished" in run(*command, "-P", "--save-freq", "32", "--vec-env", "subproc", cwd=tmp_path)
    with locked_config(tmp_path / "mine", "CartPole-v1"):
        said = run(*command, cwd=tmp_path, fails=True)
    assert "--run-folder mine cannot work: another process is training there" in said


def test_other_algorithms_start_again_unless_they_are_finished(tmp_path):
    command = ["train", "--algo", "ppo", "--run-folder", "mine", "-n", "64", "--eval-freq", "-1"]
    command += ["-params", "n_envs:1", "n_steps:32", "batch_size:32"]
    assert "Going on" not in killed(command, tmp_path, PPO, "train", 64)
    assert "Going on" not in run(*command, cwd=tmp_path)
    assert load_results(str(tmp_path / "mine"))["l"].sum() <= 64
    assert "is finished\n" in run(*command, cwd=tmp_path)
    said = run(*command[:4], "mine/CartPole-v1.zip", *command[5:], cwd=tmp_path, fails=True)
    assert "--run-folder 'mine/CartPole-v1.zip' cannot work: name a folder or, for ppg" in said
    assert "Mean reward" in run("enjoy", "--algo", "ppo", "--run-folder", "mine", "--no-render", "-n", "500", cwd=tmp_path)


def test_a_run_that_resumes_evaluates_when_it_would_have(tmp_path):
    """
    Two environments, a checkpoint every 32 steps, and an evaluation every 48: the kills leave checkpoints at 32 steps, between
    two evaluations, and at 96, with one.
    """
    options = "-n 160 --seed 3 --save-freq 32 --eval-freq 48 --eval-episodes 1 --env-kwargs max_episode_steps:99"
    options += " --run-folder mine -params n_envs:2 n_steps:16"
    command = ["train", "--env", "CartPole-v1", *options.split(), "batch_size:16", "compile_updates:False"]
    for n_steps in (64, 128):
        killed(command, tmp_path, PPG, "train", n_steps)
    assert "from mine/rl_model_96_steps.zip" in run(*command, cwd=tmp_path)
    evaluations = np.load(tmp_path / "mine" / "evaluations.npz")
    assert evaluations["timesteps"].tolist() == [48, 96, 144]


def test_episodes_after_the_checkpoint_are_forgotten(tmp_path):
    """They are played once more: each step counts once in learning curves."""
    env = make_vec_env("CartPole-v1", 2, monitor_dir=str(tmp_path))
    model = PPG("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=1, n_policy_iterations=4, seed=0, device="cpu")
    model.learn(128, callback=PhasicCheckpointCallback(1, tmp_path))
    at_checkpoint = load_results(str(tmp_path))
    model.learn(384, reset_num_timesteps=False)
    assert load_results(str(tmp_path))["l"].sum() > 300
    (tmp_path / "9.monitor.csv").write_text("")  # cut short, so that SB3 could read none
    for path in tmp_path.glob("[01].monitor.csv"):
        path.write_text(f"{path.read_text()}20.0,2")  # in the middle of a row
    unreadable = tmp_path / "8.monitor.csv"
    unreadable.write_text('#{"t_start": 0.0}\nr,l,t\n1.0,2,a word\n')
    forget_later_episodes(tmp_path, latest_checkpoint(tmp_path))
    assert unreadable.read_text().endswith("a word\n")
    unreadable.unlink()
    kept = load_results(str(tmp_path))
    assert list(kept["l"]) == list(at_checkpoint["l"]) and 0 < kept["l"].sum() <= 128
    forget_later_episodes(tmp_path, None)  # the run has ended before its first checkpoint
    assert load_results(str(tmp_path))["l"].sum() == 0


def test_a_signal_to_the_workers_too_ends_between_two_iterations(tmp_path):
    """``timeout`` sends it so, and schedulers of clusters. The run can be resumed."""
    options = ("--env", "CartPole-v1", "-n", "1000000", "--save-freq", "640000", "--eval-freq", "-1")
    command = ["-m", "sb3_ppg", "train", *options, "--vec-env", "subproc", *SMALL, "n_envs:1"]
    started = program(command, tmp_path, start_new_session=True)
    wait_for(lambda: "n_updates" in output_of(started))
    os.killpg(started.pid, signal.SIGTERM)
    code, said = end_of(started)
    assert code == 128 + signal.SIGTERM and "Traceback" not in said and "A signal has ended the run" in said, said
    folder = tmp_path / "logs" / "ppg" / "CartPole-v1_1"
    (checkpoint,) = folder.glob("rl_model_*_steps.zip")
    n_steps = int(checkpoint.name.split("_")[2])
    assert n_steps % 32 == 0 and f"--run-folder {folder.relative_to(tmp_path)} goes on" in said
    assert (folder / f"rl_model_{n_steps}_steps.aux_buffer.npz").exists()
    with pytest.raises(ProcessLookupError):  # no worker is left
        wait_for(lambda: os.killpg(started.pid, 0), 10)
    assert 0 < load_results(str(folder))["l"].sum() <= n_steps
