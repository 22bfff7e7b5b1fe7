"""Checks that what a command line of RL Zoo's scripts names exists; errors say what is nearest."""

import argparse
import glob
import importlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile

from rl_zoo3 import ALGOS, get_trained_models

from sb3_ppg.errors import ArgumentError, is_installed, module_of, nearest, pip_install
from sb3_ppg.zoo.commands import CONTINUE


def check_command_line(names: Mapping[str, list[str]], arguments: list[str]) -> None:
    """
    :param names: options of a script by what they name, see ``commands.Script``
    :param arguments: command line of the script
    :raises ArgumentError: if it names an algorithm, an environment, a training, a file or a folder that does not exist
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--algo", "--algos", "-a", dest="algos", nargs="+", default=[])
    parser.add_argument("--exp-id", type=int, default=0)
    parser.add_argument("--gym-packages", nargs="+", default=[])
    parser.add_argument("-optimize", "--optimize-hyperparameters", dest="optimize", action="store_true")
    for kind, options in names.items():
        parser.add_argument(*options, dest=kind, nargs="+", default=[])
    args, _ = parser.parse_known_args(arguments)

    _check_algorithms(args.algos)
    for package in args.gym_packages:
        _check_module(package, "--gym-packages")
    named = vars(args)
    for env_id in named.get("env", []):
        _check_environment(env_id)
    if "run" in named and args.exp_id == 0:
        _check_run(Path(named["run"][-1]), args.algos[-1], (named["env"] or ["CartPole-v1"])[-1])
    for path in [*named.get("folder", []), *map(_with_ending, named.get("archive", []))]:
        check_path(Path(path))
    for kind, check in {"config": _check_config, "agents": _check_agents, "log": _check_writable}.items():
        for path in named.get(kind, [])[-1:]:
            check(path)
    for path in named.get("model", []):
        _check_model(path, args.optimize)
    for part in named.get("envs", []):
        _check_trainings(part, [Path(folder) / algo.lower() for folder in named["folder"] for algo in args.algos])


def without_continue(arguments: list[str]) -> list[str]:
    """
    Remove ``--continue``, which the Zoo does not know, from the command line of ``train``.

    :raises ArgumentError: if there is no model to continue
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-i", "--trained-agent")
    if not parser.parse_known_args(arguments)[0].trained_agent:
        raise ArgumentError(f"{CONTINUE} needs the model whose training is to go on: -i MODEL.zip")
    return [argument for argument in arguments if argument != CONTINUE]


def _check_model(path: str, is_searching: bool) -> None:
    check_path(Path(path))
    if not path.endswith(".zip"):
        raise ArgumentError(f"{path} is not a model's zip file")
    if is_searching:
        raise ArgumentError("-optimize does not take an agent: each of its trials begins from scratch")


def _check_agents(folder: str) -> None:
    check_path(Path(folder))
    if not get_trained_models(folder):
        raise ArgumentError(f"{folder} holds no trained agents: --log-dir names the folder of trainings")


def _check_writable(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be written to: {error}") from error


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


def runs_with_a_model(folder: Path, env_name: str, model: str = "*.zip") -> list[int]:
    """
    :param folder: folder of an algorithm's trainings
    :param env_name: environment, as folders are named
    :param model: pattern of the model's file name
    :return: numbers of the trainings on this environment that hold such a model, the latest first
    """
    runs = {path.name.removeprefix(f"{env_name}_"): path for path in folder.glob(f"{glob.escape(env_name)}_*")}
    return sorted((int(number) for number, run in runs.items() if number.isdecimal() and any(run.glob(model))), reverse=True)


def _check_algorithms(algos: list[str]) -> None:
    for algo in algos:
        if algo.lower() not in ALGOS:
            raise ArgumentError(f"there is no algorithm {algo!r}{nearest(algo, ALGOS)}")


def _check_environment(env_id: str) -> None:
    import gymnasium
    import rl_zoo3.import_envs  # noqa: F401  registers environments

    if env_id in gymnasium.registry:
        entry_point = gymnasium.spec(env_id).entry_point
        if isinstance(entry_point, str):
            gymnasium.envs.registration.load_env_creator(entry_point)  # names an extra that is missing
        return
    if ":" in env_id:
        module, _, name = env_id.partition(":")
        raise ArgumentError(f"--env {env_id} cannot work here: use --gym-packages {module} --env {name}")
    extra_module = module_of(env_id)
    hint = f"; get it by {pip_install(extra_module)}" if extra_module else ""
    near = "" if extra_module and not is_installed(extra_module) else nearest(env_id, gymnasium.registry)
    raise ArgumentError(f"there is no environment {env_id!r}{near}{hint}")


def _check_run(folder: Path, algo: str, env_id: str) -> None:
    from huggingface_sb3 import EnvironmentName

    if "rl-trained-agents" in folder.name:  # which the Zoo downloads
        return
    check_path(folder / algo)
    env_name = EnvironmentName(env_id)
    if not runs_with_a_model(folder / algo, env_name):
        runs = [run.name for run in (folder / algo).iterdir() if run.is_dir()]
        if any(run.rpartition("_")[0] == env_name for run in runs):
            raise ArgumentError(f"no training of {algo} on {env_id} in {folder} holds a model: they failed or have just begun")
        raise ArgumentError(f"there is no training of {algo} on {env_id} in {folder}{nearest(f'{env_name}_1', runs)}")


def _check_trainings(part: str, folders: list[Path]) -> None:
    trainings = [entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir() if entry.is_dir()]
    if folders and not any(part in training for training in trainings):  # without folders, the script says what is missing
        raise ArgumentError(f"there is no training of {part} in {', '.join(map(str, folders))}{nearest(part, trainings)}")


def _check_config(file: str) -> None:
    if file.endswith((".yml", ".yaml", ".py")) or Path(file).parent != Path("."):
        check_path(Path(file))
    else:
        _check_module(file, "--conf-file")


def _check_module(name: str, option: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{option} {name}: {error}") from error


def _with_ending(file: str) -> str:
    return file if file.endswith(".pkl") else f"{file}.pkl"
