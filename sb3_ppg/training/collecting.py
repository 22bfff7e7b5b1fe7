"""Collect a rollout: act, step the environments, bootstrap at time limits, compute advantages."""

import math
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arguments import require
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import (
    Observations,
    Rollout,
    add_step,
    batches,
    is_recomputable,
    reset_rollout_buffer,
    smallest_observations,
    store_floats,
)
from sb3_ppg.distributed import n_processes
from sb3_ppg.environments.watched import CheckedSteps, check_first_observations, normalizers, statistics_protected
from sb3_ppg.errors import ArgumentError, NonFiniteActionError, warn
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.saving.training_state import generators_kept

ZERO = np.float32(0)


def collect_steps(
    model: PhasicInterface, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
) -> tuple[Any, th.Tensor, np.ndarray] | None:
    """
    Fill a rollout buffer. Local variables have the names that SB3's callbacks use.

    :return: the observations after the last step, (n_envs, ...); their values, (n_envs, 1), or (n_envs, K) for vector
        rewards; whether they begin an episode, (n_envs,). None if a callback stopped the run
    :raises NonFiniteError: if an action, a value, an observation or a reward is NaN or infinite
    """
    self = model  # a name that SB3's callbacks read
    model.policy.set_training_mode(False)
    if model._last_obs is None:  # a callback has called `set_env`: begin new episodes, as `learn` does
        with statistics_protected(normalizers(env)):
            model._last_obs, model._last_episode_starts = env.reset(), np.ones(env.num_envs, dtype=bool)
            if not model.allow_nonfinite_observations:
                check_first_observations(env, model._last_obs)
    model.objective.before_rollout(model._last_episode_starts)
    n_steps, n_new = 0, env.num_envs * n_processes()
    new_obs: Any
    actions: Any  # a tensor, then an array: SB3's callbacks use this name for both
    store_floats(rollout_buffer, env)
    reset_rollout_buffer(rollout_buffer)
    callback.on_rollout_start()
    _check_same_env(model)
    prior = model.prior  # of the whole rollout, although a callback may set another one
    model.time_limits.begin(model._last_episode_starts, model.ignore_terminations)
    if (reader := model.reward_reader) is not None:
        reader.begin(model._last_episode_starts)
    read = None if reader is None else reader.read
    steps = CheckedSteps(env, model.allow_nonfinite_observations, model.time_limits, read)
    numpy_actor = model.policy.numpy_actor()
    actor = model.compiled_training.actor(model.policy) if numpy_actor is None else model.policy
    if model.use_sde:
        model.policy.reset_noise(env.num_envs)
    on_cpu = model.device.type == "cpu"
    while n_steps < n_rollout_steps:
        # Copies, because environments may write each step into the same arrays
        model._last_obs = map_arrays(np.array, model._last_obs)
        model._last_episode_starts = np.array(model._last_episode_starts)
        if model.use_sde and model.sde_sample_freq > 0 and n_steps % model.sde_sample_freq == 0:
            model.policy.reset_noise(env.num_envs)
        inputs = {**model.memory, **model.step_inputs(env)}
        if prior is not None:
            prior.before_step(model, env, rollout_buffer, inputs)
        obs_tensor = map_arrays(th.from_numpy, model._last_obs) if on_cpu else obs_as_tensor(model._last_obs, model.device)
        with th.no_grad():
            batch = model.policy.step_batch(obs_tensor, model._last_episode_starts, inputs)
        acted = None if numpy_actor is None else numpy_actor.act(batch)
        actions, values, log_probs, memory = acted or _finite_act(actor, batch)
        actions = actions.cpu()
        clipped_actions, actions = model.policy.actions.for_step(actions), actions.numpy().copy()
        new_obs, rewards, dones, infos = steps.take(clipped_actions, n_steps + 1)
        model.num_timesteps += n_new
        model.objective.after_environment_step(dones, infos, steps.reset_infos())

        callback.update_locals({**inputs, **locals()})
        goes_on = False
        try:
            goes_on = callback.on_step()
        finally:
            if not goes_on and model._last_obs is not None:  # else a callback has called `set_env`
                model._last_obs, model._last_episode_starts, model.memory = new_obs, dones, memory
        if not goes_on:
            return None
        _check_same_env(model)
        model._update_info_buffer(infos, dones)
        n_steps += 1
        model.memory = memory
        rewards = _bootstrapped(model, rewards, steps.ended, infos, rollout_buffer)
        stored = (model._last_obs, actions.reshape(env.num_envs, -1), rewards, model._last_episode_starts)
        add_step(rollout_buffer, *stored, values, log_probs, {**inputs, **steps.also_stored})
        model._last_obs, model._last_episode_starts = new_obs, dones
    with th.no_grad():
        values = model.policy.next_values(model.policy.step_batch(obs_as_tensor(new_obs, model.device), dones, model.memory))
    callback.update_locals(locals())
    return new_obs, values, dones


def _check_same_env(model: PhasicInterface) -> None:
    if model._last_obs is None:
        raise ArgumentError("a callback called `set_env` in the middle of a rollout: call it in `_on_rollout_end`")


