"""Environments under watch: numbers that are not finite and workers that die end a rollout with an error that names them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import connection
from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppg.errors import ArgumentError, NonFiniteEnvironmentError, WorkerError


class CheckedSteps:
    """
    What ``PPG`` collects a rollout with: steps of the environments, each checked before the policy or the buffers see it.

    :param env: the environments
    :param observations: their latest ones, with which the rollout starts
    :raises NonFiniteEnvironmentError: if these are not finite; ``step`` raises it, too
    """

    def __init__(self, env: VecEnv, observations: VecEnvObs):
        self.env = env
        self.n_steps = 0
        with self._named():
            check_finite("observation", observations)
            check_statistics(env)

    def step(self, actions: np.ndarray) -> VecEnvStepReturn:
        """As that of the environments."""
        self.n_steps += 1
        with self._named():
            observations, rewards, dones, infos = self.env.step(actions)
            _check_step(observations, rewards, dones, infos)
            check_statistics(self.env)
        return observations, rewards, dones, infos

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An error says in which step of the rollout it happened."""
        try:
            yield
        except NonFiniteEnvironmentError as error:
            raise NonFiniteEnvironmentError(
                f"{error} after step {self.n_steps} of the rollout; the policy has not been trained with it"
            ) from None


def check_finite(what: str, values: Any, env: int | None = None) -> None:
    """
    :param what: the numbers are, for the message
    :param values: of all environments, (n_envs, ...), or of ``env`` alone; a dictionary of such arrays, too
    :param env: the number of the environment
    :raises NonFiniteEnvironmentError: if one is NaN or infinite
    """
    for key, array in values.items() if isinstance(values, dict) else [(None, values)]:
        array = np.asarray(array)
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        place = np.argwhere(~np.isfinite(array))[0]
        index = int(place[0]) if env is None else env
        of = f" (key {key!r})" if key is not None else ""
        raise NonFiniteEnvironmentError(f"The {what}{of} of environment {index} is {array[tuple(place)]}")


def _check_step(observations: VecEnvObs, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]) -> None:
    check_finite("reward", rewards)
    check_finite("observation", observations)
    for index in np.flatnonzero(dones):
        last = infos[index].get("terminal_observation")
        if last is not None and infos[index].get("TimeLimit.truncated", False):  # else nobody looks at it
            check_finite("last observation of an episode", last, int(index))


def reset_infos(env: VecEnv) -> list[dict[str, Any]]:
    """
    :param env: environments, with any wrappers
    :return: what each has said of the beginning of its episode. Those below the wrappers may be none of SB3's, as in SuperSuit
        and Isaac Lab, and say nothing
    """
    return getattr(env.unwrapped, "reset_infos", None) or [{} for _ in range(env.num_envs)]


# ---- VecNormalize's statistics ----


def normalizers(env: VecEnv | None) -> Iterator[VecNormalize]:
    """
    :param env: environments, with any wrappers. None: there are none
    :return: each ``VecNormalize`` among the wrappers, the outermost first
    """
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize):
            yield env
        env = env.venv


def only_normalizer(env: VecEnv | None) -> VecNormalize | None:
    """
    :param env: environments, with any wrappers. None: there are none
    :return: the ``VecNormalize`` among the wrappers, if there is one
    :raises ArgumentError: if there are several, of which one alone would say something else
    """
    found = list(normalizers(env))
    if len(found) > 1:
        raise ArgumentError(
            f"the environments are wrapped in {len(found)} VecNormalize, and this works for one: use one with `norm_obs` and "
            "`norm_reward`"
        )
    return found[0] if found else None


def statistics(normalizer: VecNormalize) -> dict[str, RunningMeanStd]:
    """
    :param normalizer: any
    :return: its statistics by name: "ret_rms", and, if it normalises observations, "obs_rms" or "obs_rms/<key>"
    """
    found = {"ret_rms": normalizer.ret_rms}
    if normalizer.norm_obs:
        obs_rms = normalizer.obs_rms
        found |= {f"obs_rms/{key}": rms for key, rms in obs_rms.items()} if isinstance(obs_rms, dict) else {"obs_rms": obs_rms}
    return found


