"""Checks of environments while a rollout is collected: time limits, non-finite numbers, and workers that die."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppg.errors import ArgumentError, NonFiniteEnvironmentError, WorkerError, warn

Numbers = tuple[str, Any, int | None]  # see `check_finite`
N_ENDS = 10  # number of equally long episodes that tell of a time limit which an environment reports as a termination

# ---- time limits ----


class TimeLimits:
    """Marks ends of episodes as time limits for ``ignore_terminations``, and warns of environments that seem to need it."""

    def __init__(self) -> None:
        self.ignored: bool | int = False  # argument ``ignore_terminations``
        self.steps = np.zeros(1, dtype=int)  # of the current episodes, (n_envs,) once a rollout has begun
        self.ends: Counter[int] = Counter()  # numbers of episodes by their lengths
        self.are_reported = self.has_warned = False

    def begin(self, episode_starts: np.ndarray, ignored: bool | int) -> None:
        """Start a rollout; ``episode_starts`` says whether the latest observations begin an episode, (n_envs,)."""
        self.steps = np.where(episode_starts, 0, self.steps)
        self.ignored = ignored

    def marked(self, ended: list[int], infos: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """
        Return the infos of a step, in which "TimeLimit.truncated" is set for ends that ``ignore_terminations`` ignores.

        :param ended: environments whose episode ended
        """
        self.steps += 1
        infos = list(infos)
        for index in ended:
            length, self.steps[index] = int(self.steps[index]), 0
            if self.ignored is True or self.ignored == length:
                infos[index] = {**infos[index], "TimeLimit.truncated": True}
            self.ends[length] += 1
            # An end after one step does not count: it may be the step in which a vector environment resets
            self.are_reported |= length > 1 and bool(infos[index].get("TimeLimit.truncated", False))
            if not self.has_warned and self.hidden == length:
                self.has_warned = True
                warn(
                    f"{N_ENDS} episodes or more ended at step {length}, as terminations, and few nearly as late: the value "
                    "function learns that no reward follows. If this is a time limit (which some environments report as a "
                    f"termination, or as both), use `ignore_terminations`={length}; if not, see docs/good_to_know.md"
                )
        return infos

    @property
    def hidden(self) -> int:
        """Number of steps of the longest episodes, if these seem to end at a time limit that is not reported; otherwise 0."""
        longest = 0 if self.are_reported else max(self.ends, default=0)
        if longest < 2 or self.ends[longest] < N_ENDS:
            return 0
        n_near = sum(n for length, n in self.ends.items() if min(0.9 * longest, longest - 1) <= length < longest)
        return longest if self.ends[longest] > 2 * n_near else 0


# ---- non-finite numbers ----
# SB3's VecCheckNan names neither environment nor step, and a further wrapper would break `sync_envs_normalization`


@dataclass
class CheckedSteps:
    """Steps the environments in a rollout, whose wrappers stay the same, and checks that all numbers are finite."""

    env: VecEnv
    allow_observations: bool  # to be NaN or infinite
    time_limits: TimeLimits
    # Returns vector rewards, (n_envs, K), from ``dones`` and ``infos``. None: rewards are scalar
    read_vectors: Callable[[np.ndarray, list[dict[str, Any]]], np.ndarray] | None = None

    def __post_init__(self) -> None:
        self.also_stored: dict[str, Any] = {}  # further arguments of the rollout buffer's ``add``
        self.ended: list[int] = []  # environments whose episode ended in the latest step
        self.normalizers = [*normalizers(self.env)]
        self.base_env = innermost(self.env)

    def take(self, actions: np.ndarray, step: int) -> VecEnvStepReturn:
        """
        Step the environments, and set ``ended`` and ``also_stored``. If a reward, an observation, or the last observation of
        an episode whose value is needed is NaN or infinite, an error names the step, and the statistics of ``VecNormalize``
        are restored.
        """
        with statistics_protected(self.normalizers) if self.normalizers else nullcontext():
            observations, rewards, dones, infos = self.env.step(actions)
            self.ended = dones.nonzero()[0].tolist()
            infos = self.time_limits.marked(self.ended, infos)
            numbers: list[Numbers] = []
            if self.read_vectors is not None:
                vectors = self.read_vectors(dones, infos)
                numbers += [(f"reward component {k}", component, None) for k, component in enumerate(vectors.T)]
                self.also_stored = {"vector_rewards": vectors}
            for normalizer in reversed(self.normalizers):  # normalizing spreads NaN to all environments
                numbers += [("reward", normalizer.old_reward, None), ("observation", normalizer.old_obs, None)]
            numbers += [("reward", rewards, None), ("observation", observations, None)]
            for index in self.ended:
                info = infos[index]
                if "terminal_observation" in info and info.get("TimeLimit.truncated", False):
                    numbers.append(("last observation of an episode", info["terminal_observation"], index))
            if self.allow_observations:
                numbers = [entry for entry in numbers if entry[0].startswith("reward")]
            when = f"after step {step} of the rollout; the policy has not been trained with it"
            check_finite(self.normalizers, numbers, when)
        return observations, rewards, dones, infos

    def reset_infos(self) -> list[dict[str, Any]]:
        """
        Return the info with which each environment started its episode; empty if the innermost environments do not keep it,
        like those of SuperSuit and Isaac Lab.
        """
        return getattr(self.base_env, "reset_infos", None) or [{} for _ in range(self.env.num_envs)]


def check_first_observations(env: VecEnv, observations: VecEnvObs) -> None:
    """Raise ``NonFiniteEnvironmentError`` if one of the first observations of a run is NaN or infinite."""
    found = [*normalizers(env)]
    raw = [vars(normalizer).get("old_obs", []) for normalizer in reversed(found)]
    check_finite(found, [("first observation", array, None) for array in (*raw, observations)], "when the run starts")


def check_finite(normalizers: list[VecNormalize], numbers: list[Numbers], when: str) -> None:
    """
    Raise ``NonFiniteEnvironmentError`` if a number, or a mean or variance of ``VecNormalize``, is NaN or infinite. Each entry
    of ``numbers`` is a name, an array or dictionary of arrays, and the index of its environment (None: all, (n_envs, ...)).
    """
    for name, values, index in numbers:
        for key, part in values.items() if isinstance(values, dict) else [(None, values)]:
            array = np.asarray(part)  # the last observation of an episode is as its environment returned it
            if array.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(array), axis=None):  # faster than `all`
                place = tuple(np.argwhere(~np.isfinite(array))[0])
                where = f"{'' if key is None else f' (key {key!r})'} of environment {place[0] if index is None else index}"
                remedy = "If the policy can handle such numbers, use `allow_nonfinite_observations`=True"
                if name.startswith("reward"):
                    remedy = "SB3 also makes NaN of a reward that is None"
                raise NonFiniteEnvironmentError(f"The {name}{where} is {array[place]} {when}. {remedy}")
    for normalizer in normalizers:
        for name, rms in statistics(normalizer).items():
            if not (np.isfinite(rms.mean).all() and np.isfinite(rms.var).all()):
                remedy = "Scale large numbers down in the environment; leave out those that may be NaN (`norm_obs_keys`)"
                raise NonFiniteEnvironmentError(f"VecNormalize's statistics `{name}` are not finite {when}. {remedy}")


@contextmanager
def statistics_protected(normalizers: Iterable[VecNormalize]) -> Iterator[None]:
    """Restore the statistics of each ``VecNormalize`` after a ``NonFiniteEnvironmentError``."""
    # No copies, because an update replaces the arrays
    running = [rms for normalizer in normalizers for rms in statistics(normalizer).values()]
    before = [(rms, rms.mean, rms.var, rms.count) for rms in running]
    try:
        yield
    except NonFiniteEnvironmentError:
        for rms, mean, var, count in before:
            rms.mean, rms.var, rms.count = mean, var, count
        raise


# Modules whose errors are about what an environment has returned
READERS = (
    "stable_baselines3.common.monitor",
    "stable_baselines3.common.vec_env.dummy_vec_env",
    "gymnasium.wrappers.common",
    "gymnasium.vector.sync_vector_env",
    "gymnasium.vector.utils.space_utils",
)
HOW_TO_WRAP = (
    "wrap each environment in sb3_ppg.VectorRewards, by make_vec_env(lambda: VectorRewards(gymnasium.make(...)), n_envs=...)"
)


@contextmanager
def results_explained() -> Iterator[None]:
    """Explain an error of SB3 or Gymnasium, not of the environment, about what `reset` or `step` has returned."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        frames = [(frame, frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
        frame, module = next(entry for entry in reversed(frames) if not entry[1].startswith("numpy."))
        is_observation = frame.f_code.co_name == "_save_obs" or module == "gymnasium.vector.utils.space_utils"
        asks_for_keywords = module == "stable_baselines3.common.monitor" and frame.f_code.co_name == "reset"
        if module not in READERS or asks_for_keywords or (isinstance(error, KeyError) and not is_observation):
            raise
        if is_observation:
            owners = [frame.f_locals.get("self") for frame, _ in reversed(frames)]
            env = next(owner for owner in owners if hasattr(owner, "observation_space"))
            space = getattr(env, "single_observation_space", env.observation_space)
            shape = getattr(frame.f_locals.get("obs"), "shape", None)
            raise ArgumentError(
                f"an environment has returned an observation{'' if shape is None else f' of shape {shape}'} that does not fit "
                f"its `observation_space`, {space} ({error}): return one that does, or change the space"
            ) from error
        if np.ndim(frame.f_locals.get("reward", 0)) > 0 or "with a sequence" in str(error):  # the latter is NumPy's
            remedy = f"use PPG(..., reward_weights=[...]) and, if there are several, {HOW_TO_WRAP}"
            raise ArgumentError(f"an environment gives vectors as rewards: {remedy}") from error
        raise ArgumentError(
            f"an environment has returned what cannot be used ({error}): `reset` returns (observation, info), `step` "
            "(observation, reward, terminated, truncated, info), where the reward is a number"
        ) from error


