"""Actions as environments take them, as rollout buffers store them, and as distributions and networks take them."""

import math

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from torch.nn import functional as F


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


def n_features(space: spaces.Space) -> int:
    """
    :param space: of actions
    :return: how many numbers ``features`` makes of one
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else math.prod(space.shape or ())


def features(space: spaces.Space, actions: th.Tensor) -> th.Tensor:
    """
    :param space: of actions
    :param actions: as ``from_buffer`` gives them
    :return: as networks take them, (B, n_features): a one for each choice that was taken, else zeros; Box and MultiBinary
        actions as they are
    """
    if isinstance(space, spaces.Discrete):
        return F.one_hot(actions, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        columns = actions.long().unbind(dim=1)
        return th.cat([F.one_hot(column, int(n)) for column, n in zip(columns, space.nvec, strict=True)], dim=1)
    return actions