def check_statistics(env: VecEnv | None) -> None:
    """
    :param env: environments, with any wrappers
    :raises NonFiniteEnvironmentError: if a mean or a variance of ``VecNormalize`` is not finite
    """
    for normalizer in normalizers(env):
        for name, rms in statistics(normalizer).items():
            if not (np.isfinite(rms.mean).all() and np.isfinite(rms.var).all()):
                raise NonFiniteEnvironmentError(f"VecNormalize's statistics `{name}` are not finite")


@contextmanager
def statistics_guarded(env: VecEnv | None) -> Iterator[None]:
    """
    Meanwhile, numbers are checked before ``VecNormalize`` takes them into its statistics, and after a
    ``NonFiniteEnvironmentError`` these are as they were before the step in which it happened.

    :param env: environments, with any wrappers
    """
    with ExitStack() as guards:
        for normalizer in normalizers(env):
            guards.enter_context(_guarded(normalizer))
        yield


@contextmanager
def _guarded(normalizer: VecNormalize) -> Iterator[None]:
    venv: Any = normalizer.venv
    patched_before = {name: vars(venv)[name] for name in ("reset", "step_wait") if name in vars(venv)}
    guard = _Guard(normalizer)
    # On the object, which stays what it is for everybody who knows it
    venv.reset, venv.step_wait = guard.reset, guard.step_wait
    try:
        yield
    except NonFiniteEnvironmentError:
        guard.undo()
        raise
    finally:
        del venv.reset, venv.step_wait
        vars(venv).update(patched_before)


class _Guard:
    """
    Between ``VecNormalize`` and its environments. A copy of these comes with a copy of it.

    :param normalizer: before its environments' methods are replaced
    """

    def __init__(self, normalizer: VecNormalize):
        self.normalizer = normalizer
        self.take_reset, self.take_step = normalizer.venv.reset, normalizer.venv.step_wait
        self.before: list[tuple[RunningMeanStd, Any, Any, float]] = []

    def reset(self) -> VecEnvObs:
        """Observations that are finite."""
        self._keep()
        observations = self.take_reset()
        check_finite("first observation", observations)
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        """A step whose numbers are finite."""
        self._keep()
        step = self.take_step()
        _check_step(*step)
        return step

    def _keep(self) -> None:
        """An update replaces the arrays of the statistics: there is nothing to copy."""
        self.before = [(rms, rms.mean, rms.var, rms.count) for rms in statistics(self.normalizer).values()]

    def undo(self) -> None:
        """The latest update."""
        for rms, mean, var, count in self.before:
            rms.mean, rms.var, rms.count = mean, var, count


# ---- workers ----


@contextmanager
def workers_watched(env: VecEnv | None) -> Iterator[None]:
    """
    Meanwhile, a worker of ``SubprocVecEnv`` that has died is noticed whatever is asked of it. (Reading from a pipe whose other
    end a sibling holds would wait for ever.)

    :param env: the environments, under any wrappers
    :raises WorkerError: if one dies; the others are ended, for ``close`` not to wait for answers
    """
    workers = None if env is None else env.unwrapped
    if not isinstance(workers, SubprocVecEnv):
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
    """
    Our end of the pipe to a worker.

    :param workers: all
    :param remote: the pipe
    :param process: the worker
    """

    def __init__(self, workers: SubprocVecEnv, remote: Any, process: Any):
        self.workers, self.remote, self.process = workers, remote, process
        self.asked = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)

    def send(self, message: tuple[str, Any]) -> None:
        self.asked = message[0]
        try:
            self.remote.send(message)
        except (BrokenPipeError, ConnectionResetError):
            self._name_the_dead()
            raise

    def recv(self) -> Any:
        connection.wait([self.remote, self.process.sentinel])
        if not self.remote.poll():
            self._name_the_dead()
        try:
            return self.remote.recv()
        except (EOFError, ConnectionResetError):
            self._name_the_dead()
            raise

    def _name_the_dead(self) -> None:
        """
        :raises WorkerError: if a worker has died
        """
        workers = self.workers
        for process in workers.processes:
            process.join(timeout=0.1)
        dead = [(index, process) for index, process in enumerate(workers.processes) if not process.is_alive()]
        if not dead:
            return
        for process in workers.processes:
            process.kill()  # RL Zoo's do not hear SIGTERM
        workers.waiting, workers.closed = False, True
        named = ", ".join(f"environment {index} ({process.pid}, exit code {process.exitcode})" for index, process in dead)
        raise WorkerError(f"A worker process of SubprocVecEnv died when it was asked to {self.asked}: {named}")
