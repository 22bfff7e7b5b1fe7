"""
``push_to_hub`` and ``load_from_hub`` for models as plain data; ``--pretrained``, for agents in the repository; and
``zoo.json``, the part of a shared model that says how RL Zoo makes its environment.
"""

import argparse
import math
import os
import shutil
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from huggingface_sb3 import EnvironmentName, ModelName
from msgspec import Meta
from rl_zoo3 import ALGOS, get_latest_run_id, get_saved_hyperparams
from rl_zoo3.load_from_hub import download_from_hub
from stable_baselines3.common.vec_env import VecVideoRecorder

import sb3_ppg
from sb3_ppg import hub
from sb3_ppg.distributed import rank
from sb3_ppg.errors import ArgumentError, ModelFormatError, nearest, raised_as, requirement
from sb3_ppg.family import FAMILY, zoo_name_of
from sb3_ppg.hub.files import read_json
from sb3_ppg.hub.pretrained import ARRAYS, DESCRIPTION, read_model
from sb3_ppg.hub.repository import names_no_file, python_usage
from sb3_ppg.hub.schema import Header, Plain
from sb3_ppg.objectives import objective_name
from sb3_ppg.ppg import PPG
from sb3_ppg.saving.files import saved_attributes
from sb3_ppg.zoo.environments import MASKED, PROCGEN_IDS, imported
from sb3_ppg.zoo.scripts import agent_parser, evaluate, load_agent, plot_learning_curve, saved_env_kwargs

# Folders of trained agents: in the working directory, and in the repository from which the package is imported
FOLDERS = [Path("pretrained"), Path(sb3_ppg.__file__).parent.parent / "pretrained"]
UNPACKED = Path("logs") / "pretrained"  # as runs, which the Zoo's scripts read

ZOO = "zoo.json"
MAX_BYTES = 2**14
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

MAX_NUMBER = 1000  # larger arguments could take much memory or time
MAX_FRAMES = 64  # of all stacks together

# A wrapper as hyperparameter files have it: a name, or a name with its arguments
Wrapper = str | Annotated[dict[str, dict[str, Plain]], Meta(min_length=1, max_length=1)]
Wrappers = Wrapper | list[Wrapper] | None


