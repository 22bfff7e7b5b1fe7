"""The base class of PPG: training loop and files, as Stable-Baselines3 has them."""

import copy
import io
import time
from collections import deque
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecEnv
from typing_extensions import override

from sb3_ppg.actions import flat_space
from sb3_ppg.arguments import ATTRIBUTES, arguments_explained, check_value, check_values, made_from, type_errors_explained
from sb3_ppg.arrays import parameters_of
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.buffers.replay import RolloutReplay
from sb3_ppg.buffers.rollout_buffers import with_vector_rewards
from sb3_ppg.buffers.rollouts import RolloutEnd, compute_advantages, store_floats
from sb3_ppg.callbacks import without_rank_zero_callbacks
from sb3_ppg.distributed import n_processes, rank
from sb3_ppg.environments.vec_envs import GymnasiumVecEnv
from sb3_ppg.environments.vector_rewards import RewardReader, mean_vector_return, tell_weights
from sb3_ppg.environments.watched import (
    TimeLimits,
    check_first_observations,
    innermost,
    normalizers,
    statistics_protected,
    workers_watched,
)
from sb3_ppg.errors import ArgumentError, WorkerError, warn
from sb3_ppg.objectives import find_objective, make_objective, objective_name
from sb3_ppg.offline.warm_start import fit_to_data
from sb3_ppg.optim.diagnostics import Everywhere, forget_written, record_all, set_logger_of_run
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.play import Player
from sb3_ppg.policies import MlpPolicy
from sb3_ppg.prior import PRIOR_LEFT_OUT, SELF, Prior
from sb3_ppg.saving.files import atomic_writes, checked_model_file, mark
from sb3_ppg.saving.training_state import generators_kept, load_training_state, save_training_state
from sb3_ppg.training.checks import (
    check_arguments,
    check_environment,
    check_networks,
    check_objective,
)
from sb3_ppg.training.collecting import as_stored, check_log_probs, collect_steps
from sb3_ppg.training.session import Session, training


