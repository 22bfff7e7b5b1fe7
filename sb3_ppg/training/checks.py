"""Checks of arguments that must fit together, and fit environments, networks, buffers and objectives."""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_ppg.actions import by_leaf
from sb3_ppg.arguments import FINITE, arguments_of, check_each_argument, check_value, number, require
from sb3_ppg.arrays import parameters_of
from sb3_ppg.buffers.rollout_buffers import NormalizedRewardRolloutBuffer, RewardNormalizer
from sb3_ppg.buffers.rollouts import RESERVED, SB3_CLASSES, Rollout, has_own_samples, is_recomputable, leaves_of
from sb3_ppg.distributed import n_processes
from sb3_ppg.environments.watched import normalizers, only_normalizer
from sb3_ppg.errors import ArgumentError, advise, warn
from sb3_ppg.objectives import Objective, objective_name
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.policies import VectorValueHead
from sb3_ppg.policies.extractors import looks_at_the_batch
from sb3_ppg.policies.heads import lacks_for_units


def check_environment(env: Any) -> None:
    """
    Refuse a value that is no environment, a ``VecNormalize`` with another environment's action space, actions without bounds
    or in a matrix, and observations that rollouts and networks cannot take.

    :raises NotImplementedError: for such observations, as in SB3
    """
    if isinstance(env, (list, tuple)) or (callable(env) and not isinstance(env, gym.Env)):
        remedy = "give an environment, not what makes it: `env=Env()`, or `env=make_vec_env(Env, n_envs=8)` for several"
        raise ArgumentError(f"`env`={env!r} cannot work: {remedy}")
    for wrapper in normalizers(env):
        if wrapper.venv is not None and wrapper.action_space != wrapper.venv.action_space:
            there = f"{wrapper.action_space}, not {wrapper.venv.action_space}"
            kept = f"VecNormalize.load has kept the actions of its file, {there}"
            raise ArgumentError(f"`env` cannot work: {kept}: set its `action_space` to that of its `venv`, before you wrap it")
    actions = getattr(env, "single_action_space", getattr(env, "action_space", None))
    if isinstance(actions, spaces.Box) and not actions.is_bounded():
        remedy = "PPG clips actions itself, so leave out gymnasium.wrappers.ClipAction, or give the space bounds"
        raise ArgumentError(f"{actions} actions are not supported, because they have no finite bounds: {remedy}")
    if isinstance(actions, (spaces.MultiDiscrete, spaces.MultiBinary)) and len(actions.shape) > 1:
        remedy = "flatten the space, and reshape actions with gymnasium.wrappers.TransformAction"
        raise ArgumentError(f"{actions} actions are not supported, because they have {len(actions.shape)} axes: {remedy}")
    space: Any = getattr(env, "single_observation_space", getattr(env, "observation_space", None))
    parts = space.values() if isinstance(space, spaces.Dict) else [space]
    is_composed = any(isinstance(part, spaces.Space) and part.shape is None for part in parts)  # of other spaces or lengths
    is_matrix = any(isinstance(part, spaces.MultiDiscrete) and len(part.shape) > 1 for part in parts)
    if is_composed or is_matrix or (isinstance(space, spaces.Box) and space.shape in ((), (0,))):
        remedy = "use gymnasium.wrappers.FlattenObservation, or an ObservationWrapper that gives a Box or a Dict of Boxes"
        what = "nested, empty, of varying size, a number without axis, or a MultiDiscrete of several axes"
        raise NotImplementedError(f"{space} observations are not supported ({what}): {remedy}")


