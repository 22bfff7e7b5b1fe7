"""The tasks, and who is compared on them: tables to extend."""

import hashlib
import json
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rl_zoo3
import torch as th
import yaml
from rl_zoo3 import ALGOS, exp_manager
from stable_baselines3.common.torch_layers import NatureCNN

from sb3_ppg import PPG
from sb3_ppg.family import FAMILY
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients, PaperObjective
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.zoo import register
from sb3_ppg.zoo.hyperparameters import FAMILIES, evaluated, hyperparameter_file

Settings = dict[str, Any]  # an entry of RL Zoo's hyperparameter files


class Task(NamedTuple):
    """
    What is learned.

    :param suite: whose scores are put together
    :param env_id: as RL Zoo knows it
    :param n_timesteps: of a training
    :param n_seeds: 0, 1, ...
    :param low: the return whose score is 0, what random actions reach
    :param high: the return whose score is 1
    :param env_kwargs: of the environments of the training
    :param policy_kwargs: of all contestants' networks, added to those of the entry
    :param changes: to the entries of all contestants
    :param ppg: to be added to the entries of PPG and its relatives
    :param is_tested: whether the agent is then evaluated on all levels
    :param recurrent: whether it takes a memory
    """

    suite: str
    env_id: str
    n_timesteps: int
    n_seeds: int
    low: float
    high: float
    env_kwargs: Settings | None = None
    policy_kwargs: Settings | None = None
    changes: Settings | None = None
    ppg: Settings | None = None
    is_tested: bool = False
    recurrent: bool = False

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """0 where a return is ``low``, 1 where it is ``high``."""
        return (returns - self.low) / (self.high - self.low)

    def shown(self, value: float) -> str:
        """A return, as tables have it."""
        return f"{value:.2f}" if self.high <= 1 else f"{value:.1f}"


# Of MinAtar, `high` is a round number near what PPO reaches; of StarPilot one that tells returns apart after so few steps:
# with 64, the most that is possible, all scores are below 0.1. MuJoCo's are those of D4RL (https://arxiv.org/abs/2004.07219)
TASKS = [
    Task("minatar", "MinAtar/Asterix-v1", 2_000_000, 5, low=0.5, high=10.0),
    Task("minatar", "MinAtar/Breakout-v1", 2_000_000, 5, low=0.4, high=10.0),
    Task("minatar", "MinAtar/SpaceInvaders-v1", 2_000_000, 5, low=4.2, high=100.0),
    Task(
        "procgen",
        "StarpilotEasy-v0",
        2_000_000,
        4,
        low=2.5,
        high=10.0,
        env_kwargs=dict(num_levels=200, start_level=0, num_threads=1),
        # A small network, with its own initialisation: ImpalaCNN, even of half its width, takes several times as long
        policy_kwargs=dict(features_extractor_class=NatureCNN, ortho_init=True),
        ppg=dict(mixed_precision="bf16"),
        is_tested=True,
    ),
    Task("lunarlander", "LunarLander-v3", 500_000, 3, low=-180.0, high=200.0),  # solved
    Task("mujoco", "HalfCheetah-v5", 1_000_000, 3, low=-280.2, high=12135.0),
    Task("mujoco", "Hopper-v5", 1_000_000, 3, low=-20.3, high=3234.3),
    Task("mujoco", "Walker2d-v5", 1_000_000, 3, low=1.6, high=4592.3),
    Task("minigrid", "MiniGrid-DoorKey-8x8-v0", 1_000_000, 3, low=0.0, high=1.0),
    Task("minigrid", "MiniGrid-MemoryS9-v0", 1_000_000, 3, low=0.0, high=1.0, recurrent=True),
]


class PerMinibatch(PaperObjective):
    """The paper's objective, whose advantages are normalised once more in each minibatch, as PPO's are."""

    def surrogate(
        self,
        policy: PhasicActorCriticPolicy,
        inputs: tuple,
        batch: Any,
        log_prob: th.Tensor,
        entropy: th.Tensor | None,
        coefficients: Coefficients,
    ) -> Losses:
        advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        return super().surrogate(policy, inputs, batch._replace(advantages=advantages), log_prob, entropy, coefficients)


