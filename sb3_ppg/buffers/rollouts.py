"""Rollouts, copied from full buffers of SB3; batches of their samples for both phases; GAE; integers stored as floats."""

import math
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple, Self, cast

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.arrays import map_arrays, split_arrays
from sb3_ppg.environments.watched import normalizers
from sb3_ppg.policies import PhasicActorCriticPolicy

SB3_CLASSES = (RolloutBuffer, DictRolloutBuffer, MaskableRolloutBuffer, MaskableDictRolloutBuffer)
# Small minibatches are gathered together, by one indexed copy of up to this size
GATHERED_BYTES = 2**22
Observations = np.ndarray | dict[str, np.ndarray]
Kind = Literal["policy", "value"]  # of epochs; joint ones are the policy's
# Our names for arrays that SB3's buffer calls otherwise. Arrays of vector rewards replace their weighted sums
NAMES = {"values": "old_values", "log_probs": "old_log_prob", "returns": "targets"}
NAMES |= {"vector_rewards": "rewards", "vector_values": "old_values", "vector_returns": "targets"}
# What each minibatch of the policy phase has
POLICY_KEYS = ("observations", "actions", "old_values", "old_log_prob", "advantages", "targets")


class RolloutEnd(NamedTuple):
    """
    The state after the last step of a rollout.

    :param observations: (n_envs, ...), or a dictionary of such arrays
    :param values: V of these observations when the rollout was collected, (n_envs,); for vector rewards (n_envs, K)
    :param dones: whether these observations begin an episode, (n_envs,)
    :param memory: the policy's memory after the step, arrays by name, (n_envs, ...). None: it has none
    """

    observations: Observations
    values: np.ndarray
    dones: np.ndarray
    memory: Mapping[str, np.ndarray] | None = None


# Names that a buffer's own arrays cannot have, in addition to those of the policy's memory after the last step
RESERVED = {"old_values", "old_log_prob", "targets", "number", "last_observations", "last_values", "last_dones"}


