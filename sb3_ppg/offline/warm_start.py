"""Start PPG from recorded data: fit policy and value heads to it with the auxiliary phase's loop and optimizer."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import configure_logger, obs_as_tensor

from sb3_ppg.arguments import check_values
from sb3_ppg.arrays import map_arrays, n_samples
from sb3_ppg.buffers.rollout_buffers import NormalizedRewardRolloutBuffer
from sb3_ppg.buffers.rollouts import Observations, Rollout, batches
from sb3_ppg.distributed import n_processes
from sb3_ppg.environments.watched import only_normalizer
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients
from sb3_ppg.offline.data import Dataset, check_normalizer, fit_normalizers, load_dataset
from sb3_ppg.optim.update import Update, mean_losses
from sb3_ppg.optim.value_units import change_value_units
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.policies import PhasicActorCriticPolicy, head_loss
from sb3_ppg.prior import INFERENCE_BATCH, Prior


def fit_to_data(model: PhasicInterface, dataset: Any, agent: Any, n_epochs: int, batch_size: int, fit_std: bool) -> None:
    """Fit a model to recorded data, with the arguments and errors of ``PPG.warm_start``."""
    check_values(n_epochs=n_epochs, batch_size=batch_size)
    if model.policy.input_keys or model.n_reward_components is not None or n_processes() > 1:
        raise ArgumentError("`warm_start` is for one process, scalar rewards, and algorithms without memory and masks")
    if isinstance(model.rollout_buffer, NormalizedRewardRolloutBuffer):
        raise ArgumentError("`warm_start` does not normalize rewards as NormalizedRewardRolloutBuffer does: use VecNormalize")
    data = load_dataset(dataset).fitted_to(model.observation_space, model.action_space)
    actions, recorded = data.actions, np.zeros((len(data), 0), np.float32)
    if agent is not None and hasattr(agent.policy, "get_distribution"):
        recorded = _by_chunks(Prior(agent, model).parameters, data.observations)
    elif agent is not None:
        if agent.action_space != model.action_space:
            raise ArgumentError(f"the agent acts in {agent.action_space}, the model in {model.action_space}: use one like it")
        observations = _normalized(agent, data).observations
        actions, fit_std = _by_chunks(lambda part: agent.predict(part, deterministic=True)[0], observations), False
    samples = model.policy.actions.from_environments(th.as_tensor(actions))
    actions = samples.reshape(len(data), -1).float().numpy()
    check_normalizer(model)
    fit_normalizers(model.env, data, is_trained=model.num_timesteps > 0 or len(model.aux_optimizer.state) > 0)
    data = _normalized(model, data)
    if model.ignore_terminations:
        lengths, is_limit = np.diff(data.ends, prepend=-1), np.zeros(len(data), dtype=bool)
        is_limit[data.ends] = (model.ignore_terminations is True) | (lengths == model.ignore_terminations)
        data = replace(data, terminations=data.terminations & ~is_limit, truncations=data.truncations | is_limit)
    if not model._custom_logger:
        name = f"{type(model).__name__}_warm_start"
        model._logger = configure_logger(model.verbose, model.tensorboard_log, name, True)
    log_std: Any = getattr(model.policy, "log_std", th.empty(0))
    was_fitted = log_std.requires_grad
    log_std.requires_grad_(was_fitted and fit_std)
    try:
        for epoch in range(1, n_epochs + 1):
            targets = _value_targets(model, data)
            arrays = dict(observations=data.observations, actions=actions, targets=targets, recorded=recorded)
            rollout = Rollout(map_arrays(lambda array: array[None], arrays))
            order = np.random.permutation(len(data))  # of NumPy's global generator, as in SB3
            parts = np.array_split(order, math.ceil(len(order) / batch_size))
            model.policy.set_training_mode(True)
            settings = (model.aux_optimizer, model.aux_lr_schedule(1.0), model.coefficients(1.0))
            limits = (model.resolved_micro_batch_size(), model.max_grad_norm)
            update = Update("warm start", model.policy, model.objective, _losses, *settings, *limits)
            update.epoch(batches([rollout], parts, 1, model.device))
            for name, value in {**mean_losses(update.epochs), "epoch": epoch}.items():
                model.logger.record(f"warm_start/{name}", value)
            model.logger.dump(epoch)
        model.objective.after_auxiliary_phase(model.policy)
    finally:
        log_std.requires_grad_(was_fitted)


def _normalized(model: Any, data: Dataset) -> Dataset:
    normalizer = only_normalizer(model.env)
    if normalizer is None:
        return data
    now, following = (normalizer.normalize_obs(tree) for tree in (data.observations, data.next_observations))
    rewards = normalizer.normalize_reward(data.rewards)
    return replace(data, observations=now, next_observations=following, rewards=rewards)


def _losses(policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
    """
    Return the losses of the auxiliary phase, L^aux + β_clone L^clone + L^value, where L^clone is -E[log π(a|s)] of the data's
    actions or, with an agent's distribution, E[KL(π_agent, π)].
    """
    evaluation = policy.evaluate(batch.observations, auxiliary=True)
    if batch.recorded.shape[1] > 0:
        name, clone = "kl", policy.actions.kl_divergence(evaluation.distribution, batch.recorded).mean()
    else:
        actions = policy.actions.from_buffer(batch.actions)
        name, clone = "imitation_loss", -evaluation.distribution.log_prob(actions).mean()
    unit, targets = coefficients.value_unit, batch.targets
    aux_value_loss = 0.5 * head_loss(policy.aux_value_net, evaluation.latent_pi, targets, unit)
    value_loss = 0.5 * head_loss(policy.value_net, evaluation.latent_vf, targets, unit)
    total = aux_value_loss + coefficients.beta_clone * clone + value_loss
    return Losses(total, {name: clone, "aux_value_loss": aux_value_loss, "value_loss": value_loss})


def _value_targets(model: PhasicInterface, data: Dataset) -> np.ndarray:
    """Return the discounted returns, which the current value function completes where episodes were cut off, (N,)."""
    policy: Any = model.policy
    policy.set_training_mode(False)

    def values(part: Observations) -> np.ndarray:
        return policy.predict_values(obs_as_tensor(part, model.device)).flatten().cpu().numpy()

    last = _by_chunks(values, map_arrays(lambda array: array[data.ends], data.next_observations))
    targets = data.returns(model.gamma, last).astype(np.float32)
    if model.normalize_value_targets and model.n_aux_epochs > 0:
        change_value_units(policy, model.optimizers, targets, 1.0)
    return targets


@th.no_grad()
def _by_chunks(function: Callable[[Any], np.ndarray], observations: Observations) -> np.ndarray:
    """Call a function with some of the observations at a time, and concatenate its values."""
    parts = [slice(start, start + INFERENCE_BATCH) for start in range(0, n_samples(observations), INFERENCE_BATCH)]
    return np.concatenate([function(map_arrays(lambda array, part=part: array[part], observations)) for part in parts])