def check_arguments(model: PhasicInterface) -> None:
    """
    Refuse arguments that cannot work, alone or together; the model has its environment. Called before the policy and the
    buffers are made, when they are, and before each run.
    """
    check_each_argument(model)
    remedy = "nothing would hold the policy near the one that collected the data; set `kl_coef` above 0, or a clip range"
    require(model, model.clip_range is not None or model.kl_coef > 0, "clip_range", remedy)
    remedy = "the advantage of a single sample is normalized to zero; use more steps, or normalize_advantage=False"
    require(model, model.n_steps * model.n_envs > 1 or not model.normalize_advantage, "n_steps", remedy)
    for coefficient in by_leaf(model.action_space, "ent_coef", model.ent_coef):
        check_value("ent_coef", coefficient, FINITE)
    for coefficient in [] if callable(model.prior_coef) else by_leaf(model.action_space, "prior_coef", model.prior_coef):
        check_value("prior_coef", coefficient, number(0))
    remedy = "both losses share one optimizer; set `n_value_epochs`, which gives the value function its own, or use None"
    require(model, model.value_learning_rate is None or model.n_value_epochs is not None, "value_learning_rate", remedy)
    cls, classes = model.rollout_buffer_class, model.rollout_buffer_classes
    base = classes[isinstance(model.observation_space, spaces.Dict)]
    is_class = cls is None or (isinstance(cls, type) and issubclass(cls, base))
    remedy = f"use a subclass of {base.__module__}.{base.__name__} for these observations, or None"
    if cls is NormalizedRewardRolloutBuffer:
        remedy += "; for Dict observations there is NormalizedRewardDictRolloutBuffer, for LSTMs and masks see its docstring"
    require(model, is_class, "rollout_buffer_class", remedy)
    check_vector_rewards(model)
    if hasattr(model, "aux_buffer"):  # the model is complete
        check_networks(model)
        check_prior(model)
        check_objective(model)
        advise_on_short_phases(model)


def _trained_by(optimizer: Any) -> set[int]:
    return {id(parameter) for parameter in parameters_of(optimizer) if parameter.requires_grad}


def check_networks(model: PhasicInterface) -> None:
    """Refuse arguments that the networks cannot work with."""
    splits = isinstance(model.micro_batch_size, int)
    remedy = "batch normalization of micro-batches differs from that of their minibatch; use None"
    require(model, not splits or not looks_at_the_batch(model.policy), "micro_batch_size", remedy)
    policy = model.policy
    layers: list[Any] = [policy.pi_features_extractor] if policy.share_features_extractor else []
    layers += [getattr(policy, "lstm_actor", policy.mlp_extractor)] if policy.architecture == "shared" else []
    is_trained = any(parameter.requires_grad for layer in layers for parameter in layer.parameters())
    is_shared = policy.architecture != "detached" and is_trained
    separate = "policy_kwargs=dict(architecture='dual', share_features_extractor=False)"
    remedy = f"the value function shares layers with the policy, which would change; use {separate}, or 0"
    require(model, model.n_value_warmup == 0 or not is_shared, "n_value_warmup", remedy)
    uses_values = model.n_value_epochs is not None or model.n_value_warmup > 0
    for name, is_used in (("value_optimizer", uses_values), ("aux_optimizer", model.n_aux_epochs > 0)):
        if is_used and _trained_by(getattr(model, name)) != _trained_by(policy.optimizer):
            raise ArgumentError(
                f"`{name}` trains other parameters than `policy.optimizer`: if you replaced one of them, replace the other, "
                "too, by `policy.make_optimizer(learning_rate, parameters)`"
            )
    heads = {name: getattr(policy, name) for name in ("value_net", "aux_value_net")}
    has_vectors = all(isinstance(head, VectorValueHead) for head in heads.values())
    remedy = f"both value heads must be sb3_ppg.policies.VectorValueHead; use these, or None ({heads})"
    require(model, model.reward_weights is None or has_vectors, "reward_weights", remedy)
    for name, head in heads.items() if model.normalize_value_targets and model.n_aux_epochs > 0 else ():
        lacking = lacks_for_units(head)
        remedy = f"`{name}` has no {', '.join(lacking)}, see sb3_ppg.policies.ValueHead; use such a head, or False"
        require(model, not lacking, "normalize_value_targets", remedy)


