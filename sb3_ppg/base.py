"""What an on-policy algorithm with auxiliary phases needs around its updates: rollouts, guards, files."""

import copy
import io
import time
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.type_aliases import MaybeCallback, PyTorchObs, RolloutBufferSamples, TensorDict
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppg.actions import for_buffer, for_environments
from sb3_ppg.arguments import check_arguments, check_room, tell_of_phases
from sb3_ppg.buffers.aux_buffer import AuxBuffer, AuxiliaryBatch
from sb3_ppg.errors import ArgumentError, NonFiniteEnvironmentError, NonFiniteError, WorkerError
from sb3_ppg.extras import missing_extras_named
from sb3_ppg.objectives import Objective
from sb3_ppg.policies import MixedPrecision, MlpPolicy, PhasicActorCriticPolicy
from sb3_ppg.saving.files import replaced
from sb3_ppg.saving.model_file import checked_model_file, marked, unmark
from sb3_ppg.saving.training_state import load_training_state, save_training_state
from sb3_ppg.saving.untrusted import generators_kept
from sb3_ppg.training.memory import has_convolutions, keep_freed_memory
from sb3_ppg.training.optimization import tensor_float_32, unvalidated_distributions
from sb3_ppg.training.processes import start_alike
from sb3_ppg.training.watched_vec_env import CheckedSteps, statistics_guarded, workers_watched


