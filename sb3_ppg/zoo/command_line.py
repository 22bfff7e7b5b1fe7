"""What a command line of RL Zoo's scripts names: is it there, and if not, what is nearest?"""

import argparse
import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path

from sb3_ppg.errors import ArgumentError

# Environments that come with an extra of ours: how their names begin, the extra
EXTRAS = {
    "ALE/": "atari",
    "LunarLander": "box2d",
    "BipedalWalker": "box2d",
    "CarRacing": "box2d",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
}

# What a script's options name: "env", "run" (a training in a log folder), "file" (one to read), "archive" (a file whose ending
# may be left out), "folder"
RUN = [("env", ["--env"]), ("run", ["-f", "--folder"])]
NAMED: dict[str, list[tuple[str, list[str]]]] = {
    "train": [("env", ["--env"]), ("file", ["-i", "--trained-agent"]), ("file", ["-conf", "--conf-file"])],
    **{script: RUN for script in ("enjoy", "record_video", "record_training", "push_to_hub", "report")},
    "load_from_hub": [("env", ["--env"])],
    "benchmark": [("folder", ["--log-dir"])],
    "plot_train": [("folder", ["-f", "--exp-folder"])],
    "all_plots": [("folder", ["-f", "--exp-folders"])],
    "plot_from_file": [("archive", ["-i", "--input"])],
}
FILE_TYPES = (".zip", ".yml", ".yaml", ".py")


def check_command_line(script: str, arguments: list[str]) -> None:
    """
    :param script: name of a script
    :param arguments: of the command line, without the script
    :raises ArgumentError: if they name an algorithm, an environment, a training, a file or a folder that is not there
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--algo", "--algos", "-a", dest="algos", nargs="+", default=[])
    parser.add_argument("--exp-id", type=int, default=0)
    parser.add_argument("--gym-packages", nargs="+", default=[])
    for kind, options in NAMED[script]:
        parser.add_argument(*options, dest=f"{kind} {options[0]}", nargs="+", default=[])
    args, _ = parser.parse_known_args(arguments)

    _check_algorithms(args.algos)
    for package in args.gym_packages:
        importlib.import_module(package)
    named = [(kind, name) for kind, options in NAMED[script] for name in vars(args)[f"{kind} {options[0]}"]]
    env_id = next((name for kind, name in named if kind == "env"), "CartPole-v1")
    for kind, name in named:
        if kind == "env":
            _check_environment(name)
        elif kind == "run" and args.exp_id == 0:
            _check_run(Path(name), args.algos[-1], env_id)
        elif kind == "folder" or (kind == "file" and name.endswith(FILE_TYPES)):  # a file without is a Python module
            check_path(Path(name))
        elif kind == "archive":
            check_path(Path(name if name.endswith(".pkl") else f"{name}.pkl"))


def nearest(name: str, there: Iterable[str]) -> str:
    """
    :param name: of something that is not there
    :param there: the names of what is
    :return: the end of an error message: "; nearest: ..." or what there is
    """
    folded = {one.lower(): one for one in sorted(there)}
    close = difflib.get_close_matches(name.lower(), folded, n=3)
    if close:
        return f"; nearest: {', '.join(folded[one] for one in close)}"
    if not folded:
        return "; there is none"
    return f"; there are {', '.join(list(folded.values())[:20])}{', ...' if len(folded) > 20 else ''}"


def check_path(path: Path) -> None:
    """
    :param path: of a file or folder that must be there
    :raises ArgumentError: with what is nearest in the deepest folder of its path that there is
    """
    if path.exists():
        return
    folder = next(parent for parent in path.parents if parent.exists())
    missing = path.relative_to(folder).parts[0]
    there = [entry.name for entry in folder.iterdir()]
    raise ArgumentError(f"{path} does not exist: no {missing!r} in {folder.absolute()}{nearest(missing, there)}")


def _check_algorithms(algos: list[str]) -> None:
    from rl_zoo3 import ALGOS

    for algo in algos:
        if algo.lower() not in ALGOS:
            raise ArgumentError(f"there is no algorithm {algo!r}{nearest(algo, ALGOS)}")


def _check_environment(env_id: str) -> None:
    import gymnasium
    import rl_zoo3.import_envs  # noqa: F401  registers environments

    if env_id in gymnasium.registry or ":" in env_id:  # "module:name" is for Gymnasium to import
        return
    hint = next((f'; such come with pip install "sb3-ppg[{extra}]"' for start, extra in EXTRAS.items() if start in env_id), "")
    raise ArgumentError(f"there is no environment {env_id!r}{nearest(env_id, gymnasium.registry)}{hint}")


def _check_run(folder: Path, algo: str, env_id: str) -> None:
    from huggingface_sb3 import EnvironmentName
    from rl_zoo3 import get_latest_run_id

    if "rl-trained-agents" in folder.name:  # the Zoo downloads those
        return
    check_path(folder / algo)
    if get_latest_run_id(str(folder / algo), EnvironmentName(env_id)) == 0:
        runs = [run.name for run in (folder / algo).iterdir() if run.is_dir()]
        raise ArgumentError(f"there is no training of {algo} on {env_id} in {folder}{nearest(f'{env_id}_1', runs)}")