@dataclass(eq=False)
class Rollout:
    """
    The arrays of a rollout by name, (n_envs, n_steps, ...), or (n_envs, 1, ...) for what each environment's part has once.

    The names are ``observations`` (may be a dictionary of arrays), ``actions``, ``rewards``, ``episode_starts``,
    ``old_values`` (V(s) at collection), ``old_log_prob``, ``advantages`` and ``targets`` (V_targ). Some rollouts also have
    ``component_weights`` (rewards, values and targets then have K columns), ``action_masks``, ``lstm_states``, ``prior``, a
    buffer's own arrays, what ``Objective.extras`` returns and, once per environment, the state after the last step:
    ``last_observations``, ``last_values``, ``last_dones`` and, with LSTMs, ``last_lstm_states``.

    :param states: names of arrays from which a sequence of samples has only the first step
    :param uses: number of epochs of each kind that have used the rollout
    """

    arrays: dict[str, Any]
    states: tuple[str, ...] = ()
    uses: Counter[Kind] = field(default_factory=Counter)

    @classmethod
    def of(
        cls,
        buffer: RolloutBuffer,
        end: RolloutEnd | None = None,
        steps: slice = slice(None),
        states: tuple[str, ...] = (),
    ) -> Self:
        """
        Copy the arrays of a full buffer. Nothing else depends on their order, (n_steps, n_envs, ...). In a buffer that was
        reset by ``reset_rollout_buffer``, views of the copies replace the original arrays one by one, to save memory.

        :param end: state after the rollout. None: it is not known, and nothing needs it
        :param steps: some of the steps
        :param states: see ``Rollout``
        """
        _undo_get(buffer)
        found, arrays = arrays_by_step(buffer), {}
        for name in [name for name in found if f"vector_{name}" not in found]:
            array = found.pop(name)  # whose memory is free when the next one is copied
            copied = map_arrays(lambda leaf: np.array(leaf[steps].swapaxes(0, 1), order="C"), array)
            arrays[NAMES.get(name, name)] = copied
            if steps == slice(None) and name in getattr(buffer, "replaceable", ()):
                setattr(buffer, name, map_arrays(lambda leaf: leaf.swapaxes(0, 1), copied))
        arrays["actions"] = arrays["actions"].astype(np.float32)  # as SB3's minibatches have them
        if "action_masks" in arrays:
            arrays["action_masks"] = arrays["action_masks"].astype(bool)
        last = {} if end is None else end._asdict()
        last |= last.pop("memory", None) or {}
        arrays |= {f"last_{name}": map_arrays(lambda array: np.array(array)[:, None], tree) for name, tree in last.items()}
        return cls(arrays, states)

    def select(self, names: Iterable[str]) -> "Rollout":
        """Return a rollout with these arrays alone."""
        return replace(self, arrays={name: self.arrays[name] for name in names})

    def kept(self, names: Iterable[str]) -> "Rollout":
        """Return what the auxiliary phase keeps: the arrays with these names; of states, only those before the first step."""
        kept = self.select(names)
        firsts = {name: kept.arrays[name][:, :1].copy() for name in self.states if name in kept.arrays}
        return replace(kept, arrays={**kept.arrays, **firsts})

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of environments and steps."""
        n_envs, n_steps = max((array.shape[:2] for array in leaves_of(self.arrays)), key=lambda sizes: sizes[1])
        return n_envs, n_steps

    @property
    def n_samples(self) -> int:
        """The number of samples."""
        return math.prod(self.shape)

    def parts(self, batch_size: int, order: Callable[[int], np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """
        Divide the rollout into batches of single samples or, with ``states``, of the longest equal parts that fit.

        :param batch_size: largest number of samples in a batch
        :param order: maps the number of sequences, n, to an order of 0, ..., n - 1
        :return: length of a sequence; numbers of the sequences of each batch
        """
        _, n_steps = self.shape
        length = longest_equal_part(n_steps, batch_size) if self.states else 1
        numbers, n_sequences = order(self.n_samples // length), batch_size // length
        return length, [numbers[start : start + n_sequences] for start in range(0, len(numbers), n_sequences)]

    # ---- advantages ----

    def gae(self, values: np.ndarray, last_values: np.ndarray, gamma: Any, gae_lambda: Any) -> np.ndarray:
        """
        Return A, (n_envs, n_steps) or for vector rewards (n_envs, n_steps, K), in the units of the rewards; see ``gae``.

        :param values: V(s), of the shape of the result
        :param last_values: V after the last step, (n_envs,) or (n_envs, K)
        :param gamma: γ, a number or (K,)
        :param gae_lambda: λ, a number or (K,)
        """
        starts, dones = self.arrays["episode_starts"], self.arrays["last_dones"][:, 0]
        if values.ndim == 3:
            starts, dones = starts[:, :, None], dones[:, None]
        rewards, values, starts = (array.swapaxes(0, 1) for array in (self.arrays["rewards"], values, starts))
        return gae(rewards, values, starts, last_values, dones, gamma, gae_lambda).swapaxes(0, 1)

    @th.no_grad()
    def recompute(self, policy: PhasicActorCriticPolicy, gamma: Any, gae_lambda: Any, batch_size: int) -> None:
        """
        Recompute advantages and value targets with the current value function. The values that were predicted when the
        rollout was collected stay, and so do the rewards, including the bootstrapped values at time limits.

        :param batch_size: largest number of samples in one forward pass
        """
        was_training = policy.training
        policy.set_training_mode(False)
        length, parts = self.parts(batch_size, np.arange)
        inputs = self.select(["observations", *policy.input_keys])
        inputs_of_parts = batches([inputs], parts, length, policy.device)
        latents = (policy.evaluate_batch(part, reads=("latent_vf",)).latent_vf for part in inputs_of_parts)
        values = th.cat([policy.value_net(latent) for latent in latents])
        keys = [key for key in ("observations", "dones", *policy.input_keys) if f"last_{key}" in self.arrays]
        last = {key: map_arrays(lambda array: array[:, 0], self.arrays[f"last_{key}"]) for key in keys}
        observations = obs_as_tensor(last["observations"], policy.device)
        last_values = policy.next_values(policy.step_batch(observations, last["dones"], last))
        policy.set_training_mode(was_training)
        n_envs, _, *components = shape = self.arrays["old_values"].shape
        new = (values.cpu().numpy().reshape(shape), last_values.cpu().numpy().reshape(n_envs, *components))
        advantages = self.gae(*new, gamma, gae_lambda)
        self.arrays |= {"advantages": self.combined(advantages), "targets": advantages + new[0]}

    def combined(self, components: np.ndarray) -> np.ndarray:
        """Return the weighted sums over the components of vector rewards, (n_envs, n_steps); scalars as they are."""
        weights = self.arrays.get("component_weights")
        return components if weights is None else (weights * components).sum(axis=-1)


# ---- batches ----


def batches(rollouts: Sequence[Rollout], parts: Sequence[np.ndarray], length: int, device: Any) -> Iterator[Any]:
    """
    Draw batches for either phase, for recording and recomputing, and for the log.

    :param rollouts: rollouts of the same size, with arrays, or tensors, of the same names
    :param parts: numbers of the sequences of each batch. They count rollout by rollout, environment by environment, by time
    :param length: number of consecutive samples in a sequence
    :return: named tuples of tensors with a field for each array, observations first: (B, ...), sequence after sequence, or
        (number of sequences, ...) for what a sequence has once
    """
    names = ["observations", *(name for name in rollouts[0].arrays if name != "observations")]
    pieces = [_pieces(rollout, names, length) for rollout in rollouts]
    n_sequences, n_at_once = rollouts[0].n_samples // length, 1
    if length == 1:
        sample_bytes = n_bytes(rollouts[0].arrays) / n_sequences
        n_at_once = max(1, int(GATHERED_BYTES / max(1, sample_bytes * len(parts[0]))))
    for start in range(0, len(parts), n_at_once):
        parts_here = parts[start : start + n_at_once]
        owners, ids = np.divmod(np.concatenate(parts_here), n_sequences)
        places = [np.flatnonzero(owners == k) for k in range(len(rollouts))]
        drawn = [(k, here, ids[here]) for k, here in enumerate(places) if len(here) > 0]

        def gather(*arrays: Any, n: int = len(ids), drawn: Any = drawn) -> th.Tensor:
            rows = ((here, _rows(arrays[k], numbers, n_sequences)) for k, here, numbers in drawn)
            if len(drawn) == 1:
                ((_, gathered),) = rows
            else:
                like = next((array for array in arrays if "float" in str(array.dtype)), arrays[0])  # see `store_floats`
                size, is_tensor = (n, *like.shape[1:]), isinstance(like, th.Tensor)
                gathered = like.new_empty(size) if is_tensor else np.empty(size, like.dtype)
                for here, rows_here in rows:
                    gathered[here] = rows_here
            _, own, *shape = gathered.shape
            return th.as_tensor(gathered.reshape(n * own, *shape), device=device)

        batch = batch_type(tuple(names))(*map_arrays(gather, *pieces))
        yield from [batch] if len(parts_here) == 1 else split_arrays(batch, [len(part) * length for part in parts_here])


def _rows(array: Any, numbers: np.ndarray, n_sequences: int) -> Any:
    """Return the rows of sequences in a divided array; single samples of an environment share what it has once."""
    if len(array) != n_sequences:
        numbers = numbers * len(array) // n_sequences
    return array[numbers] if isinstance(array, th.Tensor) else array.take(numbers, axis=0)  # much faster than an index


def _pieces(rollout: Rollout, names: Sequence[str], length: int) -> tuple[Any, ...]:
    """Divide arrays into the parts of sequences, (number of sequences, or of environments, length or 1, ...)."""
    _, n_steps = rollout.shape

    def divided(array: Any, is_state: bool) -> Any:
        if is_state and array.shape[1] == n_steps:
            array = array[:, ::length]
        n_envs, n_rows, *shape = array.shape
        own = length if n_rows == n_steps and not is_state else 1
        return array.reshape(n_envs * n_rows // own, own, *shape)

    arrays = ((name in rollout.states, rollout.arrays[name]) for name in names)
    return tuple(map_arrays(lambda array, once=once: divided(array, once), array) for once, array in arrays)


@cache
def batch_type(names: tuple[str, ...]) -> Any:
    """Return the type of the batches with these fields, the same one for the same names."""
    cls = cast(Any, namedtuple)("Batch", names)
    cls.__getattr__ = _absent
    return cls


def _absent(batch: Any, name: str) -> None:
    remedy = "an objective names what it needs beside them in `policy_keys` or `aux_keys`"
    raise AttributeError(f"this batch has {', '.join(batch._fields)}, but no {name}: {remedy}")


def longest_equal_part(whole: int, limit: int) -> int:
    """
    Return the largest divisor of ``whole`` that is at most ``limit``: the length of the longest equal parts of a rollout that
    fit into a minibatch.
    """
    return next(part for part in range(min(whole, limit), 0, -1) if whole % part == 0)


# ---- buffers ----


def is_recomputable(rollout_buffer: RolloutBuffer) -> bool:
    """
    Return whether a buffer's advantages are GAE of its ``rewards``, so that its rollouts can be used again with newer values.
    A class that overrides ``compute_returns_and_advantage`` declares this by the class attribute ``recomputable = True``.
    """
    return getattr(type(rollout_buffer), "recomputable", _is_sb3s(rollout_buffer, "compute_returns_and_advantage"))


def has_own_samples(rollout_buffer: RolloutBuffer) -> bool:
    """Return whether a class has its own way to draw minibatches."""
    return not all(_is_sb3s(rollout_buffer, method) for method in ("get", "_get_samples", "to_torch"))


def _is_sb3s(rollout_buffer: RolloutBuffer, method: str) -> bool:
    return any(getattr(type(rollout_buffer), method) is getattr(cls, method) for cls in SB3_CLASSES)


def reset_rollout_buffer(rollout_buffer: RolloutBuffer) -> None:
    """
    Reset a rollout buffer, and note in its ``replaceable`` which arrays the reset has created. Until the next reset, which
    will create them again instead of writing to the old ones, ``Rollout.of`` may replace them.
    """
    if vars(rollout_buffer).pop("has_prior", False):
        del vars(rollout_buffer)["prior"]  # of the rollout before
    before = {**vars(rollout_buffer)}
    rollout_buffer.reset()
    assigned = {name: value for name, value in vars(rollout_buffer).items() if value is not before.get(name)}
    names = {name for name, value in assigned.items() if all(isinstance(leaf, np.ndarray) for leaf in leaves_of(value))}
    rollout_buffer.replaceable = names  # type: ignore[attr-defined]


def add_step(
    rollout_buffer: RolloutBuffer,
    observations: Observations,
    actions: np.ndarray,
    rewards: np.ndarray,
    episode_starts: np.ndarray,
    values: th.Tensor,
    log_probs: th.Tensor,
    also: Mapping[str, Any],
) -> None:
    """
    Add a step to a buffer, like SB3's own ``add``, but copy arrays once instead of twice (SB3 passes them through torch).

    :param also: further arguments of a class's own ``add``
    """
    buffer: Any = rollout_buffer
    if also or getattr(buffer.add, "__func__", None) is not RolloutBuffer.add:
        buffer.add(observations, actions, rewards, episode_starts, values, log_probs, **also)
        return
    step, array = buffer.pos, cast(np.ndarray, observations)
    is_number = isinstance(buffer.observation_space, spaces.Discrete)
    buffer.observations[step] = array.reshape(buffer.observations.shape[1:]) if is_number else array
    buffer.actions[step], buffer.rewards[step], buffer.episode_starts[step] = actions, rewards, episode_starts
    buffer.values[step], buffer.log_probs[step] = values.cpu().numpy().flatten(), log_probs.cpu().numpy()
    buffer.pos += 1
    buffer.full = buffer.pos == buffer.buffer_size


def compute_advantages(rollout_buffer: RolloutBuffer, last_values: th.Tensor, dones: np.ndarray) -> None:
    """Compute advantages and targets of a full buffer; does the same as SB3's own method, which takes longer."""
    buffer: Any = rollout_buffer
    method = buffer.compute_returns_and_advantage
    if getattr(method, "__func__", None) is not RolloutBuffer.compute_returns_and_advantage:
        buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)
        return
    arrays = (buffer.rewards, buffer.values, buffer.episode_starts, last_values.cpu().numpy().flatten(), dones)
    buffer.advantages = gae(*arrays, buffer.gamma, buffer.gae_lambda)
    buffer.returns = buffer.advantages + buffer.values


