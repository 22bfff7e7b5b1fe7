"""
``push_to_hub`` and ``load_from_hub``, with the options of the Zoo's scripts, for models as plain data.

A repository holds what ``sb3_ppg.hub`` writes, ``zoo.json`` (what the environment needs), the learning curve with its data,
and a video. Loading makes the folder of a training from it, with an SB3 zip file that is written here, for all other scripts.
"""

import argparse
import io
import json
import os
import re
import runpy
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rl_zoo3.import_envs  # noqa: F401  registers environments
import torch as th
import yaml
from huggingface_sb3 import EnvironmentName, ModelName
from rl_zoo3 import ALGOS, get_latest_run_id, get_saved_hyperparams, utils
from rl_zoo3.utils import StoreDict
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecVideoRecorder

from sb3_ppg import hub, zoo
from sb3_ppg.arguments import is_number
from sb3_ppg.errors import ArgumentError, ModelFormatError, printable
from sb3_ppg.family import FAMILY, zoo_name_of
from sb3_ppg.hub.plain_data import exactly
from sb3_ppg.hub.pretrained import (
    ARRAYS,
    CHECKSUMS,
    DESCRIPTION,
    read_checked,
    read_model,
    read_sums,
    vec_normalize_of,
    why_not_pickle,
)
from sb3_ppg.hub.untrusted import parse_json
from sb3_ppg.objectives import objective_name
from sb3_ppg.ppg import PPG
from sb3_ppg.zoo import masks
from sb3_ppg.zoo.ffmpeg import provide_ffmpeg
from sb3_ppg.zoo.patches import Patches
from sb3_ppg.zoo.procgen import ENV_IDS
from sb3_ppg.zoo.report import (
    add_gym_packages,
    add_ways_to_act,
    evaluate,
    is_deterministic,
    load_agent,
    plot_learning_curve,
    saved_env_kwargs,
)

ZOO = "zoo.json"
MAX_ZOO_BYTES, MAX_ZOO_DEPTH = 2**14, 10
MAX_LOG_BYTES = 2**26
MAX_HEADER = 10_000  # bytes of a line
MAX_ARGUMENT = 10**6  # of a wrapper
WRAPPER_SETTINGS = ("env_wrapper", "vec_env_wrapper")
LOG_FILES = re.compile(r"evaluations\.npz|\d+\.monitor\.csv")
OF_ONE_AGENT = re.compile(rf"{LOG_FILES.pattern}|vecnormalize\.pkl|learning_curve\.png")  # which another one may not have

# The wrappers that a shared model may name, by module
WRAPPERS_OF = {
    "stable_baselines3.common.atari_wrappers": """
        AtariWrapper ClipRewardEnv EpisodicLifeEnv FireResetEnv MaxAndSkipEnv NoopResetEnv StickyActionEnv WarpFrame""",
    "rl_zoo3.wrappers": """
        ActionNoiseWrapper ActionSmoothingWrapper DelayedRewardWrapper FrameSkip HistoryWrapper HistoryWrapperObsDict
        MaskVelocityWrapper TimeFeatureWrapper YAMLCompatResizeObservation""",
    "gymnasium.wrappers": """
        ClipAction FlattenObservation FrameStackObservation GrayscaleObservation RescaleAction RescaleObservation
        ResizeObservation TimeAwareObservation TimeLimit""",
    "gymnasium.wrappers.transform_observation": "GrayscaleObservation ResizeObservation",
    "minigrid.wrappers": """
        FlatObsWrapper FullyObsWrapper ImgObsWrapper OneHotPartialObsWrapper RGBImgObsWrapper RGBImgPartialObsWrapper""",
}
WRAPPERS = {f"{module}.{name}" for module, names in WRAPPERS_OF.items() for name in names.split()}


# ---- push_to_hub ----


