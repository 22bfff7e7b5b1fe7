"""``check`` finds what is wrong with small environments, and says nothing else of them, nor of those that are right."""

import re
import time
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import ClipAction, NormalizeReward
from gymnasium.wrappers.vector import NormalizeReward as NormalizeVectorReward
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, check
from sb3_ppg.environments import GymnasiumVecEnv
from tests.helpers import VECTOR, RandomEnv, StepsChanged, image_space, run
from tests.test_coming_from_ppo import Fills


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


class InParts(Right):
    """Its parts are not in the order of the space, and one is not in it."""

    observation_space = spaces.Dict(a=Right.observation_space, b=Right.observation_space)

    def observe(self):
        noise = super().observe()
        return {"b": noise, "mission": "go", "a": -noise}


class OneArrayInParts(InParts):
    """Writes each part of an observation into the same array."""

    def __init__(self):
        self.arrays = {"b": np.zeros(12, np.float32), "a": np.zeros(12, np.float32)}

    def observe(self):
        observation = super().observe()
        for key, array in self.arrays.items():
            array[:] = observation[key]
        return self.arrays


class Ring(gym.Env):
    """Each episode ends in the cell in which it and the next one begin."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 0
        return 0, {}

    def step(self, action):
        self.cell = (self.cell + (1 if action else 3)) % 4
        return self.cell, float(self.cell == 0), self.cell == 0, False, {}


class Masked(Right):
    """Allows one action in each step."""

    def action_masks(self):
        return np.arange(2) == self.t % 2

    def step(self, action):
        assert action == self.t % 2, "not allowed"
        return super().step(action)


class Filters(Right):
    def __init__(self, **which):
        warnings.filterwarnings("error", **which)


class Fails(Right):
    def reward(self):
        raise RuntimeError("no simulator")


def with_(base=Right, **methods):
    return type("Changed", (base,), methods)


def vectors(change, base=Right):
    return lambda: StepsChanged(make_vec_env(base, 2), change)


def last_replaced(obs, rewards, dones, infos):
    for i in dones.nonzero()[0]:
        infos[i]["terminal_observation"] = obs[i]
    return obs, rewards, dones, infos


def without(key, base=Right):
    def change(obs, rewards, dones, infos):
        return obs, rewards, dones, [{name: value for name, value in info.items() if name != key} for info in infos]

    return vectors(change, base)


def without_any_last():
    """Such as a ``VecEnv`` of one's own without time limits."""
    return without("terminal_observation", with_(flags=lambda self: (self.np_random.random() < 0.1, False)))()


class WithoutAttributes(StepsChanged):
    """Stands for a simulator whose environments have no attributes."""

    def __init__(self):
        super().__init__(make_vec_env(Right, 2), lambda *step: step)

    def get_attr(self, attr_name, indices=None):
        if attr_name == "spec":
            raise NotImplementedError
        return super().get_attr(attr_name, indices)

    def env_is_wrapped(self, wrapper_class, indices=None):
        raise NotImplementedError


