"""Checks of arguments that concern buffers: classes, sizes, and available memory."""

from contextlib import suppress

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer

from sb3_ppg.arguments import argument_value, made_from, require
from sb3_ppg.buffers.protocol import has_usual_samples, is_recomputable
from sb3_ppg.buffers.replay import RolloutReplay, full_like
from sb3_ppg.buffers.reward_normalizer import RewardNormalizer
from sb3_ppg.buffers.rollouts import n_bytes
from sb3_ppg.buffers.system_memory import available_memory
from sb3_ppg.distributed.collectives import n_local_processes
from sb3_ppg.environments.watched import normalizers
from sb3_ppg.errors import ArgumentError, warn
from sb3_ppg.protocols import PhasicModel
from sb3_ppg.saving.generators import generators_kept


def check_rollout_buffer_class(model: PhasicModel) -> None:
    """
    :param model: with its environment
    :raises ArgumentError: if the class cannot hold rollouts of this algorithm and these observations
    """
    cls = model.rollout_buffer_class
    for_dict = isinstance(model.observation_space, spaces.Dict)
    base = model.rollout_buffer_classes[for_dict]
    is_class = isinstance(cls, type) and issubclass(cls, base) and issubclass(cls, DictRolloutBuffer) == for_dict
    wanted = f"{base.__module__}.{base.__name__}" + ("" if for_dict else " that is not a DictRolloutBuffer")
    remedy = f"use a subclass of {wanted} for these observations, or None"
    require(model, cls is None or is_class, "rollout_buffer_class", remedy)


def check_vector_rewards(model: PhasicModel) -> None:
    """
    :param model: with its arguments
    :raises ArgumentError: if arguments for vector rewards do not fit each other or the environments
    """
    weights, space = model.reward_weights, model.observation_space
    entry = space.spaces.get("weights") if isinstance(space, spaces.Dict) else None
    has_weights = isinstance(entry, spaces.Box) and len(entry.shape) == 1
    remedy = f"the observations have no weights: wrap each environment in sb3_ppg.DrawnWeights, which adds them to {space}"
    require(model, weights != "observation" or has_weights, "reward_weights", remedy)
    for name in ("gamma", "gae_lambda"):
        value, n_components = getattr(model, name), model.n_reward_components
        remedy = f"use one number, or one for each component of the rewards, of which there are {n_components or 1}"
        require(model, not isinstance(value, (list, tuple)) or len(value) == n_components, name, remedy)
    normalizer = (model.rollout_buffer_kwargs or {}).get("reward_normalizer")
    shapes = ((), (model.n_reward_components,)) if weights is not None else ((),)
    is_same = not isinstance(normalizer, RewardNormalizer) or np.shape(normalizer.return_rms.var) in shapes
    remedy = "its `reward_normalizer` has the statistics of another number of components; use a new one"
    require(model, is_same, "rollout_buffer_kwargs", remedy)
    if weights is None:
        return
    buffer = getattr(model, "rollout_buffer", None)
    remedy = "this model was made with others: give these to the constructor, or to `load`"
    require(model, buffer is None or buffer.reward_weights == weights, "reward_weights", remedy)
    for normalizer in normalizers(model.env):
        remedy = (
            "VecNormalize would normalize the combined reward only: use VecNormalize(..., norm_reward=False), and "
            "`rollout_buffer_class`=NormalizedRewardRolloutBuffer, which normalizes each component"
        )
        require(model, not normalizer.norm_reward, "reward_weights", remedy)
        remedy = "VecNormalize would normalize the weights: leave them out of its `norm_obs_keys`"
        is_normalized = normalizer.norm_obs and "weights" in (normalizer.norm_obs_keys or [])
        require(model, weights != "observation" or not is_normalized, "reward_weights", remedy)


def check_samples(model: PhasicModel) -> None:
    """
    :param model: with its rollout buffer
    :raises ArgumentError: if a custom rollout buffer does not keep arrays of numbers, or its samples are not named tuples that
        begin with observations
    """
    buffer = model.rollout_buffer
    arrays = buffer.observations.values() if isinstance(buffer.observations, dict) else [buffer.observations]
    is_numeric = all(isinstance(one, np.ndarray) and one.dtype != object for one in arrays)
    remedy = "the auxiliary phase keeps its `observations`, which have to be NumPy arrays of numbers; use another class"
    require(model, is_numeric, "rollout_buffer_class", remedy)
    if not has_usual_samples(buffer):
        fields: tuple[str, ...] = ("observations",)
        with generators_kept(), suppress(Exception):  # the class may not accept a rollout of zeros
            fields = getattr(next(iter(full_like(buffer).get(model.batch_size))), "_fields", ("",))
        remedy = "`get` has to yield named tuples that begin with `observations`, as SB3's does; use a class that does"
        require(model, fields[0] == "observations", "rollout_buffer_class", remedy)