def _arguments_of_push() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Share a trained agent on the Hugging Face Hub", allow_abbrev=False)
    parser.add_argument("--algo", default="ppg", choices=list(ALGOS), help="RL algorithm")
    parser.add_argument("--env", type=EnvironmentName, required=True, help="environment ID")
    parser.add_argument("-f", "--folder", default="logs", help="log folder of the training")
    parser.add_argument("-orga", "--organization", required=True, help="user or organization on the Hub")
    parser.add_argument("-name", "--repo-name", help="name of the repository, by default algo-env")
    parser.add_argument("-m", "--commit-message", default="Initial commit", help="commit message")
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument("--exp-id", default=0, type=int, help="experiment ID (0: the latest, -1: no such folder)")
    parser.add_argument("--load-best", action="store_true", help="the best model instead of the last")
    parser.add_argument("--load-checkpoint", type=int, help="the checkpoint with this number of steps instead")
    parser.add_argument("--load-last-checkpoint", action="store_true", help="the last checkpoint instead")
    parser.add_argument("-n", "--n-timesteps", default=1000, type=int, help="length of the video in steps")
    parser.add_argument("--no-render", action="store_true", help="no video")
    parser.add_argument("--eval-episodes", default=10, type=int, help="how many episodes to evaluate")
    parser.add_argument("--n-envs", default=1, type=int, help="number of environments")
    add_ways_to_act(parser)
    parser.add_argument("--seed", default=0, type=int, help="random seed")
    parser.add_argument("--num-threads", default=-1, type=int, help="threads of PyTorch (-1: its own choice)")
    parser.add_argument("--device", default="auto", help="PyTorch device")
    parser.add_argument("--verbose", default=1, type=int, help="for the Zoo's algorithms")
    parser.add_argument("--env-kwargs", nargs="+", action=StoreDict, help="further options of the environment")
    add_gym_packages(parser)
    args = parser.parse_args()
    if args.eval_episodes < 1:
        parser.error(f"--eval-episodes {args.eval_episodes} cannot work: use at least 1")
    return args


def push() -> None:
    """The command. For algorithms that are not ours, the Zoo's."""
    args = _arguments_of_push()
    if args.algo not in zoo.ALGOS:
        with Patches() as patches:
            provide_ffmpeg(patches)
            runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__", alter_sys=True)
        return

    set_random_seed(args.seed)
    if args.num_threads > 0:
        th.set_num_threads(args.num_threads)
    _, model_path, log_path = utils.get_model_path(
        args.exp_id,
        args.folder,
        args.algo,
        args.env,
        args.load_best,
        args.load_checkpoint,
        args.load_last_checkpoint,
    )
    print(f"Loading {model_path}")
    print(f"Shared as {push_run(args, model_path, Path(log_path))}")


def push_run(args: argparse.Namespace, model_path: str, log_path: Path) -> str:
    """
    Evaluate and record an agent, draw its learning curve, and share all.

    :param args: of the command
    :param model_path: the agent's zip file
    :param log_path: of its training
    :return: the address of the commit
    """
    with tempfile.TemporaryDirectory() as temporary:
        run = evaluated_run(args, model_path, log_path, Path(temporary))
        if any(name.endswith(".monitor.csv") for name in run.files):
            run.files["learning_curve.png"] = Path(temporary) / "learning_curve.png"
            plot_learning_curve(log_path, f"{args.algo.upper()} on {run.env_id}", run.files["learning_curve.png"])
        repo_id = f"{args.organization}/{args.repo_name or ModelName(args.algo, args.env)}"
        return hub.push(
            run.model,
            repo_id,
            env_id=run.env_id,
            evaluation=run.evaluation,
            files=run.files,
            usage=usage(args, repo_id, run.config, run.env_kwargs),
            private=args.private,
            commit_message=args.commit_message,
        )


class EvaluatedRun(NamedTuple):
    """
    A training, to be shared.

    :param model: as it was in training
    :param env_id: its environment
    :param evaluation: how good it is
    :param files: what goes with it, by the names that they will have
    :param config: hyperparameters as the Zoo saves them
    :param env_kwargs: options of the environment
    """

    model: PPG
    env_id: str
    evaluation: hub.Evaluation
    files: dict[str, Path]
    config: dict[str, Any]
    env_kwargs: dict[str, Any]


