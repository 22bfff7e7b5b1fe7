"""Small models, their files, and comparisons of two models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_ppg import PPG, PhasicCallback, aux_buffer_path, latest_checkpoint
from sb3_ppg.environments.watched import statistics
from sb3_ppg.saving.training_state import COUNTERS


def small(cls: type[PPG] = PPG, **kwargs: Any) -> PPG:
    """Make a model with phases of three rollouts of eight steps."""
    sizes = dict(n_steps=8, batch_size=8, n_epochs=1, n_policy_iterations=3, n_aux_epochs=1, aux_batch_size=8)
    arguments = dict(**sizes, seed=0, device="cpu", compile_updates=False)  # some trainings only end when they are stopped
    return cls("MlpPolicy", **{"env": "CartPole-v1", **arguments, **kwargs})


def resumed(folder: Path, env: Any = None, cls: type[PPG] = PPG) -> PPG:
    """Load a folder's latest checkpoint with its rollouts."""
    checkpoint = latest_checkpoint(folder)
    model = cls.load(checkpoint, env=env or make_vec_env("CartPole-v1"), device="cpu")
    model.load_aux_buffer(aux_buffer_path(checkpoint))
    return model


def everything(model: PPG) -> dict[str, th.Tensor]:
    """Parameters, moments, statistics and counters: everything that two equal trainings have in common."""
    tensors = {f"policy {name}": value for name, value in model.policy.state_dict().items()}
    tensors |= {f"objective {name}": value for name, value in model.objective.state_dict().items()}
    optimizers = {"policy": model.policy.optimizer, "value": model.value_optimizer, "aux": model.aux_optimizer}
    if model.objective.adversary_optimizer is not None:
        optimizers["adversary"] = model.objective.adversary_optimizer
    for name, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{name} optimizer {index} {key}": value for key, value in state.items()}
    if normalizer := model.get_vec_normalize_env():
        tensors["returns"] = th.as_tensor(normalizer.ret_rms.var)
    tensors["counters"] = th.tensor([getattr(model, name) for name in COUNTERS])
    return {name: th.as_tensor(value).clone() for name, value in tensors.items()}


def same(model: PPG, other: PPG) -> bool:
    ours, theirs = everything(model), everything(other)
    return ours.keys() == theirs.keys() and all(th.equal(ours[name], theirs[name]) for name in ours)


def calls_at(event: str, n_steps: int, function: Callable[[PPG], Any]) -> PhasicCallback:
    """Call a function with the model in a method of a callback, when the model has this number of steps."""
    callback = PhasicCallback()
    setattr(callback, event, lambda: callback.model.num_timesteps != n_steps or function(callback.model))
    return callback


def saved(folder: Path, n_rollouts: int = 2, **kwargs) -> tuple[PPG, Path]:
    model = small(**kwargs).learn(8 * n_rollouts)
    model.save_aux_buffer(folder / "buffer.npz")
    return model, folder / "buffer.npz"


def numbers_of(normalizer: VecNormalize | None) -> list[np.ndarray]:
    if normalizer is None:
        return []
    return [np.array(part) for rms in statistics(normalizer).values() for part in (rms.mean, rms.var, rms.count)]
