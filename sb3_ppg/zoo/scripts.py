"""Our own scripts, and those of RL Zoo (rl_zoo3 2.9.2) for which the fixes in ``REPAIRS`` are not enough."""

import argparse
import runpy
import shutil
import sys
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
import torch as th
import yaml
from huggingface_sb3 import EnvironmentName
from matplotlib.figure import Figure
from rl_zoo3 import ALGOS, get_saved_hyperparams, utils
from rl_zoo3.utils import StoreDict
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import LoadMonitorResultsError, load_results
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm

from sb3_ppg import checking
from sb3_ppg.errors import ArgumentError
from sb3_ppg.hub import EvaluationResult
from sb3_ppg.offline.data import check_new, record, save_as_minari
from sb3_ppg.play import Player
from sb3_ppg.zoo.diagnosis import diagnosis
from sb3_ppg.zoo.environments import environment_maker, imported
from sb3_ppg.zoo.hyperparameters import OFFLINE
from sb3_ppg.zoo.manager import Manager
from sb3_ppg.zoo.registration import ffmpeg_on_path
from sb3_ppg.zoo.resuming import n_steps_of

OFF_POLICY = {name for name, algorithm in ALGOS.items() if issubclass(algorithm, OffPolicyAlgorithm)} - {*OFFLINE}


def acting_with_epsilon(epsilon: float) -> AbstractContextManager:
    """Let the agents of all algorithms that are loaded within a block act as a ``Player`` does."""

    def load(algorithm: type[BaseAlgorithm], *args: Any, **kwargs: Any) -> Player:
        return Player(algorithm.load(*args, **kwargs), epsilon)

    loaders = {name: SimpleNamespace(load=partial(load, algorithm)) for name, algorithm in ALGOS.items()}
    return patch.dict(ALGOS, loaders if epsilon else {})


def check() -> None:
    """Report on an environment; end with status 1 if there is an error."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--env", required=True, help="environment ID")
    parser.add_argument("--gym-packages", nargs="+", default=[], help="modules that register further environments")
    parser.add_argument("--env-kwargs", nargs="+", action=StoreDict, default={}, help="options of the environment")
    parser.add_argument("--seconds", type=float, default=3.0, help="of play; more for long episodes")
    args = parser.parse_args()

    def make() -> gymnasium.Env:
        for package in args.gym_packages:  # here, as a package may set filters for warnings
            imported(package)
        environment_maker(args.env)
        return gymnasium.make(args.env, **args.env_kwargs)

    print(report := checking.check(make, args.seconds))
    sys.exit(any(finding.level == "error" for finding in report.findings))


def record_training() -> None:
    """Run the Zoo's script with a temporary output folder, because it removes all files there, and copy the videos."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--env", type=EnvironmentName, default="CartPole-v1")
    parser.add_argument("--algo")
    parser.add_argument("-f", "--folder")
    parser.add_argument("-o", "--output-folder", type=Path)
    parser.add_argument("--exp-id", type=int, default=0)
    args, _ = parser.parse_known_args()
    runs = Path(args.folder, args.algo)
    number = args.exp_id or utils.get_latest_run_id(str(runs), args.env)
    run = runs / f"{args.env}_{number}" if number > 0 else runs
    if not {"-h", "--help"} & {*sys.argv}:
        environment_maker(args.env.gym_id)
        if not any(any(run.glob(name)) for name in (f"{args.env}.zip", "best_model.zip", "rl_model_*_steps.zip")):
            utils.get_model_path(number, args.folder, args.algo, args.env)  # whose error says which models there are
    with ffmpeg_on_path(), TemporaryDirectory() as made:
        sys.argv += ["-o", made]
        runpy.run_module("rl_zoo3.record_training", run_name="__main__", alter_sys=True)
        shutil.copytree(made, args.output_folder or run / "videos", dirs_exist_ok=True)
        if not Path(made, "training.mp4").exists():  # the Zoo's script does not look
            raise ArgumentError("ffmpeg could not join the videos: it says why above")


