"""PPG's start from recorded data: policy and value heads are fitted to it with the auxiliary phase's loop and optimizer."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.utils import configure_logger, obs_as_tensor, update_learning_rate

from sb3_ppg.arguments import check_value, check_values, count
from sb3_ppg.buffers.nested import map_arrays, n_samples
from sb3_ppg.buffers.reward_normalizer import NormalizedRewardRolloutBuffer
from sb3_ppg.buffers.rollouts import Observations
from sb3_ppg.distributed.collectives import n_processes
from sb3_ppg.environments.watched import only_normalizer
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses, distribution_parameters, kl_divergence
from sb3_ppg.offline.data import Dataset, fit_normalizers, load_dataset
from sb3_ppg.optim.epoch import mean_losses, optimize_epoch
from sb3_ppg.optim.value_units import change_value_units
from sb3_ppg.policies import head_loss
from sb3_ppg.protocols import PhasicModel

AT_ONCE = 4096  # samples in a forward pass that trains nothing


class Samples(NamedTuple):
    """
    Recorded samples, as arrays or tensors.

    :param observations: as the policy takes them, (N, ...)
    :param actions: as rollout buffers store them, (N, action dimensions)
    :param value_targets: discounted returns, in the units of the (normalised) reward, (N,)
    :param recorded: parameters of the distribution to clone, (N, P); (N, 0) without an agent's
    """

    observations: Any
    actions: Any
    value_targets: Any
    recorded: Any


def fit_to_data(
    model: PhasicModel, dataset: Any, agent: Any = None, n_epochs: int = 10, batch_size: int = 256, fit_std: bool = True
) -> None:
    """
    Fit a model to recorded data, see ``PPG.warm_start``.

    :param model: without memory and masks
    :param dataset: as ``load_dataset`` takes it
    :param agent: a model of SB3, or None
    :param n_epochs: passes over the data
    :param batch_size: samples of a minibatch
    :param fit_std: whether to fit ``log_std``, too
    :raises ArgumentError: for data that does not fit, and models that it cannot be for
    """
    _check(model, n_epochs, batch_size)
    data = load_dataset(dataset).fitted_to(model.observation_space, model.action_space)
    has_distribution = agent is not None and hasattr(agent.policy, "get_distribution")
    is_relabeled = agent is not None and not has_distribution
    recorded = _agents_distribution(agent, data, model) if has_distribution else np.zeros((len(data), 0), np.float32)
    actions = _for_buffer(model, _agents_actions(agent, data) if is_relabeled else data.actions)
    data = _normalized(model, data)
    if model.ignore_terminations:
        data = replace(data, terminations=np.zeros(len(data), dtype=bool), truncations=data.terminations | data.truncations)
    samples = Samples(data.observations, actions, np.zeros(len(data), np.float32), recorded)
    if not model._custom_logger:
        name = f"{type(model).__name__}_warm_start"
        model._logger = configure_logger(model.verbose, model.tensorboard_log, name, True)
    update_learning_rate(model.aux_optimizer, model.aux_lr_schedule(1.0))
    log_std: Any = getattr(model.policy, "log_std", None)
    was_trained = log_std is not None and log_std.requires_grad
    if was_trained:
        log_std.requires_grad_(fit_std and not is_relabeled)
    try:
        for epoch in range(1, n_epochs + 1):
            samples = samples._replace(value_targets=_value_targets(model, data))
            model.policy.set_training_mode(True)
            outcome = optimize_epoch(
                "warm start",
                [model.policy],
                model.aux_optimizer,
                _minibatches(samples, batch_size, model.device),
                partial(_losses, model),
                model.resolved_micro_batch_size(),
                model.max_grad_norm,
            )
            for name, value in {**mean_losses([outcome]), "epoch": epoch}.items():
                model.logger.record(f"warm_start/{name}", value)
            model.logger.dump(epoch)
    finally:
        if was_trained:
            log_std.requires_grad_(True)


def _check(model: PhasicModel, n_epochs: int, batch_size: int) -> None:
    """
    :raises ArgumentError: for numbers that cannot work, and models that recorded data has too little for
    """
    check_values(batch_size=batch_size)
    check_value("n_epochs", n_epochs, count())
    if model.context():
        raise ArgumentError(
            f"`warm_start` is not for {type(model).__name__}: recorded data has no memory and no masks; use PPG"
        )
    if model.n_reward_components is not None:
        raise ArgumentError("`warm_start` is not for vector rewards: recorded data has one reward for each step")
    if isinstance(model.rollout_buffer, NormalizedRewardRolloutBuffer):
        raise ArgumentError("`warm_start` does not normalize rewards as NormalizedRewardRolloutBuffer does: use VecNormalize")
    if n_processes() > 1:
        raise ArgumentError("`warm_start` is for one process: save the model there, and let all load it")


def _normalized(model: PhasicModel, data: Dataset) -> Dataset:
    """Return the data as ``VecNormalize`` gives it, with the statistics of the data."""
    fit_normalizers(model.env, data)
    normalizer = only_normalizer(model.env)
    if normalizer is None:
        return data
    names = ("observations", "next_observations")
    observations: Any = {name: normalizer.normalize_obs(getattr(data, name)) for name in names}
    return replace(data, **observations, rewards=normalizer.normalize_reward(data.rewards))


def _losses(model: PhasicModel, batch: Samples) -> Losses:
    """
    Return the losses of the auxiliary phase, L^aux + β_clone L^clone + L^value, where L^clone is -E[log π(a|s)] of the data's
    actions or, with an agent's distribution, E[KL(π_agent, π)].
    """
    policy = model.policy
    evaluation = policy.evaluate(batch.observations, auxiliary=True)
    if batch.recorded.shape[1] > 0:
        clone = {"kl": kl_divergence(evaluation.distribution, batch.recorded).mean()}
    else:
        clone = {"imitation_loss": -evaluation.distribution.log_prob(policy.actions.from_buffer(batch.actions)).mean()}
    unit, targets = policy.value_unit, batch.value_targets
    terms = {
        **clone,
        "aux_value_loss": 0.5 * head_loss(policy.aux_value_net, evaluation.latent_pi, targets, unit),
        "value_loss": 0.5 * head_loss(policy.value_net, evaluation.latent_vf, targets, unit),
    }
    total = terms["aux_value_loss"] + model.beta_clone * next(iter(clone.values())) + terms["value_loss"]
    return Losses(total, terms)


def _minibatches(samples: Samples, batch_size: int, device: th.device) -> Iterator[Samples]:
    """Draw one epoch: all samples, shuffled by NumPy's global generator, as SB3 does."""
    order = np.random.permutation(len(samples.actions))
    for places in np.array_split(order, math.ceil(len(order) / batch_size)):
        yield map_arrays(lambda array, places=places: th.as_tensor(array[places], device=device), samples)


