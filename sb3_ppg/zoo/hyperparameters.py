"""Our hyperparameter files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import rl_zoo3.exp_manager
import yaml

import sb3_ppg
from sb3_ppg import ImpalaCNN, MinAtarCNN
from sb3_ppg.errors import ArgumentError
from sb3_ppg.zoo.environments import PROCGEN_IDS

# Entries that stand for several environments, in addition to the Zoo's "atari", and whether an environment belongs to them
FAMILIES: dict[str, Callable[[str], bool]] = {
    "procgen": PROCGEN_IDS.__contains__,
    "minigrid": lambda env_id: env_id.startswith("MiniGrid-"),
    "minatar": lambda env_id: env_id.startswith("MinAtar/"),
}


def hyperparameter_file(algo: str) -> Path:
    """Find our file for an algorithm: in the installed package, or in the repository for an editable installation."""
    package = Path(sb3_ppg.__file__).parent
    folder = package / "hyperparams"
    return (folder if folder.is_dir() else package.parent / "hyperparams") / f"{algo}.yml"


def entry_of(env_id: str, config: str) -> str:
    """
    Return the entry of the environment's family, if the file has that and none for the environment; else ``env_id``.

    :raises ArgumentError: if a hyperparameter file cannot be read
    """
    if not config.endswith((".yml", ".yaml")):
        return env_id
    try:
        entries = yaml.safe_load(Path(config).read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{config} cannot be read: {' '.join(str(error).split())}") from error
    family = next((name for name, is_member in FAMILIES.items() if is_member(env_id)), env_id)
    return family if env_id not in entries and family in entries else env_id


def evaluated(expression: str) -> Any:
    """Evaluate Python in a hyperparameter file, which knows the names in the Zoo's ``exp_manager``, and our extractors."""
    return eval(expression, {**vars(rl_zoo3.exp_manager), "ImpalaCNN": ImpalaCNN, "MinAtarCNN": MinAtarCNN})
