"""The table of all algorithms in the family, which RL Zoo's commands, the search, model files and model cards read."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from sb3_ppg.maskable import MaskablePPG
from sb3_ppg.objectives import objective_name
from sb3_ppg.policies.extractors import ImpalaCNN
from sb3_ppg.ppg import PPG
from sb3_ppg.recurrent import RecurrentPPG

PLAY_EXAMPLE = """obs = env.reset()
for _ in range(1000):
    action, _ = model.predict(obs, deterministic=True)
    obs, rewards, dones, infos = env.step(action)"""
RECURRENT_EXAMPLE = """obs, states, episode_starts = env.reset(), None, np.ones(env.num_envs, dtype=bool)
for _ in range(1000):
    action, states = model.predict(obs, states, episode_starts, deterministic=True)
    obs, rewards, episode_starts, infos = env.step(action)"""
MASKABLE_EXAMPLE = PLAY_EXAMPLE.replace("deterministic=True", "deterministic=True, action_masks=get_action_masks(env)")


class Member(NamedTuple):
    """
    An algorithm under its name in RL Zoo.

    :param algorithm: class
    :param preset: arguments that define this member; those of a hyperparameter file override them
    :param searched: network sizes that a hyperparameter search tries in addition to those of PPG
    :param card_imports: line of Python that the example on a model card needs
    :param card_example: code on a model card that plays an agent
    """

    algorithm: type[PPG]
    preset: Mapping[str, Any] = {}
    searched: Mapping[str, list[int]] = {}
    card_imports: str = ""
    card_example: str = PLAY_EXAMPLE


# Presets hold what defines the authors' algorithms: networks, phases, clipping, and numbers of epochs where these are part of
# the method. Sizes of batches and rollouts depend on the task and are in the files under `hyperparams`
DUAL, SHARED = dict(architecture="dual"), dict(architecture="shared")
DELAYED: dict[str, Any] = dict(policy_kwargs=SHARED, max_grad_norm=0.5)
DECOUPLED: dict[str, Any] = dict(policy_kwargs=DUAL, n_aux_epochs=0, n_value_epochs=9, max_grad_norm=0.5)
DISTILLED: dict[str, Any] = dict(policy_kwargs=DUAL, n_policy_iterations=1, n_aux_epochs=2, max_grad_norm=5.0)
FAMILY: dict[str, Member] = {
    "ppg": Member(PPG),
    "ppg_lstm": Member(
        RecurrentPPG,
        searched={"lstm_hidden_size": [16, 32, 64, 128, 256]},
        card_imports="import numpy as np",
        card_example=RECURRENT_EXAMPLE,
    ),
    "ppg_mask": Member(
        MaskablePPG,
        card_imports="from sb3_contrib.common.maskable.utils import get_action_masks",
        card_example=MASKABLE_EXAMPLE,
    ),
    "ppg_ewma": Member(PPG, dict(objective="ewma")),
    "ppg_replay": Member(PPG, dict(objective="decoupled", replay_kwargs=dict(policy_rollouts=3))),
    "dcpg": Member(PPG, dict(objective="dcpg", **DELAYED)),
    "ddcpg": Member(PPG, dict(objective="ddcpg", **DELAYED)),
    "daac": Member(PPG, dict(objective="daac", **DECOUPLED)),
    "idaac": Member(PPG, dict(objective="idaac", **DECOUPLED)),
    "dna": Member(PPG, dict(objective="dna", gae_lambda=0.8, n_epochs=2, n_value_epochs=1, **DISTILLED)),
}
# Values of PPG's paper (appendix A, https://arxiv.org/abs/2009.04416) that differ from the defaults, for any task
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
# All arguments of the paper for Procgen, where 4 workers run 64 environments each (here 256 in one process). They assume
# normalized rewards, for instance by `NormalizedRewardRolloutBuffer`
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
# Classes by name, as stored in model files
ALGORITHMS: dict[str, type[PPG]] = {member.algorithm.__name__: member.algorithm for member in FAMILY.values()}


def with_preset(zoo_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """
    Add the preset of a member to arguments, as in ``PPG("MlpPolicy", env, **with_preset("dcpg", dict(n_steps=256)))``.

    :param zoo_name: name of a member in RL Zoo
    :param arguments: arguments of its algorithm
    :return: preset, overridden by the arguments; ``policy_kwargs`` are merged key by key
    """
    preset = copy.deepcopy(FAMILY[zoo_name].preset)  # so that a caller cannot change the table
    merged = {**preset, **arguments}
    policy_kwargs = {**preset.get("policy_kwargs", {}), **(arguments.get("policy_kwargs") or {})}
    if policy_kwargs:
        merged["policy_kwargs"] = policy_kwargs
    return merged


def member_of(cls: type[PPG]) -> Member:
    """Return the first member of the family with this class or, failing that, its nearest base class."""
    return next(member for base in cls.__mro__ for member in FAMILY.values() if member.algorithm is base)


def zoo_name_of(model: PPG) -> str:
    """Return the RL Zoo name of the member with the model's class and objective or, failing that, the first with its class."""
    algorithm = member_of(type(model)).algorithm
    names = [name for name, member in FAMILY.items() if member.algorithm is algorithm]
    objective = objective_name(model.objective_class)
    return next((name for name in names if FAMILY[name].preset.get("objective") == objective), names[0])