class Settings(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hyperparameters that the environment needs, and the length of the run."""

    n_timesteps: Annotated[float, Meta(ge=0, le=2**53)] = 0.0
    frame_stack: Annotated[int, Meta(ge=1, le=1000)] | None = None
    env_wrapper: Wrappers = None
    vec_env_wrapper: Wrappers = None


class Environment(msgspec.Struct, forbid_unknown_fields=True):
    """An environment of RL Zoo."""

    env_id: str
    env_kwargs: dict[str, Plain]
    config: Settings

    def check(self, allowed: Collection[str]) -> None:
        """Raise an error if a wrapper or argument is neither usual nor allowed, may name a file, or takes much memory."""
        values = dict(self.arguments)
        for name in self.to_allow:
            if name not in allowed:
                what = f"argument {name!r} with {values[name]!r}" if name in values else f"wrapper {name!r}"
                raise ModelFormatError(
                    f"the model's environment has the {what}, which is not one of the well-known ones, or not a usual value: "
                    f"if you know what it does, load the model with --allow {name}"
                )
        for name, value in self.arguments:
            if not names_no_file(value):
                raise ModelFormatError(
                    f"the model's environment has the argument {name!r} with {value!r}, in which a text could name a file"
                )
        n_frames: Any = self.config.frame_stack or 1
        for name, arguments in self.wrappers:
            stacked = arguments.get("stack_size", arguments.get("horizon", 2 if "HistoryWrapper" in name else 1))
            n_frames *= max(1, stacked) if isinstance(stacked, int | float) else math.inf
        if n_frames > MAX_FRAMES:
            raise ModelFormatError(f"the model's environment stacks {n_frames} observations; at most {MAX_FRAMES} are allowed")

    @property
    def wrappers(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and arguments of all wrappers."""
        settings = (self.config.env_wrapper, self.config.vec_env_wrapper)
        entries = [entry for part in settings for entry in (part if isinstance(part, list) else [part]) if entry]
        return [(entry, {}) if isinstance(entry, str) else next(iter(entry.items())) for entry in entries]

    @property
    def arguments(self) -> list[tuple[str, Any]]:
        """Arguments of the environment and of all wrappers."""
        return [*self.env_kwargs.items(), *(item for _, arguments in self.wrappers for item in arguments.items())]

    @property
    def to_allow(self) -> list[str]:
        """Names of the wrappers and arguments that need the user's consent."""
        wrappers = [name for name, _ in self.wrappers if name not in WRAPPERS]
        return [*wrappers, *(name for name, value in self.arguments if not _is_usual(value))]


def _is_usual(value: Any) -> bool:
    """Return whether an argument is a boolean, a number in the usual range, or a list of a few of them."""
    if isinstance(value, list):
        return len(value) <= 8 and all(_is_usual(item) and not isinstance(item, list) for item in value)
    # A negative whole number could remove a limit
    return isinstance(value, int | float) and abs(value) <= MAX_NUMBER and (value >= 0 or value % 1 != 0)


def push() -> None:
    """Share a run's model, with a description of its environment, a card, a video and its learning curve."""
    parser = agent_parser("Share a trained agent on the Hugging Face Hub", env=None)
    parser.add_argument("--episodes", default=10, type=int, help="how many episodes to evaluate")
    parser.add_argument("-orga", "--organization", required=True, help="user or organization on the Hub")
    parser.add_argument("-name", "--repo-name", help="name of the repository, by default algo-env")
    parser.add_argument("-m", "--commit-message", default="Initial commit", help="commit message")
    parser.add_argument("--private", action="store_true", help="create a private repository")
    parser.add_argument("-n", "--n-timesteps", default=1000, type=int, help="maximum length of the video in steps")
    parser.add_argument("--no-render", action="store_true", help="no video")
    parser.add_argument(
        "--dry-run", nargs="?", const="", metavar="FOLDER", help="write the files into a folder (default: the run's) instead"
    )
    args = parser.parse_args()
    if args.algo not in FAMILY:
        remedy = f"models of {', '.join(FAMILY)} are shared; for others use `python -m rl_zoo3.push_to_hub`"
        raise ArgumentError(f"--algo {args.algo} cannot work: {remedy}")
    repo_id = f"{args.organization}/{args.repo_name or ModelName(args.algo, args.env)}"
    model, env, model_path, log_path = load_agent(args, **({} if args.no_render else {"render_mode": "rgb_array"}))
    assert isinstance(model, PPG)
    stats_path = log_path / args.env
    hyperparams, _ = get_saved_hyperparams(str(stats_path), norm_reward=True)
    description = {
        "env_id": args.env.gym_id,
        "env_kwargs": {**saved_env_kwargs(stats_path), **args.env_kwargs},
        "config": {name: hyperparams[name] for name in Settings.__struct_fields__ if name in hyperparams},
    }
    with raised_as(ModelFormatError, f"the environment cannot be shared: {description}"):
        environment = msgspec.convert(description, Environment)
    environment.check(environment.to_allow)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {ZOO: folder / ZOO}
        files[ZOO].write_bytes(msgspec.json.format(msgspec.json.encode(environment), indent=1))
        if not args.no_render:
            env = VecVideoRecorder(env, temporary, lambda step: step == 0, args.n_timesteps)
        evaluation = evaluate(model, env, args)
        if isinstance(env, VecVideoRecorder):
            env.close()  # which writes the video
            files["replay.mp4"] = Path(env.video_path)
        with suppress(FileNotFoundError):  # without logs there is nothing to draw
            plot_learning_curve(log_path, f"{args.algo.upper()} on {args.env.gym_id}", folder / "learning_curve.png")
            files["learning_curve.png"] = folder / "learning_curve.png"
        # As in training: the evaluation has changed these
        model.n_envs = saved_attributes(model_path)["n_envs"]
        if (vec_normalize := model.get_vec_normalize_env()) is not None:
            vec_normalize.norm_reward = hyperparams["normalize_kwargs"].get("norm_reward", True)
            vec_normalize.training = True
        content: dict[str, Any] = dict(env_id=args.env.gym_id, evaluation=evaluation, files=files)
        content["usage"] = _usage(args, repo_id, environment, vec_normalize is not None)
        if args.dry_run is None:
            address = hub.push(model, repo_id, private=args.private, commit_message=args.commit_message, **content)
            print(f"Shared as {address}")
        else:
            there = Path(args.dry_run or log_path / "hub")
            hub.write_repository(model, there, repo_id, **content)
            print(f"Not shared: these files would be {repo_id}: {there}")


def _usage(args: argparse.Namespace, repo_id: str, environment: Environment, is_normalized: bool) -> str:
    """Return the model card's text about loading the model."""
    algo = "" if args.algo == "ppg" else f" --algo {args.algo}"
    name = f" -name {args.repo_name}" if args.repo_name else ""
    allow = f" --allow {' '.join(environment.to_allow)}" if environment.to_allow else ""
    env_id, modules = environment.env_id, " ".join(module.__name__ for module in args.gym_packages or [])
    packages = f" --gym-packages {modules}" if modules else ""
    commands = f"""With [RL Zoo](https://github.com/DLR-RM/rl-baselines3-zoo)'s commands:

```bash
pip install {requirement("zoo")}
sb3-ppg load_from_hub{algo} --env {env_id} -orga {args.organization}{name}{allow}{packages} -f logs
sb3-ppg enjoy{algo} --env {env_id}{packages} -f logs
```"""
    # Where the model does not know the environment as Gymnasium makes it, or Gymnasium does not know it
    if environment.wrappers or environment.config.frame_stack or env_id in {*PROCGEN_IDS, *MASKED}:
        return commands
    python = python_usage(FAMILY[args.algo].algorithm, repo_id, env_id, environment.env_kwargs, [], is_normalized)
    return f"{commands}\n\nIn Python:\n\n{python}"


def fetch() -> None:
    """Run ``load_from_hub``; for algorithms that are not ours, the Zoo's."""
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
    parser.add_argument("--gym-packages", nargs="+", type=imported, help="modules that register further environments")
    args = parser.parse_args()
    if args.algo not in FAMILY:
        if args.revision or args.allow:
            raise ArgumentError(f"--revision and --allow cannot work: RL Zoo fetches the latest {args.algo}, and unpickles it")
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
    unpack(source, args.algo, args.env, log_path, args.allow, "kept" if number < 0 else "removed" if args.force else "refused")
    print(f"Saved to {log_path}")


def unpack(
    source: Path,
    algo: str,
    env_name: EnvironmentName,
    log_path: Path,
    allowed: Collection[str] = (),
    old: Literal["kept", "removed", "refused"] = "kept",
) -> None:
    """
    Write the files of a run from those of a repository, so that the Zoo does not read any file of a stranger.

    :param log_path: folder of the run; files that are there are overwritten when the new ones are complete
    :param allowed: names that the environment may have in addition to the well-known wrappers and usual arguments
    :param old: what happens to other files in the folder; "refused": there must be no such folder, not even one that another
        command has made in the meantime
    """
    model, vec_normalize = read_model(source)
    print(f"The shared model was written by sb3_ppg {read_json(source / DESCRIPTION, Header).versions.get('sb3-ppg', '?')}")
    objective = objective_name(model.objective_class)
    if type(model) is not FAMILY[algo].algorithm or FAMILY[algo].preset.get("objective", objective) != objective:
        raise ModelFormatError(
            f"this is a model of {type(model).__name__} with objective={objective!r}: use --algo {zoo_name_of(model)}"
        )
    environment = Environment(env_name.gym_id, {}, Settings())
    if os.path.lexists(source / ZOO):
        environment = read_json(source / ZOO, Environment, MAX_BYTES)
    if environment.env_id != env_name.gym_id:
        raise ModelFormatError(f"this model was trained on {environment.env_id!r}, not on {env_name.gym_id!r}")
    environment.check(allowed)
    config = {"n_timesteps": model.num_timesteps, **msgspec.to_builtins(environment.config), "normalize": False}
    arguments = {"algo": algo, "env": env_name.gym_id, "env_kwargs": environment.env_kwargs, "eval_env_kwargs": None}
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
        if old == "removed":
            shutil.rmtree(log_path, ignore_errors=True)
        if old == "refused":
            log_path.mkdir()
        # Each file takes its place in one step: others may be reading it
        shutil.copytree(made, log_path, dirs_exist_ok=True, copy_function=os.replace)


def with_pretrained(option: str, arguments: list[str]) -> list[str]:
    """
    Unpack a trained agent of the repository in the first process; return the command line with the option that names it: -f
    for a folder of runs, -i for a file.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--algo", default="ppg")
    parser.add_argument("--env", type=EnvironmentName, default="CartPole-v1")
    args, _ = parser.parse_known_args(arguments)
    run = UNPACKED / args.algo / f"{args.env}_1"
    if rank() == 0:
        name = f"{args.algo}/{args.env}"
        agent = next((folder / name for folder in FOLDERS if (folder / name).is_dir()), None)
        if agent is None:
            there = [f"{path.parent.name}/{path.name}" for folder in FOLDERS for path in folder.glob("*/*")]
            remedy = (
                nearest(name, there) if there else ": run in a clone of the repository, or install it by `pip install -e .`"
            )
            raise ArgumentError(f"there is no trained agent {name} in {' or '.join(map(str, FOLDERS))}{remedy}")
        unpack(agent, args.algo, args.env, run)
        if (agent / "logs").is_dir():  # the evaluations of its run
            shutil.copytree(agent / "logs", run, dirs_exist_ok=True)
    return [*arguments, option, str(run / f"{args.env}.zip" if option == "-i" else UNPACKED)]
