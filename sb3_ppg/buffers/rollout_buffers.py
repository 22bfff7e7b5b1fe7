"""Kinds of rollout buffers: with the reward normalizer of the authors' code, with vector rewards, with the states of LSTMs."""

from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd
from typing_extensions import override

from sb3_ppg.buffers.rollouts import Rollout, gae
from sb3_ppg.distributed import explained_variance, moments, n_processes
from sb3_ppg.errors import ArgumentError, NonFiniteError
from sb3_ppg.policies import PhasicActorCriticPolicy

# ---- normalized rewards ----


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
        mean, std = (np.reshape(column, components) for column in zip(*of_components, strict=True))
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
    SequenceRolloutBuffer)`` (of ``sb3_ppg.buffers.rollout_buffers``) for ``RecurrentPPG``, with sb3-contrib's
    ``MaskableRolloutBuffer`` for ``MaskablePPG``.

    The normalizer is saved with the model. γ V at a time limit is in normalized units already: ``PPG`` writes it to
    ``bootstrapped``, (n_steps, n_envs), and it is added to the normalized rewards.

    :param reward_normalizer: normalizer with its statistics
    """

    recomputable: ClassVar[bool] = True

    def __init__(self, *args: Any, reward_normalizer: RewardNormalizer, **kwargs: Any):
        if not isinstance(reward_normalizer, RewardNormalizer):
            raise ArgumentError(f"`{reward_normalizer=}` cannot work: use a RewardNormalizer")
        super().__init__(*args, **kwargs)
        self.reward_normalizer = reward_normalizer

    @override
    def reset(self) -> None:
        super().reset()
        self.bootstrapped = np.zeros_like(self.rewards)

    @override
    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        self.rewards = self.reward_normalizer.normalize(self.rewards, self.episode_starts) + self.bootstrapped
        super().compute_returns_and_advantage(last_values, dones)


class NormalizedRewardDictRolloutBuffer(NormalizedRewardRolloutBuffer, DictRolloutBuffer):
    """``NormalizedRewardRolloutBuffer`` for dictionaries of observations."""


# ---- vector rewards ----


class VectorRewardBuffer(RolloutBuffer):
    """
    A mixin for any class of rollout buffers, see ``with_vector_rewards``, with rewards, values and value targets of each
    component. ``values``, ``returns`` and ``advantages`` are weighted sums; ``rewards`` are those of the environments.

    :param n_components: K
    :param reward_weights: a weight for each component, or "observation", see ``PPG``
    """

    recomputable: ClassVar[bool] = True
    # (n_steps, n_envs, K) each
    vector_rewards: np.ndarray  # including ``bootstrapped`` once the rollout is complete
    vector_values: np.ndarray
    vector_returns: np.ndarray
    component_weights: np.ndarray
    bootstrapped: np.ndarray  # γ V at time limits

    @override
    def __reduce__(self) -> tuple:
        return _new_vector_buffer, type(self).__bases__[1:], vars(self)  # pickle would not find the class

    def __init__(self, *args: Any, n_components: int, reward_weights: Any, **kwargs: Any):
        self.n_components = n_components
        self.reward_weights = reward_weights
        super().__init__(*args, **kwargs)

    @override
    def reset(self) -> None:
        super().reset()
        for name in ("vector_rewards", "vector_values", "vector_returns", "component_weights", "bootstrapped"):
            setattr(self, name, np.zeros((self.buffer_size, self.n_envs, self.n_components), dtype=np.float32))

    @override
    def add(self, *args: Any, vector_rewards: np.ndarray, **kwargs: Any) -> None:  # type: ignore[override]
        """
        :param args: SB3's arguments, with values of each component, (n_envs, K)
        :param vector_rewards: (n_envs, K)
        """
        obs, action, reward, episode_start, value, log_prob = args
        self.vector_rewards[self.pos] = vector_rewards
        self.vector_values[self.pos] = value.cpu().numpy()
        weights = self.component_weights[self.pos]
        weights[:] = obs["weights"] if self.reward_weights == "observation" else self.reward_weights
        combined = (weights * self.vector_values[self.pos]).sum(axis=-1)
        super().add(obs, action, reward, episode_start, th.as_tensor(combined), log_prob, **kwargs)

    @override
    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        rewards = self.vector_rewards
        if isinstance(self, NormalizedRewardRolloutBuffer):
            rewards = self.reward_normalizer.normalize(rewards, self.episode_starts)
        self.vector_rewards = rewards + self.bootstrapped
        arrays = (self.vector_rewards, self.vector_values, self.episode_starts[:, :, None])
        advantages = gae(*arrays, last_values.cpu().numpy(), dones[:, None], self.gamma, self.gae_lambda)
        self.vector_returns = advantages + self.vector_values
        self.returns, self.advantages = (
            (self.component_weights * array).sum(axis=-1) for array in (self.vector_returns, advantages)
        )


@cache
def with_vector_rewards(rollout_buffer_class: Any) -> Any:
    """Return a class of rollout buffers derived from this one, for vector rewards."""
    return type(f"Vector{rollout_buffer_class.__name__}", (VectorRewardBuffer, rollout_buffer_class), {})


def _new_vector_buffer(rollout_buffer_class: Any) -> Any:
    cls = with_vector_rewards(rollout_buffer_class)
    return cls.__new__(cls)


def component_summary(rollout: Rollout, policy: PhasicActorCriticPolicy) -> dict[str, float]:
    """Return explained variance and value unit by component, after an update on this rollout; nothing for scalar rewards."""
    if "component_weights" not in rollout.arrays:
        return {}
    values, targets = (rollout.arrays[name].reshape(rollout.n_samples, -1).T for name in ("old_values", "targets"))
    columns = enumerate(zip(values, targets, strict=True))
    explained = {f"explained_variance/{k}": explained_variance(*both, policy.device) for k, both in columns}
    return explained | {f"value_unit/{k}": unit for k, unit in enumerate(policy.value_net.std.tolist())}


# ---- states of LSTMs ----


class SequenceRolloutBuffer(RolloutBuffer):
    """A rollout buffer that stores the LSTMs' states of each step."""

    states_shape: tuple[int, ...] = (4, 0, 0)  # (4, n_layers, hidden size), once the network is there

    @override
    def reset(self) -> None:
        super().reset()
        self.lstm_states = np.zeros((self.buffer_size, self.n_envs, *self.states_shape), dtype=np.float32)

    @override
    def add(self, *args: Any, lstm_states: th.Tensor, **kwargs: Any) -> None:  # type: ignore[override]
        """Add a step, with the LSTMs' states before it as ``pack_states`` gives them."""
        self.lstm_states[self.pos] = lstm_states.cpu().numpy()
        super().add(*args, **kwargs)


class SequenceDictRolloutBuffer(SequenceRolloutBuffer, DictRolloutBuffer):  # type: ignore[misc]
    """``SequenceRolloutBuffer`` for dictionaries of observations."""