# ---- wrappers ----


def layers(env: VecEnv | None) -> Iterator[Any]:
    """
    Iterate over the wrappers of environments and the environments inside, the outermost first. The innermost may be a
    simulator that has the methods of a ``VecEnv`` but is none. An unpickled ``VecNormalize`` has nothing inside.
    """
    while env is not None:
        yield env
        env = vars(env).get("venv") if isinstance(env, VecEnvWrapper) else None


def innermost(env: VecEnv | None) -> Any:
    """Return the environments inside all wrappers."""
    return [None, *layers(env)][-1]


def normalizers(env: VecEnv | None) -> Iterator[VecNormalize]:
    """Iterate over each ``VecNormalize`` among the wrappers of environments, the outermost first."""
    return (layer for layer in layers(env) if isinstance(layer, VecNormalize))


def only_normalizer(env: VecEnv | None) -> VecNormalize | None:
    """Return the ``VecNormalize`` among the wrappers, or None; raise ``ArgumentError`` if there are several."""
    found = list(normalizers(env))
    if len(found) > 1:
        raise ArgumentError(
            f"the environments are wrapped in {len(found)} VecNormalize: use one with `norm_obs` and `norm_reward`"
        )
    return found[0] if found else None


def statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    """Return statistics by name: "ret_rms", and, if observations are normalized, "obs_rms" or "obs_rms/<key>"."""
    found = {"ret_rms": normalizer.ret_rms}
    if normalizer.norm_obs:
        obs_rms = normalizer.obs_rms
        found |= {f"obs_rms/{key}": rms for key, rms in obs_rms.items()} if isinstance(obs_rms, dict) else {"obs_rms": obs_rms}
    return found


