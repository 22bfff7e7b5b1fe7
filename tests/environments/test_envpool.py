"""EnvPool's environments as SB3's: nothing is lost or added where an episode ends."""

import re
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import rl_zoo3.exp_manager
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize, VecVideoRecorder

from sb3_ppg import PPG, ArgumentError, ImpalaCNN
from sb3_ppg.environments import EnvPoolEnv, EnvPoolVecEnv
from sb3_ppg.environments.vec_envs import import_envpool
from sb3_ppg.errors import MissingExtraError, pip_install
from sb3_ppg.zoo import register
from sb3_ppg.zoo.environments import PROCGEN_IDS
from sb3_ppg.zoo.manager import Manager
from sb3_ppg.zoo.scripts import is_deterministic
from tests.helpers import run

pytestmark = pytest.mark.skipif(find_spec("envpool") is None, reason="needs EnvPool")

SMALL = dict(n_steps=16, batch_size=16, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")


@pytest.mark.parametrize(("env_id", "n_steps"), [("CartPole-v1", 150), ("Pendulum-v1", 450)])
def test_the_same_episodes_as_gymnasium(env_id, n_steps):
    """
    A single environment of Gymnasium takes each step of EnvPool's second one, from the state that its observation tells. The
    pendulum is braked: at its highest speed EnvPool's and Gymnasium's differ.
    """
    venv, single = EnvPoolVecEnv(env_id, 3, seed=3), gym.make(env_id)
    rng, is_cart = np.random.default_rng(0), env_id == "CartPole-v1"
    before, episode, ends = venv.reset()[1], [], []
    single.reset()
    for _ in range(n_steps):
        braked = np.full((3, 1), np.clip(-before[-1], -2, 2)) * rng.random((3, 1), np.float32)
        actions = rng.integers(2, size=3) if is_cart else braked.astype(np.float32)
        state = before.astype(np.float64)  # the pendulum's cos, sin, velocity
        single.unwrapped.state = state if is_cart else np.array([np.arctan2(state[1], state[0]), state[2]])
        expected, reward, terminated, truncated, _ = single.step(actions[1])
        observations, rewards, dones, infos = venv.step(actions)
        last = infos[1]["terminal_observation"] if dones[1] else observations[1]
        np.testing.assert_allclose(last, expected, rtol=1e-3, atol=2e-3)
        np.testing.assert_allclose(rewards[1], reward, rtol=1e-3, atol=2e-3)
        assert dones[1] == (terminated or truncated)
        before = observations[1]
        episode.append(reward)
        if dones[1]:
            info = infos[1]
            ends.append(info["TimeLimit.truncated"])
            assert info["TimeLimit.truncated"] == (truncated and not terminated)
            assert info["episode"]["l"] == len(episode)
            assert info["episode"]["r"] == pytest.approx(sum(episode), rel=1e-3)
            episode.clear()
            single.reset()
        else:
            assert infos[1] == {}
    assert len(ends) >= 2 and set(ends) == {not is_cart}


def first_episodes(env_id: str, n_steps: int, **options) -> tuple[np.ndarray, np.ndarray]:
    """Play at random; return lengths of the first episodes, (8,), n_steps + 1 if they go on, and whether they were cut off."""
    venv, rng = EnvPoolVecEnv(env_id, 8, seed=1, **options), np.random.default_rng(0)
    lengths, were_cut_off = np.full(8, n_steps + 1), np.zeros(8, dtype=bool)
    venv.reset()
    ended = np.zeros(8, dtype=bool)
    for step in range(1, n_steps + 1):
        _, _, dones, infos = venv.step(rng.integers(venv.action_space.n, size=8))
        for index in np.flatnonzero(dones & ~ended):
            lengths[index], were_cut_off[index] = step, infos[index]["TimeLimit.truncated"]
            assert infos[index]["episode"]["l"] == step
        ended |= dones
    venv.close()
    return lengths, were_cut_off


@pytest.mark.parametrize(
    ("env_id", "n_steps"),
    [("CartPole-v1", 60), ("LeaperEasy-v0", 90), ("Highway-v0", 39), ("Catch-v0", 20), ("Breakout-v5", 300)],
)
def test_max_episode_steps_ends_episodes_and_a_failure_in_the_last_step_stays_one(env_id, n_steps):
    lengths, _ = first_episodes(env_id, n_steps)
    limit = int(np.sort(lengths)[3])
    limited, were_cut_off = first_episodes(env_id, n_steps, max_episode_steps=limit)
    assert limited.tolist() == np.minimum(lengths, limit).tolist()
    assert were_cut_off.tolist() == (lengths > limit).tolist()


def rollout(venv: EnvPoolVecEnv) -> np.ndarray:
    first = venv.reset().copy()
    return np.concatenate([first.ravel(), venv.step(np.zeros(venv.num_envs, dtype=int))[0].ravel()])


def test_seeds():
    """All environments of all seeds differ, also those of neighbouring seeds."""
    venv, same, other = (EnvPoolVecEnv("CartPole-v1", 4, seed=seed) for seed in (0, 0, 1))
    first, again, different = rollout(venv), rollout(same), rollout(other)
    assert np.array_equal(first, again)
    assert len(np.unique(np.concatenate([first, different]))) == 2 * len(first)
    for _ in range(2):  # also once more, as an evaluation is repeated
        other.seed(0)
        assert np.array_equal(rollout(other), first)


def test_actions_that_would_end_the_process_are_refused():
    venv = EnvPoolVecEnv("CartPole-v1", 2)
    with pytest.raises(ValueError, match=r"2 actions for 2 environments: reset\(\) first"):
        venv.step(np.zeros(2, dtype=int))
    venv.reset()
    with pytest.raises(ValueError, match="1 actions for 2 environments"):
        venv.step(np.zeros(1, dtype=int))
    assert venv.step(np.zeros(2, dtype=int))[0].shape == (2, 4)


def test_ppg_trains_on_it():
    for venv in (EnvPoolVecEnv("HalfCheetah-v5", 2), EnvPoolVecEnv("FrozenLake-v1", 2)):
        assert all(space.dtype != np.float64 for space in (venv.observation_space, venv.action_space))
        assert PPG("MlpPolicy", venv, **SMALL).learn(64).n_aux_phases == 1
    images = EnvPoolVecEnv("CoinrunEasy-v0", 2, channel_first=False, num_levels=3, start_level=7)
    assert images.reset().shape == (2, 64, 64, 3) and {info["level_seed"] for info in images.reset_infos} <= {7, 8, 9}
    assert PPG("CnnPolicy", images, **SMALL).observation_space.shape == (3, 64, 64)


def test_dictionaries_of_observations():
    venv = EnvPoolVecEnv("MiniGrid-Empty-5x5-v0", 2, treat_truncation_as_termination=True)
    assert list(venv.observation_space.spaces) == ["direction", "image", "mission"]
    first = venv.reset()
    for _ in range(100):  # its time limit
        last, (observations, _, dones, infos) = first, venv.step(np.zeros(2, dtype=int))
        first = {name: part.copy() for name, part in observations.items()}
    assert dones.all() and not infos[0]["TimeLimit.truncated"]  # although it was cut off
    turned = infos[0]["terminal_observation"]  # left, each time
    assert turned["direction"] == (last["direction"][0] - 1) % 4 and turned["image"].shape == (7, 7, 3)


def test_under_the_wrappers_of_sb3(tmp_path):
    venv = EnvPoolVecEnv("CartPole-v1", 2, render_mode="rgb_array")
    recorder = VecVideoRecorder(venv, str(tmp_path), lambda step: step == 0, video_length=5)
    stacked = VecFrameStack(VecNormalize(VecMonitor(recorder)), 2)
    model = PPG("MlpPolicy", stacked, **SMALL).learn(96)
    assert model.observation_space.shape == (8,) and len(model.ep_info_buffer) > 0
    assert list(tmp_path.glob("*.mp4"))


def test_a_window_shows_the_first_environment(monkeypatch):
    register()
    shown = []
    monkeypatch.setattr("cv2.imshow", lambda name, picture: shown.append(picture.shape))
    for name in ("waitKey", "destroyWindow"):
        monkeypatch.setattr(f"cv2.{name}", lambda _: None)
    venv, env = EnvPoolVecEnv("CartPole-v1", 2, render_mode="human"), gym.make("LeaperEasy-v0", render_mode="human")
    for shown_env in (venv, env):
        shown_env.reset()
        assert shown_env.render() is None
        shown_env.close()
    assert len(shown) == 2 and all(len(shape) == 3 for shape in shown)


def test_bad_input():
    for env_id, options, complaint in (
        ("CoinrunEasi-v0", {}, "cannot make CoinrunEasi-v0"),
        ("CoinrunExploration-v0", {"num_levels": 200}, "would abort the process"),
        ("CoinrunEasy-v0", {"num_level": 200}, "num_level"),
        ("CartPole-v1", {"num_envs": 0}, "cannot make CartPole-v1"),
        ("CoinrunEasy-v0", {"max_episode_steps": 2000}, "ends this game after 1000 steps"),
    ):
        with pytest.raises(ArgumentError, match=complaint):
            EnvPoolVecEnv(env_id, **{"num_envs": 2, **options})


@pytest.mark.slow
def test_without_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=re.escape(pip_install("envpool"))):
        EnvPoolVecEnv("CartPole-v1", 2)
    output = run("train", "--env", "CoinrunEasy-v0", cwd=tmp_path, fails=True)
    assert f"{pip_install('envpool')}; for Procgen" in output and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 12) or sys.platform != "linux", reason="EnvPool's wheels have Qt there")