def evaluated_run(args: argparse.Namespace, model_path: str, log_path: Path, folder: Path) -> EvaluatedRun:
    """
    Evaluate and record an agent.

    :param args: of ``push_to_hub``
    :param model_path: the agent's zip file
    :param log_path: of its training
    :param folder: for files that are made
    :return: what is shared
    """
    env_id, stats_path = args.env.gym_id, log_path / args.env
    rendering = {} if args.no_render else {"render_mode": "rgb_array"}
    model = load_agent(
        args.algo,
        env_id,
        model_path,
        stats_path,
        seed=args.seed,
        n_envs=args.n_envs,
        env_kwargs={**(args.env_kwargs or {}), **rendering},
        device=args.device,
    )
    assert isinstance(model, PPG)
    deterministic = is_deterministic(args, env_id)
    returns = th.tensor(evaluate(model, args.eval_episodes, deterministic))
    evaluation = hub.Evaluation(returns.mean().item(), returns.std(unbiased=False).item(), len(returns), deterministic)
    print(f"Mean return over {len(returns)} episodes: {evaluation.mean:.2f} +/- {evaluation.std:.2f}")

    config, _ = get_saved_hyperparams(str(stats_path), norm_reward=True)
    env_kwargs = {**saved_env_kwargs(stats_path), **(args.env_kwargs or {})}
    files = {f"logs/{file.name}": file for file in log_path.iterdir() if LOG_FILES.fullmatch(file.name)}
    files |= {ZOO: describe_environment(env_id, config, env_kwargs, folder / ZOO)}
    if not args.no_render:
        files["replay.mp4"] = record(model, args.n_timesteps, deterministic, str(folder))
    # As in training: evaluation has changed these
    model.n_envs = int(config.get("n_envs", 1))
    if (vec_normalize := model.get_vec_normalize_env()) is not None:
        vec_normalize.norm_reward = config["normalize_kwargs"].get("norm_reward", True)
        vec_normalize.training = True
    return EvaluatedRun(model, env_id, evaluation, files, config, env_kwargs)


def describe_environment(env_id: str, config: dict[str, Any], env_kwargs: dict[str, Any], file: Path) -> Path:
    """
    :param env_id: environment
    :param config: hyperparameters as the Zoo saves them
    :param env_kwargs: options of the environment
    :param file: to write
    :return: it
    :raises ModelFormatError: if something of them is not plain data
    """
    names = ("n_timesteps", "frame_stack", "env_wrapper", "vec_env_wrapper")
    description = {
        "env_id": env_id,
        "env_kwargs": env_kwargs,
        "config": {name: config[name] for name in names if config.get(name) is not None},
    }
    try:
        file.write_text(json.dumps(description, indent=1), encoding="utf-8")
    except TypeError as error:
        raise ModelFormatError(f"the environment's options are not plain data: {error} ({description})") from error
    return file


def record(model: PPG, n_steps: int, deterministic: bool, folder: str) -> Path:
    """
    :param model: an agent with its environment, which is closed afterwards
    :param n_steps: to play
    :param deterministic: whether to take the most likely actions
    :param folder: where to write
    :return: the video
    """
    env = model.get_env()
    assert env is not None
    recorder = VecVideoRecorder(env, folder, record_video_trigger=lambda step: step == 0, video_length=n_steps)
    observations, states = recorder.reset(), None
    episode_starts = np.ones(env.num_envs, dtype=bool)
    for _ in range(n_steps):
        given = {"action_masks": masks.get_action_masks(env)} if masks.is_masked(model, env) else {}
        actions, states = model.predict(observations, states, episode_starts, deterministic, **given)  # type: ignore[arg-type]
        observations, _, episode_starts, _ = recorder.step(actions)
    recorder.close()
    return Path(recorder.video_path)


def usage(args: argparse.Namespace, repo_id: str, config: dict[str, Any], env_kwargs: dict[str, Any]) -> str:
    """
    :param args: of the command
    :param repo_id: where the model will be
    :param config: hyperparameters as the Zoo saves them
    :param env_kwargs: options of the environment
    :return: what the model card says about loading it
    """
    env_id = args.env.gym_id
    algo = "" if args.algo == "ppg" else f" --algo {args.algo}"
    foreign = [name for name in wrapper_names(config) if name not in WRAPPERS]
    options = [
        *([f"-name {args.repo_name}"] if args.repo_name else []),
        *([f"--allow {' '.join(foreign)}"] if foreign else []),
    ]
    commands = f"""With [RL Zoo](https://github.com/DLR-RM/rl-baselines3-zoo)'s commands:

```bash
pip install "sb3-ppg[zoo]"
sb3-ppg load_from_hub{algo} --env {env_id} -orga {args.organization} {" ".join([*options, "-f logs"])}
sb3-ppg enjoy{algo} --env {env_id} -f logs
```"""
    # Where the environment alone is not what the model knows, or is one that only the Zoo makes
    if wrapper_names(config) or config.get("frame_stack") or env_id in {*ENV_IDS, *masks.ENVS}:
        return commands
    return f"{commands}\n\nIn Python:\n\n{hub.python_usage(zoo.ALGOS[args.algo], repo_id, env_id, env_kwargs, [])}"


