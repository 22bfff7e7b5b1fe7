"""
Faults of RL Zoo that we repair, in the Zoo as it is: a test that fails here says that a newer Zoo has mended the fault, and
which repair can go.
"""

import copy
import importlib.util
import runpy
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock, patch

import gymnasium
import numpy as np
import optuna
import pytest
import rl_zoo3
import yaml
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from huggingface_hub.errors import RemoteEntryNotFoundError
from huggingface_sb3 import EnvironmentName
from matplotlib import pyplot as plt
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from rl_zoo3 import plots
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_ppg import PhasicCallback
from sb3_ppg.zoo import patched, register
from sb3_ppg.zoo.manager import Manager
from sb3_ppg.zoo.registration import REPAIRS

ZooManager = Manager.__bases__[0]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder, with the files of a run in an environment whose name has a slash, and of a failed one."""
    register()
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "logs" / "ppg" / "Mine-Pole-v0_1"
    (run / "Mine-Pole-v0").mkdir(parents=True)
    (run / "videos").mkdir()
    (run / "videos" / "mine.mp4").touch()
    (run / "Mine-Pole-v0.zip").touch()
    (run / "Mine-Pole-v0" / "config.yml").write_text(yaml.safe_dump({"env_kwargs": {"size": 3}}))
    (run / "Mine-Pole-v0" / "args.yml").write_text(yaml.safe_dump({"env": "Mine/Pole-v0", "env_kwargs": None}))
    (run.parent / "Mine-Pole-v0_2").mkdir()
    return tmp_path


def run_script(name: str, *options: str) -> None:
    """Run a script until a replaced function interrupts it."""
    with suppress(InterruptedError), patch.object(sys, "argv", [name, *options]):
        runpy.run_module(f"rl_zoo3.{name}", run_name="__main__")


def child_of(name: str, *options: str) -> list[str]:
    """Return the first command that a script starts."""
    with patch.object(subprocess, "call", Mock(side_effect=InterruptedError)) as call:
        run_script(name, *options)
    return call.call_args_list[0].args[0]


def source(name: str) -> str:
    return Path(importlib.util.find_spec(f"rl_zoo3.{name}").origin).read_text()


AGENT = ("--algo", "ppg", "--env", "Mine/Pole-v0", "-f", "logs", "--exp-id", "1")

# ---- scripts ----


def children_through_our_launcher() -> None:
    assert child_of("benchmark", "--log-dir", "logs", "--no-hub")[:2] == ["python", "enjoy.py"]
    child = child_of("record_training", *AGENT)
    assert child[:3] == ["python", "-m", "rl_zoo3.record_video"] and "--deterministic" in child


def names_of_folders() -> None:
    ((algo, env_id),) = rl_zoo3.utils.get_trained_models("logs").values()
    assert rl_zoo3.get_latest_run_id(f"logs/{algo}", env_id) == 0 != rl_zoo3.get_latest_run_id("logs/ppg", "Mine-Pole-v0")


def newer_library_of_the_hub() -> None:
    from rl_zoo3 import load_from_hub

    assert not issubclass(RemoteEntryNotFoundError, load_from_hub.HTTPError)


def latest_model() -> None:
    with pytest.raises(ValueError, match=r"No model found .*v0_2/Mine-Pole-v0\.zip$"):
        rl_zoo3.utils.get_model_path(0, "logs", "ppg", EnvironmentName("Mine/Pole-v0"))


def environments_for_playing() -> None:
    with (
        patch.object(rl_zoo3.exp_manager.ExperimentManager, "entry_point", return_value=""),
        patch.object(rl_zoo3.utils, "create_test_env", Mock(side_effect=InterruptedError)) as create,
    ):
        run_script("record_video", *AGENT)
    assert create.call_args.kwargs["hyperparams"]["env_kwargs"] == {"size": 3}
    assert create.call_args.kwargs["env_kwargs"] == {"render_mode": "rgb_array"}
    assert "action_masks" not in source("enjoy") + source("record_video")


def figures_as_files() -> None:
    plt.close("all")
    with patch.object(sys, "argv", ["plot_train", "-a", "ppg", "-e", "Mine-Pole-v0", "-f", "logs"]):
        plots.plot_train()
    assert plt.get_backend().lower() == "agg" and plt.get_fignums() and not list(Path().glob("*.png"))


def episodes_that_wrappers_cut() -> None:
    limit = {"env_wrapper": {"gymnasium.wrappers.TimeLimit": {"max_episode_steps": 1}}}
    env = rl_zoo3.utils.get_wrapper_class(limit)(Monitor(gymnasium.make("CartPole-v1")))
    env.reset()
    *_, truncated, info = env.step(0)
    assert truncated and "episode" not in info


class Level(gymnasium.Wrapper):
    level = 0


def test_attributes_that_callbacks_set_are_those_of_the_users_wrapper():
    with patched():
        wrapper = rl_zoo3.utils.get_wrapper_class({"env_wrapper": f"{__name__}.Level"})
    env = make_vec_env("CartPole-v1", 1, wrapper_class=wrapper)
    env.set_attr("level", 2)
    assert env.envs[0].env.level == env.envs[0].level == env.get_attr("level")[0] == 2


SCRIPTS = [
    *(children_through_our_launcher, names_of_folders, newer_library_of_the_hub),
    *(latest_model, environments_for_playing, figures_as_files, episodes_that_wrappers_cut),
]


@pytest.mark.filterwarnings("ignore:No artists with labels", "ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("fault", SCRIPTS, ids=lambda fault: fault.__name__)
def test_a_script_still_has_the_fault(fault: Callable[[], None], folder):
    fault()


def test_each_repair_has_its_fault():
    assert [fault.__name__ for fault in SCRIPTS] == [repair.__name__ for repair in REPAIRS]


def test_record_training_still_removes_other_videos_and_needs_ffmpeg(folder):
    """``record_training`` in ``scripts``, ``ffmpeg_on_path``."""
    child_of("record_training", *AGENT)
    assert not (folder / "logs/ppg/Mine-Pole-v0_1/videos/mine.mp4").exists()
    assert 'os.system(f"ffmpeg ' in source("record_training")


# ---- ExperimentManager ----


def manager(folder: Path, **options) -> ZooManager:
    return ZooManager(Namespace(), "ppo", "CartPole-v1", str(folder), eval_freq=-1, **options)


def test_the_manager_still_takes_trial_0_for_no_trial(folder):
    with patch.object(ZooManager, "load_trial") as load_trial:
        manager(folder, storage="study.log", study_name="mine", trial_id=0).read_hyperparameters()
    assert not load_trial.called


@pytest.mark.parametrize(("kind", "n_different"), [(ZooManager, 2), (Manager, 4)])
def test_the_manager_still_repeats_the_trials_of_a_search_that_goes_on(folder, kind, n_different):
    """And ours does not. Two processes that share a storage are the same case."""
    options = dict(optimize_hyperparameters=True, n_trials=2, n_startup_trials=10, seed=0, no_optim_plots=True)
    with patch.object(ZooManager, "objective", lambda _, trial: trial.suggest_float("learning_rate", 0, 1)):
        for _ in range(2):
            study = dict(storage=f"{folder}/study.log", study_name="mine", log_folder=str(folder))
            searching = kind(Namespace(), "ppo", "CartPole-v1", eval_freq=-1, **study, **options)
            searching._hyperparams = {}
            searching.hyperparameters_optimization()
    storage = JournalStorage(JournalFileBackend(f"{folder}/study.log"))
    trials = optuna.load_study(study_name="mine", storage=storage).trials
    assert len(trials) == 4 and len({trial.params["learning_rate"] for trial in trials}) == n_different


class WholeNumbers(TransformObservation):
    """CartPole's observations as whole numbers."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env, lambda observation: observation.astype(np.uint8), spaces.Box(0, 255, (4,), np.uint8))


