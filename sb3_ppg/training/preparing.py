"""Recompute the advantages of rollouts with newer values."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import obs_as_tensor

from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import Rollout, batches
from sb3_ppg.policies import PhasicActorCriticPolicy


@th.no_grad()
def recompute_advantages(
    rollout: Rollout, policy: PhasicActorCriticPolicy, gamma: Any, gae_lambda: Any, batch_size: int
) -> None:
    """
    Recompute a rollout's advantages and value targets with the current value function. The values that were predicted when
    the rollout was collected stay, and so do the rewards, including the bootstrapped values at time limits.

    :param batch_size: largest number of samples in one forward pass
    """
    was_training = policy.training
    policy.set_training_mode(False)
    length, parts = rollout.parts(batch_size, np.arange)
    inputs = rollout.select(["observations", *policy.input_keys])
    inputs_of_parts = batches([inputs], parts, length, policy.device)
    latents = (policy.evaluate_batch(part, reads=("latent_vf",)).latent_vf for part in inputs_of_parts)
    values = th.cat([policy.value_net(latent) for latent in latents])
    keys = [key for key in ("observations", "dones", *policy.input_keys) if f"last_{key}" in rollout.arrays]
    last = {key: map_arrays(lambda array: array[:, 0], rollout.arrays[f"last_{key}"]) for key in keys}
    observations = obs_as_tensor(last["observations"], policy.device)
    last_values = policy.next_values(policy.step_batch(observations, last["dones"], last))
    policy.set_training_mode(was_training)
    n_envs, _, *components = shape = rollout.arrays["old_values"].shape
    new = (values.cpu().numpy().reshape(shape), last_values.cpu().numpy().reshape(n_envs, *components))
    rollout.recompute(*new, gamma, gae_lambda)
