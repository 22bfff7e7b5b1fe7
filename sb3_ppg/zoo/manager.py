"""RL Zoo's ``ExperimentManager`` for our algorithms and environments."""

import argparse
import copy
import importlib
import os
import sys
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partialmethod
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar, TextIO
from unittest.mock import patch

import numpy as np
import optuna
import rl_zoo3.exp_manager
import yaml
from huggingface_sb3 import EnvironmentName
from rl_zoo3 import ALGOS
from rl_zoo3.callbacks import TrialEvalCallback
from rl_zoo3.exp_manager import ExperimentManager
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor, VecNormalize
from typing_extensions import override

from sb3_ppg import PPG, MaskablePPG, PhasicCallback, PhasicCheckpointCallback, aux_buffer_path
from sb3_ppg.arguments import argument_names
from sb3_ppg.buffers.rollouts import store_floats
from sb3_ppg.comparison.evaluations import Evaluations
from sb3_ppg.distributed import broadcast, gather, n_processes, rank
from sb3_ppg.environments import EnvPoolVecEnv
from sb3_ppg.environments.watched import innermost
from sb3_ppg.errors import ADVISED, ArgumentError, ModelFormatError, nearest, raised_as
from sb3_ppg.family import FAMILY, with_preset
from sb3_ppg.hub.pretrained import read_model
from sb3_ppg.optim.micro_batches import keep_freed_memory
from sb3_ppg.prior import SELF
from sb3_ppg.saving.checkpoints import checkpoint_callbacks, latest_checkpoint
from sb3_ppg.saving.files import package_version
from sb3_ppg.saving.training_state import files_of_processes, generators_kept
from sb3_ppg.zoo.diagnosis import LogFile
from sb3_ppg.zoo.environments import PROCGEN_IDS
from sb3_ppg.zoo.hyperparameters import BUDGET, FAMILIES, OFFLINE, eval_expression, hyperparameter_file
from sb3_ppg.zoo.resuming import (
    SAME,
    check_same,
    forget_later_episodes,
    locked_config,
    make_run_folder,
    n_steps_of,
    restore_evaluations,
    set_aside,
    settings,
    sigterm_blocked_in_children,
    without_sigterm,
)

LONGEST = 10_000  # steps of an episode that an evaluation waits for in any case
N_CHECKPOINTS = 20  # of a run with `--run-folder`, unless `--save-freq` says otherwise
# Hyperparameters that RL Zoo consumes
OF_THE_ZOO = "n_timesteps n_envs normalize frame_stack env_wrapper vec_env_wrapper callback env_kwargs monitor_kwargs".split()
OF_THE_NOISE = ("noise_type", "noise_std")  # of which the Zoo makes the argument `action_noise`
# Hyperparameters that may be schedules
SCHEDULED = ("learning_rate", "aux_learning_rate", "value_learning_rate", "clip_range", "clip_range_vf", "prior_coef")


