"""Entries of RL Zoo's hyperparameter files, and agents with their settings."""

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import rl_zoo3
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm

from sb3_ppg.zoo import register
from sb3_ppg.zoo.manager import Manager

Settings = dict[str, Any]  # an entry

register()  # with RL Zoo


@cache
def entries_of(file: Path) -> dict[str, Settings]:
    """Return the entries of a file of hyperparameters."""
    return yaml.safe_load(file.read_text())


def zoo_entry(algorithm: str, env_id: str) -> Settings:
    """Return RL Zoo's own hyperparameters."""
    return entries_of(Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algorithm}.yml")[env_id]


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
