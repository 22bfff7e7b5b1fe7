"""Algorithms for recorded data in RL Zoo, and their search space for ``train -optimize``."""

from typing import Any

import optuna

from sb3_ppg.offline import BCQ
from sb3_ppg.zoo.search import ACTIVATION_FNS

OFFLINE: dict[str, type[BCQ]] = {"bcq": BCQ}
NET_ARCHS = {"small": [64, 64], "medium": [256, 256], "big": [400, 300]}


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
    trial.suggest_categorical("net_arch", list(NET_ARCHS))
    trial.suggest_categorical("activation_fn", list(ACTIVATION_FNS))
    if n_actions > 0:
        trial.suggest_float("phi", 0.0, 0.3)
        trial.suggest_float("lmbda", 0.5, 1.0)
        trial.suggest_float("latent_kl_coef", 0.01, 1.0, log=True)
    else:
        trial.suggest_float("threshold", 0.0, 0.9)
    return convert_params(trial.params)


def convert_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    Convert the values that Optuna stores of a trial to arguments.

    :param sampled_params: values by the names that ``sample_params`` gives them
    :return: arguments of ``BCQ``
    """
    hyperparams = dict(sampled_params)
    hyperparams["gamma"] = 1 - hyperparams.pop("one_minus_gamma")
    hyperparams["batch_size"] = 2 ** hyperparams.pop("batch_size_pow")
    hyperparams["policy_kwargs"] = {
        "net_arch": NET_ARCHS[hyperparams.pop("net_arch")],
        "activation_fn": ACTIVATION_FNS[hyperparams.pop("activation_fn")],
    }
    return hyperparams


SAMPLERS, CONVERTERS = {"bcq": sample_params}, {"bcq": convert_params}
