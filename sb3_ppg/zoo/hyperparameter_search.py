"""What ``train -optimize`` searches through: the hyperparameters of PPG and its variants, for Optuna."""

from typing import Any

import optuna
from torch import nn

NET_ARCHS = {"tiny": [64], "small": [64, 64], "medium": [256, 256]}
ACTIVATION_FNS = {"tanh": nn.Tanh, "relu": nn.ReLU}
LSTM = {"lstm_hidden_size": [16, 32, 64, 128, 256]}


def sample_ppg_params(trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Choose hyperparameters for a trial. As with every sampler of the Zoo, its ``policy_kwargs`` replace those of the file.

    :param trial: which chooses
    :param n_actions: not used, as the other arguments: it is the Zoo's signature
    :param n_envs: number of environments
    :param additional_args: for HER
    :return: arguments of ``PPG``
    """
    trial.suggest_int("n_steps_pow", 5, 10)
    trial.suggest_int("batch_size_pow", 5, 10)
    trial.suggest_float("one_minus_gamma", 0.0001, 0.1, log=True)
    trial.suggest_float("one_minus_gae_lambda", 0.001, 0.2, log=True)
    trial.suggest_float("learning_rate", 1e-5, 3e-3, log=True)
    trial.suggest_float("ent_coef", 1e-8, 0.1, log=True)
    trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3, 0.4])
    trial.suggest_categorical("n_epochs", [1, 2, 4, 8, 16])
    trial.suggest_float("max_grad_norm", 0.3, 2)
    # The auxiliary phase. One longer than a trial is never reached: give trials at least a few phases
    trial.suggest_categorical("n_policy_iterations", [2, 4, 8, 16, 32])
    trial.suggest_categorical("n_aux_epochs", [1, 3, 6, 9])
    trial.suggest_float("aux_learning_rate", 1e-5, 3e-3, log=True)
    trial.suggest_float("beta_clone", 0.1, 10, log=True)
    # The networks
    trial.suggest_categorical("architecture", ["dual", "detached", "shared"])
    trial.suggest_categorical("net_arch", list(NET_ARCHS))
    trial.suggest_categorical("activation_fn", list(ACTIVATION_FNS))
    sampled = convert_ppg_params(trial.params)
    for name in ("gamma", "gae_lambda", "n_steps", "batch_size"):
        trial.set_user_attr(name, sampled[name])
    return sampled


def sample_ppg_lstm_params(
    trial: optuna.Trial, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    As ``sample_ppg_params``, and the LSTMs.

    :return: arguments of ``RecurrentPPG``
    """
    for name, choices in LSTM.items():
        trial.suggest_categorical(name, choices)
    return sample_ppg_params(trial, n_actions, n_envs, additional_args)


def convert_ppg_params(sampled_params: dict[str, Any]) -> dict[str, Any]:
    """
    From what Optuna stores of a trial to what the algorithm takes.

    :param sampled_params: as ``sample_ppg_params`` names them
    :return: arguments of ``PPG``
    """
    hyperparams = dict(sampled_params)
    for name in ("gamma", "gae_lambda"):
        hyperparams[name] = 1 - hyperparams.pop(f"one_minus_{name}")
    for name in ("n_steps", "batch_size"):
        hyperparams[name] = 2 ** hyperparams.pop(f"{name}_pow")
    hyperparams["policy_kwargs"] = {
        "architecture": hyperparams.pop("architecture"),
        "net_arch": NET_ARCHS[hyperparams.pop("net_arch")],
        "activation_fn": ACTIVATION_FNS[hyperparams.pop("activation_fn")],
    }
    for name in LSTM:
        if name in hyperparams:
            hyperparams["policy_kwargs"][name] = hyperparams.pop(name)
    return hyperparams


SAMPLERS = {"ppg": sample_ppg_params, "ppg_lstm": sample_ppg_lstm_params, "ppg_mask": sample_ppg_params}
CONVERTERS = dict.fromkeys(SAMPLERS, convert_ppg_params)
