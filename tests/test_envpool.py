"""EnvPool's environments as SB3's: nothing is lost or added where an episode ends."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize, VecVideoRecorder

from sb3_ppg import PPG, ArgumentError
from sb3_ppg.vec_env import EnvPoolVecEnv
from tests.helpers import collect

SMALL = dict(n_steps=16, batch_size=16, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")


def set_state(env: gym.Env, observation: np.ndarray) -> None:
    """Of a Gymnasium environment, from what can be observed of it."""
    state = observation.astype(np.float64)
    if len(state) == 3:  # Pendulum: cos, sin, velocity
        state = np.array([np.arctan2(state[1], state[0]), state[2]])
    env.unwrapped.state = state


@pytest.mark.parametrize(("env_id", "n_steps"), [("CartPole-v1", 300), ("Pendulum-v1", 450)])
def test_the_same_episodes_as_gymnasium(env_id, n_steps):
    """
    Observations, rewards, ends, time limits, returns and lengths; each episode from its own start. The pendulum is braked:
    at its highest speed EnvPool's and Gymnasium's differ.
    """
    venv = EnvPoolVecEnv(env_id, 3, seed=3)
    single = [gym.make(env_id) for _ in range(3)]
    rng = np.random.default_rng(0)

    def begin(index: int, observation: np.ndarray) -> None:
        single[index].reset()
        set_state(single[index], observation)
        episodes[index] = []

    episodes: dict[int, list[float]] = {}
    observations = venv.reset()
    for index in range(3):
        begin(index, observations[index])
    n_finished = n_truncated = 0
    for _ in range(n_steps):
        is_discrete = isinstance(venv.action_space, spaces.Discrete)
        actions = (
            rng.integers(2, size=3) if is_discrete else np.clip(-observations[:, 2:], -2, 2) * rng.random((3, 1), np.float32)
        )
        observations, rewards, dones, infos = venv.step(actions)
        for index in range(3):
            expected, reward, terminated, truncated, _ = single[index].step(actions[index])
            last = infos[index]["terminal_observation"] if dones[index] else observations[index]
            np.testing.assert_allclose(last, expected, rtol=1e-3, atol=2e-3)
            np.testing.assert_allclose(rewards[index], reward, rtol=1e-3, atol=2e-3)
            assert dones[index] == (terminated or truncated)
            episodes[index].append(reward)
            set_state(single[index], last)  # so rounding does not add up
            if dones[index]:
                assert infos[index]["TimeLimit.truncated"] == (truncated and not terminated)
                assert infos[index]["episode"]["l"] == len(episodes[index])
                assert infos[index]["episode"]["r"] == pytest.approx(sum(episodes[index]), rel=1e-3)
                n_finished, n_truncated = n_finished + 1, n_truncated + truncated
                begin(index, observations[index])
            else:
                assert infos[index] == {}
    assert n_finished >= 6 and n_truncated == (n_finished if env_id == "Pendulum-v1" else 0)
    venv.close()


@pytest.mark.parametrize("treated_as_end", [False, True])
def test_time_limits_are_bootstrapped_unless_they_are_ends(treated_as_end):
    venv = EnvPoolVecEnv("Pendulum-v1", 1, treat_truncation_as_termination=treated_as_end)
    model = PPG("MlpPolicy", venv, **{**SMALL, "n_steps": 250})
    seen = []
    original = venv.step_wait

    def watch():
        result = original()
        seen.append((result[1].copy(), result[3][0].get("terminal_observation")))
        return result

    venv.step_wait = watch  # type: ignore[method-assign]
    collect(model)
    reward, last = seen[199]
    assert last is not None and all(other is None for index, (_, other) in enumerate(seen) if index != 199)
    with th.no_grad():
        value = model.policy.predict_values(th.as_tensor(last[None])).item()
    expected = reward[0] + (0.0 if treated_as_end else model.gamma * value)
    assert model.rollout_buffer.rewards[199, 0] == pytest.approx(expected, rel=1e-5)
    assert model.rollout_buffer.episode_starts.ravel().nonzero()[0].tolist() == [0, 200]


def test_no_transition_between_episodes_on_procgen():
    """EnvPool counts an episode's steps: 1, 2, ..., end, 1, ... without the 0 of a reset; images do not change afterwards."""
    venv = EnvPoolVecEnv("LeaperEasy-v0", 8, seed=1, all_infos=True)
    observations = venv.reset()
    assert observations.shape == (8, 3, 64, 64) and observations.dtype == np.uint8
    rng = np.random.default_rng(0)
    before, ended, kept = np.zeros(8), 0, []
    for _ in range(400):
        observations, _, dones, infos = venv.step(rng.integers(15, size=8))
        assert [info["elapsed_step"] for info in infos] == list(before + 1)
        before = np.where(dones, 0, before + 1)
        for index in np.flatnonzero(dones):
            ended += 1
            kept.append((infos[index]["terminal_observation"], infos[index]["terminal_observation"].copy()))
            assert not np.array_equal(infos[index]["terminal_observation"], observations[index])
            assert infos[index]["episode"]["r"] in (0.0, 10.0)
    assert ended >= 5 and all(np.array_equal(one, copy) for one, copy in kept)


