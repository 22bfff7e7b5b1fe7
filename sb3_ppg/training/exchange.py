"""Everything that processes exchange about their models: settings and state before the first rollout, results after each."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.running_mean_std import RunningMeanStd

from sb3_ppg.arguments import LOCAL_ARGUMENTS, argument_names, argument_value
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollout_buffers import NormalizedRewardRolloutBuffer
from sb3_ppg.distributed import broadcast, gather, n_processes, rank, require_equal, seed_apart
from sb3_ppg.environments.watched import all_statistics
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.saving.training_state import identity

End = TypeVar("End")
Moments = tuple[np.ndarray, np.ndarray, float]  # mean, variance and count


def start_together(model: PhasicInterface, settings: dict[str, Any]) -> None:
    """Compare the settings of all processes, give them the state of process 0, and separate their random generators."""
    if n_processes() > 1:
        require_equal({**_settings(model), **settings})
        running = list(all_statistics(model.env).values())
        if isinstance(model.rollout_buffer, NormalizedRewardRolloutBuffer):
            running.append(model.rollout_buffer.reward_normalizer.return_rms)
        # Through the CPU: else each process would unpickle them on the GPU of process 0
        parameters = map_arrays(lambda leaf: leaf.cpu() if isinstance(leaf, th.Tensor) else leaf, model.get_parameters())
        parameters, moments = broadcast((parameters, list(map(_moments, running))))
        if rank() > 0:
            model.set_parameters(parameters, device=model.device)
            for rms, first in zip(running, moments, strict=True):
                rms.mean, rms.var, rms.count = first
        seed_apart(model.device)


def _settings(model: PhasicInterface) -> dict[str, Any]:
    """Return everything that gradients depend on apart from weights and data, by the names that users know."""
    env = model.get_env()
    assert env is not None
    return {
        "env": [str(spec and spec.id) for spec in env.get_attr("spec")[:1]] if env.has_attr("spec") else [],
        "n_envs": model.n_envs,
        **{name: argument_value(model, name) for name in argument_names(type(model)) if name not in LOCAL_ARGUMENTS},
        **identity(model, same_processes=False),
        "policy": type(model.policy),
        "networks": {name: tuple(weight.shape) for name, weight in model.policy.state_dict().items()},
    }


class RolloutExchange:
    """Merges the processes' counters, recent episodes and ``VecNormalize`` statistics after each rollout."""

    def __init__(self, model: PhasicInterface):
        self.model = model
        self._running = list(all_statistics(model.env).values()) if n_processes() > 1 else []
        self._merged = [_moments(rms) for rms in self._running]

    def rollout(self, collect: Callable[[], End | None]) -> End | None:
        """Collect a rollout in each process: ``collect`` returns its end, or None to stop, and then all processes stop."""
        model = self.model
        if n_processes() == 1:
            return collect()
        assert model.ep_info_buffer is not None and model.ep_success_buffer is not None
        window, episodes, successes = model._stats_window_size, [*model.ep_info_buffer], [*model.ep_success_buffer]
        # Without a limit, new episodes are those after the old ones
        model.ep_info_buffer, model.ep_success_buffer = deque(episodes), deque(successes)
        running = list(all_statistics(model.env).values())
        if [*map(id, running)] != [*map(id, self._running)]:  # a callback has set other environments
            self._running, self._merged = running, [_moments(rms) for rms in running]
        end = collect()
        new = [*model.ep_info_buffer][len(episodes) :], [*model.ep_success_buffer][len(successes) :]
        moments = [subtract_moments(_moments(rms), old) for rms, old in zip(self._running, self._merged, strict=True)]
        reports = gather((end is not None, model.num_timesteps, *new, moments))
        continues, counts, new_episodes, new_successes, new_moments = zip(*reports, strict=True)
        model.num_timesteps = max(counts)  # a process that stops has taken fewer steps
        model.ep_info_buffer = deque([*episodes, *interleaved(new_episodes)], window)
        model.ep_success_buffer = deque([*successes, *interleaved(new_successes)], window)
        for rms, before, *parts in zip(self._running, self._merged, *new_moments, strict=True):
            rms.mean, rms.var, rms.count = before
            for mean, var, count in parts:
                if count > 0:
                    rms.update_from_moments(mean, var, count)
        self._merged = [_moments(rms) for rms in self._running]
        return end if all(continues) else None


def interleaved(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the items of all lists in turns, so that the last ones are the last of each."""
    missing = object()
    rows = zip_longest(*(each[::-1] for each in lists), fillvalue=missing)
    return [item for row in rows for item in row if item is not missing][::-1]


def _moments(rms: RunningMeanStd) -> Moments:
    return rms.mean, rms.var, rms.count  # updates replace the arrays


def subtract_moments(total: Moments, prefix: Moments) -> Moments:
    """Return the moments of the samples after the first ones, inverting ``RunningMeanStd.update_from_moments``."""
    (mean, var, count), (first_mean, first_var, first_count) = total, prefix
    n = count - first_count
    if n <= 0:
        return mean, var, 0
    rest = mean + (mean - first_mean) * (first_count / n)
    squares = var * count - first_var * first_count - np.square(rest - first_mean) * (first_count * n / count)
    return rest, np.maximum(squares / n, 0.0), n