class PhasicAlgorithm(OnPolicyAlgorithm):
    """
    SB3's ``OnPolicyAlgorithm`` with what is not Algorithm 1: it collects rollouts with the locals that SB3's callbacks know,
    refuses numbers that are not finite, watches the processes of environments, and saves and loads everything that a training
    depends on. How the policy learns is said by ``PPG``.

    What variants of the algorithm override is public: ``act``, ``after_environment_step`` and ``next_values`` while they
    collect, ``network_inputs`` wherever networks are evaluated on stored samples, ``context`` and ``is_context`` for what the
    auxiliary phase keeps.
    """

    # For arrays and for dictionaries of observations: the defaults, and what a buffer of the user's has to derive from
    rollout_buffer_classes: ClassVar[tuple[type[RolloutBuffer], type[DictRolloutBuffer]]] = (RolloutBuffer, DictRolloutBuffer)
    action_spaces: ClassVar[tuple[type[spaces.Space], ...]] = (
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
    )
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {}
    policy: PhasicActorCriticPolicy
    criterion: Objective  # an instance of `objective`
    aux_buffer: AuxBuffer
    n_policy_iterations: int
    n_aux_epochs: int
    mixed_precision: MixedPrecision | None
    _n_stored_rollouts: int  # as many as the auxiliary buffer holds, except in a model loaded without that buffer
    _checkpoint: list[Any] | None = None  # of PhasicCheckpointCallback, the latest: its run, and when it was written
    _training_callback: BaseCallback | None = None  # while `learn` runs
    # What several processes have to agree on, for their gradients to meet
    common_settings: ClassVar[tuple[str, ...]] = ()

    # ---- what variants override: what the policy needs to know beside an observation ----

    def act(self, observations: PyTorchObs, env: VecEnv) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, Any]]:
        """
        Choose actions while a rollout is collected.

        :param observations: the latest ones, (n_envs, ...)
        :param env: which gave them
        :return: actions, (n_envs, ...); V(s), (n_envs, 1); log π(a|s), (n_envs,); what else the rollout buffer's ``add`` takes
        """
        return *self.policy(observations), {}

    def after_environment_step(self) -> None:
        """The environments have taken the actions of ``act``, and callbacks have agreed."""

    def next_values(self, observations: PyTorchObs, episode_starts: np.ndarray, env: int | None = None) -> th.Tensor:
        """
        V of what follows the latest step.

        :param observations: (B, ...)
        :param episode_starts: whether they begin an episode, (B,)
        :param env: of which environment. None: of all
        :return: (B, 1)
        """
        return self.policy.predict_values(observations)

    def network_inputs(self, batch: RolloutBufferSamples | AuxiliaryBatch) -> tuple:
        """
        What the policy's ``evaluate_...`` methods take.

        :param batch: samples of a rollout, or of the auxiliary phase
        :return: the observations, (B, ...), and what else these networks need
        """
        return (batch.observations,)

    def context(self) -> dict[str, np.ndarray]:
        """
        What the auxiliary phase keeps of the latest rollout beside observations and value targets, for ``network_inputs``.
        (Of an empty rollout buffer: arrays of the same shapes and types.)

        :return: by name, (n_envs, n_steps, ...), or (n_envs, 1, ...) for what a sequence has once
        """
        return {}

    def is_context(self, context: dict[str, np.ndarray]) -> bool:
        """
        :param context: of a rollout, from a file: finite numbers in the shapes and types of ``context``
        :return: whether a rollout can have it
        """
        return True

    # ---- rollouts ----

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """
        As in SB3, with the same locals for callbacks.

        :raises NonFiniteEnvironmentError: if an observation or a reward is NaN or infinite
        """
        assert self._last_obs is not None
        start = time.perf_counter()
        self._training_callback = callback
        checked = CheckedSteps(env, self._last_obs)
        self.policy.set_training_mode(False)
        n_steps = 0
        actions: Any  # a tensor, then an array, by the name that callbacks of SB3 know
        rollout_buffer.reset()
        callback.on_rollout_start()
        with unvalidated_distributions():
            if self.use_sde:
                self.policy.reset_noise(env.num_envs)
            while n_steps < n_rollout_steps:
                if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                    self.policy.reset_noise(env.num_envs)
                with th.no_grad():
                    obs_tensor = obs_as_tensor(self._last_obs, self.device)  # type: ignore[arg-type]
                    actions, values, log_probs, also_stored = self.act(obs_tensor, env)
                actions = actions.cpu().numpy()
                clipped_actions = for_environments(self.policy, actions)
                new_obs, rewards, dones, infos = checked.step(clipped_actions)
                self.num_timesteps += env.num_envs

                callback.update_locals(locals())
                if not callback.on_step():
                    return False

                self._update_info_buffer(infos, dones)
                n_steps += 1
                self.after_environment_step()
                self._bootstrap_at_time_limits(rewards, dones, infos)
                before = (self._last_obs, for_buffer(self.action_space, actions), rewards, self._last_episode_starts)
                rollout_buffer.add(*before, values, log_probs, **also_stored)  # type: ignore[arg-type]
                self._last_obs, self._last_episode_starts = new_obs, dones  # type: ignore[assignment]
            with th.no_grad():
                values = self.next_values(obs_as_tensor(new_obs, self.device), dones)  # type: ignore[arg-type]
        rollout_buffer.compute_returns_and_advantage(last_values=values, dones=dones)
        callback.update_locals(locals())
        callback.on_rollout_end()
        self.logger.record("time/rollout_seconds", time.perf_counter() - start)
        return True

    def _bootstrap_at_time_limits(self, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]) -> None:
        """Where an episode was cut off, what would have followed is added to its last reward: γ V(last observation)."""
        for index in np.flatnonzero(dones):
            last_observation = infos[index].get("terminal_observation")
            if last_observation is not None and infos[index].get("TimeLimit.truncated", False):
                with th.no_grad():
                    observation, _ = self.policy.obs_to_tensor(last_observation)
                    (value,) = self.next_values(observation, np.array([False]), int(index))
                rewards[index] += self.gamma * value

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
        """
        self._prepare_to_learn(total_timesteps)
        try:
            with (
                missing_extras_named(),
                tensor_float_32(self.mixed_precision == "tf32"),
                workers_watched(self.env),
                statistics_guarded(self.env),
            ):
                name = tb_log_name or type(self).__name__
                super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
                if log_interval is not None and self.logger.name_to_value:
                    self.dump_logs()  # SB3 writes before each update: what the last one has recorded
                return self
        except (NonFiniteError, WorkerError) as error:
            if isinstance(error, NonFiniteEnvironmentError):
                self._last_obs = None  # the environments have moved on: they start anew
            if self._training_callback is not None:
                self._training_callback.on_training_end()  # checkpoints are saved, files closed
            raise
        finally:
            self._training_callback = None

    def _prepare_to_learn(self, total_timesteps: int) -> None:
        """Check what can be checked before the first step, and let all processes start alike."""
        if self.env is None:
            raise ArgumentError("There is no environment to learn in: use `load(..., env=...)` or `set_env(...)` before")
        self.check_arguments()
        check_room(self, self.n_policy_iterations - len(self.aux_buffer))
        if self.n_aux_epochs > 0 and self._n_stored_rollouts > len(self.aux_buffer):
            warnings.warn(
                f"This model was saved after {self._n_stored_rollouts} of the {self.n_policy_iterations} rollouts of a phase, "
                "without those rollouts: the phase starts over",
                stacklevel=4,
            )
            self._n_stored_rollouts = len(self.aux_buffer)
        tell_of_phases(self, total_timesteps)
        settings = {name: getattr(self, name) for name in self.common_settings}
        start_alike(self.policy, {"total_timesteps": total_timesteps, **settings}, self.seed)
        if has_convolutions(self.policy) and self.device.type == "cpu":
            keep_freed_memory()

    def check_arguments(self) -> None:
        """
        What is asked when the model is made, and again before it learns.

        :raises ArgumentError: if arguments cannot work, alone or together
        """
        check_arguments(self)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        # The last rollout may overshoot the budget, where a linear schedule would be negative
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def _maybe_recommend_cpu(self, mlp_class_name: str = MlpPolicy.__name__) -> None:
        super()._maybe_recommend_cpu(mlp_class_name)

    # ---- files ----

    def save(
        self, path: str | Path | io.BufferedIOBase, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """
        As in SB3. A file takes the place of the one before it when it is complete. ``save_aux_buffer`` saves the rest.

        :param path: of the zip file (".zip" is added to a name without suffix), or a stream
        :param exclude: names of attributes that are not saved
        :param include: names of attributes that are saved in spite of being excluded by default
        :raises OSError: if it cannot be written; the file that was there is left as it was
        """
        with marked(self):
            if not isinstance(path, (str, Path)):
                super().save(path, exclude, include)
                return
            path = Path(path)
            with replaced(path if path.suffix else path.with_name(f"{path.name}.zip")) as temporary:
                super().save(temporary, exclude, include)

    @classmethod
    def load(cls, path: str | Path | io.BufferedIOBase, *args: Any, **kwargs: Any) -> Self:
        """
        As in SB3, but the global random generators are as they were, unless the keyword argument ``seed`` asks for another.

        :param path: of the zip file, or a stream
        :raises FileNotFoundError: if there is none
        :raises ModelFormatError: if the file is damaged, another class's or a newer version's
        """
        with checked_model_file(path, cls) as file, nullcontext() if "seed" in kwargs else generators_kept():
            model = super().load(file, *args, **kwargs)
        unmark(model)
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

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "aux_buffer", "criterion", "_training_callback"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        # Most objectives have nothing to save
        of_objective = ["criterion"] if self.criterion.state_dict() else []
        return ["policy", "policy.optimizer", "value_optimizer", "aux_optimizer", *of_objective], []