TRUNCATES = with_(flags=lambda self: (False, self.t == 9))
BLACK = with_(TRUNCATES, observe=lambda self: Right.observe(self) * (self.t % 3 > 0 or self.t == 0))
CLEARED = with_(BLACK, flags=lambda self: (self.t == 6 or (self.t == 3 and self.np_random.random() < 0.5), False))
NAN = with_(observe=lambda self: np.full(12, np.nan, np.float32))
# What trips each check, and what is like it and must not
CASES = [
    ("training fails", "error", Fails, Masked),
    ("training fails", "error", NAN, with_(observe=lambda self: np.full(12, 9, np.float32))),
    ("training fails", "error", with_(reward=lambda self: [1.0, 2.0]), with_(reward=lambda self: 1)),
    ("missing terminal observation", "error", without("terminal_observation"), without("episode")),
    ("missing terminal observation", "error", vectors(last_replaced), WithoutAttributes),
    ("missing terminal observation", "error", OneArray, Ring),
    ("missing terminal observation", "error", OneArrayInParts, InParts),
    ("zero terminal observation", "warning", BLACK, CLEARED),
    ("time limit", "warning", with_(flags=lambda self: (self.t == 9, False)), TRUNCATES),
    ("time limit", "warning", with_(flags=lambda self: (self.t == 9,) * 2), with_(flags=lambda self: (True, False))),
    ("time limit", "warning", with_(flags=lambda self: (self.t == 9 or self.np_random.random() < 0.1, self.t == 9)), Ring),
    ("running statistics", "warning", lambda: NormalizeReward(Right()), lambda: VecNormalize(DummyVecEnv([Right]))),
    (
        "running statistics",
        "warning",
        lambda: SubprocVecEnv([lambda: NormalizeReward(Right())], "fork"),
        lambda: SubprocVecEnv([Right], "fork"),
    ),
    (
        "running statistics",
        "warning",
        lambda: NormalizeVectorReward(SyncVectorEnv([Right] * 2, autoreset_mode=AutoresetMode.SAME_STEP)),
        without_any_last,
    ),
    ("lost steps", "warning", lambda: gym.make_vec("CartPole-v1", 2), lambda: SyncVectorEnv([Right] * 2)),
    ("warning filters", "warning", Filters, lambda: Filters(module="other")),
]


def found(env, seconds=0.3, **arguments) -> dict[str, str]:
    """Return the levels of the findings, by kind."""
    return {finding.kind: finding.level for finding in check(env, seconds, **arguments).findings}


@pytest.mark.parametrize(("kind", "level", "faulty", "right"), CASES, ids=[f"{n} {case[0]}" for n, case in enumerate(CASES)])
def test_each_check_is_tripped_by_its_fault_alone(kind, level, faulty, right):
    before = [*warnings.filters]
    assert found(faulty).items() - {("policy", "advice")} == {(kind, level)}
    assert found(right) == {"policy": "advice"}
    assert warnings.filters == before


class Mission(spaces.Space):
    """A space without a shape that is none of Gymnasium's, such as MiniGrid's."""

    def sample(self, *args):
        return "go to the goal"


def test_what_ppg_refuses_is_an_error_with_its_remedy():
    inputs = dict(
        nested=spaces.Dict(a=spaces.Dict(b=VECTOR)),
        scalar=spaces.Box(-1, 1, ()),
        scalar_in_dict=spaces.Dict(a=spaces.Box(-1, 1, ())),
        sequence=spaces.Sequence(spaces.Discrete(3)),
        tuple_in_dict=spaces.Dict(a=spaces.Tuple([VECTOR])),
        mission=spaces.Dict(a=VECTOR, mission=Mission()),
        nothing=spaces.Dict(),
        empty=spaces.Box(-1, 1, (0,)),
        matrix=spaces.MultiDiscrete([[2, 3], [2, 2]]),
        small_image_in_dict=spaces.Dict(a=image_space(20, 20, 3)),
    )
    outputs = dict(matrix=inputs["matrix"], bits=spaces.MultiBinary([2, 3]), unbounded=spaces.Dict(a=spaces.Box(-np.inf, 1)))
    for make in (
        lambda: gym.make("Blackjack-v1"),
        lambda: ClipAction(gym.make("Pendulum-v1")),
        *(partial(RandomEnv, space) for space in inputs.values()),
        *(partial(RandomEnv, VECTOR, space) for space in outputs.values()),
    ):
        with pytest.raises(
            (ArgumentError, NotImplementedError),
            match=r"(FlattenObservation, or an ObservationWrapper|use Box|flatten|enlarge|give) ",
        ) as refusal:
            PPG("MultiInputPolicy" if isinstance(make().observation_space, spaces.Dict) else "MlpPolicy", make())
        (finding,) = check(make).findings
        assert finding.level == "error" and finding.seen.endswith(str(refusal.value)) and not finding.remedy
    extractor = dict(features_extractor_class=Fills)
    assert found(NAN, allow_nonfinite_observations=True, policy_kwargs=extractor) == {"policy": "advice"}


