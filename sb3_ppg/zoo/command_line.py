"""Checks that what a command line names exists; errors say what is nearest."""

import argparse
import importlib
from pathlib import Path

import gymnasium
import rl_zoo3.import_envs  # noqa: F401  registers environments

from sb3_ppg.errors import ArgumentError, nearest


def check_train(arguments: list[str]) -> None:
    """
    Check the files and the environment that a command line of ``train`` names.

    :raises ArgumentError: if a file does not exist, or the environment has no version
    :raises UnregisteredEnv: if the environment does not exist; as the Zoo, but with the extra that has it
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("-i", "--trained-agent")
    parser.add_argument("-conf", "--conf-file", default="")
    parser.add_argument("--gym-packages", nargs="+", default=[])
    args, _ = parser.parse_known_args(arguments)
    for package in args.gym_packages:
        importlib.import_module(package)
    try:
        entry_point = gymnasium.spec(args.env).entry_point
    except gymnasium.error.Error as error:
        if type(error) is not gymnasium.error.Error:  # which name what is nearest
            raise
        raise ArgumentError(f"{error}{nearest(args.env, gymnasium.registry)}") from error
    if isinstance(entry_point, str):  # names an extra that is missing, which would end worker processes
        gymnasium.envs.registration.load_env_creator(entry_point)
    if args.trained_agent is not None:
        check_path(Path(args.trained_agent))
        if not args.trained_agent.endswith(".zip"):
            raise ArgumentError(f"-i {args.trained_agent} is no .zip file")
    if args.conf_file.endswith((".yml", ".yaml", ".py")):  # else it is a module
        check_path(Path(args.conf_file))


def check_path(path: Path) -> None:
    """
    :raises ArgumentError: if a file or folder does not exist, with the nearest name in the deepest folder that does
    """
    if path.exists():
        return
    folder = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(folder).parts[0]
    there = [entry.name for entry in folder.iterdir()]
    raise ArgumentError(f"{path} does not exist: no {missing!r} in {folder.absolute()}{nearest(missing, there)}")
