"""The tasks, and who is compared on them: tables to extend."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import rl_zoo3
import yaml
from rl_zoo3 import ALGOS, exp_manager
from stable_baselines3.common.torch_layers import NatureCNN
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.harness import defaults_of, short_hash
from benchmarks.scores import Task
from sb3_ppg import PPG
from sb3_ppg.family import FAMILY
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import PaperObjective
from sb3_ppg.zoo import register
from sb3_ppg.zoo.hyperparameters import FAMILIES, evaluated, hyperparameter_file

Settings = dict[str, Any]  # an entry of RL Zoo's hyperparameter files

# MinAtar's `high` is a round number near PPO's returns; StarPilot's tells returns apart after so few steps: with 64, the
# highest possible return, all scores are below 0.1. MuJoCo's are D4RL's (https://arxiv.org/abs/2004.07219)
TASKS = [
    Task("MinAtar/Asterix-v1", 2_000_000, 0.5, 10.0, "minatar", 5),
    Task("MinAtar/Breakout-v1", 2_000_000, 0.4, 10.0, "minatar", 5),
    Task("MinAtar/SpaceInvaders-v1", 2_000_000, 4.2, 100.0, "minatar", 5),
    Task(
        *("StarpilotEasy-v0", 2_000_000, 2.5, 10.0, "procgen", 4),
        env_kwargs=dict(num_levels=200, start_level=0, num_threads=1),
        # A small network with its own initialisation: ImpalaCNN takes several times as long, even with half its width
        changes=dict(policy_kwargs=dict(features_extractor_class=NatureCNN, ortho_init=True)),
        ppg=dict(mixed_precision="bf16"),
        is_tested=True,
    ),
    Task("PongNoFrameskip-v4", 1_000_000, -20.7, 21.0, "atari", 5),
    Task("LunarLander-v3", 500_000, -180.0, 200.0, "lunarlander"),  # 200: solved
    Task("HalfCheetah-v5", 1_000_000, -280.2, 12135.0, "mujoco"),
    Task("Hopper-v5", 1_000_000, -20.3, 3234.3, "mujoco"),
    Task("Walker2d-v5", 1_000_000, 1.6, 4592.3, "mujoco"),
    Task("MiniGrid-DoorKey-8x8-v0", 1_000_000, 0.0, 1.0, "minigrid"),
    Task("MiniGrid-MemoryS9-v0", 1_000_000, 0.0, 1.0, "minigrid", recurrent=True),
]


class PerMinibatch(PaperObjective):
    """The paper's objective, with advantages that are normalised again in each minibatch, as PPO's are."""

    def surrogate(self, policy: Any, inputs: tuple, batch: Any, *args: Any, **kwargs: Any) -> Losses:
        advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        return super().surrogate(policy, inputs, batch._replace(advantages=advantages), *args, **kwargs)


class AdvantagesPerMinibatch(PPG):
    """PPG with that objective."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"objective": PerMinibatch, **kwargs})


register()  # with RL Zoo
ALGOS["ppg_minibatch"] = AdvantagesPerMinibatch
vars(exp_manager).update(NatureCNN=NatureCNN)  # hyperparameter files are evaluated there


class Contestant(NamedTuple):
    """
    An algorithm with hyperparameters.

    :param algorithm: its name in RL Zoo, for tasks without memory
    :param changes: to its entry for the task; ``policy_kwargs`` are added to those of the entry
    :param suites: on which it is compared; empty: all
    """

    algorithm: str
    changes: Mapping[str, Any] = {}
    suites: tuple[str, ...] = ()


LEADING = {"PPO": Contestant("ppo"), "PPG": Contestant("ppg")}  # compared on all suites, with their entries
RATE_BEFORE = 5e-4  # MinAtar's when the ablations and the family were trained
RATES = (RATE_BEFORE, 2.5e-4, 2e-3)
WITHOUT_PHASE = dict(n_aux_epochs=0, aux_batch_size=None)


def network(**policy_kwargs: Any) -> Settings:
    """Return a change to the networks."""
    return dict(policy_kwargs=policy_kwargs)


def each(name: str, argument: str, *values: float) -> dict[str, Settings]:
    """Return a change for each value of an argument."""
    return {f"{name} {value:g}": {argument: value} for value in values}