def _undo_get(rollout_buffer: RolloutBuffer) -> None:
    """Bring arrays that SB3's ``get`` has flattened, environment by environment, back into the order of steps."""
    if not rollout_buffer.generator_ready:
        return
    sizes = (rollout_buffer.n_envs, rollout_buffer.buffer_size)
    numbers = ("values", "log_probs", "advantages", "returns")  # one for each step
    for name in ("observations", "actions", "action_masks", *numbers):
        if name in vars(rollout_buffer):
            n_own = 0 if name in numbers else None  # dimensions
            array = vars(rollout_buffer)[name]
            back = map_arrays(lambda leaf, n=n_own: leaf.reshape(*sizes, *leaf.shape[1:][:n]).swapaxes(0, 1), array)
            setattr(rollout_buffer, name, back)
    rollout_buffer.generator_ready = False


def arrays_by_step(rollout_buffer: RolloutBuffer) -> dict[str, Any]:
    """
    Return a buffer's arrays as collected, (n_steps, n_envs, ...), by name; observations may be a dictionary of arrays. Tensors
    become arrays.
    """
    sizes = (rollout_buffer.buffer_size, rollout_buffer.n_envs)
    found = {"observations": rollout_buffer.observations} | {
        name: value
        for name, value in vars(rollout_buffer).items()
        if isinstance(value, np.ndarray | th.Tensor) and value.shape[:2] == sizes
    }
    return map_arrays(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, th.Tensor) else leaf, found)