@unvalidated_distributions()
@th.no_grad()
def _finite_act(actor: Any, batch: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, th.Tensor]]:
    """Act, and check the result once instead of the arguments of each distribution."""
    message = "The policy gives actions or values that are NaN or infinite: normalize large observations, look at the weights"
    try:
        result = actor.act(batch)
    except RuntimeError:  # torch's generators may refuse NaN probabilities; validation says which parameter it was
        th.distributions.Distribution.set_default_validate_args(True)
        try:
            actor.act(batch)
        except ValueError as error:
            raise NonFiniteActionError(f"{message}: {error}") from error
        raise
    if not math.isfinite((result[1].sum() + result[2].sum()).item()):
        raise NonFiniteActionError(message)
    return result


def _bootstrapped(
    model: PhasicInterface, rewards: np.ndarray, ended: list[int], infos: list[dict[str, Any]], rollout_buffer: RolloutBuffer
) -> np.ndarray:
    """
    Return rewards, (n_envs,), with γ V(last observation) added to the last one of an episode that a time limit ended, unless
    the buffer has an array ``bootstrapped``, to which it is then added.
    """
    rewards = rewards + ZERO  # not the environments' own array, which may also hold integers
    cut_off, last_observations = [], []
    for index in ended:
        is_cut_off = infos[index].get("TimeLimit.truncated", False)
        last_observation = infos[index].get("terminal_observation")
        remedy = f"the info of environment {index} has no 'terminal_observation' at the end of an episode; use False"
        is_possible = last_observation is not None or not (is_cut_off and model.ignore_terminations)
        require(model, is_possible, "ignore_terminations", remedy)
        if last_observation is not None and is_cut_off:
            cut_off.append(index)
            last_observations.append(last_observation)
    if cut_off:
        each = [model.policy.obs_to_tensor(observation)[0] for observation in last_observations]
        observations = map_arrays(lambda *leaves: th.cat(leaves), *each)
        memory = {name: array[cut_off] for name, array in model.memory.items()}
        with th.no_grad():
            values = model.policy.next_values(model.policy.step_batch(observations, np.zeros(len(cut_off), bool), memory))
        place = rewards
        if hasattr(rollout_buffer, "bootstrapped"):  # because it normalizes rewards
            place = rollout_buffer.bootstrapped[rollout_buffer.pos]
        bootstrap = values.cpu().numpy().reshape(len(cut_off), *place.shape[1:])  # of each component, if there are several
        place[cut_off] += np.asarray(model.gamma, bootstrap.dtype) * bootstrap
    return rewards


def as_stored(rollout_buffer: RolloutBuffer, observations: Any) -> Observations:
    """Copy observations of all environments, in the shapes and types of a buffer's; of a mapping, only the buffer's keys."""
    there = smallest_observations(rollout_buffer, rollout_buffer.n_envs)
    return map_arrays(lambda like, array: np.array(array, like.dtype).reshape(like.shape), there, observations)


# Larger than rounding errors, even in bfloat16 or for standard deviations of 1e-3; smaller than a wrong distribution's error
LARGEST_DIFFERENCE = 0.1


def check_log_probs(model: PhasicInterface, rollout_buffer: RolloutBuffer) -> None:
    """
    Refuse a policy that acted with another log π(a|s) than the losses compute for its latest actions. If the reason is that
    its networks are random, warn.
    """
    is_inexact = model.use_sde and model.policy.squash_output  # tanh is inverted inexactly
    if is_inexact or not is_recomputable(rollout_buffer):
        return
    names = ["observations", "actions", "old_log_prob", *model.policy.input_keys]
    last_step = Rollout.of(rollout_buffer, steps=slice(-1, None)).select(names)
    (batch,) = batches([last_step], [np.arange(model.n_envs)], 1, model.device)

    def evaluate() -> th.Tensor:
        distribution = model.policy.evaluate_batch(batch, reads=("distribution",)).distribution
        return distribution.log_prob(model.policy.actions.from_buffer(batch.actions))

    with th.no_grad(), generators_kept():  # a resumed run draws the same numbers
        log_prob, again = evaluate(), evaluate()
    if not th.allclose(log_prob, again):
        warn(
            "The policy's networks are random: two passes with the same weights and observations give different log π(a|s) in "
            "evaluation mode, so this noise is in the ratio of the losses and in the KL divergence. To avoid it, draw random "
            "numbers only where `self.training` is True"
        )
        return
    worst = int((log_prob - batch.old_log_prob).abs().argmax())
    acted, evaluated = batch.old_log_prob[worst].item(), log_prob[worst].item()
    if abs(acted - evaluated) > LARGEST_DIFFERENCE * max(1, abs(acted)):
        name = type(model.policy).__name__
        raise ArgumentError(
            f"`policy`={name} cannot work: `{name}.forward` acted with log π(a|s)={acted:.4g}, and `{name}.evaluate`, which "
            f"the losses call, gives {evaluated:.4g} for the same observation and action; let `forward` follow from `evaluate`"
        )