def check_prior(model: PhasicInterface) -> None:
    """Refuse a prior that would see other observations than the policy does."""
    normalizer = None if model.prior is None or model.env is None else only_normalizer(model.env)
    is_outermost = normalizer is None or not normalizer.norm_obs or normalizer.observation_space == model.observation_space
    remedy = "a wrapper around VecNormalize changes the observations, which a prior sees as they were before: put it inside"
    require(model, is_outermost, "prior", remedy)


def check_objective(model: PhasicInterface) -> None:
    """Refuse arguments that the objective cannot work with."""
    cls = type(model.objective)
    named = f"`objective`={objective_name(cls)!r}"
    remedy = (
        "its own `get`, `_get_samples` or `to_torch` would never be called, because PPG draws the minibatches of both phases "
        "itself; use None, and, to save memory, aux_buffer_kwargs=dict(storage='mmap')"
    )
    require(model, not has_own_samples(model.rollout_buffer), "rollout_buffer_class", remedy)
    taken = (RESERVED | {f"last_{name}" for name in model.memory}) & vars(model.rollout_buffer).keys()
    remedy = f"its {', '.join(sorted(taken))} would replace an array that training needs; rename it"
    require(model, not taken, "rollout_buffer_class", remedy)
    missing = model.memory.keys() - vars(model.rollout_buffer).keys()
    remedy = f"it does not store the policy's {', '.join(sorted(missing))}; see docs/extending.md for one that does"
    require(model, not missing, "rollout_buffer_class", remedy)
    is_whole = not model.objective.needs_whole_minibatches or not isinstance(model.micro_batch_size, int)
    require(model, is_whole, "micro_batch_size", f"{named} compares the samples of a whole minibatch; use None")
    if cls.value_targets is not Objective.value_targets:
        remedy = f"{named} has its own value targets, which are scalar and not recomputed; use "
        require(model, model.reward_weights is None, "reward_weights", f"{remedy}another objective, or None")
        require(model, not model.recompute_advantages, "recompute_advantages", f"{remedy}False")
        require(model, model.replay.capacity == 1, "replay_kwargs", f"{remedy}None")
        remedy = f"it computes advantages in its own way, and {named} the value targets; use None"
        require(model, is_recomputable(model.rollout_buffer), "rollout_buffer_class", remedy)
    check_replay(model)
    model.objective.check(model.policy, arguments_of(model))


def check_rollout(model: PhasicInterface, rollout: Rollout) -> None:
    """Refuse a rollout, from a user's ``collect_rollouts``, that has another length than ``n_steps`` or lacks needed data."""
    if (model.n_aux_epochs > 0 or model.replay.capacity > 1) and rollout.shape != (model.n_envs, model.n_steps):
        raise ArgumentError(
            f"`{type(model).__name__}.collect_rollouts` has collected {rollout.shape[1]} steps, and rollouts that are kept "
            f"have `n_steps`={model.n_steps}: collect so many, or use `n_aux_epochs`=0 without `replay_kwargs`"
        )
    remedy = f"`{type(model).__name__}.collect_rollouts` does not call PPG's, which prepares this; call it, or use "
    told = (
        f"it was set in the middle of a rollout, or at its end: in a callback, set it in `_on_rollout_start`; or {remedy}None"
    )
    require(model, model.prior is None or "prior" in rollout.arrays, "prior", told)
    is_ours = "replaceable" in vars(model.rollout_buffer)  # set where a rollout of PPG's begins
    if not is_ours and n_processes() > 1:
        raise ArgumentError(f"several processes cannot work: {remedy}one process")
    require(model, is_ours or not model.ignore_terminations, "ignore_terminations", f"{remedy}False")
    is_needed = model.objective.needs_rollout_end or model.replay.capacity > 1 or model.recompute_advantages
    if is_needed and "last_dones" not in rollout.arrays:
        raise ArgumentError(
            f"`objective`={objective_name(type(model.objective))!r}, `replay_kwargs` or `recompute_advantages` as they are "
            f"need the end of the rollout, which `{type(model).__name__}.collect_rollouts` has not stored: set "
            "`self.rollout_end` to a sb3_ppg.objectives.RolloutEnd there"
        )


