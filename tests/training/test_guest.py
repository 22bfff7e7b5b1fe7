"""While a user's code runs, the process is as the user left it."""

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.callbacks import BaseCallback

from sb3_ppg import PPG, MaskablePPG
from sb3_ppg.optim.compiled import tracing
from tests.helpers import distributions_are_validated, needs_compiler

SMALL: dict[str, Any] = dict(n_steps=8, batch_size=8, n_epochs=2, n_policy_iterations=1, n_aux_epochs=1, device="cpu")
seen: list[tuple[bool, bool]] = []


def look(*_: Any) -> None:
    """Note whether distributions are validated, and torch's compiler treats sizes as it does by default."""
    seen.append((distributions_are_validated(), th._dynamo.config.automatic_dynamic_shapes))


class Looking(gym.Env):
    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        look()
        return np.zeros(2, np.float32), {}

    def step(self, action):
        look()
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def action_masks(self):
        look()
        return np.ones(2, bool)


class LookingCallback(BaseCallback):
    def _on_step(self) -> bool:
        look()
        return True

    _on_rollout_start = _on_rollout_end = look


@needs_compiler
@pytest.mark.parametrize(("cls", "compile_updates"), [(PPG, False), (PPG, True), (MaskablePPG, False)])
def test_environments_and_callbacks_run_with_the_users_settings(cls, compile_updates, monkeypatch):
    monkeypatch.setattr(th, "compile", functools.wraps(th.compile)(functools.partial(th.compile, backend="eager")))
    seen.clear()
    env = ActionMasker(Looking(), lambda env: env.action_masks()) if cls is MaskablePPG else Looking()
    cls("MlpPolicy", env, compile_updates=compile_updates, **SMALL).learn(32, callback=LookingCallback())
    assert len(seen) > 32 and set(seen) == {(True, True)}
    with tracing():
        assert th._dynamo.config.automatic_dynamic_shapes is False