def wrapper_names(config: dict[str, Any]) -> list[str]:
    """
    :param config: hyperparameters, the Zoo's way: a wrapper is a name, or a name with its arguments, or a list of such
    :return: the names of all wrappers
    :raises ModelFormatError: if it is something else
    """
    names: list[str] = []
    for key in WRAPPER_SETTINGS:
        entries = config.get(key) or []
        for entry in entries if isinstance(entries, list) else [entries]:
            name = next(iter(entry)) if isinstance(entry, dict) and len(entry) == 1 else entry
            if not isinstance(name, str):
                raise ModelFormatError(f"{key}: {entry!r} is not the name of a wrapper")
            names.append(name)
    return names


# ---- load_from_hub ----


def load() -> None:
    """The command. For algorithms that are not ours, the Zoo's."""
    parser = argparse.ArgumentParser(description="Fetch a trained agent from the Hugging Face Hub", allow_abbrev=False)
    parser.add_argument("--algo", default="ppg", choices=list(ALGOS), help="RL algorithm")
    parser.add_argument("--env", type=EnvironmentName, required=True, help="environment ID")
    parser.add_argument("-f", "--folder", default="logs", help="log folder to put it in")
    parser.add_argument("-orga", "--organization", default="sb3", help="user or organization on the Hub")
    parser.add_argument("-name", "--repo-name", help="name of the repository, by default algo-env")
    parser.add_argument("--revision", help="branch, tag or commit, by default the latest")
    parser.add_argument("--exp-id", default=0, type=int, help="experiment ID to give it (0: the next, -1: no such folder)")
    parser.add_argument("--force", action="store_true", help="overwrite the experiment if it exists")
    parser.add_argument("--allow", nargs="+", default=[], help="further wrappers that its environment may have")
    parser.add_argument("--trust-pickle", action="store_true", help="load an SB3 zip file, too, which can run any code")
    parser.add_argument("--verbose", default=1, type=int, help="not used")
    add_gym_packages(parser)
    args = parser.parse_args()
    place = (args.algo, args.env, args.exp_id, args.folder, args.organization, args.repo_name, args.force)
    with Patches() as patches:
        if args.trust_pickle:  # and nothing that comes later in this process
            patches.set_environment_variable("TRUST_REMOTE_CODE", "True")
        if args.algo in zoo.ALGOS:
            download_without_pickle(*place, revision=args.revision, allowed=args.allow, trust_pickle=args.trust_pickle)
        else:
            import_module("rl_zoo3.load_from_hub").download_from_hub(*place)


def download_without_pickle(
    algo: str,
    env_name: EnvironmentName,
    exp_id: int,
    folder: str,
    organization: str,
    repo_name: str | None = None,
    force: bool = False,
    *,
    revision: str | None = None,
    allowed: list[str] | None = None,
    trust_pickle: bool = False,
) -> Path:
    """
    Fetch a model that ``push_to_hub`` has shared, and make the folder of a training from it.

    :param algo: one of ours
    :param env_name: environment
    :param exp_id: of the new folder. 0: the next one, -1: none
    :param folder: log folder
    :param organization: user or organization on the Hub
    :param repo_name: name of the repository. None: algo-env
    :param force: whether to overwrite an experiment
    :param revision: a branch, tag or commit
    :param allowed: wrappers of the environment that it may name besides ``WRAPPERS``
    :param trust_pickle: whether an SB3 zip file may be loaded
    :return: the new folder
    :raises ArgumentError: if the experiment exists
    :raises HubError: if the repository cannot be read
    :raises ModelFormatError: if it is damaged or not to be trusted
    """
    repo_id = f"{organization}/{repo_name or ModelName(algo, env_name)}"
    print(f"Downloading {repo_id}")
    source = hub.download(repo_id, [DESCRIPTION, ARRAYS, CHECKSUMS, ZOO, "logs/*"], revision)
    runs = Path(folder) / algo
    new = exp_id or get_latest_run_id(str(runs), env_name) + 1
    log_path = runs if new < 0 else runs / f"{env_name}_{new}"
    if not (source / DESCRIPTION).exists():
        archive = hub.zip_of_sb3(repo_id, revision)
        if archive is None:
            raise ModelFormatError(f"{repo_id} holds no model: there is neither {DESCRIPTION} nor an SB3 zip file")
        if not trust_pickle:
            raise ModelFormatError(f"{why_not_pickle(f'{repo_id}/{archive}')} (--trust-pickle)")
        if revision is not None:
            raise ArgumentError("--revision cannot work for an SB3 zip file: the Zoo fetches the latest")
        original = import_module("rl_zoo3.load_from_hub").download_from_hub.__wrapped__
        original(algo, env_name, exp_id, folder, organization, repo_name, force)
        return log_path

    unpack(source, algo, env_name, log_path, force, numbered=new > 0, allowed=allowed)
    print(f"Saved to {log_path}")
    return log_path