def check_extras(model: PhasicInterface, rollout: Rollout, extras: Mapping[str, Any]) -> None:
    """
    Refuse extras that differ from the rollout in size, or have names of its own arrays. Refuse an objective with keys that
    name neither extras nor the rollout's arrays.
    """
    name, own = f"`objective`={objective_name(type(model.objective))!r}", rollout.arrays.keys()
    if taken := own & {*extras}:
        raise ArgumentError(f"{name} has extras under names of the rollout's own arrays: rename {', '.join(sorted(taken))}")
    n_envs, n_steps = rollout.shape
    shapes = [(key, np.shape(array)) for key, arrays in extras.items() for array in leaves_of(arrays)]
    if others := [f"{key} {shape}" for key, shape in shapes if shape[:2] not in ((n_envs, n_steps), (n_envs, 1))]:
        remedy = f"return ({n_envs}, {n_steps}, ...), or ({n_envs}, 1, ...) for what an environment's part has once"
        raise ArgumentError(f"{name} has extras of other shapes: {', '.join(others)}; {remedy}")
    missing = {*model.minibatch_keys, *(model.stored_keys if model.n_aux_epochs > 0 else ())} - own - {*extras}
    if missing:
        raise ArgumentError(
            f"{name} has {', '.join(sorted(missing))} in `policy_keys` or `aux_keys`, and a rollout has only "
            f"{', '.join(sorted({*own, *extras}))}"
        )


def check_vector_rewards(model: PhasicInterface) -> None:
    """Refuse arguments for vector rewards that do not fit each other or the environments."""
    weights, space = model.reward_weights, model.observation_space
    entry = space.spaces.get("weights") if isinstance(space, spaces.Dict) else None
    has_weights = isinstance(entry, spaces.Box) and len(entry.shape) == 1
    remedy = f"the observations have no weights: wrap each environment in sb3_ppg.DrawnWeights, which adds them to {space}"
    require(model, weights != "observation" or has_weights, "reward_weights", remedy)
    for name in ("gamma", "gae_lambda"):
        value, n_components = getattr(model, name), model.n_reward_components
        remedy = f"use one number, or a list of {n_components}, one for each component of the rewards"
        if n_components is None:
            remedy = "a list is for vector rewards: set `reward_weights`, or use one number"
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
    require(model, buffer is None or getattr(buffer, "reward_weights", None) == weights, "reward_weights", remedy)
    for normalizer in normalizers(model.env):
        kind = "NormalizedRewardDictRolloutBuffer" if isinstance(space, spaces.Dict) else "NormalizedRewardRolloutBuffer"
        remedy = (
            "VecNormalize would normalize the combined reward only: use VecNormalize(..., norm_reward=False) (in RL Zoo "
            f"normalize:False) and, to normalize each component, `rollout_buffer_class`={kind} with "
            "`rollout_buffer_kwargs`=dict(reward_normalizer=RewardNormalizer())"
        )
        require(model, not normalizer.norm_reward, "reward_weights", remedy)
        remedy = "VecNormalize would normalize the weights: leave them out of its `norm_obs_keys`"
        is_normalized = normalizer.norm_obs and "weights" in (normalizer.norm_obs_keys or [])
        require(model, weights != "observation" or not is_normalized, "reward_weights", remedy)


