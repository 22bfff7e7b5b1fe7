"""
The algorithms of the family, each registered here and nowhere else: RL Zoo's commands, hyperparameter search, files of models
and model cards read this table.

A new member is a row, and, for RL Zoo, a file of its name in ``hyperparams``.
"""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.objectives import objective_name
from sb3_ppg.policies.extractors import ImpalaCNN
from sb3_ppg.ppg import PPG
from sb3_ppg.recurrent import RecurrentPPG

PLAY = """obs = env.reset()
for _ in range(1000):
    action, _ = model.predict(obs, deterministic=True)
    obs, rewards, dones, infos = env.step(action)"""
PLAY_RECURRENT = """obs, states, episode_starts = env.reset(), None, np.ones(env.num_envs, dtype=bool)
for _ in range(1000):
    action, states = model.predict(obs, states, episode_starts, deterministic=True)
    obs, rewards, episode_starts, infos = env.step(action)"""
PLAY_MASKABLE = """obs = env.reset()
for _ in range(1000):
    action, _ = model.predict(obs, deterministic=True, action_masks=get_action_masks(env))
    obs, rewards, dones, infos = env.step(action)"""


class Member(NamedTuple):
    """
    An algorithm as users of RL Zoo know it.

    :param algorithm: its class
    :param about: what it is, for people
    :param preset: arguments that make it that member; those of a hyperparameter file come on top
    :param searched: sizes of its networks that a search chooses beside what it chooses for PPG
    :param card_imports: a line of Python that its example on a model card needs
    :param card_example: how to play an agent, on a model card
    """

    algorithm: type[PPG]
    about: str
    preset: Mapping[str, Any] = {}
    searched: Mapping[str, list[int]] = {}
    card_imports: str = ""
    card_example: str = PLAY


# What belongs to the authors' algorithms: networks, phases, clipping. How many epochs and samples is up to the task, and in
# the files for RL Zoo
SEPARATE_NETWORKS = {"architecture": "dual"}
FAMILY: dict[str, Member] = {
    "ppg": Member(PPG, "Phasic Policy Gradient"),
    "ppg_lstm": Member(
        RecurrentPPG,
        "Phasic Policy Gradient with LSTMs",
        searched={"lstm_hidden_size": [16, 32, 64, 128, 256]},
        card_imports="import numpy as np",
        card_example=PLAY_RECURRENT,
    ),
    "ppg_mask": Member(
        MaskablePPG,
        "Phasic Policy Gradient with invalid action masking",
        card_imports="from sb3_contrib.common.maskable.utils import get_action_masks",
        card_example=PLAY_MASKABLE,
    ),
    "ppg_ewma": Member(PPG, "PPG with an averaged proximal policy (PPG-EWMA)", {"objective": "ewma"}),
    "ppg_replay": Member(
        PPG,
        "PPG whose policy phase learns from the last rollouts",
        {"objective": "decoupled", "replay_kwargs": {"policy_rollouts": 3}},
    ),
    "dcpg": Member(
        PPG,
        "Delayed-Critic Policy Gradient",
        {"objective": "dcpg", "policy_kwargs": {"architecture": "shared"}, "max_grad_norm": 0.5},
    ),
    "ddcpg": Member(
        PPG,
        "Dynamics-aware Delayed-Critic Policy Gradient",
        {"objective": "ddcpg", "policy_kwargs": {"architecture": "shared"}, "max_grad_norm": 0.5},
    ),
    "daac": Member(
        PPG,
        "Decoupled Advantage Actor-Critic",
        {
            "objective": "daac",
            "policy_kwargs": SEPARATE_NETWORKS,
            "n_aux_epochs": 0,
            "n_value_epochs": 9,
            "max_grad_norm": 0.5,
        },
    ),
    "idaac": Member(
        PPG,
        "Invariant Decoupled Advantage Actor-Critic",
        {
            "objective": "idaac",
            "policy_kwargs": SEPARATE_NETWORKS,
            "n_aux_epochs": 0,
            "n_value_epochs": 9,
            "max_grad_norm": 0.5,
        },
    ),
    "dna": Member(
        PPG,
        "Dual Network Architecture",
        {
            "objective": "dna",
            "policy_kwargs": SEPARATE_NETWORKS,
            "gae_lambda": 0.8,
            "n_epochs": 2,
            "n_value_epochs": 1,
            "n_policy_iterations": 1,
            "n_aux_epochs": 2,
            "max_grad_norm": 5.0,
        },
    ),
}
# Where PPG's paper (appendix A, https://arxiv.org/abs/2009.04416) has other values than the defaults, whatever the task
PAPERS_VALUES: dict[str, Any] = dict(
    n_steps=256,
    clip_range=0.2,
    n_epochs=1,
    n_policy_iterations=32,
    gamma=0.999,
    ent_coef=0.01,
    max_grad_norm=None,
    learning_rate=5e-4,
)
# All its arguments for Procgen: 64 environments on each of 4 workers, here 256 in one process. They are for normalised
# rewards, as those of `NormalizedRewardRolloutBuffer`
PAPER: dict[str, Any] = dict(
    **PAPERS_VALUES,
    batch_size=8192,
    n_aux_epochs=6,
    aux_batch_size=4096,
    beta_clone=1.0,
    normalize_value_targets=False,
    gae_lambda=0.95,
    vf_coef=0.5,
    policy_kwargs=dict(architecture="dual", features_extractor_class=ImpalaCNN, optimizer_kwargs=dict(eps=1e-8)),
)
# By the names of their classes, which files of models carry
ALGORITHMS: dict[str, type[PPG]] = {member.algorithm.__name__: member.algorithm for member in FAMILY.values()}


def with_preset(zoo_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Example::

        from sb3_ppg import PPG
        from sb3_ppg.family import with_preset

        model = PPG("MlpPolicy", "CartPole-v1", **with_preset("dcpg", dict(n_steps=256))).learn(20_000)

    :param zoo_name: of a member
    :param arguments: of its algorithm
    :return: the same on top of its preset; ``policy_kwargs`` key by key
    """
    preset = copy.deepcopy(FAMILY[zoo_name].preset)  # whose own dictionaries stay as they are
    merged = {**preset, **arguments}
    policy_kwargs = {**preset.get("policy_kwargs", {}), **(arguments.get("policy_kwargs") or {})}
    return {**merged, **({"policy_kwargs": policy_kwargs} if policy_kwargs else {})}


def member_of(cls: type[PPG]) -> Member:
    """
    :param cls: of the family, or derived from such a class
    :return: the first member of that class
    """
    members = [[member for member in FAMILY.values() if member.algorithm is base] for base in cls.__mro__]
    return next(found[0] for found in members if found)


def zoo_name_of(model: PPG) -> str:
    """
    :param model: of a class of the family
    :return: its name in RL Zoo: that of its objective, if a member of its class has it, else that of its class
    """
    algorithm = member_of(type(model)).algorithm
    names = [name for name, member in FAMILY.items() if member.algorithm is algorithm]
    objective = objective_name(model.objective_class)
    return next((name for name in names if FAMILY[name].preset.get("objective") == objective), names[0])