def test_without_procgens_libraries():
    """Procgen needs a new process, as this one has loaded its libraries."""
    code = "from sb3_ppg.environments import vec_envs as e; e.QT_LIBRARIES.clear(); e.EnvPoolVecEnv('CoinrunEasy-v0', 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and pip_install("procgen") in done.stderr


def test_no_transition_between_episodes_on_procgen_and_a_single_environment():
    """
    The single environment passes SB3's check and plays the episodes of ``EnvPoolVecEnv``. EnvPool counts an episode's steps:
    1, 2, ..., end, 1, ... without the 0 of a reset; images do not change afterwards.
    """
    env = EnvPoolEnv("LeaperEasy-v0")
    check_env(env)
    env.action_space.seed(0)
    venv, n_steps, kept = EnvPoolVecEnv("LeaperEasy-v0", 1, seed=5), 0, []
    first = venv.reset()
    assert np.array_equal(env.reset(seed=5)[0], first[0]) and first.shape == (1, 3, 64, 64) and first.dtype == np.uint8
    for _ in range(400):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        observations, rewards, dones, (expected,) = venv.step(np.array([action]))
        n_steps += 1
        assert reward == rewards[0] and (terminated or truncated) == dones[0]
        assert np.array_equal(observation, expected.get("terminal_observation", observations[0]))
        if dones[0]:
            assert expected["elapsed_step"] == n_steps
            n_steps = 0
            assert truncated == expected["TimeLimit.truncated"] and info["prev_level_seed"] == expected["prev_level_seed"]
            assert expected["episode"]["r"] in (0.0, 10.0) and not np.array_equal(observation, observations[0])
            kept.append((expected["terminal_observation"], observation.copy()))
            assert np.array_equal(env.reset()[0], observations[0])
    assert len(kept) >= 2 and all(np.array_equal(last, copy) for last, copy in kept)