def check_replay(model: PhasicInterface) -> None:
    """Refuse ``replay_kwargs`` whose rollouts the epochs cannot use, or whose advantages cannot be recomputed."""
    replay, buffer = model.replay, model.rollout_buffer
    remedy = (
        f"{type(buffer).__name__} has its own way to compute advantages, and does not set "
        "`recomputable = True`, see docs/extending.md; use "
    )
    is_possible = is_recomputable(buffer)
    require(model, not model.recompute_advantages or is_possible, "recompute_advantages", f"{remedy}False")
    require(model, replay.capacity == 1 or is_possible, "replay_kwargs", f"{remedy}None")
    own = getattr(model.rollout_buffer_class, "compute_returns_and_advantage", None)  # of the class without vector rewards
    known = [cls.compute_returns_and_advantage for cls in (*SB3_CLASSES, NormalizedRewardRolloutBuffer)]
    remedy = (
        f"`rollout_buffer_class`={model.rollout_buffer_class} has its own way to compute advantages, which vector rewards "
        "would bypass; leave it out, or use None for scalar rewards"
    )
    require(model, model.reward_weights is None or own in known, "reward_weights", remedy)
    given = {name for name, value in (model.replay_kwargs or {}).items() if value is not None}
    has_value_epochs = model.n_value_epochs is not None or not given & {"value_rollouts", "value_uses"}
    remedy = "without `n_value_epochs` there are no epochs on values alone; leave out `value_rollouts` and `value_uses`"
    require(model, has_value_epochs, "replay_kwargs", remedy)


ENOUGH_STEPS = 80  # of the optimizer in an auxiliary phase, at a learning rate of 3e-4; see docs/guides/tuning.md


def aux_steps(model: PhasicInterface) -> tuple[float, float]:
    """
    Return the number of optimizer steps in an auxiliary phase, and the factor by which a learning rate above 3e-4 increases
    their effect. The number is infinite for LSTMs and other losses than PPG's: nobody has measured how many are enough.
    """
    cls, methods = type(model.objective), ("auxiliary_losses", "evaluated_losses")
    has_own_losses = any(getattr(cls, name) is not getattr(Objective, name) for name in methods)
    if model.n_aux_epochs == 0 or model.policy.state_keys or has_own_losses:
        return math.inf, 1.0
    single_samples, n_in_minibatch = model.aux_sequences()
    n_sequences = model.n_envs * model.n_policy_iterations * (model.n_steps if single_samples else 1)
    return model.n_aux_epochs * math.ceil(n_sequences / n_in_minibatch), max(1.0, model.aux_lr_schedule(1) / 3e-4)


def advise_on_short_phases(model: PhasicInterface) -> None:
    """Warn of auxiliary phases with too few optimizer steps for the auxiliary value head to learn the value targets."""
    n_steps, scale = aux_steps(model)
    if n_steps * scale < ENOUGH_STEPS:
        advise(
            "short phases",
            f"An auxiliary phase takes {n_steps} optimizer steps at a learning rate of {model.aux_lr_schedule(1):g}: below "
            f"about {ENOUGH_STEPS / scale:.0f}, most of its gain is lost. Raise `n_aux_epochs` (now {model.n_aux_epochs}), "
            f"or lower `aux_batch_size` (now {model.aux_samples_per_batch()})",
        )


def warn_of_missing_rollouts(model: PhasicInterface) -> None:
    """Warn if a model no longer has the rollouts that it had."""
    stored, replayed = model.n_kept_rollouts()
    if model.n_aux_epochs > 0 and stored > len(model.aux_buffer):
        remedy = (
            "`save_aux_buffer` and `load_aux_buffer` keep them (in RL Zoo --save-replay-buffer), if `n_steps` and the number "
            "of environments stay the same"
        )
        warn(f"The phase starts over, without {stored} of the {model.n_policy_iterations} rollouts of a phase: {remedy}")
    if replayed > model.replay.n_stored:
        warn(f"The policy phase continues with new rollouts, without the {replayed} that it would have learned from again")


def warn_of_stale_data(model: PhasicInterface) -> None:
    """Warn if the policy learns from rollouts of older policies and the objective does not correct for it."""
    if model.replay.n_rollouts["policy"] > 1 and not model.objective.corrects_for_staleness:
        warn(
            f"`replay_kwargs`={model.replay_kwargs!r} lets the policy learn from data of older policies, for which "
            f"`objective`={objective_name(type(model.objective))!r} does not correct: its clip range would hold the policy "
            "near the older ones. Use `objective`='decoupled' or 'ewma'"
        )
