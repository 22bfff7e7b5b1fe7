"""What an on-policy algorithm with auxiliary phases needs around its updates: rollouts, guards, files."""

import copy
import io
import math
import signal
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import MaybeCallback, PyTorchObs, TensorDict
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv
from torch.utils._pytree import tree_map

from sb3_ppg.advantages import gae
from sb3_ppg.arguments import (
    argument_names,
    check_arguments,
    check_policy,
    require,
    tell_of_phases,
)
from sb3_ppg.buffers.checks import (
    check_auxiliary_batches,
    check_replay,
    check_rollout_buffer_class,
    check_room,
    check_room_for_replay,
    warn_of_missing_rollouts,
    warn_of_stale_data,
)
from sb3_ppg.buffers.protocol import SeparatesBootstrap
from sb3_ppg.buffers.replay import Rollout, full_like
from sb3_ppg.buffers.rollouts import as_stored, by_step, one_observation, samples
from sb3_ppg.callbacks import quiet
from sb3_ppg.checks import without_numpy
from sb3_ppg.distributed.agreement import agreed, is_shared, leave_group
from sb3_ppg.distributed.collectives import gather, n_processes, rank
from sb3_ppg.distributed.exchange import RolloutExchange, start_together
from sb3_ppg.distributed.group import check_group
from sb3_ppg.environments.watched import (
    check_first_observations,
    checked_step,
    reset_infos,
    statistics_protected,
    workers_watched,
)
from sb3_ppg.errors import (
    ArgumentError,
    NonFiniteActionError,
    NonFiniteEnvironmentError,
    NonFiniteError,
    ProcessGroupError,
    WorkerError,
)
from sb3_ppg.extras import missing_extras_named
from sb3_ppg.model import PhasicModel
from sb3_ppg.objectives import Objective, RolloutEnd, find_objective, objective_name
from sb3_ppg.optim.epoch import tensor_float_32, unvalidated_distributions
from sb3_ppg.optim.micro_batches import has_convolutions, keep_freed_memory
from sb3_ppg.policies import MixedPrecision, MlpPolicy
from sb3_ppg.saving.checkpoints import check_checkpoint_callbacks, checkpoint_callbacks
from sb3_ppg.saving.files import atomic_write
from sb3_ppg.saving.generators import generators_kept
from sb3_ppg.saving.model_file import checked_model_file, mark_class
from sb3_ppg.saving.training_state import load_training_state, save_training_state
from sb3_ppg.training.session import ending_between_iterations

WHILE_LEARNING = ("_training_callback", "_exchange")  # attributes that are there while `learn` runs


