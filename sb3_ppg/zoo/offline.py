"""Algorithms for recorded data in RL Zoo, and their search space for ``train -optimize``."""

from typing import Any

import optuna
from rl_zoo3.hyperparams_opt import convert_offpolicy_params

from sb3_ppg.offline import BCQ
from sb3_ppg.zoo.search import ACTIVATION_FNS

OFFLINE: dict[str, type[BCQ]] = {"bcq": BCQ}


def sample_params(trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Choose hyperparameters for a trial.

    :param trial: samples the values
    :param n_actions: dimensions of Box actions; 0 for others
    :param n_envs: not used; the Zoo's samplers have this signature
    :param additional_args: not used; for HER
    :return: arguments of ``BCQ``
    """
    trial.suggest_float("one_minus_gamma", 0.0001, 0.1, log=True)
    trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True)
    trial.suggest_int("batch_size_pow", 5, 9)
    trial.suggest_float("tau", 0.001, 0.05, log=True)
    trial.suggest_categorical("net_arch", ["small", "medium", "big"])
    trial.suggest_categorical("activation_fn", list(ACTIVATION_FNS))
    if n_actions > 0:
        trial.suggest_float("phi", 0.0, 0.3)
        trial.suggest_float("lmbda", 0.5, 1.0)
        trial.suggest_float("latent_kl_coef", 0.01, 1.0, log=True)
    else:
        trial.suggest_float("threshold", 0.0, 0.9)
    return convert_offpolicy_params(trial.params)


SAMPLERS, CONVERTERS = {"bcq": sample_params}, {"bcq": convert_offpolicy_params}
