"""Rollouts with vector rewards: rewards and values of each component, and the weighted sum of their advantages."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_ppg.buffers.advantages import gae
from sb3_ppg.buffers.reward_normalizer import NormalizedRewardRolloutBuffer
from sb3_ppg.buffers.rollouts import by_environment
from sb3_ppg.distributed.collectives import explained_variance
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.protocols import PhasicModel


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

    def add(  # type: ignore[override]
        self,
        obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        episode_start: np.ndarray,
        value: th.Tensor,
        log_prob: th.Tensor,
        *,
        vector_rewards: np.ndarray,
        **kwargs: Any,
    ) -> None:
        """
        :param value: values of each component, (n_envs, K)
        :param vector_rewards: (n_envs, K)
        """
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
        """Set the weighted sums over the components; the order of the arrays is that of all others."""
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