class PhasicAlgorithm(PhasicModel):
    """
    SB3's ``OnPolicyAlgorithm`` with what is not Algorithm 1: it collects rollouts with the locals that SB3's callbacks know,
    refuses numbers that are not finite, watches the processes of environments, and saves and loads everything that a training
    depends on. How the policy learns is said by ``PPG``.
    """

    objective: Objective
    rollout_end: RolloutEnd | None = None  # of the latest rollout
    mixed_precision: MixedPrecision | None
    received_signal: int | None = None  # which asks this process to end, see `ending_between_iterations`
    _exchange: RolloutExchange | None = None  # with other processes, while `learn` runs
    _training_callback: BaseCallback | None = None  # while `learn` runs

    # ---- rollouts ----

    def aux_data(self) -> dict[str, np.ndarray]:
        end = self.rollout_end or self._rollout_end_template()
        return {**self.context(), **self.objective.aux_data(self.rollout_buffer, end)}

    def rollout_template(self) -> Rollout:
        return Rollout(full_like(self.rollout_buffer), self._rollout_end_template())

    def _rollout_end_template(self) -> RolloutEnd:
        observations = tree_map(lambda one: np.repeat(one, self.n_envs, axis=0), one_observation(self.rollout_buffer))
        values = next(self.policy.value_net.parameters()).new_zeros(self.n_envs, device="cpu")
        return RolloutEnd(observations, values.numpy(), np.zeros(self.n_envs, dtype=bool), self.memory())

    def is_valid_aux_data(self, context: dict[str, np.ndarray]) -> bool:
        return self.is_context(context) and self.objective.is_valid_aux_data(self, context)

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        As in SB3, with the same locals for callbacks. Where one of several processes stops, all do.

        :raises NonFiniteActionError: if the policy gives an action or a value that is NaN or infinite
        :raises NonFiniteEnvironmentError: if an observation or a reward is
        :raises ProcessGroupError: if another process has failed
        """
        if self.agreed_end() is not None:
            return False
        start = time.perf_counter()
        self._training_callback = callback
        exchange = self._exchange or RolloutExchange(self)
        with exchange.rollout() as outcome:
            end = self._take_steps(env, callback, rollout_buffer, n_rollout_steps)
            outcome.continues = end is not None
        if not outcome.continues or end is None:
            return False
        self._finish_rollout(rollout_buffer, *end)
        callback.on_rollout_end()
        self.logger.record("time/rollout_seconds", time.perf_counter() - start)
        return True

    def _take_steps(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> tuple[Any, th.Tensor, np.ndarray] | None:
        """
        :return: the observations that follow the last step, (n_envs, ...); V of them, (n_envs, 1); whether they begin an
            episode, (n_envs,). None if a callback has stopped the training
        """
        self.policy.set_training_mode(False)
        self.objective.before_rollout(self._last_episode_starts)  # type: ignore[arg-type]
        n_steps, n_new = 0, env.num_envs * n_processes()
        actions: Any  # a tensor, then an array, by the name that callbacks of SB3 know
        rollout_buffer.reset()
        callback.on_rollout_start()
        with unvalidated_distributions():
            while n_steps < n_rollout_steps:
                self._renew_exploration_noise(env.num_envs, n_steps)
                with th.no_grad():
                    obs_tensor = obs_as_tensor(self._last_obs, self.device)  # type: ignore[arg-type]
                    actions, values, log_probs, also_stored = self._finite_act(obs_tensor, env)
                actions = actions.cpu().numpy()
                clipped_actions = self.policy.actions.for_environments(actions)
                new_obs, rewards, dones, infos = checked_step(env, clipped_actions, n_steps + 1)
                self.num_timesteps += n_new

                callback.update_locals(locals())
                if not callback.on_step():
                    return None

                self._update_info_buffer(infos, dones)
                n_steps += 1
                self.after_environment_step()
                self.objective.after_environment_step(dones, infos, reset_infos(env))
                self._bootstrap_at_time_limits(rewards, dones, infos, rollout_buffer)
                before = (self._last_obs, self.policy.actions.for_buffer(actions), rewards, self._last_episode_starts)
                rollout_buffer.add(*before, values, log_probs, **also_stored)  # type: ignore[arg-type]
                self._last_obs, self._last_episode_starts = new_obs, dones  # type: ignore[assignment]
            with th.no_grad():
                values = self.next_values(obs_as_tensor(new_obs, self.device), dones)  # type: ignore[arg-type]
        callback.update_locals(locals())
        return new_obs, values, dones

    def _finite_act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """
        ``act``, with one look at what it gives instead of one at the arguments of each distribution.

        :raises NonFiniteActionError: if something is NaN or infinite
        """
        bad = "The policy gives actions or values that are NaN or infinite, from observations that are finite"
        try:
            given = self.act(observations, env)
        except RuntimeError:  # torch's generators may refuse probabilities that are NaN: let the distribution say whether
            th.distributions.Distribution.set_default_validate_args(True)
            try:
                self.act(observations, env)
            except ValueError as error:
                raise NonFiniteActionError(f"{bad}: {error}") from error
            raise
        if not math.isfinite((given[1].sum() + given[2].sum()).item()):
            raise NonFiniteActionError(bad)
        return given

    def _finish_rollout(
        self, rollout_buffer: RolloutBuffer, last_observations: Any, last_values: th.Tensor, dones: np.ndarray
    ) -> None:
        """
        :param last_observations: that follow the last step, (n_envs, ...)
        :param last_values: V of them, (n_envs, 1)
        :param dones: whether they begin an episode, (n_envs,)
        """
        rollout_buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)
        observations, values = as_stored(rollout_buffer, last_observations), last_values.flatten().cpu().numpy()
        self.rollout_end = RolloutEnd(observations, values, dones.astype(bool), self.memory())

    def _renew_exploration_noise(self, n_envs: int, n_steps: int) -> None:
        """That of gSDE. As in SB3: when a rollout begins, and every ``sde_sample_freq`` steps, the first one included."""
        if self.use_sde and n_steps == 0:
            self.policy.reset_noise(n_envs)
        if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
            self.policy.reset_noise(n_envs)

    @th.no_grad()
    def bring_up_to_date(self, rollout_buffer: RolloutBuffer, end: RolloutEnd) -> None:
        """
        Advantages and value targets of a rollout anew, by the present value function along it and at its end. The values that
        were predicted when it was collected stay, as do the rewards, with what was added to them at time limits.

        :param rollout_buffer: full
        :param end: what follows it
        """
        self.policy.set_training_mode(False)
        batch_size = self._micro_batch_size() or max(self.batch_size, 1024)
        values = th.cat(
            [
                self.policy.evaluate_values(*self.network_inputs(part))
                for _, part in samples(rollout_buffer, batch_size, np.arange)
            ]
        )
        last_values = self.next_values(obs_as_tensor(end.observations, self.device), end.dones, memory=end.memory)
        self.policy.set_training_mode(True)
        present = by_step(rollout_buffer, values.cpu().numpy())
        rewards, starts = (by_step(rollout_buffer, array) for array in (rollout_buffer.rewards, rollout_buffer.episode_starts))
        steps = (rewards, present, starts, last_values.flatten().cpu().numpy(), end.dones)
        advantages = gae(*steps, self.gamma, self.gae_lambda)
        rollout_buffer.returns = (advantages + present).T.reshape(-1, 1)
        rollout_buffer.advantages = advantages.T.reshape(-1, 1)
        if self.normalize_advantage:
            rollout_buffer.advantages = self.objective.normalized_advantages(rollout_buffer.advantages, self.device)

    def _bootstrap_at_time_limits(
        self, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]], rollout_buffer: RolloutBuffer
    ) -> None:
        """
        Where an episode was cut off, what would have followed is added to its last reward: γ V(last observation). A buffer
        that normalises rewards has a place of its own for it.
        """
        place = rewards
        if isinstance(rollout_buffer, SeparatesBootstrap):
            place = rollout_buffer.bootstrapped[rollout_buffer.pos]
        for index in np.flatnonzero(dones):
            last_observation = infos[index].get("terminal_observation")
            if last_observation is not None and infos[index].get("TimeLimit.truncated", False):
                with th.no_grad():
                    observation, _ = self.policy.obs_to_tensor(last_observation)
                    (value,) = self.next_values(observation, np.array([False]), int(index))
                place[index] += self.gamma * value

    # ---- learning ----

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """
        As in SB3; ``tb_log_name`` is by default the algorithm's. Rollouts of a phase that ``total_timesteps`` leaves
        incomplete are used by the policy phase, and stay for the auxiliary phase of the next call.

        :raises ArgumentError: for attributes that cannot work together
        :raises NonFiniteError: if an observation, a reward, a loss or a gradient is NaN or infinite; callbacks are told that
            the training has ended
        :raises WorkerError: if the process of an environment has died; likewise
        :raises ProcessGroupError: if another of several processes has failed; likewise
        :raises SystemExit: after SIGTERM, when the iteration is over, if a ``PhasicCheckpointCallback`` has saved it
        """
        check_group()
        try:
            with agreed():
                check_checkpoint_callbacks(callback)
                self._prepare_to_learn(total_timesteps)
            self._share_the_start(callback, total_timesteps=total_timesteps, reset_num_timesteps=reset_num_timesteps)
            with (
                missing_extras_named(),
                tensor_float_32(self.mixed_precision == "tf32"),
                workers_watched(self.env),
                ending_between_iterations(self, self._signals_to_end(callback)),
            ):
                name = tb_log_name or type(self).__name__
                super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
                if log_interval is not None and self.logger.name_to_value:
                    self.dump_logs()  # SB3 writes before each update: what the last one has recorded
                return self
        except BaseException as error:
            leave_group(error)
            if isinstance(error, (NonFiniteEnvironmentError, ProcessGroupError)):
                self._last_obs = None  # the environments have moved on: they start anew
            is_expected = isinstance(error, (NonFiniteError, WorkerError, ProcessGroupError)) or (
                n_processes() > 1 and is_shared(error)
            )
            if is_expected and isinstance(error, Exception) and self._training_callback is not None:
                self._training_callback.on_training_end()  # checkpoints are saved, files closed
            for one in checkpoint_callbacks(callback):
                one.is_amid_iteration = True
            raise
        finally:
            self._training_callback = self._exchange = None

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        """As in SB3. Of several processes the first one alone writes logs, evaluates, and shows a progress bar."""
        if rank() > 0:
            callback, progress_bar = quiet(callback), False
            if not self._custom_logger:
                self._logger, self._custom_logger = Logger(folder=None, output_formats=[]), True
        assert self.env is not None
        with statistics_protected(self.env):
            started = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
            check_first_observations(self.env, self._last_obs)  # type: ignore[arg-type]
        return started

    def _signals_to_end(self, callback: MaybeCallback) -> list[int]:
        """SIGTERM where checkpoints are saved; Ctrl-C where other processes would be in the midst of something."""
        return [
            *([signal.SIGTERM] if checkpoint_callbacks(callback) else []),
            *([signal.SIGINT] if n_processes() > 1 else []),
        ]

    def agreed_end(self) -> int | None:
        """
        Between two iterations.

        :return: the signal that asks a process to end, if one has received any; the same in all
        """
        return next((number for number in gather(self.received_signal) if number is not None), None)

    def _share_the_start(self, callback: MaybeCallback, **arguments: Any) -> None:
        """All processes begin with the same settings and the state of the first one, but draw other actions."""
        checkpoints = [one.settings() for one in checkpoint_callbacks(callback)]
        start_together(self, {**arguments, "PhasicCheckpointCallback": checkpoints})
        self._exchange = RolloutExchange(self)

    def _prepare_to_learn(self, total_timesteps: int) -> None:
        """Check what can be checked before the first step."""
        if rank() > 0:
            self.verbose = 0
        if self.env is None:
            raise ArgumentError("There is no environment to learn in: use `load(..., env=...)` or `set_env(...)` before")
        self.check_arguments()
        check_room(self, (self.aux_buffer.capacity or self.n_policy_iterations) - len(self.aux_buffer))
        check_room_for_replay(self)
        warn_of_missing_rollouts(self)
        self._n_stored_rollouts, self._n_replayed_rollouts = len(self.aux_buffer), self.replay.n_stored
        tell_of_phases(self, total_timesteps)
        warn_of_stale_data(self)
        if has_convolutions(self.policy) and self.device.type == "cpu":
            keep_freed_memory()

    def check_arguments(self) -> None:
        """
        What is asked when the model is made, and again before it learns.

        :raises ArgumentError: if arguments cannot work, alone or together
        """
        for name in argument_names(type(self)):
            if name in vars(self):
                setattr(self, name, without_numpy(getattr(self, name)))
        check_arguments(self)
        check_rollout_buffer_class(self)
        if hasattr(self, "aux_buffer"):  # the model is complete
            check_policy(self)
            check_auxiliary_batches(self, self.n_envs)
            self._check_objective()

    def _check_objective(self) -> None:
        cls = type(self.objective)
        remedy = f"this model was made with {cls.__name__}: give another one to the constructor"
        require(self, cls is self.objective_class, "objective", remedy)
        has_own_targets = cls.value_targets is not Objective.value_targets
        remedy = f"{cls.__name__} has value targets of its own, which are not recomputed; use False"
        require(self, not (self.recompute_advantages and has_own_targets), "recompute_advantages", remedy)
        require(self, not (self.replay.capacity > 1 and has_own_targets), "replay_kwargs", remedy.replace("False", "None"))
        check_replay(self)
        self.objective.check(self)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # The last rollout may overshoot the budget, where a linear schedule would be negative
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def _maybe_recommend_cpu(self, mlp_class_name: str = MlpPolicy.__name__) -> None:
        super()._maybe_recommend_cpu(mlp_class_name)

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        As in SB3. Several processes have one seed: their environments are numbered on, as if all were in one; weights are
        initialised alike; when they learn they draw from generators of their own.

        :param seed: the same in all
        """
        super().set_random_seed(seed)
        if self.env is not None and rank() > 0:
            first = getattr(self.env.unwrapped, "_seeds", [None])[0] if seed is None else seed  # None: that of `make_vec_env`
            if first is not None:
                self.env.seed(first + rank() * self.n_envs)

    # ---- files ----

    def save(
        self, path: str | Path | io.BufferedIOBase, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """
        As in SB3. A file takes the place of the one before it when it is complete. ``save_aux_buffer`` saves the rest. Of
        several processes, whose models are the same, the first one writes the file.

        :param path: of the zip file (".zip" is added to a name without suffix), or a stream
        :param exclude: names of attributes that are not saved
        :param include: names of attributes that are saved in spite of being excluded by default
        :raises OSError: if it cannot be written; the file that was there is left as it was
        """
        mark_class(self)
        if not isinstance(path, (str, Path)):
            super().save(path, exclude, include)
        elif rank() == 0:
            path = Path(path)
            with atomic_write(path if path.suffix else path.with_name(f"{path.name}.zip")) as temporary:
                super().save(temporary, exclude, include)

    @classmethod
    def load(cls, path: str | Path | io.BufferedIOBase, *args: Any, **kwargs: Any) -> Self:
        """
        As in SB3, but the global random generators are as they were, unless the keyword argument ``seed`` asks for another.

        :param path: of the zip file, or a stream
        :raises FileNotFoundError: if there is none
        :raises ModelFormatError: if the file is damaged, another class's or a newer version's
        :raises ArgumentError: for arguments that cannot work, or an ``objective`` with other parameters
        """
        if "objective" in kwargs:
            kwargs["objective_class"] = find_objective(kwargs.pop("objective"))
        with checked_model_file(path, cls) as file, nullcontext() if "seed" in kwargs else generators_kept():
            try:
                model = super().load(file, *args, **kwargs)
            except ValueError as error:
                if "objective_class" not in kwargs or isinstance(error, ArgumentError):
                    raise
                name = objective_name(kwargs["objective_class"])
                raise ArgumentError(
                    f"`objective`={name!r} cannot take the file's parameters: load it as it is, and give "
                    'its policy\'s to a new model: set_parameters({"policy": ...}, exact_match=False)'
                ) from error
        return model

    def set_parameters(
        self,
        load_path_or_dict: str | TensorDict,
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        As in SB3, but all or nothing: after an error the parameters are as they were.

        :raises ModelFormatError: if a file is damaged, another class's or a newer version's
        """
        if not isinstance(load_path_or_dict, dict):
            with checked_model_file(load_path_or_dict, type(self)) as file:
                load_path_or_dict = load_from_zip_file(file, load_data=False, device=device)[1]
        before: Any = copy.deepcopy(self.get_parameters())
        try:
            super().set_parameters(load_path_or_dict, exact_match, device)
        except Exception:
            super().set_parameters(before)
            raise

    def save_aux_buffer(self, path: str | Path) -> None:
        """
        Save what a training in progress has beside its model, for ``load_aux_buffer`` and an exact resume: the rollouts of
        the phase, ``VecNormalize``'s statistics, and the states of Python's, NumPy's and torch's global generators.

        Call it together with ``save``, outside of a rollout; ``PhasicCheckpointCallback`` does both.

        :param path: of the file, an npz of NumPy's without pickle; by convention ``aux_buffer_path(path of the model)``
        :raises OSError: if it cannot be written; the file that was there is left as it was
        :raises ArgumentError: if the model came from a file without the rollouts of its phase; likewise
        :raises NonFiniteError: if a number of this state, or of the model's, is NaN or infinite; likewise
        """
        save_training_state(self, Path(path))

    def load_aux_buffer(self, path: str | Path) -> None:
        """
        Go on where ``save_aux_buffer`` was called: ``learn(..., reset_num_timesteps=False)`` is then that of a training which
        was not interrupted, but for the environments, which start new episodes.

        :param path: of the file
        :raises FileNotFoundError: if there is none
        :raises ArgumentError: if the machine cannot hold the rollouts
        :raises ModelFormatError: if the file is damaged, too new, or another model's; nothing is changed then
        """
        load_training_state(self, Path(path))

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, or a pickle: without what is there while ``learn`` runs."""
        return {name: value for name, value in vars(self).items() if name not in WHILE_LEARNING}

    def _excluded_save_params(self) -> list[str]:
        return [
            *super()._excluded_save_params(),
            "aux_buffer",
            "replay",
            "objective",
            "rollout_end",
            "received_signal",
            *WHILE_LEARNING,
        ]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        # Most objectives have nothing to save
        of_objective = ["objective"] if self.objective.state_dict() else []
        if self.objective.adversary_optimizer is not None:
            of_objective.append("objective.adversary_optimizer")
        return ["policy", "policy.optimizer", "value_optimizer", "aux_optimizer", *of_objective], []
