"""Kinds of rollout buffers: with the reward normalizer of the authors' code, with vector rewards, with sequences for LSTMs."""

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_ppg.buffers.rollouts import by_environment, gae, order_by_environment
from sb3_ppg.distributed import explained_variance, moments, n_processes
from sb3_ppg.errors import ArgumentError, NonFiniteError
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.policies.lstm import pack_states
from sb3_ppg.protocols import PhasicModel

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
    SequenceRolloutBuffer)`` (of ``sb3_ppg.buffers.rollout_buffers``) for ``RecurrentPPG``, with sb3-contrib's
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


# ---- vector rewards ----


class VectorRewardBuffer(RolloutBuffer):
    """
    A mixin for any class of rollout buffers, see ``with_vector_rewards``, with rewards, values and value targets of each
    component. ``values``, ``returns`` and ``advantages`` are weighted sums; ``rewards`` are those of the environments.

    :param n_components: K
    :param reward_weights: a weight for each component, or "observation", see ``PPG``
    """

    recomputable: ClassVar[bool] = True
    new_arrays: ClassVar[bool] = True
    # (n_steps, n_envs, K) each, or environment by environment
    vector_rewards: np.ndarray  # including ``bootstrapped`` once the rollout is complete
    vector_values: np.ndarray
    vector_returns: np.ndarray
    weights: np.ndarray
    bootstrapped: np.ndarray  # γ V at time limits, see ``SeparatesBootstrap``

    def __init__(self, *args: Any, n_components: int, reward_weights: Any, **kwargs: Any):
        self.n_components = n_components
        self.reward_weights = reward_weights
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        super().reset()
        for name in ("vector_rewards", "vector_values", "vector_returns", "weights", "bootstrapped"):
            setattr(self, name, np.zeros((self.buffer_size, self.n_envs, self.n_components), dtype=np.float32))

    def add(self, *args: Any, vector_rewards: np.ndarray, **kwargs: Any) -> None:  # type: ignore[override]
        """
        :param args: SB3's arguments, with values of each component, (n_envs, K)
        :param vector_rewards: (n_envs, K)
        """
        obs, action, reward, episode_start, value, log_prob = args
        self.vector_rewards[self.pos] = vector_rewards
        self.vector_values[self.pos] = value.cpu().numpy()
        self.weights[self.pos] = obs["weights"] if self.reward_weights == "observation" else self.reward_weights
        combined = (self.weights[self.pos] * self.vector_values[self.pos]).sum(axis=-1)
        super().add(obs, action, reward, episode_start, th.as_tensor(combined), log_prob, **kwargs)

    def compute_returns_and_advantage(self, last_values: th.Tensor, dones: np.ndarray) -> None:
        rewards = self.vector_rewards
        if isinstance(self, NormalizedRewardRolloutBuffer):
            rewards = self.reward_normalizer.normalize(rewards, self.episode_starts)
        self.vector_rewards = rewards + self.bootstrapped
        arrays = (self.vector_rewards, self.vector_values, self.episode_starts[:, :, None])
        advantages = gae(*arrays, last_values.cpu().numpy(), dones[:, None], self.gamma, self.gae_lambda)
        self._combine(advantages, self.vector_values)

    def recompute(self, values: np.ndarray, last_values: np.ndarray, dones: np.ndarray) -> None:
        """
        Compute advantages and value targets again with V(s) of each component, (n_envs * n_steps, K), ordered by environment,
        and V after the last step, (n_envs, K).
        """
        values = values.reshape(-1, self.n_components)  # heads drop the dimension of a single component
        arrays = (self.vector_rewards, values, self.episode_starts)
        rewards, by_step, starts = (by_environment(self, array).swapaxes(0, 1) for array in arrays)
        end = (last_values.reshape(self.n_envs, -1), dones[:, None])
        self._combine(self.swap_and_flatten(gae(rewards, by_step, starts, *end, self.gamma, self.gae_lambda)), values)
        self.returns, self.advantages = self.returns[:, None], self.advantages[:, None]

    def _combine(self, advantages: np.ndarray, values: np.ndarray) -> None:
        """Set the weighted sums over the components, from arrays in the buffer's current order."""
        targets = advantages + values
        self.vector_returns[:] = targets  # in place, because the current epochs' minibatches read this array
        self.returns, self.advantages = ((self.weights * array).sum(axis=-1) for array in (targets, advantages))


def with_vector_rewards(model: PhasicModel) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """
    Return class and keyword arguments of a model's rollout buffer, and keyword arguments of its policy, for vector rewards if
    the model has ``reward_weights``.
    """
    cls: Any = model.rollout_buffer_class
    n_components = model.n_reward_components
    if n_components is None:
        return cls, model.rollout_buffer_kwargs, model.policy_kwargs
    vector_class = type(f"Vector{cls.__name__}", (VectorRewardBuffer, cls), {})
    of_buffer = dict(n_components=n_components, reward_weights=model.reward_weights)
    of_policy = dict(n_reward_components=n_components)
    return vector_class, model.rollout_buffer_kwargs | of_buffer, model.policy_kwargs | of_policy