def test_the_games_are_envpools():
    name = re.compile(r"[A-Z][a-z]+(Easy|Hard|Extreme|Exploration|Memory)-v0")
    assert {env_id for env_id in import_envpool().list_all_envs() if name.fullmatch(env_id)} == PROCGEN_IDS


@pytest.mark.slow
def test_zoo_commands_on_procgen(tmp_path):
    """A model trained on some levels is evaluated on all."""
    small = "-params n_envs:2 n_steps:8 batch_size:16 n_policy_iterations:2 aux_batch_size:16 n_aux_epochs:1".split()
    short = ("--env", "LeaperEasy-v0", "-n", "32", "--num-threads", "1")
    levels = ("--env-kwargs", "num_levels:5", "start_level:100", "max_episode_steps:20")
    output = run("train", *short, "--eval-freq", "32", "--eval-episodes", "1", *levels, *small, cwd=tmp_path)
    assert "eval_env_kwargs={'num_levels': 0, 'start_level': 0, 'max_episode_steps': 20}" in output
    folder = tmp_path / "logs" / "ppg" / "LeaperEasy-v0_1"
    names = {path.name for path in folder.iterdir()}
    assert {"LeaperEasy-v0.zip", "best_model.zip", "evaluations.npz", "0.monitor.csv"} <= names
    model = PPG.load(folder / "LeaperEasy-v0.zip", device="cpu")
    assert isinstance(model.policy.features_extractor, ImpalaCNN) and model.n_envs == 2

    assert "Loading logs/ppg" in run("enjoy", "--env", "LeaperEasy-v0", "--no-render", "-n", "5", cwd=tmp_path)
    run("record_video", "--env", "LeaperEasy-v0", "-n", "5", cwd=tmp_path)
    assert list((folder / "videos").glob("*.mp4"))


@pytest.mark.parametrize("place", ["command", "hyperparameters"])
def test_zoo_trains_in_envpool_on_the_levels_that_were_asked_for(place, tmp_path, monkeypatch):
    register()
    monkeypatch.chdir(tmp_path)
    arguments = Namespace(eval_env_kwargs=None)
    levels = {"env_kwargs": {"num_levels": 5, "start_level": 100}}
    options = levels if place == "command" else {}
    hyperparams = {"n_envs": 3, "monitor_kwargs": {"info_keywords": ("level_seed",)}}
    hyperparams |= levels if place == "hyperparameters" else {}
    manager = Manager(arguments, "ppg", "CoinrunHard-v0", str(tmp_path), eval_freq=100, hyperparams=hyperparams, **options)
    model, saved = manager.setup_experiment()
    assert isinstance(model.env.unwrapped, EnvPoolVecEnv) and saved["policy"] == "CnnPolicy" and model.gamma == 0.999
    venv = manager.create_envs(3, no_log=True).unwrapped
    venv.reset()
    assert {info["level_seed"] for info in venv.reset_infos} <= {*range(100, 105)}
    assert manager.create_envs(1, eval_env=True).unwrapped.options == {"num_levels": 0, "start_level": 0}
    assert arguments.eval_env_kwargs == {"num_levels": 0, "start_level": 0} and not manager.deterministic_eval
    assert not is_deterministic(Namespace(env=manager.env_name, stochastic=False, deterministic=False))
    assert rl_zoo3.exp_manager.ExperimentManager.is_minigrid("CoinrunHard-v0")  # which `enjoy` and others ask
    assert Path(manager.save_path, "0.monitor.csv").read_text().splitlines()[1] == "r,l,t,level_seed"
    model.env.close()