def report() -> None:
    """Evaluate the latest agent of an environment, draw its learning curve, diagnose its run, and say where its files are."""
    parser = agent_parser("Evaluate an agent, draw its learning curve and diagnose its run")
    parser.add_argument("--episodes", default=100, type=int, help="how many episodes to evaluate")
    args = parser.parse_args()
    model, env, model_path, log_path = load_agent(args)
    evaluate(model, env, args)
    print(f"Model:          {model_path}")
    print(f"Logs:           {log_path}")
    picture = log_path / "learning_curve.png"
    try:
        plot_learning_curve(log_path, f"{args.algo.upper()} on {args.env.gym_id}", picture)
        print(f"Learning curve: {picture}")
    except Exception as error:  # the files may be damaged
        print(f"Learning curve: none, {error}")
    print(f"Diagnosis:      {diagnosis(log_path, model.action_space)}")


def record_dataset() -> None:
    """Record a Minari data set from a trained agent, with the options of ``enjoy``."""
    parser = agent_parser("Record a Minari data set from a trained agent")
    parser.add_argument("--dataset", required=True, help="name of the new data set, for instance cartpole/ppg-v0")
    parser.add_argument("-n", "--n-timesteps", default=100_000, type=int, help="number of steps to record")
    noise = "exploration noise: standard deviation (Box actions in [-1, 1]), or probability of a random action"
    parser.add_argument("--noise", default=0.0, type=float, help=noise)
    parser.add_argument("--random-episodes", default=0.0, type=float, help="part of the episodes with random actions alone")
    args = parser.parse_args()
    check_new(args.dataset)
    model, env, _, _ = load_agent(args)
    options = dict(deterministic=is_deterministic(args), noise=args.noise, random_episodes=args.random_episodes)
    data = record(model, env, args.n_timesteps, **options, seed=args.seed)
    spec = env.get_attr("spec")[0]  # with the options and wrappers of this environment
    save_as_minari(data, args.dataset, env.observation_space, env.action_space, spec, args.algo)
    latest = (np.arange(env.num_envs) + 1) * (len(data) // env.num_envs) - 1  # where the recording may cut an episode off
    returns = data.episode_returns()[~(np.isin(data.ends, latest) & data.truncations[data.ends])]
    mean = f", mean return {returns.mean():.2f}" if len(returns) > 0 else ""
    print(f"Recorded {len(data)} steps as {args.dataset}: {len(returns)} whole episodes{mean}")


def agent_parser(description: str, env: str | None = "CartPole-v1") -> argparse.ArgumentParser:
    """Return a parser for ``enjoy``'s options that select an agent and how it acts; ``env=None`` makes ``--env`` required."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--algo", default="ppg", choices=list(ALGOS), help="RL algorithm")
    parser.add_argument("--env", type=EnvironmentName, default=env, required=env is None, help="environment ID")
    parser.add_argument("-f", "--folder", default="logs", help="log folder of the run")
    parser.add_argument("--exp-id", default=0, type=int, help="experiment ID (0: the latest, -1: no such folder)")
    parser.add_argument("--load-best", action="store_true", help="the best model instead of the last")
    parser.add_argument("--load-checkpoint", type=int, help="the checkpoint with this number of steps instead")
    parser.add_argument("--load-last-checkpoint", action="store_true", help="the last checkpoint instead")
    parser.add_argument("--n-envs", default=1, type=int, help="number of environments")
    parser.add_argument(
        "--deterministic", action="store_true", help="deterministic actions (default but for Atari, MiniGrid, Procgen)"
    )
    parser.add_argument("--stochastic", action="store_true", help="stochastic actions")
    parser.add_argument("--seed", default=0, type=int, help="random seed")
    parser.add_argument("--num-threads", default=-1, type=int, help="threads of PyTorch (-1: its own choice)")
    parser.add_argument("--device", default="auto", help="PyTorch device")
    parser.add_argument("--env-kwargs", nargs="+", action=StoreDict, default={}, help="further options of the environment")
    parser.add_argument("--gym-packages", nargs="+", type=imported, help="modules that register further environments")
    return parser


def is_deterministic(args: argparse.Namespace) -> bool:
    """Return whether to take the most likely actions, as in the evaluations of the training."""
    env_id = args.env.gym_id
    images = Manager.is_atari(env_id) or Manager.is_minigrid(env_id)
    return not (args.stochastic or (images and not args.deterministic))


def load_agent(args: argparse.Namespace, **env_kwargs: Any) -> tuple[BaseAlgorithm, VecEnv, Path, Path]:
    """
    Load a trained agent with the environment that it was trained in, whose rewards are not normalized; return both, the
    agent's file, and the folder of its run.
    """
    environment_maker(args.env.gym_id)
    if args.num_threads > 0:
        th.set_num_threads(args.num_threads)
    which = (args.load_best, args.load_checkpoint, args.load_last_checkpoint)
    _, model_path, log_path = utils.get_model_path(args.exp_id, args.folder, args.algo, args.env, *which)
    print(f"Loading {model_path}")
    stats_path = Path(log_path) / args.env
    hyperparams, maybe_stats_path = get_saved_hyperparams(str(stats_path), norm_reward=False, test_mode=True)
    env = utils.create_test_env(
        args.env.gym_id,
        n_envs=args.n_envs,
        stats_path=maybe_stats_path,
        seed=args.seed,
        should_render=False,
        hyperparams=hyperparams,
        env_kwargs={**saved_env_kwargs(stats_path), **args.env_kwargs, **env_kwargs},
    )
    no_buffer: dict[str, Any] = dict(buffer_size=1, optimize_memory_usage=False) if args.algo in OFF_POLICY else {}
    model = ALGOS[args.algo].load(model_path, env=env, device=args.device, **no_buffer)
    set_random_seed(args.seed)  # afterwards: loading seeds the environments, and for SB3's algorithms all else, as in training
    env.seed(args.seed)
    return model, model.get_env() or env, Path(model_path), Path(log_path)


def saved_env_kwargs(stats_path: Path) -> dict[str, Any]:
    """Return the options of a run's evaluation environment: those of its hyperparameters, then those of its command."""
    config, arguments = (yaml.unsafe_load((stats_path / name).read_text()) for name in ("config.yml", "args.yml"))
    # Runs of older versions of RL Zoo have no `eval_env_kwargs`
    return {**config.get("env_kwargs", {}), **(arguments.get("eval_env_kwargs") or arguments.get("env_kwargs") or {})}


def evaluate(model: BaseAlgorithm, env: VecEnv, args: argparse.Namespace) -> EvaluationResult:
    """Play episodes; print and return what the agent reached."""
    deterministic = is_deterministic(args)
    print(f"Playing {args.episodes} episodes", flush=True)
    with tqdm(desc="Episodes", total=args.episodes, disable=None) as bar:  # disabled where the output is no terminal

        def count(names: dict[str, Any], _: dict[str, Any]) -> None:
            bar.update(names["episode_counts"].sum() - bar.n)

        mean, std = evaluate_policy(model, env, args.episodes, deterministic=deterministic, callback=count)
    assert isinstance(mean, float) and isinstance(std, float)
    summary = f"Mean return over {args.episodes} episodes: {mean:.2f} +/- {std:.2f}"
    sampled = f", of which {model.epsilon:.0%} are sampled" if isinstance(model, Player) and deterministic else ""
    print(f"{summary}, with {'deterministic' if deterministic else 'stochastic'} actions{sampled}")
    return EvaluationResult(mean, std, args.episodes, deterministic)


def plot_learning_curve(log_path: Path, title: str, picture: Path) -> None:
    """
    Draw a run's episode returns against timesteps, with their moving average, and the evaluations. Monitor files count frames
    where a wrapper around SB3's ``Monitor`` skips some, as Atari's does: then the last episode is drawn at the run's end.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")  # without pyplot, which would show it
    axes = figure.subplots()
    with suppress(LoadMonitorResultsError):  # agents that come with the repository have no episodes
        episodes = load_results(str(log_path))
        if len(episodes) > 0:  # BCQ has none
            frames, returns = episodes["l"].cumsum(), episodes["r"]
            models = [path for path in log_path.glob("*.zip") if path.stem != "best_model"]
            is_ended = any(not path.stem.startswith("rl_model") for path in models)
            steps = frames * min(1, max(map(n_steps_of, models)) / frames.iloc[-1] if is_ended else 1)
            axes.plot(steps, returns, ".", markersize=3, alpha=0.3, label="training episodes")
            axes.plot(steps, returns.rolling(20, min_periods=1).mean(), label="mean of 20 episodes")
    if (log_path / "evaluations.npz").exists():
        with np.load(log_path / "evaluations.npz") as evaluations:
            steps, returns = evaluations["timesteps"], evaluations["results"].mean(axis=1)
        axes.plot(steps, returns, "o-", label="evaluation")
    if not axes.lines:
        raise FileNotFoundError(f"{log_path} has no training episodes and no evaluations.npz")
    axes.set(title=title, xlabel="timesteps", ylabel="return of an episode")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(picture, dpi=120)