class AdvantagesPerMinibatch(PPG):
    """PPG with that objective."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"objective": PerMinibatch, **kwargs})


register()  # with RL Zoo
ALGOS["ppg_minibatch"] = AdvantagesPerMinibatch
vars(exp_manager).update(NatureCNN=NatureCNN)  # hyperparameter files are evaluated there


class Contestant(NamedTuple):
    """
    Who learns.

    :param algorithm: its name in RL Zoo, where the task takes no memory
    :param changes: to its entry for the task; ``policy_kwargs`` are added to those of the entry
    :param suites: on which suites; empty for all
    """

    algorithm: str
    changes: Settings | None = None
    suites: tuple[str, ...] = ()


ABLATED = ("minatar",)
RATE_BEFORE = 5e-4  # MinAtar's, with which the ablations and the family were trained
RATES = (RATE_BEFORE, 2.5e-4, 2e-3)
WITHOUT_PHASE = dict(n_aux_epochs=0, aux_batch_size=None)
# On Procgen, what the preset was before it was compared: the paper's, in the small
PAPERS_NETWORK: Settings = dict(architecture="detached", optimizer_kwargs=dict(eps=1e-8))
PAPERS: Settings = dict(
    n_steps=64,
    batch_size=1024,
    n_epochs=1,
    n_policy_iterations=8,
    normalize_value_targets=False,
    max_grad_norm=None,
    policy_kwargs=PAPERS_NETWORK,
)
FROM_PAPER: dict[str, Settings] = {
    "no auxiliary phase": WITHOUT_PHASE,
    "shared": dict(policy_kwargs=PAPERS_NETWORK | dict(architecture="shared")),
    "E_pi 3": dict(n_epochs=3),
    "E_pi 3, rollouts of 256": dict(n_epochs=3, n_steps=256, batch_size=2048, n_policy_iterations=2),
    "gradients clipped": dict(max_grad_norm=0.5, policy_kwargs=PAPERS_NETWORK | dict(optimizer_kwargs=dict(eps=1e-5))),
    "value units on": dict(normalize_value_targets=True),
    "float32": dict(mixed_precision=None),
}
# Those who are compared on all suites: presets, the most informative first
LEADING = {
    "PPO": Contestant("ppo"),
    "PPG": Contestant("ppg"),
}
COLORS = {"PPO": "tab:red", "PPG": "tab:blue"}  # in pictures; also of theirs with changes
# One thing changed in the presets, on MinAtar in what they were before their learning rate was chosen
ABLATIONS = {
    **{f"PPG, learning rate {rate:g}": Contestant("ppg", dict(learning_rate=rate), ABLATED) for rate in RATES},
    **{f"PPG, E_pi {n}": Contestant("ppg", dict(n_epochs=n), ABLATED) for n in (1, 2, 4, 8, 16)},
    "PPG, shared": Contestant("ppg", dict(policy_kwargs=dict(architecture="shared")), (*ABLATED, "procgen")),
    "PPG, detached": Contestant("ppg", dict(policy_kwargs=dict(architecture="detached")), (*ABLATED, "procgen")),
    "PPG, dual": Contestant("ppg", dict(policy_kwargs=dict(architecture="dual")), ABLATED),
    "PPG, no auxiliary phase": Contestant("ppg", WITHOUT_PHASE, (*ABLATED, "procgen")),
    **{
        f"PPG, {name}, no auxiliary phase": Contestant(
            "ppg", WITHOUT_PHASE | dict(policy_kwargs=dict(architecture=name)), ABLATED
        )
        for name in ("shared", "detached", "dual")
    },
    "PPG, value units off": Contestant("ppg", dict(normalize_value_targets=False), ABLATED),
    **{f"PPG, N_pi {n}": Contestant("ppg", dict(n_policy_iterations=n), ABLATED) for n in (4, 8, 16, 32)},
    **{f"PPG, E_aux {n}": Contestant("ppg", dict(n_aux_epochs=n), ABLATED) for n in (1, 3, 6, 9)},
    **{f"PPG, beta_clone {beta:g}": Contestant("ppg", dict(beta_clone=beta), ABLATED) for beta in (0.3, 1.0, 3.0, 10.0)},
    **{f"PPG, batch {size}": Contestant("ppg", dict(batch_size=size), ABLATED) for size in (256, 512, 1024)},
    **{f"PPG, auxiliary batch {size}": Contestant("ppg", dict(aux_batch_size=size), ABLATED) for size in (512, 1024, 4096)},
    **{f"PPG, auxiliary rate {rate:g}": Contestant("ppg", dict(aux_learning_rate=rate), ABLATED) for rate in (2.5e-4, 1e-3)},
    "PPG, annealed": Contestant("ppg", dict(learning_rate="lin_5e-4"), ABLATED),
    "PPG, advantages per minibatch": Contestant("ppg_minibatch", None, ABLATED),
    # PPO is tuned with the same trials
    **{f"PPO, learning rate {rate:g}": Contestant("ppo", dict(learning_rate=rate), ABLATED) for rate in RATES},
    **{f"PPO, E_pi {n}": Contestant("ppo", dict(n_epochs=n), ABLATED) for n in (3, 4, 8, 16)},
    **{f"PPO, batch {size}": Contestant("ppo", dict(batch_size=size), ABLATED) for size in (256, 1024)},
    **{
        f"{name}, entropy {ent:g}": Contestant(name.lower(), dict(ent_coef=ent), ABLATED)
        for name in ("PPG", "PPO")
        for ent in (0.003, 0.03)
    },
    "PPO, annealed": Contestant("ppo", dict(learning_rate="lin_5e-4"), ABLATED),
    "PPO, clip 0.1": Contestant("ppo", dict(clip_range=0.1), ABLATED),
    "PPG, clip 0.1": Contestant("ppg", dict(clip_range=0.1), ABLATED),
    "PPG, float32": Contestant("ppg", dict(mixed_precision=None), ("procgen",)),
    "PPG, detached, float32": Contestant(
        "ppg", dict(mixed_precision=None, policy_kwargs=dict(architecture="detached")), ("procgen",)
    ),
    # From the paper's settings to those of PPO
    "PPG, paper's": Contestant("ppg", PAPERS, ("procgen",)),
    **{f"PPG, paper's, {name}": Contestant("ppg", PAPERS | changes, ("procgen",)) for name, changes in FROM_PAPER.items()},
}
ABLATIONS = {
    name: one._replace(changes=dict(learning_rate=RATE_BEFORE) | (one.changes or {})) for name, one in ABLATIONS.items()
}
BEFORE = {name: f"{name}, learning rate {RATE_BEFORE:g}" for name in LEADING}  # in which one thing is changed on MinAtar
# The members of the family: their presets on top of PPG's entry for the task
MEASURED = ("minatar", "lunarlander", "procgen")
RELATIVES = {
    zoo_name: Contestant("ppg", dict(member.preset), MEASURED) for zoo_name, member in FAMILY.items() if member.preset
}
# Its auxiliary phase is of a single rollout
RELATIVES["dna"] = Contestant("ppg", dict(FAMILY["dna"].preset, aux_batch_size=512), MEASURED)
# Data of older policies: late by so many rollouts; or the last rollouts again, in as many epochs over each, or twice as many
AGED = ("minatar", "lunarlander")
DECOUPLED = dict(objective="decoupled")
OLDER = {
    "PPG, decoupled": Contestant("ppg", DECOUPLED, AGED),
    **{
        f"PPG{name}, {late} late": Contestant("ppg", objective | dict(replay_kwargs=dict(staleness=late)), AGED)
        for late in (1, 2, 4, 8)
        for name, objective in ((", decoupled", DECOUPLED), ("", {}))
    },
    **{
        f"PPG, last {n}, {epochs} epochs": Contestant(
            "ppg", DECOUPLED | dict(n_epochs=epochs, replay_kwargs=dict(policy_rollouts=n)), ("lunarlander",)
        )
        for n, epochs in ((2, 3), (3, 2), (6, 1), (2, 6))
    },
    # As many passes over each rollout as PPG has, and the rate of when the family was trained
    f"ppg_replay, E_pi 4, learning rate {RATE_BEFORE:g}": Contestant(
        "ppg", {**FAMILY["ppg_replay"].preset, "n_epochs": 4, "learning_rate": RATE_BEFORE}, ("minatar",)
    ),
}
# Advantages anew before each further epoch
RECOMPUTED = {
    f"PPG, {n} epochs{name}": Contestant("ppg", dict(n_epochs=n) | changes, ("lunarlander", "mujoco"))
    for n in (4, 12)
    for name, changes in (("", {}), (", recomputed", dict(recompute_advantages=True)))
}
CONTESTANTS = LEADING | RELATIVES | OLDER | RECOMPUTED | ABLATIONS


def contestants_on(task: Task) -> list[str]:
    """The names of those who are compared on a task."""
    return [name for name, contestant in CONTESTANTS.items() if not contestant.suites or task.suite in contestant.suites]


# Where RL Zoo has tuned PPO under another name
ZOO_NAMES = {
    "LunarLander-v3": "LunarLander-v3",
    "HalfCheetah-v5": "HalfCheetah-v4",
    "Hopper-v5": "Hopper-v4",
    "Walker2d-v5": "Walker2d-v4",
}


@cache
def entries_of(file: Path) -> dict[str, Settings]:
    """What a file of hyperparameters has."""
    return yaml.safe_load(file.read_text())


def entry(algorithm: str, env_id: str) -> Settings:
    """
    The hyperparameters of an algorithm for an environment: of PPG ours, of PPO RL Zoo's, or, where it has none, those of
    ``ppo.yml`` here.

    :param algorithm: its name in RL Zoo
    :param env_id: of the environment
    """
    if algorithm.startswith("ppg"):
        file = hyperparameter_file(algorithm.removesuffix("_minibatch"))
    elif env_id in ZOO_NAMES and algorithm == "ppo":
        file = Path(rl_zoo3.__file__).parent / "hyperparams" / "ppo.yml"
        env_id = ZOO_NAMES[env_id]
    else:
        file = Path(__file__).parent / f"{algorithm}.yml"
    entries = entries_of(file)
    family = next((name for name, is_member in FAMILIES.items() if is_member(env_id)), env_id)
    return entries[env_id if env_id in entries else family]


class Training(NamedTuple):
    """
    One agent's.

    :param task: what is learned
    :param contestant: who learns, by name
    :param seed: of the agent and its environments
    :param n_timesteps: how long
    """

    task: Task
    contestant: str
    seed: int
    n_timesteps: int

    @property
    def algorithm(self) -> str:
        """Its name in RL Zoo."""
        return CONTESTANTS[self.contestant].algorithm + ("_lstm" if self.task.recurrent else "")

    def settings(self) -> Settings:
        """All hyperparameters, in the form of RL Zoo's files."""
        of_task = {**(self.task.changes or {}), **((self.task.ppg or {}) if self.algorithm.startswith("ppg") else {})}
        own = CONTESTANTS[self.contestant].changes or {}
        changes = {**of_task, **own}
        changes.pop("policy_kwargs", None)
        settings = entry(self.algorithm, self.task.env_id) | {"n_timesteps": self.n_timesteps}
        network = {
            **(self.task.policy_kwargs or {}),
            **of_task.get("policy_kwargs", {}),
            **own.get("policy_kwargs", {}),
        }
        text = settings.get("policy_kwargs", "dict()")
        if network := _differing(network, evaluated(text)):
            changes["policy_kwargs"] = f"{{**{text}, **{_text(network)}}}"
        defaults = {name: parameter.default for name, parameter in signature(ALGOS[self.algorithm]).parameters.items()}
        return settings | _differing(changes, defaults | settings)

    def hash(self) -> str:
        """Of all that decides what is learned but the seed. It changes with each setting, not with how it is written."""
        settings = self.settings()
        settings["policy_kwargs"] = evaluated(settings.get("policy_kwargs", "dict()"))
        decisive = [self.algorithm, self.task.env_id, self.task.env_kwargs, settings]
        text = json.dumps(decisive, sort_keys=True, default=lambda cls: cls.__name__)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def _text(policy_kwargs: Settings) -> str:
    """As it stands in RL Zoo's files."""
    values = {name: value.__name__ if isinstance(value, type) else repr(value) for name, value in policy_kwargs.items()}
    return f"{{{', '.join(f'{name!r}: {value}' for name, value in values.items())}}}"


def _differing(changes: Settings, present: Settings) -> Settings:
    """Those that change something, so that the same settings have the same hash."""
    return {name: value for name, value in changes.items() if name not in present or present[name] != value}