def check_replay(model: PhasicModel) -> None:
    """
    :param model: complete
    :raises ArgumentError: if epochs cannot use the rollouts of ``replay_kwargs``, or cannot recompute their advantages
    """
    replay, buffer = model.replay, model.rollout_buffer
    remedy = (
        f"{type(buffer).__name__} has its own way to compute advantages, or to draw minibatches, and does not set "
        "`recomputable = True`, see docs/extending.md; use "
    )
    is_possible = is_recomputable(buffer)
    require(model, not model.recompute_advantages or is_possible, "recompute_advantages", f"{remedy}False")
    require(model, replay.capacity == 1 or is_possible, "replay_kwargs", f"{remedy}None")
    require(model, model.reward_weights is None or is_possible, "reward_weights", f"{remedy}None")
    asked = made_from("replay_kwargs", model.replay_kwargs, RolloutReplay)
    is_same = all(vars(asked)[name] == vars(replay)[name] for name in ("n_rollouts", "max_uses", "staleness"))
    remedy = "this model was made with others: give these to the constructor, or to `load`"
    require(model, is_same, "replay_kwargs", remedy)
    given = {name for name, value in (model.replay_kwargs or {}).items() if value is not None}
    has_value_epochs = model.n_value_epochs is not None or not given & {"value_rollouts", "value_uses"}
    remedy = "without `n_value_epochs` there are no epochs on values alone; leave out `value_rollouts` and `value_uses`"
    require(model, has_value_epochs, "replay_kwargs", remedy)
    n_rollouts = max(replay.n_rollouts.values())
    remedy = f"a minibatch has as many samples of each of the last {n_rollouts} rollouts; use at least {n_rollouts}"
    require(model, model.batch_size >= n_rollouts, "batch_size", remedy)


def warn_of_missing_rollouts(model: PhasicModel) -> None:
    """Warn if a model was loaded without the rollouts that it had."""
    stored, replayed, kept = model._n_stored_rollouts, model._n_replayed_rollouts, model.aux_buffer.capacity
    if model.n_aux_epochs > 0 and stored > len(model.aux_buffer):
        whole = f"{model.n_policy_iterations} rollouts of a phase" if kept is None else f"{kept} rollouts that are kept"
        message = f"This model was saved after {stored} of the {whole}, without those rollouts: the phase starts over"
        warn(message)
    if replayed > model.replay.n_stored:
        message = f"This model was saved without the {replayed} rollouts that its policy phase would have learned from again"
        warn(f"{message}: it continues with new rollouts")


def warn_of_stale_data(model: PhasicModel) -> None:
    """Warn if the policy learns from rollouts of older policies and the objective does not correct for it."""
    is_old = model.replay.n_rollouts["policy"] > 1 or model.replay.staleness > 0
    if is_old and not model.objective.corrects_for_staleness:
        warn(
            f"`replay_kwargs`={model.replay_kwargs!r} lets the policy learn from data of older policies, for which "
            f"`objective`={argument_value(model, 'objective')!r} does not correct: its clip range would hold the policy near "
            "the older ones. Use `objective`='decoupled' or 'ewma'"
        )


def check_room(model: PhasicModel, n_rollouts: int) -> None:
    """
    :param model: before a rollout
    :param n_rollouts: number of further rollouts that the auxiliary buffer has to hold
    :raises ArgumentError: if the memory, or the disk, cannot hold their observations
    """
    if model.n_aux_epochs == 0:
        return
    needed = n_rollouts * (n_bytes(model.rollout_buffer.observations) + n_bytes(model.aux_data())) * n_local_processes()
    available = model.aux_buffer.available_bytes()
    place, remedy = "memory", "keep them on a disk, aux_buffer_kwargs=dict(storage='mmap', path=folder)"
    if model.aux_buffer.storage == "mmap":
        place, remedy = f"the disk of {model.aux_buffer.path}", "use another disk, aux_buffer_kwargs=dict(path=...)"
    if needed > available:
        raise ArgumentError(
            f"The observations of a phase take {needed:,} more bytes, but only {available:,} are available in {place}: reduce "
            f"`n_policy_iterations`={model.n_policy_iterations}, `n_steps`={model.n_steps} or the number of environments "
            f"({model.n_envs}), or {remedy}"
        )


def check_room_for_replay(model: PhasicModel) -> None:
    """
    :param model: before a rollout
    :raises ArgumentError: if the memory cannot hold the observations of the replayed rollouts
    """
    capacity, available = model.replay.capacity, available_memory()
    needed = (capacity - len(model.replay.rollouts)) * n_bytes(model.rollout_buffer.observations) * n_local_processes()
    remedy = (
        f"the observations of {capacity} rollouts take {needed:,} more bytes, but only {available:,} are available in memory"
    )
    require(model, capacity == 1 or needed <= available, "replay_kwargs", f"{remedy}; use fewer, or smaller ones")


def has_single_samples(model: PhasicModel, aux_batch_size: int) -> bool:
    """
    :param model: model with its objective
    :param aux_batch_size: minibatch size of its auxiliary phase, in samples
    :return: whether its auxiliary minibatches consist of single samples instead of whole sequences
    """
    if model.has_memory or model.objective.needs_whole_sequences:
        return False
    return not model.objective.shuffles_sequences or aux_batch_size < model.n_steps


def check_auxiliary_batches(model: PhasicModel, n_envs: int) -> None:
    """
    :param model: model with its buffers
    :param n_envs: number of environments in training
    :raises ArgumentError: if the auxiliary phase cannot have minibatches of ``aux_batch_size``
    """
    if model.n_aux_epochs == 0 or model.aux_batch_size is None:
        return
    stored = model.n_steps * n_envs * max(model.n_policy_iterations, model.aux_buffer.capacity or 0)
    less = ", or less, for minibatches of single samples" if has_single_samples(model, 1) else ""
    is_possible = has_single_samples(model, model.aux_batch_size) or model.aux_batch_size % model.n_steps == 0
    remedy = f"auxiliary minibatches consist of whole sequences of `n_steps`={model.n_steps} samples; use a multiple of it"
    require(model, is_possible, "aux_batch_size", f"{remedy}{less}")
    remedy = f"a phase stores only n_steps * n_envs * n_policy_iterations = {stored} samples; use at most that, or None"
    require(model, model.aux_batch_size <= stored, "aux_batch_size", remedy)
