"""What processes that train together have in common when a training begins; see ``sb3_ppg.distributed.collectives``."""

import warnings
from typing import Any

import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd
from torch.utils._pytree import tree_map

from sb3_ppg.arguments import argument_names, argument_value
from sb3_ppg.distributed.collectives import from_first, has_left, n_processes, rank
from sb3_ppg.distributed.group import n_started
from sb3_ppg.environments.watched import normalizers, statistics
from sb3_ppg.errors import ProcessGroupError
from sb3_ppg.model import PhasicModel

# Arguments that may be each process's own
OWN = ("policy", "env", "tensorboard_log", "verbose", "device", "aux_buffer_kwargs", "_init_setup_model")
COUNTERS = ("num_timesteps", "_n_updates", "_n_rollouts", "_n_aux_phases", "_n_stored_rollouts", "_n_replayed_rollouts")


def shared_settings(model: PhasicModel) -> dict[str, Any]:
    """
    :param model: before it learns
    :return: what its gradients depend on, beside weights and data, by the names that users know
    """
    policy, env = model.policy, model.get_env()
    assert env is not None
    return {
        "algorithm": type(model),
        "env": [str(spec and spec.id) for spec in env.get_attr("spec")[:1]] if env.has_attr("spec") else [],
        "n_envs": model.n_envs,
        "observation_space": model.observation_space,
        "action_space": model.action_space,
        **{name: argument_value(model, name) for name in argument_names(type(model)) if name not in OWN},
        **{name.removeprefix("_"): getattr(model, name) for name in COUNTERS},
        "policy": type(policy),
        "networks": {name: tuple(weight.shape) for name, weight in policy.state_dict().items()},
        "VecNormalize": [list(statistics(normalizer)) for normalizer in normalizers(env)],
        "stored_rollouts": [len(model.aux_buffer), len(model.replay.rollouts)],
    }


def share_state(model: PhasicModel) -> None:
    """
    Give every process what the first one has: weights, optimizers, statistics of observations and rewards.

    :param model: with the same settings everywhere
    """
    running = _running_statistics(model)
    own = None
    if rank() == 0:
        # Through the CPU: else each process would unpickle them on the first one's GPU
        parameters = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, th.Tensor) else leaf, model.get_parameters())
        own = (parameters, [(rms.mean, rms.var, rms.count) for rms in running])
    parameters, moments = from_first(own)
    if rank() > 0:
        model.set_parameters(parameters, device=model.device)
        for rms, (mean, var, count) in zip(running, moments, strict=True):
            rms.mean, rms.var, rms.count = mean, var, count


def _running_statistics(model: PhasicModel) -> list[RunningMeanStd]:
    found = [rms for normalizer in normalizers(model.get_env()) for rms in statistics(normalizer).values()]
    of_rewards = getattr(model.rollout_buffer, "reward_normalizer", None)
    return found if of_rewards is None else [*found, of_rewards.return_rms]


def check_group() -> None:
    """
    Warn under ``torchrun`` if each process is on its own, which is surely not what is meant.

    :raises ProcessGroupError: if there was a group, but an error has ended it
    """
    if has_left():
        raise ProcessGroupError("an error has ended the group of processes: leave `process_group()`, and start all again")
    if n_processes() == 1 and n_started() > 1:
        warnings.warn(
            f"This is one of {n_started()} processes, but it trains alone: put `with sb3_ppg.process_group():` around the "
            "training, for all to train one model",
            stacklevel=4,
        )
