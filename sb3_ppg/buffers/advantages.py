"""Advantages and value targets, as pure functions of arrays."""

import numpy as np


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    episode_starts: np.ndarray,
    last_values: np.ndarray,
    last_dones: np.ndarray,
    gamma: float | np.ndarray,
    gae_lambda: float | np.ndarray,
) -> np.ndarray:
    """
    Generalized Advantage Estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438), as SB3's rollout buffers do it:

    .. code-block:: none

        δ_t = r_t + γ (1 - start_{t+1}) V(s_{t+1}) - V(s_t)
        A_t = δ_t + γ λ (1 - start_{t+1}) A_{t+1}

    The value targets are A + V.

    :param rewards: r, (n_steps, n_envs), or (n_steps, n_envs, K) for vector rewards
    :param values: V(s), in the units of the rewards, of the same shape
    :param episode_starts: whether a step begins an episode, (n_steps, n_envs); for vector rewards (n_steps, n_envs, 1)
    :param last_values: V of the observations after the last step, (n_envs,) or (n_envs, K)
    :param last_dones: whether these begin an episode, (n_envs,) or (n_envs, 1)
    :param gamma: γ, a number or (K,)
    :param gae_lambda: λ, a number or (K,)
    :return: A, in the shape and type of the values, in which it is also computed
    """
    dtype, advantages = values.dtype, np.zeros_like(values)
    gamma, decay = np.asarray(gamma, dtype), np.asarray(np.multiply(gamma, gae_lambda), dtype)
    continues, last_continues = 1 - episode_starts.astype(dtype), 1 - last_dones.astype(dtype)
    next_values, following, next_continues = last_values, np.zeros_like(last_values), last_continues
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + gamma * next_values * next_continues - values[step]
        following = delta + decay * next_continues * following
        advantages[step] = following
        next_values, next_continues = values[step], continues[step]
    return advantages
