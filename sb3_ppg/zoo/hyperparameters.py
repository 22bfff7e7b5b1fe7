"""Our hyperparameter files, and Optuna's search spaces for PPG, its variants and BCQ."""

from collections.abc import Callable
from functools import partial
from math import log2
from pathlib import Path
from typing import Any

import optuna
import rl_zoo3.exp_manager
from rl_zoo3.hyperparams_opt import convert_offpolicy_params, convert_onpolicy_params

import sb3_ppg
from sb3_ppg import ImpalaCNN, MinAtarCNN
from sb3_ppg.family import FAMILY
from sb3_ppg.offline import BCQ
from sb3_ppg.zoo.environments import PROCGEN_IDS

# Entries that stand for several environments, in addition to the Zoo's "atari", and whether an environment belongs to them
FAMILIES: dict[str, Callable[[str], bool]] = {
    "procgen": PROCGEN_IDS.__contains__,
    "minigrid": lambda env_id: env_id.startswith("MiniGrid-"),
    "minatar": lambda env_id: env_id.startswith("MinAtar/"),
}


SAME_FILE = {"ddcpg": "dcpg", "idaac": "daac"}  # variants with the entries of another algorithm of their paper


def hyperparameter_file(algo: str) -> Path:
    """Find our file for an algorithm: in the installed package, or in the repository for an editable installation."""
    package = Path(sb3_ppg.__file__).parent
    folder = package / "hyperparams"
    return (folder if folder.is_dir() else package.parent / "hyperparams") / f"{SAME_FILE.get(algo, algo)}.yml"


def eval_expression(expression: str) -> Any:
    """Evaluate Python in a hyperparameter file, which knows the names in the Zoo's ``exp_manager``, and our extractors."""
    return eval(expression, {**vars(rl_zoo3.exp_manager), "ImpalaCNN": ImpalaCNN, "MinAtarCNN": MinAtarCNN})


# ---- searching ----

# log2 of the steps of an environment in the shortest and in the longest phase, of 2 rollouts of 32 steps and of 32 of 1024
SHORTEST_PHASE_POW, LONGEST_PHASE_POW = 6, 15
N_PHASES = 3  # minimum number of phases in a trial, unless it is shorter than this many of the shortest phases
BUDGET = "n_timesteps"  # user attribute of a trial
OFFLINE: dict[str, type[BCQ]] = {"bcq": BCQ}  # algorithms that learn from recorded data


def sample_params(
    zoo_name: str, trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Choose hyperparameters for a trial, as one of the Zoo's samplers. If the trial's budget is known, at least three phases fit
    into it: with fewer, the auxiliary phase would hardly contribute to the score. Of a member's preset, architecture and
    numbers of policy iterations, value epochs and auxiliary epochs are not searched; the rest is.
    """
    longest = LONGEST_PHASE_POW
    if (budget := trial.user_attrs.get(BUDGET)) is not None:
        longest = min(longest, max(SHORTEST_PHASE_POW, int(log2(budget / (N_PHASES * n_envs)))))
    trial.suggest_int("n_envs", n_envs, n_envs)  # not searched, but batches are not longer than the rollout of all
    trial.suggest_int("longest_phase_pow", longest, longest)
    trial.suggest_int("n_steps_pow", 5, min(10, longest - 1))
    trial.suggest_int("n_policy_iterations_pow", 1, 5)  # fewer if the phase would be too long
    trial.suggest_int("batch_size_pow", 5, 10)
    trial.suggest_float("one_minus_gamma", 0.0001, 0.1, log=True)
    trial.suggest_float("one_minus_gae_lambda", 0.001, 0.2, log=True)
    trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True)
    trial.suggest_float("ent_coef", 1e-8, 0.1, log=True)
    trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3, 0.4])
    trial.suggest_categorical("n_epochs", [1, 2, 4, 8, 16])
    trial.suggest_float("max_grad_norm", 0.3, 2)
    preset = FAMILY[zoo_name].preset
    if "n_value_epochs" in preset:
        trial.suggest_float("value_learning_rate", 1e-5, 3e-3, log=True)
    if preset.get("n_aux_epochs") != 0:
        if "n_aux_epochs" not in preset:
            trial.suggest_categorical("n_aux_epochs", [1, 3, 6, 9])
        trial.suggest_float("aux_learning_rate", 1e-5, 3e-3, log=True)
        trial.suggest_float("beta_clone", 0.1, 10, log=True)
    if "architecture" not in preset.get("policy_kwargs", {}):
        trial.suggest_categorical("architecture", ["dual", "detached", "shared"])
    trial.suggest_categorical("net_arch", ["tiny", "small", "medium"])
    trial.suggest_categorical("activation_fn", ["tanh", "relu"])
    for name, choices in FAMILY[zoo_name].searched.items():
        trial.suggest_categorical(name, choices)
    sampled = convert_params(zoo_name, trial.params)
    for name in ("gamma", "gae_lambda", "n_steps", "n_policy_iterations", "batch_size"):
        if name in sampled:
            trial.set_user_attr(name, sampled[name])
    return sampled


def convert_params(zoo_name: str, sampled_params: dict[str, Any]) -> dict[str, Any]:
    """Convert the values that Optuna stores of a trial to arguments of the member's algorithm, without its preset."""
    hyperparams = convert_onpolicy_params(sampled_params)
    longest_pow = hyperparams.pop("longest_phase_pow") - sampled_params["n_steps_pow"]
    hyperparams["n_policy_iterations"] = 2 ** min(hyperparams.pop("n_policy_iterations_pow"), longest_pow)
    if "n_policy_iterations" in FAMILY[zoo_name].preset:
        del hyperparams["n_policy_iterations"]
    hyperparams["batch_size"] = min(hyperparams["batch_size"], hyperparams["n_steps"] * hyperparams.pop("n_envs"))
    hyperparams["aux_batch_size"] = None  # the default, a sixteenth of a rollout: the file's may be longer than a phase
    for name in ("architecture", *FAMILY[zoo_name].searched):
        if name in hyperparams:
            hyperparams["policy_kwargs"][name] = hyperparams.pop(name)
    return hyperparams


def sample_params_of_bcq(trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """Choose hyperparameters for a trial of BCQ, as one of the Zoo's samplers: ``n_actions`` is 0 if actions are discrete."""
    trial.suggest_float("one_minus_gamma", 0.0001, 0.1, log=True)
    trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True)
    trial.suggest_int("batch_size_pow", 5, 9)
    trial.suggest_float("tau", 0.001, 0.05, log=True)
    trial.suggest_categorical("net_arch", ["small", "medium", "big"])
    trial.suggest_categorical("activation_fn", ["tanh", "relu"])
    if n_actions > 0:
        trial.suggest_float("phi", 0.0, 0.3)
        trial.suggest_float("lmbda", 0.5, 1.0)
        trial.suggest_float("latent_kl_coef", 0.01, 1.0, log=True)
    else:
        trial.suggest_float("threshold", 0.0, 0.9)
    return convert_offpolicy_params(trial.params)


SAMPLERS = {name: partial(sample_params, name) for name in FAMILY} | {"bcq": sample_params_of_bcq}
CONVERTERS = {name: partial(convert_params, name) for name in FAMILY} | {"bcq": convert_offpolicy_params}