def unpack(
    source: Path,
    algo: str,
    env_name: EnvironmentName,
    log_path: Path,
    force: bool,
    *,
    numbered: bool,
    allowed: list[str] | None = None,
) -> None:
    """
    Make the folder of a training from a repository's files.

    :param source: with these files
    :param algo: one of ours
    :param env_name: environment
    :param log_path: the folder
    :param force: whether to overwrite files that are there
    :param numbered: whether it belongs to this training alone, and is made anew
    :param allowed: wrappers of the environment that it may name besides ``WRAPPERS``
    :raises ArgumentError: if the folder, or files in it, exist
    :raises ModelFormatError: if the files are damaged or not to be trusted
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=log_path.parent) as temporary:
        made = Path(temporary) / "run"
        _make_run(source, env_name, algo, set(allowed or []) | WRAPPERS, made)
        _put(made, log_path, force, numbered)


def _put(made: Path, log_path: Path, force: bool, numbered: bool) -> None:
    """
    In its place. Where that is the folder of all trainings (``--exp-id -1``), or has been used, files of the same names are
    replaced, and those that are left of another agent removed.
    """
    new = {log_path / file.relative_to(made) for file in made.rglob("*") if file.is_file()}
    folders = {file.parent for file in new}
    left = {file for folder in folders for file in folder.glob("*") if OF_ONE_AGENT.fullmatch(file.name)}
    if not force and (left or any(file.exists() for file in new) or (numbered and log_path.exists())):
        raise ArgumentError(f"{log_path} already exists: --force overwrites it, --exp-id 0 makes a new one")
    if numbered:
        shutil.rmtree(log_path, ignore_errors=True)
    for file in left - new:
        file.unlink(missing_ok=True)
    # Each file takes its place in one step: others may be reading it
    shutil.copytree(made, log_path, dirs_exist_ok=True, copy_function=os.replace)


def _make_run(source: Path, env_name: EnvironmentName, algo: str, allowed: set[str], log_path: Path) -> None:
    """What training would have written. Nothing is copied that the Zoo would unpickle, evaluate or import."""
    model, saved_vec_normalize = read_model(source)
    objective = objective_name(model.objective_class)
    if type(model) is not FAMILY[algo].algorithm or FAMILY[algo].preset.get("objective", objective) != objective:
        raise ModelFormatError(
            f"this is a model of {type(model).__name__} with objective={objective!r}: use --algo {zoo_name_of(model)}"
        )
    sums = read_sums(source)
    description = _read_environment(source, sums, env_name, allowed)
    (log_path / env_name).mkdir(parents=True)
    config = {**description["config"], "normalize": False}
    if saved_vec_normalize is not None:
        vec_normalize = vec_normalize_of(model, saved_vec_normalize)
        vec_normalize.save(str(log_path / env_name / "vecnormalize.pkl"))
        config["normalize"] = {"norm_obs": vec_normalize.norm_obs, "norm_reward": vec_normalize.norm_reward}
    env_kwargs = description["env_kwargs"]
    arguments = {"algo": algo, "env": env_name.gym_id, "env_kwargs": env_kwargs, "eval_env_kwargs": None}
    (log_path / env_name / "config.yml").write_text(yaml.safe_dump(config))
    (log_path / env_name / "args.yml").write_text(yaml.safe_dump(arguments))
    model._n_stored_rollouts = model._n_replayed_rollouts = 0  # no shared model has them: nobody is to be told
    model.save(log_path / f"{env_name}.zip")
    there = {f"logs/{file.name}" for file in (source / "logs").iterdir()} if (source / "logs").is_dir() else set()
    for path in sorted(there | sums.keys()):
        folder, _, name = path.rpartition("/")
        if folder == "logs" and LOG_FILES.fullmatch(name):
            content = read_checked(source, path, sums, MAX_LOG_BYTES)
            check = _check_npz if name.endswith(".npz") else _check_monitor
            check(content, name)
            (log_path / name).write_bytes(content)


def _check_monitor(content: bytes, name: str) -> None:
    """
    :raises ModelFormatError: if it would take long to read
    """
    if any(len(line) > MAX_HEADER for line in content.split(b"\n", 2)[:2]):
        raise ModelFormatError(f"logs/{name} has a longer header than the monitor of a training writes")


def _check_npz(content: bytes, name: str) -> None:
    """
    :raises ModelFormatError: if it is no file of arrays of numbers, or unpacks to more than a log can have
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_LOG_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_LOG_BYTES} bytes")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if not all(isinstance(arrays[key], np.ndarray) and arrays[key].dtype.kind in "biuf" for key in arrays.files):
                raise ValueError("not all in it are arrays of numbers")
    except Exception as error:  # zipfile's, NumPy's, zlib's
        raise ModelFormatError(f"logs/{name} cannot be read ({type(error).__name__}: {error})") from error