def component_samples(rollout_buffer: RolloutBuffer) -> dict[str, np.ndarray]:
    """
    Return the fields of ``SampleData`` about each sample's components, (n_envs * n_steps, K), environment by environment, of a
    full buffer; none for scalar rewards.
    """
    if not isinstance(rollout_buffer, VectorRewardBuffer):
        return {}
    return dict(component_targets=rollout_buffer.vector_returns, component_values=rollout_buffer.vector_values)


def component_context(rollout_buffer: RolloutBuffer) -> dict[str, np.ndarray]:
    """Return the value targets of each component for the auxiliary phase, (n_envs, n_steps, K); none for scalar rewards."""
    if not isinstance(rollout_buffer, VectorRewardBuffer):
        return {}
    # A copy, because `recompute` overwrites the array when an older rollout is used again
    return dict(component_targets=by_environment(rollout_buffer, rollout_buffer.vector_returns).copy())


def component_summary(rollout_buffer: RolloutBuffer, policy: PhasicActorCriticPolicy) -> dict[str, float]:
    """Return explained variance and value unit by component, after an update on this rollout; nothing for scalar rewards."""
    if not isinstance(rollout_buffer, VectorRewardBuffer):
        return {}
    columns = enumerate(zip(rollout_buffer.vector_values.T, rollout_buffer.vector_returns.T, strict=True))
    explained = {f"explained_variance/{k}": explained_variance(*both, policy.device) for k, both in columns}
    return explained | {f"value_unit/{k}": unit for k, unit in enumerate(policy.value_net.std.tolist())}


# ---- sequences ----


class SequenceSamples(NamedTuple):
    """Samples as in SB3, in sequences of equal length, B = n_sequences * length, with the inputs of LSTMs."""

    observations: PyTorchObs
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: th.Tensor  # before each sequence, (n_sequences, 4, n_layers, hidden size)
    episode_starts: th.Tensor  # (B,)


def longest_equal_part(whole: int, limit: int) -> int:
    """
    Return the largest divisor of ``whole`` that is at most ``limit``: the length of the longest equal parts of a rollout that
    fit into a minibatch.
    """
    pairs = ((part, whole // part) for part in range(1, math.isqrt(whole) + 1) if whole % part == 0)
    return max(part for pair in pairs for part in pair if part <= limit)


class SequenceRolloutBuffer(RolloutBuffer):
    """A rollout buffer that stores the LSTMs' states of each step and returns sequences, see ``longest_equal_part``."""

    recomputable: ClassVar[bool] = True
    new_arrays: ClassVar[bool] = True
    states_shape: tuple[int, ...] = (4, 0, 0)  # (4, n_layers, hidden size), once the network is there

    def reset(self) -> None:
        super().reset()
        self.lstm_states = np.zeros((self.buffer_size, self.n_envs, *self.states_shape), dtype=np.float32)

    def add(self, *args: Any, lstm_states: RNNStates, **kwargs: Any) -> None:  # type: ignore[override]
        """Add a step, with the LSTMs' states before it."""
        self.lstm_states[self.pos] = pack_states(lstm_states).cpu().numpy()
        super().add(*args, **kwargs)

    def get(self, batch_size: int | None = None) -> Iterator[SequenceSamples]:  # type: ignore[override]
        """Return minibatches of shuffled sequences, of at most ``batch_size`` samples each; None: one with all samples."""
        return (some for _, some in self.samples(batch_size or self.buffer_size * self.n_envs, np.random.permutation))

    def samples(self, batch_size: int, order: Callable[[int], np.ndarray]) -> Iterator[tuple[np.ndarray, SequenceSamples]]:
        """See ``GivesSequences``."""
        assert self.full, "Rollout buffer must be full before sampling from it"
        order_by_environment(self)
        length = longest_equal_part(self.buffer_size, batch_size)
        firsts = length * order(self.buffer_size * self.n_envs // length)
        n_sequences = batch_size // length
        for start in range(0, len(firsts), n_sequences):
            some = firsts[start : start + n_sequences]
            places = (some[:, None] + np.arange(length)).ravel()
            memory = self.to_torch(self.lstm_states[some]), self.to_torch(self.episode_starts[places].ravel())
            yield places, SequenceSamples(*self._get_samples(places), *memory)


class SequenceDictRolloutBuffer(SequenceRolloutBuffer, DictRolloutBuffer):  # type: ignore[misc]
    """``SequenceRolloutBuffer`` for dictionaries of observations."""