def test_a_check_leaves_statistics_and_random_numbers_as_they_were():
    normalized = VecNormalize(make_vec_env("CartPole-v1", 2))
    wrapped = NormalizeReward(gym.make("CartPole-v1"))
    inside = SyncVectorEnv([lambda: NormalizeReward(gym.make("CartPole-v1"))] * 2)
    around = NormalizeVectorReward(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2))
    state = th.get_rng_state()
    for env in (normalized, wrapped, inside, VecFrameStack(GymnasiumVecEnv(around), 2)):
        assert ("running statistics" in found(env, 0.1)) == (env is not normalized)
    assert normalized.training and normalized.obs_rms.count < 1 and normalized.ret_rms.count < 1
    for layer in (wrapped, *inside.envs, around):
        assert layer.update_running_mean and layer.return_rms.count < 1
    assert (th.get_rng_state() == state).all()


def test_a_report_shows_each_finding_with_its_remedy():
    report = check(with_(flags=lambda self: (self.t == 9, False)), 0.3)
    said = str(report)
    assert report.ends.keys() == {"terminated"} and said.startswith(f"Changed: episodes: {report.ends['terminated']} term")
    assert "`ignore_terminations`=9\n" in said and said.index("warning ") < said.index("advice ")
    assert ", a step takes " in said and said.isascii()  # so that every system can write it into a file
    with pytest.raises(ArgumentError, match="is no environment"):
        check(3)


def test_advice_follows_from_spaces_lengths_and_seconds():
    def advice(env, seconds=0.1):
        (finding,) = check(env, seconds).findings
        return finding.seen + finding.remedy

    image = with_(observation_space=image_space(36, 36, 3), observe=lambda self: np.zeros((36, 36, 3), np.uint8))
    dictionary = with_(
        observation_space=spaces.Dict(a=Right.observation_space), observe=lambda self: {"a": Right.observe(self)}
    )
    assert 'PPG("CnnPolicy", n_steps=128), with 8' in advice(image, 0.5)
    assert 'PPG("MultiInputPolicy", n_steps=128), with 8' in advice(dictionary)
    assert 'MaskablePPG("MlpPolicy"' in advice(Masked)
    for env in ("Pendulum-v1", lambda: make_vec_env("Pendulum-v1", 2), lambda: gym.make_vec("Pendulum-v1", 2)):
        assert "200 steps (limit)" in advice(env, 0.01) and "n_steps=256" in advice(env, 0.01)
    endless = with_(flags=lambda self: (False, False))
    assert re.search(r"no episode has ended in \d+ steps", advice(endless)) and "n_steps" not in advice(endless)
    assert "the reward is always 2" in advice(with_(reward=lambda self: 2.0)) and "always" not in advice(Right)
    assert "enlarge images" in advice(partial(RandomEnv, image_space(20, 20, 3)))
    parts = spaces.Dict(frames=image_space(4, 40, 40, 1), grid=spaces.Box(0, 1, (10, 10, 4)), vector=VECTOR)
    assert re.search("leave out the last axis.*MinAtarCNN", advice(partial(RandomEnv, parts)))
    slow = with_(reward=lambda self: time.sleep(0.003) or 1.0)
    assert "SubprocVecEnv" in advice(slow)
    assert "with 2 environments" in advice(lambda: DummyVecEnv([slow] * 2))


@pytest.mark.slow
def test_the_command(tmp_path):
    registers = "import gymnasium\nfrom tests.test_checking import Fails, Right\n"
    registers += "for cls in (Fails, Right):\n    gymnasium.register(f'{cls.__name__}-v0', cls)\n"
    (tmp_path / "mine.py").write_text(registers)
    mine = ("--gym-packages", "mine")
    assert "Right-v0: episodes: " in run("check", "--env", "Right-v0", *mine, cwd=tmp_path)
    assert "RuntimeError: no simulator" in run("check", "--env", "Fails-v0", *mine, cwd=tmp_path, fails=True)
    assert "nearest: CartPole-v1" in run("check", "--env", "CartPol-v1", cwd=tmp_path, fails=True)
    assert " truncated" in run("check", "--env", "CartPole-v1", "--env-kwargs", "max_episode_steps:5")