def _read_environment(source: Path, sums: Mapping[str, str], env_name: EnvironmentName, allowed: set[str]) -> dict[str, Any]:
    """``zoo.json``, with nothing in it but what ``describe_environment`` writes. What it hands to constructors is shown."""
    if not os.path.lexists(source / ZOO) and ZOO not in sums:
        return {"config": {"n_timesteps": 0}, "env_kwargs": {}}
    data = parse_json(read_checked(source, ZOO, sums, MAX_ZOO_BYTES), source / ZOO, MAX_ZOO_DEPTH)
    exactly(data, {"env_id", "env_kwargs", "config"}, ZOO)
    env_id, config, env_kwargs = data["env_id"], data["config"], data["env_kwargs"]
    if env_id != env_name.gym_id:
        raise ModelFormatError(f"this model was trained on {env_id!r}, not on {env_name.gym_id!r}")
    _check_settings(config, env_kwargs)
    for name in wrapper_names(config):
        if name not in allowed:
            raise ModelFormatError(
                f"the model's environment has the wrapper {name!r}, which is not one of the well-known ones: if you trust the "
                f"module of that name that you have installed, load it with --allow {name}"
            )
    wrappers = {key: config[key] for key in WRAPPER_SETTINGS if config.get(key)}
    for what, value in {"env_kwargs": env_kwargs, **wrappers}.items():
        if value:
            print(printable(f"Its environment is made with {what} {json.dumps(value)}", MAX_ZOO_BYTES))
    return {"config": config, "env_kwargs": env_kwargs}


def _largest(value: Any) -> float:
    """The largest number in it, by its size."""
    if isinstance(value, (list, dict)):
        return max(map(_largest, value.values() if isinstance(value, dict) else value), default=0)
    return abs(value) if isinstance(value, (int, float)) else 0


def _check_settings(config: Any, env_kwargs: Any) -> None:
    """
    :raises ModelFormatError: if they are not what the Zoo writes
    """
    if not isinstance(config, dict) or not isinstance(env_kwargs, dict):
        raise ModelFormatError(f"{ZOO} cannot be read: config and env_kwargs are {config!r:.100} and {env_kwargs!r:.100}")
    if unknown := set(config) - {"n_timesteps", "frame_stack", *WRAPPER_SETTINGS}:
        raise ModelFormatError(f"{ZOO}: unknown settings {sorted(unknown)}")
    if _largest([config.get(key) for key in WRAPPER_SETTINGS]) > MAX_ARGUMENT:
        raise ModelFormatError(f"{ZOO}: a wrapper's argument above {MAX_ARGUMENT:,} is too large to be meant")
    for name, largest in (("n_timesteps", 2**53), ("frame_stack", 1000)):
        value = config.get(name, 0)
        if not (is_number(value) and 0 <= value <= largest and value == int(value)):  # 1e6 is one
            raise ModelFormatError(f"{ZOO}: no numbers from 0 to {largest}: {name}={config[name]!r}")
