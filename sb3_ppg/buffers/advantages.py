"""Advantages and value targets, as pure functions of arrays."""

import numpy as np


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    last_dones: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """
    Generalized Advantage Estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438), as SB3's rollout buffers do it:

    .. code-block:: none

        δ_t = r_t + γ (1 - start_{t+1}) V(s_{t+1}) - V(s_t)
        A_t = δ_t + γ λ (1 - start_{t+1}) A_{t+1}

    The value targets are A + V.

    :param rewards: r, (n_steps, n_envs)
    :param values: V(s), (n_steps, n_envs), in the units of the rewards
    :param episode_starts: 1 where a step begins an episode, else 0, (n_steps, n_envs)
    :param last_values: V of the observations after the last step, (n_envs,)
    :param last_dones: 1 where these begin an episode, else 0, (n_envs,)
    :param gamma: γ
    :param gae_lambda: λ
    :return: A, (n_steps, n_envs), in the type of the values
    """
    advantages = np.zeros_like(values)
    next_values, following, goes_on = last_values, np.zeros_like(last_values), 1.0 - last_dones
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + gamma * next_values * goes_on - values[step]
        following = delta + gamma * gae_lambda * goes_on * following
        advantages[step] = following
        next_values, goes_on = values[step], 1.0 - episode_starts[step]
    return advantages
