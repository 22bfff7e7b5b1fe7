"""Environments under watch: numbers that are not finite and workers that die end a rollout with an error that names them."""

from collections.abc import Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

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
        base = venv.unwrapped
        self._workers = base if isinstance(base, SubprocVecEnv) else None
        self._check("observation", observations)

    def step_async(self, actions: np.ndarray) -> None:
        try:
            super().step_async(actions)
        except (BrokenPipeError, ConnectionResetError):
            self._name_the_dead()
            raise

    def step_wait(self) -> VecEnvStepReturn:
        """
        :raises WorkerError: if the process of an environment has died
        """
        if self._workers is not None:
            self._wait_for_workers(self._workers, self._workers.remotes)
        try:
            observations, rewards, dones, infos = self.venv.step_wait()
        except (EOFError, ConnectionResetError):
            self._name_the_dead()
            raise
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

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """
        As in SB3.

        :raises WorkerError: if the process of an environment has died
        """
        workers = self._workers
        if workers is None:
            return super().env_method(method_name, *args, indices=indices, **kwargs)
        remotes = workers._get_target_remotes(indices)
        try:
            for remote in remotes:
                remote.send(("env_method", (method_name, args, kwargs)))
            self._wait_for_workers(workers, remotes)
            return [remote.recv() for remote in remotes]
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._name_the_dead()
            raise

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

    def _wait_for_workers(self, workers: SubprocVecEnv, remotes: Sequence[Any]) -> None:
        """For an answer of each, or its end: reading from a pipe whose other end a sibling holds would wait for ever."""
        processes = dict(zip(workers.remotes, workers.processes, strict=True))
        pending = {remote: processes[remote] for remote in remotes}
        while pending:
            ready = connection.wait([*pending, *(process.sentinel for process in pending.values())])
            for remote, process in list(pending.items()):
                if remote in ready:
                    del pending[remote]
                elif process.sentinel in ready:
                    self._name_the_dead()

    def _name_the_dead(self) -> None:
        """
        End the other workers, for ``close`` not to wait for answers.

        :raises WorkerError: if a worker has died
        """
        workers = self._workers
        if workers is None:
            return
        for process in workers.processes:
            process.join(timeout=0.1)
        dead = [(index, process) for index, process in enumerate(workers.processes) if not process.is_alive()]
        if not dead:
            return
        for process in workers.processes:
            process.terminate()
        workers.waiting, workers.closed = False, True
        named = ", ".join(f"environment {index} ({process.pid}, exit code {process.exitcode})" for index, process in dead)
        raise WorkerError(f"A worker process of SubprocVecEnv died in step {self.n_steps + 1} of the rollout: {named}")
