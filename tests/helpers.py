"""Helpers of several tests."""

import io
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import Logger

from sb3_ppg import PPG
from sb3_ppg.losses import Losses
from sb3_ppg.zoo import launcher


class RandomEnv(gym.Env):
    """Random observations of any space, reproducible from the seed; the reward is the first number of the observation."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, episode_length: int = 20):
        self.observation_space = observation_space
        self.action_space = action_space
        self.episode_length = episode_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        obs = self.observation_space.sample()
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return obs, float(np.ravel(first)[0]), False, self.steps == self.episode_length, {}


ROOT = Path(__file__).parent.parent
VECTOR = spaces.Box(-1, 1, (3,))
MASKED_ACTIONS = {
    "Discrete": (spaces.Discrete(5), [5]),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 2, 4]), [3, 2, 4]),
    "MultiBinary": (spaces.MultiBinary(3), [2, 2, 2]),
}


class MaskedEnv(RandomEnv):
    """The possible actions change with each step; others are an error."""

    def __init__(self, observation_space: spaces.Space = VECTOR, actions: str = "Discrete"):
        action_space, self.sizes = MASKED_ACTIONS[actions]
        super().__init__(observation_space, action_space, episode_length=7)

    def action_masks(self) -> np.ndarray:
        rng = np.random.default_rng([self.steps, int(self.np_random_seed or 0) % 2**31])
        masks = [rng.random(size) < 0.5 for size in self.sizes]
        for mask in masks:
            mask[rng.integers(len(mask))] = True
        return np.concatenate(masks)

    def step(self, action):
        masks = np.split(self.action_masks(), np.cumsum(self.sizes)[:-1])
        assert all(mask[int(one)] for mask, one in zip(masks, np.atleast_1d(action), strict=True)), "an invalid action"
        return super().step(action)


def image_space(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def collect(model: PPG) -> None:
    """One rollout, without its update."""
    if not hasattr(model, "_logger"):
        model.set_logger(Logger(folder=None, output_formats=[]))
    _, callback = model._setup_learn(1000)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)


def learn_and_log(model: BaseAlgorithm, total_timesteps: int) -> dict[str, Any]:
    """Train; what was logged meanwhile, the latest value under each name."""
    model.learn(total_timesteps, log_interval=None)  # else it is gone once it is written
    return dict(model.logger.name_to_value)


def losses_of(name: str, model: PPG, batch: Any, **coefficients: float | None) -> Losses:
    """
    :param name: of a method of the model's objective
    :param batch: of its rollout buffer, or of its auxiliary buffer
    :param coefficients: that are others than the model's
    """
    losses = getattr(model.objective, name)
    return losses(model.policy, model.network_inputs(batch), batch, model.coefficients()._replace(**coefficients))


@contextmanager
def transfers_to_host(monkeypatch) -> Iterator[list[str]]:
    """The methods of tensors by which Python code looks at values, as they are called."""
    transfers: list[str] = []

    def count(name: str):
        original = getattr(th.Tensor, name)
        return lambda *args, **kwargs: transfers.append(name) or original(*args, **kwargs)

    with monkeypatch.context() as patch:
        for name in ("item", "cpu", "tolist", "__bool__", "__float__", "__int__", "numpy"):
            patch.setattr(th.Tensor, name, count(name))
        yield transfers


def run(*arguments: str, cwd: Path | None = None, fails: bool = False, **environment: str) -> str:
    """
    Run ``sb3-ppg ...``, in this process, where what takes seconds is imported already.

    :param arguments: command line
    :param cwd: working directory
    :param fails: whether the command has to fail
    :param environment: environment variables to set
    :return: what the command printed, or its error
    """
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
        error = _in_place(launcher.main, ["sb3-ppg", *arguments], cwd, environment)
    printed = f"{output.getvalue()}{'' if error is None else error}"
    assert (error is not None) == fails, printed
    return printed


def run_code(code: str, cwd: Path | None = None) -> None:
    """
    Run lines of a page or of a model card.

    :param code: Python
    :param cwd: working directory
    """
    error = _in_place(lambda: exec(code, {"__name__": "__main__"}), ["-c"], cwd, {})
    assert error is None, error


def _in_place(function: Callable[[], None], argv: list[str], cwd: Path | None, environment: dict[str, str]) -> str | None:
    """Call a function as a program would run; return its error, if there is one."""
    folder = str(cwd or Path.cwd())
    with (
        chdir(folder),
        patch.object(sys, "argv", argv),
        patch.object(sys, "path", [folder, *sys.path]),
        patch.dict(os.environ, environment),
    ):
        try:
            function()
        except SystemExit as end:
            return None if end.code in (None, 0) else str(end.code)
        except Exception:
            return traceback.format_exc()
    return None


def run_in_a_new_process(function: Callable[..., None], *args: Any) -> Any:
    """Return what a function puts into the queue that is its last argument."""
    context = multiprocessing.get_context("forkserver")
    results = context.Queue()
    process = context.Process(target=function, args=(*args, results))
    process.start()
    process.join()
    assert process.exitcode == 0
    return results.get(timeout=10)


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Until it holds; fails if it does not in that time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
