"""``--pretrained``: the trained agents that lie in the repository under ``pretrained``, in place of one's own."""

import argparse
import shutil
from pathlib import Path

from huggingface_sb3 import EnvironmentName

import sb3_ppg
from sb3_ppg.distributed.collectives import rank
from sb3_ppg.errors import ArgumentError, nearest
from sb3_ppg.zoo.fetch import unpack
from sb3_ppg.zoo.launcher import PRETRAINED

# In the working directory, and in the repository from which the package is imported
FOLDERS = [Path("pretrained"), Path(sb3_ppg.__file__).parent.parent / "pretrained"]
UNPACKED = Path("logs") / "pretrained"  # as trainings, which the Zoo's scripts read
LONG = {"-f": "--folder", "-i": "--trained-agent"}  # the other names of options that name an agent


def with_pretrained(option: str, arguments: list[str]) -> list[str]:
    """
    :param option: option that names an agent: -f for a folder of trainings, -i for a file
    :param arguments: command line of the script
    :return: options that the Zoo knows, with this option in place of ``--pretrained``. The first process unpacks the agent
    :raises ArgumentError: if there is no such agent, or another one is named as well
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--algo", default="ppg")
    parser.add_argument("--env", type=EnvironmentName, default="CartPole-v1")
    parser.add_argument(option, LONG[option], dest="other")
    args, _ = parser.parse_known_args(arguments)
    if args.other is not None:
        raise ArgumentError(f"{option} and {PRETRAINED} name an agent each: use one of them")
    run = UNPACKED / args.algo / f"{args.env}_1"
    if rank() == 0:
        agent = agent_folder(args.algo, args.env)
        unpack(agent, args.algo, args.env, run)
        if (agent / "logs").is_dir():  # the evaluations of its training
            shutil.copytree(agent / "logs", run, dirs_exist_ok=True)
    place = run / f"{args.env}.zip" if option == "-i" else UNPACKED
    return [*(argument for argument in arguments if argument != PRETRAINED), option, str(place)]


def agent_folder(algo: str, env_name: str) -> Path:
    """
    Find the folder with an agent's files.

    :raises ArgumentError: if there is none, with those that there are
    """
    name = f"{algo}/{env_name}"
    for folder in FOLDERS:
        if (folder / name).is_dir():
            return folder / name
    there = [f"{path.parent.name}/{path.name}" for folder in FOLDERS for path in folder.glob("*/*")]
    raise ArgumentError(f"there is no trained agent {name} in {' or '.join(map(str, FOLDERS))}{nearest(name, there)}")
