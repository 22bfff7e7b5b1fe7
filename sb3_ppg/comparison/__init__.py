"""Comparisons of algorithms in an environment of the user's. Needs the extra ``plots``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppg.arguments import check_value, count
from sb3_ppg.errors import ArgumentError, missing_extras_named

if TYPE_CHECKING:
    from sb3_ppg.comparison.report import Comparison


def compare(
    env: str | Callable[[], Any],
    contestants: Mapping[str, type[BaseAlgorithm] | tuple[type[BaseAlgorithm], Mapping[str, Any]]],
    n_timesteps: int | None = None,
    *,
    seconds: float | None = None,
    n_seeds: int = 5,
    n_envs: int = 1,
    n_jobs: int = 1,
    n_threads: int = 1,
    n_eval_episodes: int = 20,
    target: float | None = None,
    folder: str | Path = "comparison",
) -> "Comparison":
    """
    Train algorithms in an environment, each with several seeds, and say which one is better in steps and in seconds.

    First, the speeds of all algorithms are measured in turns. Then each training runs in a process of its own; the script
    needs no ``if __name__ == "__main__"``. The results are written to ``compare.png`` and ``compare.md``, and, as trainings
    end, to ``compare.csv`` and ``compare_curves.csv``, so calling it again carries out only the trainings that are missing.

    Example::

        from stable_baselines3 import PPO

        from sb3_ppg import PPG, compare

        small = dict(n_steps=32, batch_size=32)
        contestants = {"PPG": (PPG, dict(small, n_policy_iterations=4)), "PPO": (PPO, small)}
        print(compare("CartPole-v1", contestants, 600, n_seeds=1).verdict())

    :param env: ID of an environment, or class or function that makes one, or that makes a ``VecEnv`` with its wrappers. A
        function that makes one by its ID must import the module that registers it
    :param contestants: algorithms by name, each a class or a pair of a class and its arguments, among which ``policy`` is
        "MlpPolicy" by default. The first contestant is compared with each of the others
    :param n_timesteps: number of steps of each training
    :param seconds: duration of each training, instead of ``n_timesteps``: an algorithm takes as many steps as fit at its speed
    :param n_seeds: number of trainings of each algorithm; with fewer than four there are no intervals
    :param n_envs: number of environments, unless ``env`` makes a ``VecEnv``
    :param n_jobs: number of trainings at the same time
    :param n_threads: number of PyTorch's threads in each training
    :param n_eval_episodes: number of deterministic episodes after each training
    :param target: return up to which the table counts steps and seconds. None: the lowest of the mean returns at the end
    :param folder: folder for the results
    :return: rows, curves, speed, and ``verdict()``
    :raises ArgumentError: if the arguments cannot work
    """
    if not callable(env) and not isinstance(env, str):
        raise ArgumentError(f"`env`={env!r} cannot work: each training has its own, so use an ID or a function that makes one")
    with missing_extras_named():
        from sb3_ppg.comparison.study import Study
        from sb3_ppg.comparison.training import FromClass, described

        make: Any = env
        if isinstance(env, str):  # which may be known to this process alone
            with gymnasium.make(env) as made:
                make = gymnasium.registry[made.unwrapped.spec.id].make  # type: ignore[union-attr]
    check_value("n_envs", n_envs, count(1))
    makers = {}
    for name, one in contestants.items():
        algorithm, arguments = one if isinstance(one, tuple) else (one, {})
        settings = described({"algorithm": algorithm, **arguments, "env": env, "n_envs": n_envs})
        makers[name] = (FromClass(algorithm, make, arguments, n_envs), settings)
    options = (Path(folder), n_timesteps, seconds, n_seeds, n_eval_episodes, n_jobs, n_threads)
    title = env if isinstance(env, str) else getattr(env, "__name__", "").replace("<lambda>", "") or "the environment"
    return Study(title, makers, *options).compare(target)