def smallest_observations(rollout_buffer: RolloutBuffer, n: int) -> Observations:
    """
    Return n observations with the shapes and types of a buffer's, ``(n, *observation shape)``: zeros, or the smallest values
    of Discrete and MultiDiscrete spaces.
    """
    parts: Any = getattr(rollout_buffer.observation_space, "spaces", rollout_buffer.observation_space)
    shapes: Any = rollout_buffer.obs_shape
    return map_arrays(lambda space, shape: np.full((n, *shape), getattr(space, "start", 0), space.dtype), parts, shapes)


def leaves_of(arrays: Any) -> Iterator[Any]:
    """Iterate over the arrays or tensors in nested dictionaries."""
    if isinstance(arrays, dict):
        for array in arrays.values():
            yield from leaves_of(array)
    else:
        yield arrays


def n_bytes(observations: Observations | PyTorchObs) -> int:
    """Return the size of an array or a tensor, or of nested dictionaries of such, in bytes."""
    return sum(array.nbytes for array in leaves_of(observations))


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
    next_values = np.concatenate([values[1:], last_values[None]])
    continues = 1 - np.concatenate([episode_starts[1:], last_dones[None]]).astype(dtype)
    deltas, decays, following = rewards + gamma * next_values * continues - values, decay * continues, 0
    for step in reversed(range(len(rewards))):
        following = advantages[step] = deltas[step] + decays[step] * following
    return advantages


# ---- types ----


def store_floats(rollout_buffer: RolloutBuffer, env: VecEnv | None) -> None:
    """
    Make a rollout buffer keep floats where SB3's would truncate them to integers: sampled actions in a Box of integers, and
    integer observations that ``VecNormalize`` normalizes. If this changes its arrays, the buffer is reset.
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
        chosen = space if keys is None else keys
        return spaces.Dict({key: in_floats(part) if key in chosen else part for key, part in space.items()})
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space
