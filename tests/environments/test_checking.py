"""``check`` finds what is wrong with small environments, and nothing in those that are right."""

import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_ppg.environments.checking import policy_for
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from sb3_ppg import ArgumentError, check
from tests.helpers import Reusing, StepsChanged, image_space, run


class Right(gym.Env):
    """Noise; episodes end by chance, or are truncated at step 9."""

    observation_space, action_space = spaces.Box(-9, 9, (12,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return self.np_random.normal(size=12).clip(-9, 9).astype(np.float32)

    def reward(self):
        return float(self.np_random.normal())

    def flags(self):
        terminated = bool(self.np_random.random() < 0.1)
        return terminated, self.t == 9 and not terminated

    def step(self, action):
        self.t += 1
        return self.observe(), self.reward(), *self.flags(), {}


class OneArray(Right):
    """Writes each observation into the same array."""

    def __init__(self):
        self.array = np.zeros(12, np.float32)

    def observe(self):
        self.array[:] = super().observe()
        return self.array


class Windows(Right):
    """Observations are windows of recorded data."""

    data = np.random.default_rng(0).normal(size=100).clip(-9, 9).astype(np.float32)

    def observe(self):
        return self.data[self.t : self.t + 12]


class Dicts(Right):
    observation_space = spaces.Dict(a=spaces.Box(-9, 9, (12,)), b=spaces.Discrete(3))
    kind = 2

    def observe(self):
        return {"a": super().observe(), "b": np.int64(self.kind)}


class NewSpaces(Right):
    n = 2

    def reset(self, **kwargs):
        self.action_space = spaces.Discrete(self.n)
        return super().reset(**kwargs)


class NoSeedZero(Right):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed or None)


class Unseeded(Right):
    def observe(self):
        return np.random.default_rng().normal(size=12).clip(-9, 9).astype(np.float32)


class Remembers(Right):
    """The first observation depends on the episode before."""

    t = 0

    def reset(self, *, seed=None, options=None):
        before = self.t
        observation, info = super().reset(seed=seed)
        observation[0] = before
        return observation, info


class DrawnWhenMade(Right):
    def __init__(self):
        self.goal = float(np.random.default_rng().uniform())

    def reward(self):
        return self.goal


class Filters(Right):
    def __init__(self, **which):
        warnings.filterwarnings("error", **which)


class Fails(Right):
    def reward(self):
        raise RuntimeError("no simulator")


def with_(base=Right, **methods):
    return type("Changed", (base,), methods)


def vectors(change=None, wrap=None, base=Right) -> VecEnv:
    venv = make_vec_env(base, 2)
    return wrap(venv) if wrap else StepsChanged(venv, change)


def last_replaced(obs, rewards, dones, infos):
    for i in dones.nonzero()[0]:
        infos[i]["terminal_observation"] = obs[i]
    return obs, rewards, dones, infos


def without(key):
    def change(obs, rewards, dones, infos):
        return obs, rewards, dones, [{name: value for name, value in info.items() if name != key} for info in infos]

    return lambda: vectors(change)


def observing(value):
    return with_(observe=lambda self: value)


BLACK = with_(observe=lambda self: Right.observe(self) * (self.t < 9), flags=lambda self: (False, self.t == 9))
TINY = with_(observation_space=spaces.Box(-0.1, 0.1, (12,)), observe=lambda self: Right.observe(self) / 100)
NINE = dict(observation_space=spaces.Box(0, 255, (12,), np.uint8))
# What trips each check, and what is like it and must not
CASES = [
    ("raises", "error", Fails, Right),
    ("space", "error", observing(np.zeros((3, 4), np.float32)), Right),
    ("space", "error", with_(Dicts, kind=3), Dicts),
    ("type", "error", with_(**NINE), with_(observe=lambda self: Right.observe(self).astype(np.uint8), **NINE)),
    ("not finite", "error", observing(np.full(12, np.nan, np.float32)), observing(np.full(12, 9, np.float32))),
    ("bounds", "warning", observing(np.full(12, 9.1, np.float32)), lambda: VecNormalize(DummyVecEnv([TINY] * 2))),
    ("replaced space", "error", with_(NewSpaces, n=3), NewSpaces),
    ("new space", "advice", NewSpaces, Right),
    ("arrays", "warning", OneArray, with_(Windows, observe=lambda self: Windows.observe(self).copy())),
    ("arrays", "warning", Windows, Dicts),
    ("arrays", "warning", lambda: vectors(wrap=Reusing), lambda: vectors(base=OneArray, change=lambda *step: step)),
    ("reward", "error", with_(reward=lambda self: [1.0, 2.0]), with_(reward=lambda self: np.float64(1))),
    ("reward", "error", with_(reward=lambda self: None), with_(reward=lambda self: 1)),
    (
        "integer rewards",
        "warning",
        lambda: vectors(lambda obs, rewards, *rest: (obs, rewards.astype(int), *rest)),
        lambda: vectors(lambda *step: step),
    ),
    ("scale", "advice", with_(reward=lambda self: 1e4), with_(reward=lambda self: 20.0)),
    ("scale", "advice", with_(reward=lambda self: 1e-4), with_(reward=lambda self: 0.0)),
    ("time limit", "warning", with_(flags=lambda self: (self.t == 9, False)), with_(flags=lambda self: (False, self.t == 9))),
    ("time limit", "warning", with_(flags=lambda self: (self.t == 9,) * 2), with_(flags=lambda self: (True, False))),
    ("time limit", "warning", without("TimeLimit.truncated"), without("episode")),
    ("last", "error", without("terminal_observation"), without("episode")),
    ("last", "error", lambda: vectors(last_replaced), lambda: vectors(lambda *step: step)),
    ("last", "error", OneArray, Right),
    ("last zero", "warning", BLACK, observing(np.zeros(12, np.float32))),
    ("seed", "warning", Unseeded, Right),
    ("seed", "warning", Remembers, Right),
    ("seed", "warning", DrawnWhenMade, DrawnWhenMade()),
    ("seed 0", "warning", NoSeedZero, Right),
    ("filters", "warning", Filters, lambda: Filters(module="other")),
    ("checker fails", "warning", with_(flags=lambda self: (self.t == 9, 0)), Right),
]


def found(env) -> dict[str, str]:
    """Return the levels of the findings, by kind."""
    return {one.kind: one.level for one in check(env, 0.1).findings}


@pytest.mark.parametrize(("kind", "level", "faulty", "right"), CASES, ids=[f"{n} {one[0]}" for n, one in enumerate(CASES)])
def test_each_check_is_tripped_by_its_fault_alone(kind, level, faulty, right):
    before = [*warnings.filters]
    assert found(faulty).get(kind) == level and kind not in found(right)
    assert warnings.filters == before


@pytest.mark.parametrize(
    "env",
    [
        Right,
        Right(),
        lambda: DummyVecEnv([Right] * 2),
        lambda: gym.vector.SyncVectorEnv([Right] * 2),
        lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
        "MountainCarContinuous-v0",
    ],
    ids=["class", "environment", "DummyVecEnv", "SyncVectorEnv", "make_vec", "ID"],
)
def test_of_what_is_right_there_is_only_advice(env):
    assert {*found(env).values()} == {"advice"}


def test_a_report_shows_each_finding_with_its_remedy():
    report = check(with_(flags=lambda self: (self.t == 9, False)), 0.1)
    said = str(report)
    assert report.ends.keys() == {"terminated"} and said.startswith(f"Changed: episodes: {report.ends.total()} terminated\n")
    assert "`ignore_terminations`=9\n" in said and said.index("warning ") < said.index("advice ")
    with pytest.raises(ArgumentError, match="is no environment"):
        check(3)


def test_advice_follows_from_spaces_lengths_and_seconds():
    def advice(env, seconds=0.1):
        return {one.kind: one.seen + one.remedy for one in check(env, seconds).findings}

    image = with_(observation_space=image_space(36, 36, 3), observe=lambda self: np.zeros((36, 36, 3), np.uint8))
    of_image, of_vector = advice(image), advice(with_(flags=lambda self: (False, self.t == 200)), 1.0)
    assert 'PPG("CnnPolicy", n_steps=128), with 8' in of_image["policy"] and "MinAtar" in of_image["algorithm"]
    assert 'PPG("MlpPolicy", n_steps=256), with 8' in of_vector["policy"] and "24,576 steps" in of_vector["algorithm"]
    assert policy_for(Dicts.observation_space) == "MultiInputPolicy"
    slow = with_(reward=lambda self: time.sleep(0.003) or 1.0)
    assert "SubprocVecEnv" in advice(slow)["policy"]
    assert "with 2 environments" in advice(lambda: DummyVecEnv([slow] * 2))["policy"]


@pytest.mark.slow
def test_the_command(tmp_path):
    registers = "import gymnasium\nfrom tests.environments.test_checking import Fails, Right\n"
    registers += "for cls in (Fails, Right):\n    gymnasium.register(f'{cls.__name__}-v0', cls)\n"
    (tmp_path / "mine.py").write_text(registers)
    mine = ("--gym-packages", "mine")
    assert "Right-v0: episodes: " in run("check", "--env", "Right-v0", *mine, cwd=tmp_path)
    assert "RuntimeError: no simulator" in run("check", "--env", "Fails-v0", *mine, cwd=tmp_path, fails=True)
    assert "nearest: CartPole-v1" in run("check", "--env", "CartPol-v1", cwd=tmp_path, fails=True)
    assert " truncated" in run("check", "--env", "CartPole-v1", "--env-kwargs", "max_episode_steps:5")
