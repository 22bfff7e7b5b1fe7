"""Functions on SB3's and custom rollout buffers: what a class declares, minibatches, the order of arrays, GAE, types."""

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.arrays import map_arrays, split
from sb3_ppg.environments.watched import normalizers

SB3_CLASSES = (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)
# Small minibatches are gathered together, by one indexed copy of up to this size
GATHERED_BYTES = 2**22
Observations = np.ndarray | dict[str, np.ndarray]


class RolloutEnd(NamedTuple):
    """
    The state after the last step of a rollout.

    :param observations: (n_envs, ...), or a dictionary of such arrays
    :param values: V of them when the rollout was collected, (n_envs,); for vector rewards (n_envs, K)
    :param dones: whether they begin an episode, (n_envs,)
    :param memory: memory of the policy, see ``PPG.memory``
    """

    observations: Observations
    values: np.ndarray
    dones: np.ndarray
    memory: np.ndarray | None = None


# ---- how a class differs from SB3's ----


@runtime_checkable
class SeparatesBootstrap(Protocol):
    """A rollout buffer that gets γ V at time limits in ``bootstrapped``, instead of added to the rewards."""

    bootstrapped: np.ndarray  # (n_steps, n_envs)


@runtime_checkable
class GivesSequences(Protocol):
    """A rollout buffer whose minibatches are not just a selection of samples, such as sequences."""

    def samples(self, batch_size: int, order: Callable[[int], np.ndarray]) -> Iterator[tuple[np.ndarray, Any]]:
        """
        :param batch_size: largest number of samples in a minibatch
        :param order: maps the number of sequences, n, to an order of 0, ..., n - 1
        :return: for each minibatch, the indices of its samples (environment by environment), and the samples
        """