def rollout(venv: EnvPoolVecEnv) -> np.ndarray:
    first = venv.reset().copy()
    return np.concatenate([first.ravel(), venv.step(np.zeros(venv.num_envs, dtype=int))[0].ravel()])


def test_seeds():
    """Not only seeds, but all environments of all seeds differ, also of neighbouring ones."""
    one, same, other = (EnvPoolVecEnv("CartPole-v1", 4, seed=seed) for seed in (0, 0, 1))
    first, again, different = rollout(one), rollout(same), rollout(other)
    assert np.array_equal(first, again)
    assert len(np.unique(np.concatenate([first, different]))) == 2 * len(first)
    other.seed(0)
    assert np.array_equal(rollout(other), first)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5", "FrozenLake-v1", "CoinrunEasy-v0"])
def test_ppg_trains_on_it(env_id):
    venv = EnvPoolVecEnv(env_id, 2)
    assert all(space.dtype != np.float64 for space in (venv.observation_space, venv.action_space))
    model = PPG("CnnPolicy" if env_id == "CoinrunEasy-v0" else "MlpPolicy", venv, **SMALL).learn(64)
    assert model._n_aux_phases == 1


def test_dictionaries_of_observations():
    venv = EnvPoolVecEnv("MiniGrid-Empty-5x5-v0", 2)
    assert list(venv.observation_space.spaces) == ["direction", "image", "mission"]
    first = venv.reset()
    for _ in range(100):  # its time limit
        last, (observations, _, dones, infos) = first, venv.step(np.zeros(2, dtype=int))
        first = {name: part.copy() for name, part in observations.items()}
    assert dones.all() and infos[0]["TimeLimit.truncated"]
    turned = infos[0]["terminal_observation"]  # left, each time
    assert turned["direction"] == (last["direction"][0] - 1) % 4 and turned["image"].shape == (7, 7, 3)


def test_under_the_wrappers_of_sb3(tmp_path):
    venv = EnvPoolVecEnv("CartPole-v1", 2, render_mode="rgb_array")
    recorder = VecVideoRecorder(venv, str(tmp_path), lambda step: step == 0, video_length=20)
    stacked = VecFrameStack(VecNormalize(VecMonitor(recorder)), 2)
    model = PPG("MlpPolicy", stacked, **SMALL).learn(200)
    assert model.observation_space.shape == (8,) and len(model.ep_info_buffer) > 0
    assert list(tmp_path.glob("*.mp4"))


def test_images_with_channels_last():
    venv = EnvPoolVecEnv("CoinrunEasy-v0", 2, channel_first=False)
    assert venv.reset().shape == (2, 64, 64, 3)
    assert PPG("CnnPolicy", venv, **SMALL).observation_space.shape == (3, 64, 64)


@pytest.mark.parametrize(
    ("env_id", "options", "complaint"),
    [
        ("CoinrunEasi-v0", {}, "no environment 'CoinrunEasi-v0'; nearest: CoinrunEasy-v0"),
        ("CoinrunExploration-v0", {"num_levels": 200}, "would end the whole process"),
        ("CoinrunEasy-v0", {"num_level": 200}, "num_level"),
        ("CartPole-v1", {"num_envs": 0}, "cannot make CartPole-v1"),
    ],
)
def test_bad_input(env_id, options, complaint):
    with pytest.raises(ArgumentError, match=complaint):
        EnvPoolVecEnv(env_id, **{"num_envs": 2, **options})


def test_without_the_extra(tmp_path):
    code = (
        "import sys; sys.modules['envpool'] = None; from sb3_ppg.vec_env import EnvPoolVecEnv; EnvPoolVecEnv('CartPole-v1', 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and 'pip install "sb3-ppg[envpool]"' in done.stderr


@pytest.mark.skipif(sys.version_info >= (3, 12) or sys.platform != "linux", reason="EnvPool's wheels carry Qt there")
def test_procgen_without_qt(tmp_path):
    code = (
        "from sb3_ppg.vec_env import envpool_vec_env as e; e.QT_LIBRARIES.clear(); e.EnvPoolVecEnv('CartPole-v1', 2).reset()\n"
        "e.EnvPoolVecEnv('CoinrunEasy-v0', 2)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and 'pip install "sb3-ppg[procgen]"' in done.stderr
