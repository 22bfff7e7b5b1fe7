"""Actions as environments take them, as rollout buffers store them, and as distributions and networks take them."""

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy


def for_environments(policy: BasePolicy, actions: np.ndarray) -> np.ndarray:
    """
    :param policy: that has chosen them
    :param actions: (n_envs, ...)
    :return: the same within the bounds of the action space
    """
    space = policy.action_space
    if not isinstance(space, spaces.Box):
        return actions
    return policy.unscale_action(actions) if policy.squash_output else np.clip(actions, space.low, space.high)


def for_buffer(space: spaces.Space, actions: np.ndarray) -> np.ndarray:
    """
    :param space: of actions
    :param actions: (n_envs, ...)
    :return: as rollout buffers store them, (n_envs, action dimensions)
    """
    return actions.reshape(-1, 1) if isinstance(space, spaces.Discrete) else actions


def from_buffer(space: spaces.Space, actions: th.Tensor) -> th.Tensor:
    """
    :param space: of actions
    :param actions: as rollout buffers give them, floats, (B, action dimensions)
    :return: as distributions take them: (B,) integers for Discrete actions, else the same
    """
    return actions.long().flatten() if isinstance(space, spaces.Discrete) else actions