def models_of_a_search(kind: type[ZooManager], folder: Path) -> list[PPO]:
    """Return those of two trials, before they learn."""
    entry = {"normalize": True, "gamma": 0.5, "env_wrapper": f"{__name__}.WholeNumbers"}
    options = dict(optimize_hyperparameters=True, n_trials=2, no_optim_plots=True, hyperparams=entry, log_folder=str(folder))
    searching = kind(Namespace(), "ppo", "CartPole-v1", n_timesteps=8, eval_freq=-1, **options)
    searching.setup_experiment()
    found = []

    def learn(model: PPO, *_, callback: list[BaseCallback]) -> None:
        for each in callback:
            each.init_callback(model)
        found.append(copy.copy(model))  # which keeps its environment

    with patch.object(PPO, "learn", learn):
        searching.hyperparameters_optimization()
    return found


@pytest.mark.parametrize(("kind", "are_equal"), [(ZooManager, False), (Manager, True)])
def test_the_manager_still_normalizes_rewards_in_a_search_with_the_discount_of_the_file(folder, kind, are_equal):
    """And ours with that of the trial, as does the training of this trial afterwards."""
    found = [(model.gamma, model.get_vec_normalize_env().gamma) for model in models_of_a_search(kind, folder)]
    assert len({*found}) == 2 and {gamma == of_rewards for gamma, of_rewards in found} == {are_equal}


def test_the_manager_still_evaluates_without_the_options_of_the_hyperparameters(folder):
    made = manager(folder, hyperparams={"env_kwargs": {"max_episode_steps": 5}})
    made._preprocess_hyperparams(made.read_hyperparameters()[0])
    assert made.env_kwargs == {"max_episode_steps": 5} and made.eval_env_kwargs == {}


def test_the_manager_still_gives_two_commands_one_folder(folder):
    first, second = manager(folder), manager(folder)
    first.create_log_folder()
    second.create_log_folder()
    assert first.save_path == second.save_path


def test_the_manager_still_saves_schedules_of_its_own_in_models(folder):
    schedule = manager(folder)._preprocess_schedules({"learning_rate": "lin_0.1"})["learning_rate"]
    assert type(schedule).__module__.startswith("rl_zoo3")


@pytest.mark.parametrize(("kind", "stored"), [(ZooManager, np.uint8), (Manager, np.float32)])
def test_the_manager_still_lets_ppo_store_normalized_integers_as_integers(folder, kind, stored):
    """PPO of SB3 2.9.2 does, and learns from other observations than it acts on; ours keeps floats, in searches, too."""
    env = VecNormalize(DummyVecEnv([lambda: WholeNumbers(gymnasium.make("CartPole-v1"))]))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, n_epochs=1)
    made = kind(Namespace(), "ppo", "CartPole-v1", str(folder), eval_freq=-1, n_timesteps=8, log_interval=-1)
    made.callbacks = []
    made.learn(model)
    for each in (model, *models_of_a_search(kind, folder)):
        assert each.rollout_buffer.observations.dtype == stored


class Ends(PhasicCallback):
    n = 0

    def _on_training_end(self) -> None:
        self.n += 1


def test_the_manager_still_ends_the_first_callback_twice(folder):
    made = manager(folder, n_timesteps=8, log_interval=-1)
    made.callbacks = [Ends()]
    made.learn(PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, n_epochs=1))
    assert made.callbacks[0].n == 2