class PhasicAlgorithm(PhasicInterface):
    """Base class of ``PPG``, with everything that SB3 expects of an algorithm; ``PPG`` adds Algorithm 1."""

    @staticmethod
    @override
    def _wrap_env(env: GymEnv | VectorEnv | str, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """Wrap environments as SB3 does; also take Gymnasium's vector environments and, like the constructor, IDs."""
        venv: Any = maybe_make_env(cast(Any, env), verbose)
        check_environment(venv)
        if isinstance(venv, VectorEnv):
            venv = GymnasiumVecEnv(venv)
        return OnPolicyAlgorithm._wrap_env(venv, verbose, monitor_wrapper)

    @override
    def _setup_model(self) -> None:
        if self.rollout_buffer_class is None:
            self.rollout_buffer_class = self.rollout_buffer_classes[isinstance(self.observation_space, spaces.Dict)]
        # As SB3's method, with other spaces, classes and arguments
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        buffer_class: Any = self.rollout_buffer_class
        buffer_kwargs, policy_kwargs = self.rollout_buffer_kwargs, self.policy_kwargs
        if (n_components := self.n_reward_components) is not None:
            buffer_class = with_vector_rewards(buffer_class)
            buffer_kwargs = buffer_kwargs | dict(n_components=n_components, reward_weights=self.reward_weights)
            policy_kwargs = policy_kwargs | dict(n_reward_components=n_components)
        with type_errors_explained(buffer_class, buffer_kwargs):
            self.rollout_buffer = buffer_class(
                self.n_steps,
                self.observation_space,
                flat_space(self.action_space),
                device=self.device,
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                n_envs=self.n_envs,
                **buffer_kwargs,
            )
        policy: Any = self.policy_class
        spaces_ = (self.observation_space, self.action_space)
        with type_errors_explained(policy, policy_kwargs):
            self.policy = policy(*spaces_, self.lr_schedule, use_sde=self.use_sde, **policy_kwargs).to(self.device)
        self._maybe_recommend_cpu(MlpPolicy.__name__)
        self.reward_reader = None if n_components is None else RewardReader(n_components)
        self.time_limits = TimeLimits()
        store_floats(self.rollout_buffer, self.env)
        self.policy.mixed_precision = self.mixed_precision
        self.memory = self.policy.initial_memory(self.n_envs)
        # Schedules from here on, as in PPO
        self.clip_range = None if self.clip_range is None else FloatSchedule(self.clip_range)
        self.clip_range_vf = None if self.clip_range_vf is None else FloatSchedule(self.clip_range_vf)
        self.objective = make_objective(self.objective_class, self.policy, self.objective_kwargs).to(self.device)
        parameters = parameters_of(self.policy.optimizer)
        # An optimizer that a policy has made itself may not know the auxiliary head
        added = [*self.policy.aux_value_net.parameters(), *self.objective.trained_with_policy()]
        trained = [*dict.fromkeys([*parameters, *added])]
        known = {*map(id, trained)}
        left_out = [name for name, own in self.policy.named_parameters() if own.requires_grad and id(own) not in known]
        if left_out:
            remedy = "make networks in `make_heads`, or set `optimizer` to `make_optimizer(...)` afterwards; or freeze them"
            names = ", ".join(left_out)
            warn(f"`policy`={type(self.policy).__name__} has parameters that PPG does not train, {names}: {remedy}")
        # The policy's own optimizer is the one of the policy (or joint) epochs
        self.value_optimizer = self.policy.make_optimizer(self.value_lr_schedule(1), trained)
        self.aux_optimizer = self.policy.make_optimizer(self.aux_lr_schedule(1), trained)
        if len(trained) > len(parameters):
            self.policy.optimizer = self.policy.make_optimizer(self.lr_schedule(1), trained)
        self.aux_buffer = made_from(self.aux_buffer_kwargs, AuxBuffer, self.device)
        self.replay = made_from(self.replay_kwargs, RolloutReplay)
        self._tell_weights()
        if isinstance(self.prior, Prior):
            self.prior.policy.to(self.device)
        elif self.prior not in (None, SELF, PRIOR_LEFT_OUT):
            self.prior = Prior(self.prior, self)
        check_networks(self)
        check_objective(self)

    # ---- SB3's training loop ----

    @override
    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        Collect a rollout as in SB3, with the same local variables for callbacks. If one of several processes stops, all stop.

        :raises NonFiniteActionError: if the policy gives an action or a value that is NaN or infinite
        :raises NonFiniteEnvironmentError: if an observation or a reward is NaN or infinite
        :raises ProcessGroupError: if another process has failed
        """
        session = self.session or Session(self)
        if session.agreed_end() is not None:
            return False
        start = time.perf_counter()
        if self.replay.capacity == 1:  # free the arrays of the previous rollout that the auxiliary phase does not need
            self.replay.rollouts = []

        def collect() -> Any:
            try:
                with workers_watched(env):  # which a callback may have set since the run began
                    return collect_steps(self, env, callback, rollout_buffer, n_rollout_steps)
            except WorkerError:
                if session.received_signal is None:
                    raise
                return None  # the signal went to the workers, too

        end = session.exchange.rollout(collect)
        if end is None:
            return False
        new_obs, values, dones = end
        compute_advantages(rollout_buffer, values, dones)
        last = as_stored(rollout_buffer, new_obs), values.squeeze(1).cpu().numpy(), dones.astype(bool)
        self.rollout_end = RolloutEnd(*last, {name: array.cpu().numpy() for name, array in self.memory.items()})
        if not session.has_checked_log_probs:
            check_log_probs(self, rollout_buffer)
            session.has_checked_log_probs = True
        callback.on_rollout_end()
        record_all(self.logger, "rollout", mean_vector_return(self.ep_info_buffer or []))
        self.logger.record("time/rollout_seconds", time.perf_counter() - start)
        return True

    @arguments_explained
    @override
    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """
        Train as in SB3; ``tb_log_name`` is by default the algorithm's name, and with ``log_interval=None`` nothing is logged.
        If ``total_timesteps`` ends within a phase, its rollouts have trained the policy, and are kept for the auxiliary phase
        of the next call.

        :raises ArgumentError: if attributes cannot work together
        :raises NonFiniteError: if an observation, a reward, a loss or a gradient is NaN or infinite. After this error or a
            ``WorkerError`` in a single process, callbacks are told that the run has ended
        :raises WorkerError: if the process of an environment has died
        :raises ProcessGroupError: if another process has failed
        :raises SystemExit: after SIGTERM, when the iteration is finished and a ``PhasicCheckpointCallback`` has saved it
        """
        check_values(total_timesteps=total_timesteps, log_interval=log_interval)
        self._fitting_micro_batch_size = None
        tb_log_name = tb_log_name or type(self).__name__
        with training(self, callback, total_timesteps, reset_num_timesteps):
            if self.prior == SELF:
                self.set_prior(SELF)
            settings = (callback, reset_num_timesteps, tb_log_name, progress_bar)
            total_timesteps, callback = self._setup_learn(total_timesteps, *settings)
            iteration = 0
            callback.on_training_start(locals(), globals())
            self.session.callback = callback
            assert self.env is not None
            while self.num_timesteps < total_timesteps:
                if not self.collect_rollouts(self.env, callback, self.rollout_buffer, n_rollout_steps=self.n_steps):
                    break
                iteration += 1
                self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
                if log_interval is not None and iteration % log_interval == 0:
                    self.dump_logs(iteration)
                self.train()
            try:
                if log_interval is not None and self.logger.name_to_value:  # SB3 dumps the log before each update
                    values = dict(self.logger.name_to_value)
                    self.dump_logs()
                    for name, value in values.items():  # these stay readable, and are not written again
                        self.logger.record(name, value, exclude=Everywhere())
            finally:  # checkpoints are saved although the log may be broken
                callback.on_training_end()
        return self

    def warm_start(
        self, dataset: Any, agent: Any = None, n_epochs: int = 10, batch_size: int = 256, fit_std: bool = True
    ) -> Self:
        """
        Start from recorded data: clone its behavior with the loop and optimizer of the auxiliary phase, and fit both value
        heads to its discounted returns by mean squared errors, whatever the objective. If an episode was cut off, its return
        is bootstrapped with the value function. Call ``learn`` afterwards to continue training. ``VecNormalize`` gets the
        statistics of the data, unless this model has already been trained with other statistics.

        :param dataset: recorded data, see ``sb3_ppg.offline.load_dataset``
        :param agent: an SB3 model without memory to imitate on the data's observations, instead of the data's actions. Its own
            ``VecNormalize`` normalizes the observations for it. If it has an action distribution, as PPO does, this must be of
            this model's kind, and KL(π_agent, π) is minimized. From other agents, such as SAC, the deterministic actions are
            cloned, and ``log_std`` is not fitted
        :param n_epochs: number of passes over the data
        :param batch_size: minibatch size, in samples
        :param fit_std: whether to also fit the standard deviation of Box actions; data without exploration drives it to zero
        :return: this model
        :raises ArgumentError: if the data cannot come from this environment, if the agent has another kind of action
            distribution, or for a model with memory or masks
        :raises NonFiniteLossError: if a loss or a gradient is NaN or infinite
        """
        fit_to_data(self, dataset, agent, n_epochs, batch_size, fit_std)
        if self.prior == SELF or getattr(self.prior, "follows_warm_start", False):
            self.set_prior(SELF)
            self.prior.follows_warm_start = True
        return self

    def set_prior(self, agent: Any, coef: Any = None) -> None:
        """
        Set the pretrained agent that the policy stays near.

        :param agent: see the argument ``prior`` of ``PPG``. "self": this model's own policy as it is now; None: no prior
        :param coef: new value of ``prior_coef``. None: keep the current one
        :raises ArgumentError: if the agent or the coefficient cannot work
        """
        check_value("prior", agent)
        before = self.prior, self.prior_coef
        self.prior = None if agent is None else Prior(self if agent == SELF else agent, self)
        self.prior_coef = self.prior_coef if coef is None else coef
        try:
            self.check_arguments()
        except Exception:
            self.prior, self.prior_coef = before
            raise
        self.replay.rollouts = []  # which have another prior

    @override
    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        """Prepare as SB3 does; the first of several processes alone writes logs, evaluates, and shows a progress bar."""
        if rank() > 0:
            callback, progress_bar = without_rank_zero_callbacks(callback), False
            if not self._custom_logger:
                self._logger, self._custom_logger = Logger(folder=None, output_formats=[]), True
        assert self.env is not None
        with statistics_protected(normalizers(self.env)):
            set_logger_of_run(self, tb_log_name, reset_num_timesteps)
            is_custom: Any = self._custom_logger
            self._custom_logger = cast(bool, "ours")  # so that SB3 makes no other
            try:
                started = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
            finally:
                self._custom_logger = is_custom or self._custom_logger is True  # which a callback has set
            if self.num_timesteps == 0:
                self._warmup_end = self.n_value_warmup * self.n_steps * self.n_envs * n_processes()
            forget_written(self.logger)
            for name in ("ep_info_buffer", "ep_success_buffer"):  # which are longer in a rollout of several processes
                setattr(self, name, deque(getattr(self, name), self._stats_window_size))
            if not self.allow_nonfinite_observations:
                check_first_observations(self.env, self._last_obs)
        return started

    @override
    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # The last rollout may exceed the budget, where a linear schedule would be negative
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    @override
    def set_env(self, env: GymEnv | VectorEnv | str, force_reset: bool = True) -> None:
        is_another = env is not self.env
        super().set_env(cast(GymEnv, env), force_reset)
        if force_reset and is_another:
            self.time_limits = TimeLimits()
        if self.session is None and "rollout_buffer" in vars(self):  # in a run, the next rollout does this
            store_floats(self.rollout_buffer, self.env)
        self._tell_weights()

    def _tell_weights(self) -> None:
        if self.env is not None and isinstance(self.reward_weights, list):
            tell_weights(self.env, self.reward_weights)

    @override
    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Seed as in SB3. Several processes share one seed: their environments are numbered consecutively, their initial weights
        are the same, and each draws from its own random generators once it learns.
        """
        check_value("seed", seed)  # before Python's generator is seeded, which takes any number
        super().set_random_seed(seed)
        if self.env is not None and rank() > 0:
            first = getattr(innermost(self.env), "_seeds", [None])[0] if seed is None else seed  # None: that of `make_vec_env`
            if first is not None:
                self.env.seed(first + rank() * self.n_envs)

    @override
    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        *,
        epsilon: float = 0.0,
        temperature: Any = 1.0,
        **context: Any,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """
        Choose actions, like SB3's ``predict``, but with gSDE each sample has noise of its own, not that of the last rollout.

        :param epsilon: probability of sampling an action instead of taking the most likely one, for each environment, see
            ``Player``
        :param temperature: T > 0: actions are sampled from π(a|s)^(1/T), normalized; see ``Player``
        :param context: other arguments of the policy's ``predict``
        :return: actions as environments take them: an array; for Dict and Tuple actions, an action or a list of actions. And
            the state for the next call
        :raises ArgumentError: if arguments cannot work, such as an ``epsilon`` without ``deterministic``
        """
        if epsilon or temperature != 1:
            return Player(self, epsilon, temperature).predict(observation, state, episode_start, deterministic, **context)
        return self.policy.predict(observation, state, episode_start, deterministic, **context)

    # ---- arguments ----

    @override
    def check_arguments(self) -> None:
        check_arguments(self)

    # ---- files ----

    @override
    def save(
        self, path: str | Path | io.BufferedIOBase, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """
        Save the model, like SB3's ``save``. The file replaces a previous one only when it is complete. To resume training
        exactly, also call ``save_aux_buffer``. With several processes, only the first one writes the file.

        :param path: path of the zip file (".zip" is added to a name without suffix), or a stream
        :raises OSError: if the file cannot be written; a previous one is left unchanged
        """
        mark(self)
        missing, self._missing_rollouts = self._missing_rollouts, self.n_kept_rollouts()  # the file does not have them
        try:
            if not isinstance(path, (str, Path)):
                super().save(path, exclude, include)
            elif rank() == 0:
                path = Path(path)
                with atomic_writes(path if path.suffix else Path(f"{path}.zip")) as (temporary,):
                    super().save(temporary, exclude, include)
        finally:
            self._missing_rollouts = missing

    @classmethod
    @override
    def load(
        cls,
        path: str | Path | io.BufferedIOBase,
        env: GymEnv | VectorEnv | str | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """
        Load a model, like SB3's ``load``, but leave the global random generators unchanged unless ``seed`` is given.

        :param path: path of the zip file, or a stream
        :param kwargs: arguments and attributes that differ from those in the file
        :raises FileNotFoundError: if there is no file
        :raises ModelFormatError: if the file is damaged, or of another class or a newer version
        :raises ArgumentError: if arguments cannot work, or if ``objective`` has other parameters than the file
        :raises TypeError: for a name that is neither an argument nor an attribute in the file
        """
        if "objective" in kwargs:
            kwargs["objective"] = find_objective(kwargs["objective"])
        kwargs = {ATTRIBUTES.get(name, name): value for name, value in kwargs.items()}
        others = (cast(GymEnv | None, env), device, custom_objects, print_system_info, force_reset)
        with checked_model_file(path, cls, kwargs.keys()) as file, nullcontext() if "seed" in kwargs else generators_kept():
            try:
                model = super().load(file, *others, **kwargs)
            except (ValueError, RuntimeError) as error:
                optimizers = ("size of optimizer's group", "different number of parameter groups")
                parameters = ("Names of parameters do not match", "is an invalid object name", "in loading state_dict")
                if "objective_class" not in kwargs and any(text in str(error) for text in optimizers):
                    remedy = "make it in the `_build` of a policy class; a new model takes the weights of this file by"
                    raise ArgumentError(
                        f"an optimizer of this model was replaced by one of other parameters: {remedy} "
                        'set_parameters({"policy": load_from_zip_file(path)[1]["policy"]}, exact_match=False), with '
                        "load_from_zip_file of stable_baselines3.common.save_util"
                    ) from error
                is_about_parameters = any(text in str(error) for text in (*optimizers, *parameters))
                if "objective_class" not in kwargs or isinstance(error, ArgumentError) or not is_about_parameters:
                    raise
                name = objective_name(kwargs["objective_class"])
                raise ArgumentError(
                    f"`objective`={name!r} cannot take the file's parameters: load it without `objective`, and give the "
                    'parameters of its policy to a new model: set_parameters({"policy": ...}, exact_match=False)'
                ) from error
        return model

    @override
    def set_parameters(
        self,
        load_path_or_dict: str | Path | io.BufferedIOBase | dict[str, Any],
        exact_match: bool = True,
        device: th.device | str = "auto",
    ) -> None:
        """
        Set parameters, like SB3's ``set_parameters``. If there is an error, all parameters stay unchanged.

        :raises ModelFormatError: if a file is damaged, or of another class or a newer version
        """
        if not isinstance(load_path_or_dict, dict):
            with checked_model_file(load_path_or_dict, type(self)) as file:
                load_path_or_dict = load_from_zip_file(file, load_data=False, device=device)[1]
        else:
            # torch's optimizers keep the tensors that they are given
            copied = {name: copy.deepcopy(own) for name, own in load_path_or_dict.items() if "optimizer" in name}
            load_path_or_dict = load_path_or_dict | copied
        before: Any = copy.deepcopy(self.get_parameters())
        try:
            super().set_parameters(load_path_or_dict, exact_match, device)
        except Exception:
            super().set_parameters(before)
            raise

    def save_aux_buffer(self, path: str | Path) -> None:
        """
        Save the training state that is not in the model's file, so that a run can be resumed exactly: the rollouts of the
        current phase, ``VecNormalize``'s statistics, and the states of Python's, NumPy's and torch's global random generators.

        Call it together with ``save``, outside a rollout; ``PhasicCheckpointCallback`` does both. After an error, a previous
        file is left unchanged.

        :param path: path of the file, a NumPy npz file without pickle; by convention ``aux_buffer_path(path of the model)``
        :raises OSError: if the file cannot be written
        :raises ArgumentError: if the model was loaded without the rollouts of its phase
        :raises NonFiniteError: if a number in this state or in the model is NaN or infinite
        """
        save_training_state(self, Path(path))

    def load_aux_buffer(self, path: str | Path) -> None:
        """
        Restore the state that ``save_aux_buffer`` saved. ``learn(..., reset_num_timesteps=False)`` then continues as if there
        had been no interruption, except that the environments start new episodes.

        :param path: path of the file
        :raises FileNotFoundError: if there is no file
        :raises ArgumentError: if the machine has too little memory for the rollouts
        :raises ModelFormatError: if the file is damaged, written by a newer version, or another model's; nothing is changed
        """
        load_training_state(self, Path(path))

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the session (it ends with ``learn``) and compiled functions."""
        return {name: value for name, value in vars(self).items() if name != "compiled_training"} | {"session": None}

    @override
    def _excluded_save_params(self) -> list[str]:
        own = ["aux_buffer", "replay", "objective", "rollout_end", "session", "compiled_training", "_fitting_micro_batch_size"]
        return [*super()._excluded_save_params(), *own, "memory", "reward_reader", "time_limits"]

    @override
    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names = ["policy", "policy.optimizer", "value_optimizer", "aux_optimizer"]
        if self.objective.state_dict():  # most objectives have nothing to save
            names.append("objective")
        if self.objective.adversary_optimizer is not None:
            names.append("objective.adversary_optimizer")
        return names, []