@th.no_grad()
def _value_targets(model: PhasicModel, data: Dataset) -> np.ndarray:
    """Return the discounted returns, which the present value function completes where episodes were cut off, (N,)."""
    policy: Any = model.policy
    policy.set_training_mode(False)
    last = map_arrays(lambda array: array[data.ends], data.next_observations)
    values = [policy.predict_values(obs_as_tensor(part, model.device)).flatten().cpu().numpy() for part in _chunks(last)]
    targets = data.returns(model.gamma, np.concatenate(values)).astype(np.float32)
    if model.normalize_value_targets and model.n_aux_epochs > 0:
        optimizers = (policy.optimizer, model.value_optimizer, model.aux_optimizer)
        change_value_units(policy, optimizers, targets, 1.0)
    return targets


def _chunks(observations: Observations) -> Iterator[Any]:
    """Split observations into parts for one forward pass each."""
    for start in range(0, n_samples(observations), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        yield map_arrays(lambda array, part=part: array[part], observations)


def _for_buffer(model: PhasicModel, actions: np.ndarray) -> np.ndarray:
    """Return environments' actions as samples of the policy's distribution that rollout buffers store."""
    actions = model.policy.actions.from_environments(actions)
    return actions.reshape(len(actions), -1).astype(np.float32)


def _agents_observations(agent: Any, data: Dataset) -> Observations:
    """Return the data's observations as an agent takes them: normalized by its own ``VecNormalize``."""
    normalizer = only_normalizer(agent.env)
    return data.observations if normalizer is None else normalizer.normalize_obs(data.observations)


@th.no_grad()
def _agents_distribution(agent: Any, data: Dataset, model: PhasicModel) -> np.ndarray:
    """Return the parameters of an agent's distribution after each observation, (N, P)."""
    agent.policy.set_training_mode(False)
    chunks = _chunks(_agents_observations(agent, data))
    distributions = (agent.policy.get_distribution(obs_as_tensor(chunk, agent.device)) for chunk in chunks)
    parameters = np.concatenate([distribution_parameters(one).cpu().numpy() for one in distributions])
    first = obs_as_tensor(map_arrays(lambda array: array[:1], data.observations), model.device)
    model.policy.set_training_mode(False)
    wanted = distribution_parameters(model.policy.get_distribution(first)).shape[1]
    if parameters.shape[1] != wanted or type(agent.policy.action_dist) is not type(model.policy.action_dist):
        kinds = [type(one.policy.action_dist).__name__ for one in (agent, model)]
        raise ArgumentError(
            f"`agent` has a {kinds[0]} over {agent.action_space}, the model a {kinds[1]}: use an agent like it"
        )
    return parameters


def _agents_actions(agent: Any, data: Dataset) -> np.ndarray:
    """Return the deterministic actions of an agent that has no distribution, (N, ...)."""
    chunks = _chunks(_agents_observations(agent, data))
    return np.concatenate([agent.predict(chunk, deterministic=True)[0] for chunk in chunks])