def is_recomputable(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether a buffer's advantages are GAE of its ``rewards`` and ``get`` yields all samples, so that its rollouts can be
    used again with newer values. A class that overrides ``compute_returns_and_advantage`` or ``get`` declares this by the
    class attribute ``recomputable = True``.
    """
    return _declared(rollout_buffer, "recomputable", ("compute_returns_and_advantage", "get"))


def has_usual_samples(rollout_buffer: RolloutBuffer) -> bool:
    """Return whether minibatches are SB3's, or the class declares by ``recomputable = True`` that they are equivalent."""
    return _declared(rollout_buffer, "recomputable", ("get", "_get_samples"))


def has_new_arrays(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether collecting a rollout leaves the arrays of the previous one unchanged, so that they need not be copied. A
    class that overrides ``reset`` declares this by the class attribute ``new_arrays = True``.
    """
    return _declared(rollout_buffer, "new_arrays", ("reset",))


def _declared(rollout_buffer: RolloutBuffer, attribute: str, methods: tuple[str, ...]) -> bool:
    """Return the value of a class attribute, or, without it, whether these methods are those of a buffer of SB3."""
    cls = type(rollout_buffer)
    are_sb3s = all(any(getattr(cls, method) is getattr(one, method) for one in SB3_CLASSES) for method in methods)
    return getattr(cls, attribute, are_sb3s)


# ---- samples ----


def minibatches(rollout_buffer: RolloutBuffer, batch_size: int, extras: dict[str, np.ndarray] | None = None) -> Iterator[Any]:
    """
    Draw the minibatches of one epoch: all samples of a buffer that is ordered by environment, shuffled. ``extras`` are further
    arrays by name, (n_envs * n_steps, ...), in this order, which minibatches have in a field of this name.
    """
    cls, at_once = type(rollout_buffer), batch_size
    if any(cls.get is theirs.get and cls._get_samples is theirs._get_samples for theirs in SB3_CLASSES):
        # Minibatches are plain selections of samples, so several of them can be split from a larger one
        n_samples = rollout_buffer.buffer_size * rollout_buffer.n_envs
        minibatch_bytes = n_bytes(rollout_buffer.observations) * batch_size / n_samples
        at_once *= max(1, int(GATHERED_BYTES / max(1, minibatch_bytes)))
    if not extras:
        for some in rollout_buffer.get(at_once):
            yield from split(some, batch_size)
        return
    for places, some in samples(rollout_buffer, at_once, np.random.permutation):
        parts = {name: rollout_buffer.to_torch(array[places]) for name, array in extras.items()}
        yield from split(_extended(type(some).__name__, some._fields)(*some, extras=parts), batch_size)


@cache
def _extended(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, (*fields, "extras"))


def samples(
    rollout_buffer: RolloutBuffer, batch_size: int, order: Callable[[int], np.ndarray]
) -> Iterator[tuple[np.ndarray, Any]]:
    """Read all samples of a buffer that is ordered by environment; see ``GivesSequences.samples``."""
    if isinstance(rollout_buffer, GivesSequences):
        yield from rollout_buffer.samples(batch_size, order)
        return
    places = order(rollout_buffer.buffer_size * rollout_buffer.n_envs)
    for start in range(0, len(places), batch_size):
        some = places[start : start + batch_size]
        yield some, rollout_buffer._get_samples(some)


# ---- arrays ----


def arrays_by_step(rollout_buffer: RolloutBuffer) -> dict[str, Any]:
    """Return a buffer's arrays as collected, (n_steps, n_envs, ...), by name; observations may be a dictionary of arrays."""
    sizes = (rollout_buffer.buffer_size, rollout_buffer.n_envs)
    arrays = {name: value for name, value in vars(rollout_buffer).items() if isinstance(value, np.ndarray)}
    return {"observations": rollout_buffer.observations} | {
        name: array for name, array in arrays.items() if array.shape[:2] == sizes
    }


def order_by_environment(rollout_buffer: RolloutBuffer) -> None:
    """
    Reorder all arrays of a full buffer from (n_steps, n_envs, ...) to (n_envs * n_steps, ...), environment by environment, as
    SB3's ``get`` does with those that it needs. An update begins with this: all that follows knows no other order. SB3 would
    add a dimension to observations of shape (), which they do not have when the policy acts.
    """
    if not rollout_buffer.generator_ready:
        arrays = arrays_by_step(rollout_buffer)
        for name, array in arrays.items():
            setattr(rollout_buffer, name, map_arrays(rollout_buffer.swap_and_flatten, array))
        rollout_buffer.observations = map_arrays(
            lambda ordered, array: ordered.reshape(len(ordered), *array.shape[2:]),
            rollout_buffer.observations,
            arrays["observations"],
        )
        rollout_buffer.generator_ready = True


def by_environment(rollout_buffer: RolloutBuffer, array: np.ndarray) -> np.ndarray:
    """Reshape a buffer's array from (n_envs * n_steps, ...), environment by environment, to (n_envs, n_steps, numbers)."""
    return array.reshape(rollout_buffer.n_envs, rollout_buffer.buffer_size, -1)


def smallest_observations(rollout_buffer: RolloutBuffer, n: int) -> Observations:
    """
    Return n observations with the shapes and types of a buffer's, ``(n, *observation shape)``: zeros, or the smallest values
    of Discrete and MultiDiscrete spaces.
    """
    shapes: Any = rollout_buffer.obs_shape
    parts: Any = getattr(rollout_buffer.observation_space, "spaces", rollout_buffer.observation_space)

    def smallest(array: np.ndarray, shape: tuple[int, ...], space: Any) -> np.ndarray:
        return np.full((n, *shape), getattr(space, "start", 0), array.dtype)

    return map_arrays(smallest, rollout_buffer.observations, shapes, parts)


def n_bytes(observations: Observations | PyTorchObs) -> int:
    """Return the size of an array or a tensor, or of nested dictionaries of such, in bytes."""
    return sum(map(n_bytes, observations.values())) if isinstance(observations, dict) else observations.nbytes


# ---- advantages ----


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


def ordered_gae(
    buffer: RolloutBuffer, values: np.ndarray, last_values: np.ndarray, last_dones: np.ndarray, gamma: float, gae_lambda: float
) -> np.ndarray:
    """
    Compute ``gae``, (n_envs * n_steps, 1), of a buffer that is ordered by environment, with other values: V(s),
    (n_envs * n_steps,), and V after the last step, (n_envs,).
    """
    arrays = (buffer.rewards, values, buffer.episode_starts)
    rewards, values, starts = (by_environment(buffer, array)[:, :, 0].T for array in arrays)
    return gae(rewards, values, starts, last_values, last_dones, gamma, gae_lambda).T.reshape(-1, 1)


# ---- types ----


def store_floats(rollout_buffer: RolloutBuffer, env: VecEnv | None) -> None:
    """
    Make an empty rollout buffer keep floats where SB3's would truncate them to integers: sampled actions in a Box of integers,
    and integer observations that ``VecNormalize`` normalizes.
    """
    spaces_before = rollout_buffer.observation_space, rollout_buffer.action_space
    rollout_buffer.action_space = in_floats(rollout_buffer.action_space)
    for normalizer in normalizers(env):
        if normalizer.norm_obs:
            rollout_buffer.observation_space = in_floats(rollout_buffer.observation_space, normalizer.norm_obs_keys)
    if spaces_before != (rollout_buffer.observation_space, rollout_buffer.action_space):
        rollout_buffer.reset()


def in_floats(space: Any, keys: Sequence[str] | None = None) -> Any:
    """Return a space with float Boxes in place of integer ones; of a Dict space, under these keys, or under all."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: in_floats(part) if key in (keys or space) else part for key, part in space.items()})
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space
