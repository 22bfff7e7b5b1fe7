"""The reward normalizer of the authors' code."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd

from sb3_ppg.distributed.collectives import moments, n_processes
from sb3_ppg.errors import ArgumentError, NonFiniteError


class RewardNormalizer:
    """
    Divides rewards by the running standard deviation of the discounted return R_t = r_t + γ (1 - episode_start_t) R_{t-1}.

    The only difference from SB3's ``VecNormalize(norm_obs=False, clip_reward=10)``: the statistics are updated once per
    rollout, before they are used on it, not at each step. R continues from one rollout to the next. Several processes share
    their statistics. Use one object per model.

    Source: the ``RewardNormalizer`` of openai/phasic-policy-gradient. Its γ is .99 while training uses .999.

    :param gamma: γ of the return
    :param clip: normalized rewards are kept within [-clip, clip]
    :param epsilon: added to the variance
    :raises ArgumentError: for numbers that cannot work
    """

    def __init__(self, gamma: float = 0.99, clip: float = 10.0, epsilon: float = 1e-8):
        if not (0 <= gamma <= 1 and clip > 0 and epsilon >= 0):
            raise ArgumentError(
                f"`{gamma=}`, `{clip=}`, `{epsilon=}` cannot work: use gamma in [0, 1], clip > 0, epsilon >= 0"
            )
        self.gamma = gamma
        self.clip = clip
        self.epsilon = epsilon
        self.return_rms = RunningMeanStd(epsilon=1e-4, shape=())
        self.last_returns: np.ndarray | None = None  # (n_envs,)

    def normalize(self, rewards: np.ndarray, episode_starts: np.ndarray) -> np.ndarray:
        """
        Update the statistics with a rollout, then normalize it.

        :param rewards: rewards of the rollout, (n_steps, n_envs), or (n_steps, n_envs, K) for vector rewards, each component
            of which has its own statistics
        :param episode_starts: whether the step begins an episode, (n_steps, n_envs)
        :return: normalized rewards, in the shape and type of ``rewards``
        :raises NonFiniteError: if a reward or its square is not finite; the statistics are then unchanged
        """
        if not np.isfinite(rewards).all():
            step, env, *_ = np.argwhere(~np.isfinite(rewards))[0]
            raise NonFiniteError(f"The reward of environment {env} at step {step} of the rollout is {rewards[step, env]}")
        n_steps, n_envs, *components = rewards.shape
        returns, previous = np.zeros(rewards.shape), self.last_returns
        if previous is None or previous.shape != returns.shape[1:]:  # new, or loaded for another number of environments
            previous = np.zeros(returns.shape[1:])
        goes_on = 1.0 - episode_starts.reshape(n_steps, n_envs, *[1 for _ in components])
        for step, reward in enumerate(rewards):
            previous = returns[step] = reward + self.gamma * goes_on[step] * previous
        of_components = [moments(column) for column in returns.reshape(n_steps * n_envs, -1).T]
        mean, std = (np.reshape(one, components) for one in zip(*of_components, strict=True))
        if not np.isfinite(std).all():
            raise NonFiniteError(f"Rewards of up to {np.abs(rewards).max()} are too large to be normalized")
        self.last_returns = previous.copy()
        self.return_rms.update_from_moments(mean, std**2, n_steps * n_envs * n_processes())
        scale = np.sqrt(self.return_rms.var + self.epsilon)
        normalized = np.divide(rewards, scale, dtype=np.float64)  # NumPy 1 would take the type of the rewards
        return np.clip(normalized, -self.clip, self.clip).astype(rewards.dtype)


class NormalizedRewardRolloutBuffer(RolloutBuffer):
    """
    A rollout buffer that normalizes a rollout's rewards before it computes advantages::

        from sb3_ppg import PPG, NormalizedRewardRolloutBuffer, RewardNormalizer

        model = PPG(
            "MlpPolicy",
            "CartPole-v1",
            rollout_buffer_class=NormalizedRewardRolloutBuffer,
            rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(gamma=0.99)),
        )

    For a variant of PPG, derive from it and from the variant's own buffer: ``class Mine(NormalizedRewardRolloutBuffer,
    SequenceRolloutBuffer)`` (of ``sb3_ppg.buffers.sequences``) for ``RecurrentPPG``, with sb3-contrib's
    ``MaskableRolloutBuffer`` for ``MaskablePPG``.

    The normalizer is saved with the model. γ V at a time limit is in normalized units already: ``PPG`` writes it to
    ``bootstrapped``, (n_steps, n_envs), and it is added to the normalized rewards.

    :param reward_normalizer: normalizer with its statistics
    """

    recomputable: ClassVar[bool] = True
    new_arrays: ClassVar[bool] = True

    def __init__(self, *args: Any, reward_normalizer: RewardNormalizer, **kwargs: Any):
        if not isinstance(reward_normalizer, RewardNormalizer):
            raise ArgumentError(f"`{reward_normalizer=}` cannot work: use a RewardNormalizer")
        super().__init__(*args, **kwargs)
        self.reward_normalizer = reward_normalizer

    def reset(self) -> None:
        super().reset()
        self.bootstrapped = np.zeros_like(self.rewards)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        self.rewards = self.reward_normalizer.normalize(self.rewards, self.episode_starts) + self.bootstrapped
        super().compute_returns_and_advantage(last_values, dones)


class NormalizedRewardDictRolloutBuffer(NormalizedRewardRolloutBuffer, DictRolloutBuffer):
    """``NormalizedRewardRolloutBuffer`` for dictionaries of observations."""