class Manager(ExperimentManager):
    """
    RL Zoo's manager of runs and searches (rl_zoo3 2.9.2), which also knows our algorithms and environments.

    Other algorithms keep the Zoo's own behavior, except in our environments, and where a bug of the Zoo or of SB3 is fixed
    here; those places name its version.
    """

    run_folder: ClassVar[str | None] = None  # `train --run-folder`
    dataset: ClassVar[str | None] = None  # `train --dataset`
    prior: ClassVar[str | None] = None  # `train --prior`

    def __init__(self, args: argparse.Namespace, algo: str, env_id: str, *others: Any, **options: Any):
        self.is_phasic = algo in FAMILY  # PPG or one of its relatives
        self.is_ours = self.is_phasic or algo in OFFLINE
        self.config_file: TextIO | None = None  # of the run, which is locked while it is open
        self.n_steps_before = 0  # steps at the checkpoint from which a run goes on
        self.first_monitor = 0  # number of the first monitor file
        self.study: optuna.Study | None = None  # of a search
        self.trial: optuna.Trial | None = None  # for which this copy was made, in a search
        self.saved_hyperparams: dict[str, Any] = {}  # as in the folder of the run
        if self.is_ours and options.get("config") is None:
            options["config"] = str(hyperparameter_file(algo))
        super().__init__(args, algo, env_id, *others, **options)
        if self.run_folder is not None and self.optimize_hyperparameters:
            raise ArgumentError("--run-folder is for a run: a search goes on if it has the same --storage and --study-name")
        # Saved with the options
        args.run_folder, args.prior, args.written_by = self.run_folder, self.prior, f"sb3_ppg {package_version()}"
        if self.trained_agent and self.optimize_hyperparameters:
            raise ArgumentError("-i cannot work with -optimize: a search begins each trial with a new model")
        if self.prior is not None and (not self.is_phasic or self.optimize_hyperparameters):
            raise ArgumentError(f"--prior cannot work here: it is for runs, not searches, of {', '.join(FAMILY)}")
        if self.is_phasic:
            keep_freed_memory()
        if self.run_folder is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
            print("A restart will begin a new run: with --run-folder FOLDER it goes on")
        if n_processes() > 1:
            self._join_the_others()

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return what ARS sends to its workers: neither an open file nor a study."""
        return {**vars(self), "config_file": None, "study": None, "trial": None}

    def _join_the_others(self) -> None:
        """Count the steps of all processes in frequencies; evaluate and print in the first one."""
        if self.optimize_hyperparameters:
            raise ArgumentError("a search for hyperparameters is for one process: start several with one --storage instead")
        if not self.is_phasic:
            raise ArgumentError(f"{self.algo} trains in one process; under torchrun use one of {', '.join(FAMILY)}")
        self.eval_freq, self.save_freq = (
            max(each // n_processes(), min(each, 1)) for each in (self.eval_freq, self.save_freq)
        )
        if rank() > 0:
            self.eval_freq, self.show_progress, self.tensorboard_log, self.verbose = -1, False, None, 0

    @staticmethod
    @override
    def is_minigrid(env_id: str) -> bool:
        """Return whether agents sample actions in evaluation and play; the Zoo's scripts call this to find out."""
        return env_id in PROCGEN_IDS or ExperimentManager.is_minigrid(env_id)

    # ---- hyperparameters ----

    @override
    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Add the hyperparameters of a trial, and the data to learn from."""
        is_search, networks = self.optimize_hyperparameters and self.trial_id is None, dict[str, Any]()
        if not is_search and (self.storage or self.study_name or self.trial_id is not None):
            if not (self.storage and self.study_name):
                raise ArgumentError("to train with the hyperparameters of a study, use --storage and --study-name")
            print("Loading the best trial of the study" if self.trial_id is None else f"Loading trial {self.trial_id}")
            with raised_as(ArgumentError, f"no such trial of study {self.study_name!r} in {self.storage}", ImportError):
                trial = self.load_trial(self.storage, self.study_name, self.trial_id)
            networks = trial.pop("policy_kwargs", {}) if self.is_ours else {}
            self.custom_hyperparams = {**trial, **(self.custom_hyperparams or {})}
            self.trial_id = None  # it is loaded; rl_zoo3 2.9.2 takes trial 0 for no trial, and no trial for no study
        if self.dataset is not None:
            self.custom_hyperparams = {**(self.custom_hyperparams or {}), "dataset": self.dataset}
        hyperparams, self.saved_hyperparams = self._read_entry()
        if networks:
            given = with_networks(hyperparams, networks, is_kept="policy_kwargs" in (self.custom_hyperparams or {}))
            hyperparams, self.saved_hyperparams = hyperparams | given, self.saved_hyperparams | given
        if self.is_own_entry():
            ADVISED.add("short phases")  # which our files may have: they were run as they are
        if self.algo in OFFLINE and "dataset" not in hyperparams:
            raise ArgumentError(f"{self.algo.upper()} learns from recorded data: name it with --dataset")
        self._set_eval_env_kwargs(hyperparams.get("env_kwargs", self.env_kwargs))
        return hyperparams, self.saved_hyperparams

    def _read_entry(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read the entry of the environment or, where the file has none, that of its family."""
        env_name = self.env_name
        if self.config.endswith((".yml", ".yaml")):
            entries = yaml.safe_load(Path(self.config).read_text())
            family = next((name for name, is_member in FAMILIES.items() if is_member(env_name.gym_id)), "")
            if env_name.gym_id not in entries and family in entries:
                print(f"Using {family!r} hyperparameters")
                self.env_name = EnvironmentName(family)
        copied: AbstractContextManager = nullcontext()
        if not self.config.endswith((".yml", ".yaml", ".py")):  # a module, whose dictionaries the Zoo would change
            module = importlib.import_module(self.config)
            copied = patch.object(module, "hyperparams", copy.deepcopy(module.hyperparams))
        try:
            with copied:
                return super().read_hyperparameters()
        except (KeyError, ValueError) as error:
            if error.args != ("atari",) and "Hyperparameters not found" not in str(error):
                raise
            remedy = f"write an entry for it into a file of yours, for -conf; {hyperparameter_file('ppg')} has some to copy"
            raise ArgumentError(f"{self.config} has no hyperparameters for {env_name.gym_id}: {remedy}") from error
        finally:
            self.env_name = env_name

    def is_own_entry(self) -> bool:
        """Return whether all hyperparameters, not counting callbacks, are those of our files."""
        changed = (self.custom_hyperparams or {}).keys() - {"callback"}
        return self.config == str(hyperparameter_file(self.algo)) and not changed

    def _set_eval_env_kwargs(self, env_kwargs: dict[str, Any]) -> None:
        """
        Evaluate with the options of the training environment, unless the command has others for evaluation. (rl_zoo3 2.9.2
        ignores options in the hyperparameters.) Agents that were trained on some of Procgen's levels are evaluated on all.
        """
        if self._eval_env_kwargs_args:
            return
        self.eval_env_kwargs = env_kwargs
        if self.env_name.gym_id in PROCGEN_IDS and env_kwargs.get("num_levels"):
            self.eval_env_kwargs = {**env_kwargs, "num_levels": 0, "start_level": 0}
            self.args.eval_env_kwargs = self.eval_env_kwargs  # saved for `report` and others

    @override
    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> tuple:
        """Refuse unknown names, and add presets."""
        if self.is_ours:
            self._check_names(hyperparams)
        if isinstance(hyperparams.get("policy_kwargs"), str):
            hyperparams["policy_kwargs"] = eval_expression(hyperparams["policy_kwargs"])
        hyperparams, *others = super()._preprocess_hyperparams(hyperparams)
        if self.algo in OFFLINE:
            self.n_envs = 1  # the Zoo divides frequencies by this, but BCQ steps no environment
        return with_preset(self.algo, hyperparams) if self.is_phasic else hyperparams, *others

    def _check_names(self, hyperparams: dict[str, Any]) -> None:
        known = {*argument_names(ALGOS[self.algo], accepted=True), *OF_THE_ZOO}
        known |= {*OF_THE_NOISE} if "action_noise" in known else set()
        for name in hyperparams.keys() - known:
            raise ArgumentError(f"{self.algo.upper()} has no hyperparameter {name!r} {self._places()}{nearest(name, known)}")

    def _places(self) -> str:
        return f"(in {self.config}, on the command line or in a study)"

    @override
    def _preprocess_schedules(self, hyperparams: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        """Make schedules of SB3: a model that holds the Zoo's could only be loaded where the Zoo is installed."""
        if not self.is_ours:
            return super()._preprocess_schedules(hyperparams)
        for name in SCHEDULED:
            if isinstance(value := hyperparams.get(name), str):
                kind, _, start = value.partition("_")
                with suppress(ValueError):
                    if kind == "lin":
                        hyperparams[name] = LinearSchedule(float(start), 0.0, 1.0)
                        continue
                remedy = "use a number, which in YAML has a dot (3.0e-4), or a linear schedule such as lin_3e-4"
                raise ArgumentError(f"`{name}`={value!r} cannot work {self._places()}: {remedy}")
        return hyperparams

    # ---- what a run needs ----

    @override
    def create_log_folder(self) -> None:
        """
        Make the folder of a new run, or go on with the run there, if all processes can write in it.

        :raises ArgumentError: if hyperparameters of a file in Python could not be read again, as to play the agent
        """
        if not (self.optimize_hyperparameters or any(isinstance(callback, Evaluations) for callback in self.callbacks)):
            try:
                yaml.unsafe_load(yaml.dump(self.saved_hyperparams))
            except yaml.YAMLError as error:
                remedy = "define classes and functions, no lambdas, in a module, and name the module (-conf mine, not mine.py)"
                raise ArgumentError(
                    f"a hyperparameter {self._places()} cannot be read again, so nothing could play the agent: {remedy}"
                ) from error
        self.saved_hyperparams |= {"n_timesteps": int(self.n_timesteps)}
        if self.run_folder is not None and self.is_phasic and self.save_freq < 0:
            self.save_freq = max(1, int(self.n_timesteps) // (N_CHECKPOINTS * n_processes()))
        checkpoint = None
        if rank() == 0:
            checkpoint = self._enter_folder()
            names = [path.name.split(".")[0] for path in Path(self.save_path).glob("*.monitor.csv")]
            numbers = [int(name) for name in names if name.isdecimal()]  # others are a user's
            self.first_monitor = max(numbers, default=-1) + 1
        self.seed, self.save_path, checkpoint, self.first_monitor = broadcast(
            (self.seed, self.save_path, checkpoint, self.first_monitor)
        )
        self.params_path = f"{self.save_path}/{self.env_name}"
        if self.tensorboard_log is not None and self.is_phasic and self.save_freq > 0:
            self.tensorboard_log += f"/{Path(self.save_path).name}"  # where it goes on: SB3 takes the latest folder there
        if checkpoint is not None:
            self.trained_agent, self.continue_training = str(checkpoint), True
            self.n_steps_before = n_steps_of(checkpoint)
        with TemporaryFile(dir=self.params_path):
            gather(None)
        if checkpoint is not None and checkpoint.stem == self.env_name and self.n_steps_before >= self.n_timesteps:
            print(f"The run in {self.save_path} is finished" + "; a larger -n extends it" * self.is_phasic)
            raise SystemExit(0)

    def _enter_folder(self) -> Path | None:
        """
        Make the folder of a new run or, with ``--run-folder`` (a folder, or a checkpoint in it), use that folder and the seed
        of its run. Return the checkpoint from which the run continues, if there is one, or the last model of a finished run.
        """
        place = make_run_folder(self.save_path) if self.run_folder is None else self.run_folder
        named, is_file = Path(place), Path(place).suffix == ".zip"
        if not place or named.is_file() != is_file or (is_file and not self.is_phasic):
            remedy = f"name a folder or, for {', '.join(FAMILY)}, an existing checkpoint in it"
            raise ArgumentError(f"--run-folder {place!r} cannot work: {remedy}")
        folder = named.parent if is_file else named
        self.save_path, self.config_file = str(folder), locked_config(folder, self.env_name)
        model, checkpoint = folder / f"{self.env_name}.zip", None
        with suppress(FileNotFoundError):
            checkpoint = latest_checkpoint(folder, "rl_model")  # the Zoo's prefix
        # A model that was saved after Ctrl-C, in the middle of a phase, counts as one that has steps left
        is_finished = n_steps_of(model) >= n_steps_of(model, "_total_timesteps")
        if model.is_file() and (checkpoint is None or (is_finished and n_steps_of(model) > n_steps_of(checkpoint))):
            checkpoint = model
        if checkpoint is not None:
            before = settings(folder / self.env_name)
            if not any(argument.startswith("--seed") for argument in sys.argv):  # the Zoo has drawn another one
                self.args.seed = self.seed = before["seed"]
            check_same(folder, before, self.saved_hyperparams | {name: getattr(self.args, name) for name in SAME})
            if is_file and Path(before["run_folder"] or "").name != named.name:  # else the command is given again
                checkpoint = named
                set_aside(folder, named)
            elif is_finished and n_steps_of(model) >= self.n_timesteps:
                return model
        if not self.is_phasic and checkpoint is not None:
            print(f"{self.algo} has no checkpoints to go on from exactly, and starts again")
            checkpoint = None
        forget_later_episodes(folder, checkpoint)
        if checkpoint is not None:
            print(f"Going on after {n_steps_of(checkpoint)} steps, from {checkpoint}, with seed {self.seed}")
        return checkpoint

    @override
    def _save_config(self, saved_hyperparams: dict[str, Any]) -> None:
        """Save hyperparameters and options once, in the first process, with the steps of this run (``-n``)."""
        if rank() == 0:
            super()._save_config(self.saved_hyperparams)

    @override
    def create_callbacks(self) -> None:
        """Make evaluations use action masks, also in comparisons, and keep the earlier evaluations of a continued run."""
        with patch.object(rl_zoo3.exp_manager, "EvalCallback", _EvalCallback):
            super().create_callbacks()
        for callback in self.callbacks:
            if isinstance(callback, EvalCallback) and self.n_steps_before > 0:
                callback.n_calls = self.n_steps_before // (self.n_envs * n_processes())  # counts to the next evaluation
                restore_evaluations(callback, self.n_steps_before)
            if isinstance(callback, Evaluations):
                callback.make_envs, callback.deterministic = self._create_evaluated_envs, self.deterministic_eval
                callback.n_episodes, callback.n_envs = self.n_eval_episodes, self.n_eval_envs

    def _create_evaluated_envs(self, n_envs: int, seed: int) -> VecEnv:
        """Create environments in this process: they are used for one episode each."""
        with patch.multiple(self, seed=seed, vec_env_class=DummyVecEnv):
            return self.create_envs(n_envs, eval_env=True)

    @override
    def _maybe_normalize(self, env: VecEnv, eval_env: bool) -> VecEnv:
        """
        Let a continued run take its statistics from its checkpoint. Those in the folder belong to the best or the last model,
        and may be damaged, because the Zoo overwrites them in place.
        """
        has_own = self.n_steps_before > 0 and files_of_processes(aux_buffer_path(self.trained_agent))
        with patch.object(self, "trained_agent", os.devnull) if has_own else nullcontext():
            return super()._maybe_normalize(env, eval_env)

    @override
    def create_envs(self, n_envs: int, eval_env: bool = False, no_log: bool = False) -> VecEnv:
        """Make Procgen's games in one EnvPool, and number monitor files so that none is overwritten."""
        if self.trial is not None and "one_minus_gamma" in self.trial.params:
            self.normalize_kwargs["gamma"] = 1 - self.trial.params["one_minus_gamma"]
        is_logged, env_id = not (eval_env or no_log), self.env_name.gym_id
        if env_id in PROCGEN_IDS and self.env_wrapper is None:  # wrappers need single environments
            options = self.eval_env_kwargs if eval_env else self.env_kwargs
            monitor_file = f"{self.save_path}/{self.first_monitor + rank()}" if is_logged else None
            keywords = tuple(self.monitor_kwargs.get("info_keywords", ()))
            # It counts the functions that make single environments, and calls none
            self.vec_env_class = lambda env_fns: VecMonitor(  # type: ignore[assignment]
                EnvPoolVecEnv(env_id, len(env_fns), self.seed, **options), monitor_file, keywords
            )
        if not self.is_phasic:
            return super().create_envs(n_envs, eval_env, no_log)

        is_blocked = isinstance(self.vec_env_class, type) and issubclass(self.vec_env_class, SubprocVecEnv)

        def made(make_env: Any, *args: Any, **kwargs: Any) -> VecEnv:
            kwargs |= dict(start_index=self.first_monitor + rank() * n_envs) if is_logged else {}
            return make_vec_env(without_sigterm(make_env) if is_blocked else make_env, *args, **kwargs)

        with (
            patch.object(rl_zoo3.exp_manager, "make_vec_env", made) if is_logged or is_blocked else nullcontext(),
            sigterm_blocked_in_children() if is_blocked else nullcontext(),
        ):
            return super().create_envs(n_envs, eval_env, no_log)

    @override
    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        """Load the auxiliary buffer in the model's folder, too."""
        is_same_run = self.n_steps_before > 0
        if is_same_run:  # the model's own hold the statistics of rewards
            hyperparams = {name: value for name, value in hyperparams.items() if name != "rollout_buffer_kwargs"}
        model: Any = super()._load_pretrained_agent(hyperparams, env)
        if self.algo in OFFLINE:  # the Zoo may have loaded the earlier run's
            model.set_dataset(hyperparams["dataset"])
        if is_same_run:  # otherwise the first episodes would be repeated
            seed = int(np.random.SeedSequence([self.seed, self.n_steps_before]).generate_state(1)[0] % 2**31)
            env.seed(seed + rank() * env.num_envs)
        path = aux_buffer_path(self.trained_agent)
        if isinstance(model, PPG) and files_of_processes(path):
            print(f"Loading {path}")
            with nullcontext() if is_same_run else generators_kept():  # a new run has a seed of its own
                try:
                    model.load_aux_buffer(path)
                except ModelFormatError as error:  # for instance if the rollouts have another length
                    if is_same_run:
                        raise
                    print(f"{error}. The phase starts over")
        return model

    # ---- learning ----

    @override
    def learn(self, model: BaseAlgorithm) -> None:
        """Train. Our algorithms save our checkpoints in place of SB3's, and a continued run keeps its counters."""
        if not isinstance(model, PPG):
            keep_floats(model)
            super().learn(model)
            return
        if self.prior is not None and self.n_steps_before == 0:  # else its file holds it
            with generators_kept():
                model.set_prior(SELF if self.prior == SELF else load_prior(Path(self.prior), model))
        for place, callback in enumerate(self.callbacks):
            # The Zoo's, which saves in the middle of rollouts
            if type(callback) is CheckpointCallback and callback.save_path == self.save_path:
                n_rollouts, where = max(1, round(callback.save_freq / model.n_steps)), callback.save_path
                self.callbacks[place] = PhasicCheckpointCallback(n_rollouts, where, callback.name_prefix, verbose=2)
        if n_processes() > 1 and not self.show_progress:
            self.callbacks.insert(0, PhasicCallback())  # rl_zoo3 2.9.2 ends the first callback a second time
        if rank() == 0:
            self.callbacks.append(LogFile(self.save_path, self.is_own_entry()))
        continued: AbstractContextManager = nullcontext()
        if self.n_steps_before > 0:
            self.n_timesteps = int(self.n_timesteps) - model.num_timesteps
            if self.n_timesteps <= 0:
                print("It has taken all its steps: its model is saved")
                return
            # Patch the class, because a method set on the model would be saved with it
            continued = patch.object(type(model), "learn", partialmethod(type(model).learn, reset_num_timesteps=False))
        try:
            with continued:
                super().learn(model)
        except SystemExit:
            print(f"A signal has ended the run after {model.num_timesteps} steps: --run-folder {self.save_path} goes on")
            raise

    @override
    def save_trained_model(self, model: BaseAlgorithm) -> None:
        """
        Save the model and, with ``--save-replay-buffer``, its auxiliary buffer; save also the number of steps of a run that
        Ctrl-C or a callback has ended early.
        """
        if isinstance(model, PPG) and self.save_replay_buffer:
            model.save_aux_buffer(aux_buffer_path(Path(self.save_path) / self.env_name))
            gather(None)  # all have written their own files
        if any(callback.failed_mid_iteration for callback in checkpoint_callbacks(self.callbacks)):
            model._total_timesteps = model.num_timesteps + 1  # Ctrl-C may have come in the last iteration
        if rank() == 0:
            super().save_trained_model(model)
            if model.num_timesteps < self.saved_hyperparams["n_timesteps"]:
                trained = self.saved_hyperparams | {"n_timesteps": model.num_timesteps}
                Path(self.params_path, "config.yml").write_text(yaml.dump(trained))
            if self.config_file is not None:
                self.config_file.close()

    # ---- searching ----

    @override
    def hyperparameters_optimization(self) -> None:
        samplers = rl_zoo3.exp_manager.HYPERPARAMS_SAMPLER
        sampler = samplers[self.algo]

        def sample(*args: Any) -> dict[str, Any]:
            """Add the sampled network arguments to the file's ``policy_kwargs``, which the Zoo would drop."""
            sampled = sampler(*args)
            return sampled | with_networks(self._hyperparams, sampled.get("policy_kwargs", {}))

        own = {self.algo: sample} if self.is_ours else {}
        with patch.object(rl_zoo3.exp_manager, "TrialEvalCallback", _TrialEvalCallback), patch.dict(samplers, own):
            super().hyperparameters_optimization()
        if self.study is not None:  # its trials have run in this process
            number = self.study.best_trial.number
            options = f"--storage {self.storage} --study-name {self.study.study_name} --trial-id {number}"
            remedy = f"train it with {options}" if self.storage else "only a search with --storage keeps it for training"
            print(f"The best trial is number {number}; {remedy}")

    @override
    def objective(self, trial: optuna.Trial) -> float:
        """
        Tell our samplers the budget of a trial, and normalize rewards with the trial's discount. (rl_zoo3 2.9.2 searches with
        the file's discount, and uses the trial's only when the trial is trained again.)
        """
        if self.study is None and trial.number > 0:  # a search goes on, or processes share it: with the same `--seed`,
            trial.study.sampler.reseed_rng()  # the sampler of rl_zoo3 2.9.2 would draw the first trials again
        self.study = trial.study
        if self.is_phasic:
            trial.set_user_attr(BUDGET, int(self.n_timesteps))
        own = copy.copy(self)  # trials may run in several threads
        own.trial, own.normalize_kwargs = trial, dict(self.normalize_kwargs)
        return super(Manager, own).objective(trial)


def with_networks(hyperparams: dict[str, Any], networks: dict[str, Any], is_kept: bool = False) -> dict[str, Any]:
    """Return ``policy_kwargs`` merged with those of a trial, which take precedence unless ``is_kept``."""
    given: Any = hyperparams.get("policy_kwargs") or {}
    given = eval_expression(given) if isinstance(given, str) else given
    return {"policy_kwargs": networks | given if is_kept else given | networks}


def keep_floats(model: BaseAlgorithm) -> None:
    """
    Make the rollouts of SB3's and sb3-contrib's algorithms keep normalized observations and sampled actions as floats: where
    the spaces have integers, SB3 2.9.2 truncates them.
    """
    if isinstance(model, OnPolicyAlgorithm):
        store_floats(model.rollout_buffer, model.env)


def load_prior(path: Path, model: PPG) -> BaseAlgorithm:
    """
    Load an agent with the statistics of its ``VecNormalize`` from a folder of plain data, or a model's file. In a folder of
    the Zoo, ``ALGO/ENV_1``, the file is of that algorithm; elsewhere, of the algorithm of the model in training.
    """
    if path.is_dir():
        agent: Any
        agent, agent.env = read_model(path)
        return agent
    folder = path.resolve().parent
    agent = ALGOS.get(folder.parent.name, type(model)).load(path, device=model.device)
    for file in folder.glob("*/vecnormalize.pkl"):
        agent.env = VecNormalize.load(str(file), innermost(model.env))
    return agent


class _EvalCallback(MaskableEvalCallback):
    """
    Evaluates under action masks if the model takes them. Gives up an evaluation with an episode of more steps than ``LONGEST``
    and the training: in some environments, such as the game 2048, an agent may repeat an action without effect forever.
    """

    @override
    def _init_callback(self) -> None:
        super()._init_callback()
        self.use_masking = isinstance(self.model, MaskablePPG)

    @override
    def _log_success_callback(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        super()._log_success_callback(locals_, globals_)
        place = locals_["i"]
        # An end that the Monitor does not report, as that of a life, is none for SB3
        is_over = "episode" in locals_["info"] if locals_["is_monitor_wrapped"] else locals_["done"]
        self.lengths[place] = 0 if is_over else self.lengths[place] + 1
        if self.lengths[place] > max(self.model._total_timesteps, LONGEST):
            raise _EndlessEpisode

    @override
    def _on_step(self) -> bool:
        self.lengths: defaultdict[int, int] = defaultdict(int)  # of the episodes, by environment
        try:
            return super()._on_step()
        except _EndlessEpisode:
            remedy = "a time limit would end it, for instance --eval-env-kwargs max_episode_steps:1000"
            limit = max(self.model._total_timesteps, LONGEST)
            print(f"An evaluation was given up: an episode takes more than {limit:,} steps; {remedy}")
            return True


class _EndlessEpisode(Exception):
    """Raised in an evaluation that would not end."""


class _TrialEvalCallback(TrialEvalCallback, _EvalCallback):
    """Evaluates the trials of a search."""

    @override
    def _init_callback(self) -> None:
        super()._init_callback()
        keep_floats(self.model)
