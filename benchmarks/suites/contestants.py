"""The tasks, and who is compared on them (contestants.yml): tables to extend."""

import argparse
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import rl_zoo3
import yaml
from rl_zoo3 import ALGOS, exp_manager
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import NatureCNN
from typing_extensions import override

from benchmarks.episodes import RECORDED
from benchmarks.harness import defaults_of, trained
from benchmarks.scores import Task
from sb3_ppg import PPG
from sb3_ppg.comparison.runs import Run, short_hash
from sb3_ppg.family import FAMILY
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Objective
from sb3_ppg.zoo import register
from sb3_ppg.zoo.hyperparameters import FAMILIES, evaluated, hyperparameter_file
from sb3_ppg.zoo.manager import Manager

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


class PerMinibatch(Objective):
    """The paper's objective, with advantages that are normalised again in each minibatch, as PPO's are."""

    @override
    def surrogate(self, policy: Any, batch: Any, *args: Any, **kwargs: Any) -> Losses:
        advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        return super().surrogate(policy, batch._replace(advantages=advantages), *args, **kwargs)


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
    :param changes: changes to its entry for the task; ``policy_kwargs`` are added to those of the entry
    :param suites: suites on which it is compared; empty: all
    """

    algorithm: str
    changes: Mapping[str, Any] = {}
    suites: tuple[str, ...] = ()


LEADING = {"PPO": Contestant("ppo"), "PPG": Contestant("ppg")}  # compared on all suites, with their entries
RATE_BEFORE = 5e-4  # MinAtar's learning rate when the ablations were trained
# The family: presets on top of PPG's entry for the task; DNA's auxiliary phase uses a single rollout
SINGLE_ROLLOUT = {"dna": dict(aux_batch_size=512)}
RELATIVES = {
    name: Contestant("ppg", {**member.preset, **SINGLE_ROLLOUT.get(name, {})}, ("minatar", "lunarlander", "procgen"))
    for name, member in FAMILY.items()
    if member.preset
}


def read(section: str, **common: Any) -> dict[str, Contestant]:
    """
    Return the contestants of a section of contestants.yml.

    :param common: changes that all have, unless they have others
    """
    found = {}
    for group in yaml.safe_load(Path(__file__).with_name("contestants.yml").read_text())[section]:
        for name, changes in group["contestants"].items():
            own = dict(algorithm=name[:3].lower(), suites=group["suites"]) | common | changes
            found[name] = Contestant(own.pop("algorithm"), suites=tuple(own.pop("suites")), changes=own)
    return found


ABLATIONS = read("ablations", learning_rate=RATE_BEFORE)
CONTESTANTS = LEADING | RELATIVES | read("studies") | ABLATIONS


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
    Return the hyperparameters of an algorithm for an environment. The files in this folder have those of PPG that were
    changed after the runs, and PPO's where RL Zoo has none.

    :param algorithm: its name in RL Zoo
    """
    if env_id in ZOO_NAMES and algorithm == "ppo":
        return zoo_entry(algorithm, ZOO_NAMES[env_id])
    name = algorithm.removesuffix("_minibatch")
    own = Path(__file__).parent / f"{name}.yml"
    entries = entries_of(hyperparameter_file(name)) if name.startswith("ppg") else {}
    entries = entries | (entries_of(own) if own.exists() else {})
    family = next((family for family, is_member in FAMILIES.items() if is_member(env_id)), env_id)
    return entries[env_id if env_id in entries else family]


def made(algorithm: str, env_id: str, settings: Settings, seed: int, folder: Path) -> BaseAlgorithm:
    """
    Make an agent as ``sb3-ppg train`` does.

    :param algorithm: its name in RL Zoo
    :param settings: hyperparameters, which are written to a file in the folder
    :param seed: seed of the agent and its environments
    """
    config = folder / "settings.yml"
    config.write_text(yaml.safe_dump({env_id: settings}))
    options: dict[str, Any] = dict(eval_freq=-1, verbose=0, seed=seed, config=str(config), device="cpu")
    setup = Manager(argparse.Namespace(), algorithm, env_id, str(folder / "zoo"), **options).setup_experiment()
    assert setup is not None
    return setup[0]


class Training(NamedTuple):
    """
    A run of one agent.

    :param contestant: name of the contestant
    :param seed: seed of the agent and its environments
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
            values = (
                f"{key!r}: {value.__name__ if isinstance(value, type) else repr(value)}" for key, value in networks.items()
            )
            changes["policy_kwargs"] = f"{{**{text}, **{{{', '.join(values)}}}}}"
        return settings | _differing(changes, defaults_of(ALGOS[self.algorithm]) | settings)

    def trained(self, folder: Path, *options: str) -> Run:
        """Carry it out, with further options."""
        env_kwargs = [f"{name}:{value!r}" for name, value in (self.task.env_kwargs or {}).items()]
        options = (*options, *(["--env-kwargs", *env_kwargs] if env_kwargs else []))
        env_id, settings = self.task.env_id, self.settings()
        return trained(folder, self.algorithm, env_id, settings, self.seed, self.n_timesteps, *options, **RECORDED)

    def hash(self) -> str:
        """Return a hash of everything that decides what is learned except the seed, however it is written."""
        settings = self.settings()
        settings["policy_kwargs"] = evaluated(settings.get("policy_kwargs", "dict()"))
        decisive = [self.algorithm, self.task.env_id, self.task.env_kwargs, settings]
        return short_hash(json.dumps(decisive, sort_keys=True, default=lambda cls: cls.__name__))


def _differing(changes: Settings, present: Settings) -> Settings:
    """Return the changes that change something, so that the same settings have the same hash."""
    return {name: value for name, value in changes.items() if name not in present or present[name] != value}
