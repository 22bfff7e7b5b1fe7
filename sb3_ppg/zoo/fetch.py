"""
``load_from_hub`` with the options of the Zoo's script, for models as plain data: make the folder of a training from a
repository's files, with an SB3 zip file that is written here, for all other scripts.
"""

import argparse
import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

import msgspec
import yaml
from huggingface_sb3 import EnvironmentName, ModelName
from rl_zoo3 import ALGOS, get_latest_run_id
from rl_zoo3.load_from_hub import download_from_hub

from sb3_ppg import hub
from sb3_ppg.errors import ArgumentError, ModelFormatError, printable
from sb3_ppg.family import FAMILY, zoo_name_of
from sb3_ppg.hub.files import read_json
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION, read_model
from sb3_ppg.objectives import objective_name
from sb3_ppg.zoo.environment_file import MAX_BYTES, ZOO, Environment, Settings


def main() -> None:
    """Run the command; for algorithms that are not ours, the Zoo's."""
    parser = argparse.ArgumentParser(description="Fetch a trained agent from the Hugging Face Hub", allow_abbrev=False)
    parser.add_argument("--algo", default="ppg", choices=list(ALGOS), help="RL algorithm")
    parser.add_argument("--env", type=EnvironmentName, required=True, help="environment ID")
    parser.add_argument("-f", "--folder", default="logs", help="log folder to put it in")
    parser.add_argument("-orga", "--organization", default="sb3", help="user or organization on the Hub")
    parser.add_argument("-name", "--repo-name", help="name of the repository, by default algo-env")
    parser.add_argument("--revision", help="branch, tag or commit, by default the latest")
    parser.add_argument("--exp-id", default=0, type=int, help="experiment ID to give it (0: the next, -1: no such folder)")
    parser.add_argument("--force", action="store_true", help="overwrite the experiment if it exists")
    parser.add_argument("--allow", nargs="+", default=[], help="further wrappers and arguments that its environment may have")
    parser.add_argument("--verbose", default=1, type=int, help="not used")
    parser.add_argument(
        "--gym-packages", nargs="+", type=importlib.import_module, help="modules that register further environments"
    )
    args = parser.parse_args()
    if args.algo not in FAMILY:
        download_from_hub(args.algo, args.env, args.exp_id, args.folder, args.organization, args.repo_name, args.force)
        return
    runs = Path(args.folder) / args.algo
    number = args.exp_id or get_latest_run_id(str(runs), args.env) + 1
    log_path = runs if number < 0 else runs / f"{args.env}_{number}"
    if log_path.exists() and not args.force:
        raise ArgumentError(f"{log_path} already exists: --force overwrites it, --exp-id 0 makes a new one")
    repo_id = f"{args.organization}/{args.repo_name or ModelName(args.algo, args.env)}"
    print(f"Downloading {repo_id}")
    source = hub.download(repo_id, [DESCRIPTION, ARRAYS, ZOO], args.revision)
    unpack(source, args.algo, args.env, log_path, args.allow, is_emptied=number > 0)
    print(f"Saved to {log_path}")


def unpack(
    source: Path,
    algo: str,
    env_name: EnvironmentName,
    log_path: Path,
    allowed: Collection[str] = (),
    *,
    is_emptied: bool = False,
) -> None:
    """
    Write the files that training would have written, so that the Zoo reads none of the stranger's.

    :param source: folder with a repository's files
    :param algo: one of ours
    :param env_name: environment
    :param log_path: folder of the training; files that are there are overwritten when the new ones are complete
    :param allowed: names that the environment may have in addition to the well-known wrappers and arguments
    :param is_emptied: whether other files in the folder are removed
    :raises ModelFormatError: if the files are damaged or cannot be trusted
    """
    model, vec_normalize = read_model(source)
    objective = objective_name(model.objective_class)
    if type(model) is not FAMILY[algo].algorithm or FAMILY[algo].preset.get("objective", objective) != objective:
        raise ModelFormatError(
            f"this is a model of {type(model).__name__} with objective={objective!r}: use --algo {zoo_name_of(model)}"
        )
    environment = _allowed_environment(source / ZOO, env_name, allowed)
    config = {"n_timesteps": model.num_timesteps, **msgspec.to_builtins(environment.config), "normalize": False}
    arguments = {"algo": algo, "env": env_name.gym_id, "env_kwargs": environment.env_kwargs, "eval_env_kwargs": None}
    model._missing_rollouts = None  # no shared model has them: no warning
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=log_path.parent) as temporary:
        made = Path(temporary) / "run"
        stats_path = made / env_name
        stats_path.mkdir(parents=True)
        if vec_normalize is not None:
            vec_normalize.save(str(stats_path / "vecnormalize.pkl"))
            config["normalize"] = {"norm_obs": vec_normalize.norm_obs, "norm_reward": vec_normalize.norm_reward}
        (stats_path / "config.yml").write_text(yaml.safe_dump(config))
        (stats_path / "args.yml").write_text(yaml.safe_dump(arguments))
        model.save(made / f"{env_name}.zip")
        if is_emptied:
            shutil.rmtree(log_path, ignore_errors=True)
        # Each file takes its place in one step: others may be reading it
        shutil.copytree(made, log_path, dirs_exist_ok=True, copy_function=os.replace)


def _allowed_environment(file: Path, env_name: EnvironmentName, allowed: Collection[str]) -> Environment:
    """
    Read the environment of a model, and show what it hands to constructors.

    :raises ModelFormatError: if it is another environment, or has wrappers or arguments that are not allowed
    """
    if not os.path.lexists(file):
        return Environment(env_name.gym_id, {}, Settings())
    environment = read_json(file, Environment, MAX_BYTES)
    if environment.env_id != env_name.gym_id:
        raise ModelFormatError(f"this model was trained on {environment.env_id!r}, not on {env_name.gym_id!r}")
    environment.check(allowed)
    settings = {"env_kwargs": environment.env_kwargs, **msgspec.to_builtins(environment.config)}
    for what in ("env_kwargs", "env_wrapper", "vec_env_wrapper"):
        if settings.get(what):
            print(printable(f"Its environment is made with {what} {json.dumps(settings[what])}", MAX_BYTES))
    return environment
