"""Environments under watch: numbers that are not finite and workers that die end a rollout with an error that names them."""

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from sb3_ppg.errors import NonFiniteEnvironmentError, WorkerError


class WatchedVecEnv(VecEnvWrapper):
    """
    What ``PPG`` collects a rollout from: the environments, with each step checked before the policy or the buffers see it.

    :param venv: the environments
    :param observations: their latest ones, with which the rollout starts
    :raises NonFiniteEnvironmentError: if these are not finite; ``step`` raises it, too
    """

    def __init__(self, venv: VecEnv, observations: VecEnvObs):
        super().__init__(venv)
        self.n_steps = 0
        self._check("observation", observations)

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, dones, infos = self.venv.step_wait()
        self.n_steps += 1
        self._check("reward", rewards)
        self._check("observation", observations)
        for index in np.flatnonzero(dones):
            last = infos[index].get("terminal_observation")
            if last is not None:
                self._check("last observation of an episode", last, int(index))
        return observations, rewards, dones, infos

    def reset(self) -> VecEnvObs:
        return self.venv.reset()

    def _check(self, what: str, values: Any, env: int | None = None) -> None:
        """
        :param values: of all environments, or of ``env`` alone
        """
        for key, array in values.items() if isinstance(values, dict) else [(None, values)]:
            array = np.asarray(array)
            if array.dtype.kind != "f" or np.isfinite(array).all():
                continue
            place = np.argwhere(~np.isfinite(array))[0]
            index = int(place[0]) if env is None else env
            of = f" (key {key!r})" if key is not None else ""
            raise NonFiniteEnvironmentError(
                f"The {what}{of} of environment {index} is {array[tuple(place)]} after step {self.n_steps} of the rollout; "
                "the policy has not been trained with it"
            )


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
            process.terminate()
        workers.waiting, workers.closed = False, True
        named = ", ".join(f"environment {index} ({process.pid}, exit code {process.exitcode})" for index, process in dead)
        raise WorkerError(f"A worker process of SubprocVecEnv died when it was asked to {self.asked}: {named}")