def all_statistics(env: VecEnv | None) -> dict[str, RunningMeanStd]:
    """Return the statistics of each ``VecNormalize`` among the wrappers, under its index and their names: "0/ret_rms"."""
    found = enumerate(normalizers(env))
    return {f"{index}/{name}": rms for index, normalizer in found for name, rms in statistics(normalizer).items()}


# ---- workers ----


@contextmanager
def workers_watched(env: VecEnv | None) -> Iterator[None]:
    """
    Raise ``WorkerError`` within the context if a worker of ``SubprocVecEnv`` dies, and kill the others, so that ``close`` does
    not wait for answers. (SB3 would wait forever if a sibling of the worker holds the other end of its pipe.)
    """
    workers = innermost(env)
    if not isinstance(workers, SubprocVecEnv) or isinstance(workers.remotes[0], _WatchedRemote):
        yield
        return
    remotes: Any = workers.remotes
    pairs = zip(remotes, workers.processes, strict=True)
    watched: Any = tuple(_WatchedRemote(workers, remote, process) for remote, process in pairs)
    workers.remotes = watched
    try:
        yield
    finally:
        workers.remotes = remotes


class _WatchedRemote:
    """The parent's end of the pipe to a worker, which detects that the worker has died."""

    def __init__(self, workers: SubprocVecEnv, remote: Any, process: Any):
        self.workers, self.remote, self.process = workers, remote, process
        self.request = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)

    def send(self, message: tuple[str, Any]) -> None:
        self.request = message[0]
        self._exchange(self.remote.send, message)

    def recv(self) -> Any:
        if self.remote not in wait([self.remote, self.process.sentinel]):  # a sibling holds the other end of its pipe
            self._raise_if_dead()
        return self._exchange(self.remote.recv)

    def _exchange(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._raise_if_dead()
            raise

    def _raise_if_dead(self) -> None:
        processes = self.workers.processes
        for process in processes:
            process.join(timeout=0.1)
        dead = [(index, process) for index, process in enumerate(processes) if not process.is_alive()]
        if dead:
            named = ", ".join(f"environment {index} ({process.pid}, exit code {process.exitcode})" for index, process in dead)
            for process in processes:
                process.kill()  # those of RL Zoo ignore SIGTERM
            self.workers.waiting, self.workers.closed = False, True
            raise WorkerError(
                f"A worker process of SubprocVecEnv died when it was asked to {self.request}: {named}. If it raised an error, "
                "that is printed above; exit code -9 often means too little memory"
            )