# One thing changed in the entry for MinAtar; PPO is tuned with the same trials
ON_MINATAR: dict[str, Settings] = {
    **each("PPG, learning rate", "learning_rate", *RATES),
    **each("PPG, E_pi", "n_epochs", 1, 2, 4, 8, 16),
    **{f"PPG, {name}": network(architecture=name) for name in ("shared", "detached", "dual")},
    "PPG, no auxiliary phase": WITHOUT_PHASE,
    **{
        f"PPG, {name}, no auxiliary phase": WITHOUT_PHASE | network(architecture=name)
        for name in ("shared", "detached", "dual")
    },
    "PPG, value units off": dict(normalize_value_targets=False),
    **each("PPG, N_pi", "n_policy_iterations", 4, 8, 16, 32),
    **each("PPG, E_aux", "n_aux_epochs", 1, 3, 6, 9),
    **each("PPG, beta_clone", "beta_clone", 0.3, 1.0, 3.0, 10.0),
    **each("PPG, batch", "batch_size", 256, 512, 1024),
    **each("PPG, auxiliary batch", "aux_batch_size", 512, 1024, 4096),
    **each("PPG, auxiliary rate", "aux_learning_rate", 2.5e-4, 1e-3),
    "PPG, annealed": dict(learning_rate="lin_5e-4"),
    "PPG, advantages per minibatch": {},
    **each("PPO, learning rate", "learning_rate", *RATES),
    **each("PPO, E_pi", "n_epochs", 3, 4, 8, 16),
    **each("PPO, batch", "batch_size", 256, 1024),
    **each("PPG, entropy", "ent_coef", 0.003, 0.03),
    **each("PPO, entropy", "ent_coef", 0.003, 0.03),
    "PPO, annealed": dict(learning_rate="lin_5e-4"),
    "PPO, clip 0.1": dict(clip_range=0.1),
    "PPG, clip 0.1": dict(clip_range=0.1),
}
ALSO_ON_PROCGEN = ("PPG, shared", "PPG, detached", "PPG, no auxiliary phase")
# Procgen's entry before the comparison: the paper's, with fewer environments
PAPERS: Settings = dict(
    n_steps=64,
    batch_size=1024,
    n_epochs=1,
    n_policy_iterations=8,
    normalize_value_targets=False,
    max_grad_norm=None,
    **network(architecture="detached", optimizer_kwargs=dict(eps=1e-8)),
)
# From the paper's settings to those of PPO
ON_PROCGEN: dict[str, Settings] = {
    "PPG, float32": dict(mixed_precision=None),
    "PPG, detached, float32": dict(mixed_precision=None) | network(architecture="detached"),
    "PPG, paper's": PAPERS,
    "PPG, paper's, no auxiliary phase": PAPERS | WITHOUT_PHASE,
    "PPG, paper's, shared": PAPERS | network(architecture="shared", optimizer_kwargs=dict(eps=1e-8)),
    "PPG, paper's, E_pi 3": PAPERS | dict(n_epochs=3),
    "PPG, paper's, E_pi 3, rollouts of 256": PAPERS | dict(n_epochs=3, n_steps=256, batch_size=2048, n_policy_iterations=2),
    "PPG, paper's, gradients clipped": PAPERS
    | dict(max_grad_norm=0.5)
    | network(architecture="detached", optimizer_kwargs=dict(eps=1e-5)),
    "PPG, paper's, value units on": PAPERS | dict(normalize_value_targets=True),
    "PPG, paper's, float32": PAPERS | dict(mixed_precision=None),
}
ABLATIONS = {
    name: Contestant(
        "ppg_minibatch" if name.endswith("per minibatch") else name[:3].lower(),
        dict(learning_rate=RATE_BEFORE) | changes,
        ("procgen",) if name in ON_PROCGEN else ("minatar", "procgen") if name in ALSO_ON_PROCGEN else ("minatar",),
    )
    for name, changes in (ON_MINATAR | ON_PROCGEN).items()
}
BEFORE = {name: f"{name}, learning rate {RATE_BEFORE:g}" for name in LEADING}  # in which one thing is changed on MinAtar
# The family: presets on top of PPG's entry for the task; DNA's auxiliary phase uses a single rollout
SINGLE_ROLLOUT = {"dna": dict(aux_batch_size=512)}
RELATIVES = {
    name: Contestant("ppg", {**member.preset, **SINGLE_ROLLOUT.get(name, {})}, ("minatar", "lunarlander", "procgen"))
    for name, member in FAMILY.items()
    if member.preset
}
# Data of older policies: late by some rollouts; or the last rollouts again, in as many epochs over each, or in twice as many
DECOUPLED: Settings = dict(objective="decoupled")
OLDER = {
    "PPG, decoupled": Contestant("ppg", DECOUPLED, ("minatar", "lunarlander")),
    **{
        f"PPG{name}, {late} late": Contestant(
            "ppg", objective | dict(replay_kwargs=dict(staleness=late)), ("minatar", "lunarlander")
        )
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
RECOMPUTED = {
    f"PPG, {n} epochs{name}": Contestant("ppg", dict(n_epochs=n) | changes, ("lunarlander", "mujoco"))
    for n in (4, 12)
    for name, changes in (("", {}), (", recomputed", dict(recompute_advantages=True)))
}
CONTESTANTS = LEADING | RELATIVES | OLDER | RECOMPUTED | ABLATIONS


def contestants_on(task: Task) -> list[str]:
    """Return the names of those who are compared on a task."""
    return [name for name, contestant in CONTESTANTS.items() if not contestant.suites or task.suite in contestant.suites]


# Names under which RL Zoo has tuned PPO
ZOO_NAMES = {f"{name}-v5": f"{name}-v4" for name in ("HalfCheetah", "Hopper", "Walker2d")}
ZOO_NAMES["LunarLander-v3"] = "LunarLander-v3"


@cache
def entries_of(file: Path) -> dict[str, Settings]:
    """Return the entries of a file of hyperparameters."""
    return yaml.safe_load(file.read_text())


def zoo_entry(algorithm: str, env_id: str) -> Settings:
    """Return RL Zoo's own hyperparameters."""
    return entries_of(Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algorithm}.yml")[env_id]


def entry(algorithm: str, env_id: str) -> Settings:
    """
    Return the hyperparameters of an algorithm for an environment: from the file in this folder, which has those of PPG that
    have been changed since; else PPG's from its own file, PPO's from RL Zoo's.

    :param algorithm: its name in RL Zoo
    """
    if env_id in ZOO_NAMES and algorithm == "ppo":
        return zoo_entry(algorithm, ZOO_NAMES[env_id])
    name = algorithm.removesuffix("_minibatch")
    own = Path(__file__).parent / f"{name}.yml"
    entries = entries_of(hyperparameter_file(name)) if name.startswith("ppg") else {}
    entries = entries | (entries_of(own) if own.exists() else {})
    family = next((one for one, is_member in FAMILIES.items() if is_member(env_id)), env_id)
    return entries[env_id if env_id in entries else family]


def constructor_arguments(settings: Settings) -> dict[str, Any]:
    """Return the arguments of PPG in an entry, except the policy, as Python's."""
    arguments = {name: value for name, value in settings.items() if name in defaults_of(PPG) and name != "policy"}
    rate = arguments.get("learning_rate")
    if isinstance(rate, str):
        arguments["learning_rate"] = LinearSchedule(float(rate.removeprefix("lin_")), 0.0, 1.0)
    return arguments


class Training(NamedTuple):
    """
    A training of one agent.

    :param contestant: by name
    :param seed: of the agent and its environments
    """

    task: Task
    contestant: str
    seed: int
    n_timesteps: int

    @property
    def algorithm(self) -> str:
        """Its name in RL Zoo."""
        return CONTESTANTS[self.contestant].algorithm + ("_lstm" if self.task.recurrent else "")

    def columns(self) -> dict[str, Any]:
        """Return the columns of its row that are known before it is run."""
        names = dict(suite=self.task.suite, task=self.task.env_id, contestant=self.contestant)
        return dict(**names, steps=self.n_timesteps, seed=self.seed, settings=self.hash())

    def settings(self) -> Settings:
        """Return all hyperparameters, in the form of RL Zoo's files."""
        is_ppg = self.algorithm.startswith("ppg")
        layers = [self.task.changes, self.task.ppg if is_ppg else {}, CONTESTANTS[self.contestant].changes]
        changes: Settings = {name: value for layer in layers for name, value in layer.items() if name != "policy_kwargs"}
        networks = {name: value for layer in layers for name, value in layer.get("policy_kwargs", {}).items()}
        settings = entry(self.algorithm, self.task.env_id) | {"n_timesteps": self.n_timesteps}
        text = settings.get("policy_kwargs", "dict()")
        if networks := _differing(networks, evaluated(text)):
            # As RL Zoo's files do
            values = (f"{key!r}: {one.__name__ if isinstance(one, type) else repr(one)}" for key, one in networks.items())
            changes["policy_kwargs"] = f"{{**{text}, **{{{', '.join(values)}}}}}"
        return settings | _differing(changes, defaults_of(ALGOS[self.algorithm]) | settings)

    def hash(self) -> str:
        """Return a hash of everything that decides what is learned except the seed, however it is written."""
        settings = self.settings()
        settings["policy_kwargs"] = evaluated(settings.get("policy_kwargs", "dict()"))
        decisive = [self.algorithm, self.task.env_id, self.task.env_kwargs, settings]
        return short_hash(json.dumps(decisive, sort_keys=True, default=lambda cls: cls.__name__))


def _differing(changes: Settings, present: Settings) -> Settings:
    """Return the changes that change something, so that the same settings have the same hash."""
    return {name: value for name, value in changes.items() if name not in present or present[name] != value}
