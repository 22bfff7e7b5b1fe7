"""Parts of a phase that are measured, and what is measured with."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pandas as pd
from gymnasium import spaces
from matplotlib.axes import Axes
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from benchmarks.turns import collect
from sb3_ppg import PPG, ImpalaCNN
from sb3_ppg.optim.epoch import optimize_epoch

N_THREADS = os.cpu_count() or 1
N_STEPS, N_AUX_EPOCHS = 256, 6


class Section(NamedTuple):
    """
    A section of the results.

    :param title: of its table
    :param run: measures
    :param table: from the rows in Markdown, or a format for each column, by title
    :param draw: its panel of the picture, if it has one
    """

    title: str
    run: Callable[[], pd.DataFrame]
    table: Callable[[pd.DataFrame], str] | dict[str, str]
    draw: Callable[[Axes, pd.DataFrame], None] | None = None


class Frames(gym.Env):
    """Random images; nothing to learn, nothing to wait for."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(15)
        self.frames = [self.observation_space.sample() for _ in range(16)]

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return self.frames[self.steps % 16], 1.0, self.steps == 100, False, {}


def images(n_envs: int, shape: tuple[int, ...] = (3, 64, 64)) -> DummyVecEnv:
    """Make environments of random images."""
    return DummyVecEnv([lambda: Frames(shape)] * n_envs)


def image_model(env: VecEnv, policy_kwargs: dict[str, Any], device: str = "cpu", **arguments: Any) -> PPG:
    """Make a model for images, with ImpalaCNNs in two networks if the arguments do not say otherwise."""
    policy_kwargs = dict(architecture="detached", features_extractor_class=ImpalaCNN) | policy_kwargs
    return PPG("CnnPolicy", env, policy_kwargs=policy_kwargs, device=device, seed=0, **arguments)


def policy_minibatch(model: PPG, batch: Any, size: int | None) -> None:
    """Take a step of the policy phase in micro-batches of this size."""
    losses = partial(model.minibatch_losses, model.objective.joint_losses, model.coefficients())
    optimize_epoch("policy", [model.policy], model.policy.optimizer, [batch], losses, size)


def auxiliary_minibatch(model: PPG, batch: Any, size: int | None) -> None:
    """Take a step of the auxiliary phase in micro-batches of this size."""
    losses = partial(model.minibatch_losses, model.objective.auxiliary_losses, model.coefficients())
    optimize_epoch("auxiliary", [model.policy], model.aux_optimizer, [batch], losses, size)


def iterations(model: PPG) -> None:
    """Collect and learn from the rollouts of a whole phase."""
    for _ in range(model.n_policy_iterations):
        collect(model)
        model.train()
