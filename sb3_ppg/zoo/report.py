"""Evaluate the latest agent of an environment, draw its learning curve, and say where its files are."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import rl_zoo3.import_envs  # noqa: F401  registers environments
import yaml
from huggingface_sb3 import EnvironmentName
from matplotlib.figure import Figure
from rl_zoo3 import ALGOS, get_saved_hyperparams, utils
from rl_zoo3.exp_manager import ExperimentManager
from sb3_contrib.common.maskable import evaluation as maskable
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import LoadMonitorResultsError, load_results

from sb3_ppg.zoo.environments import needs_masks


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", default="ppg", choices=list(ALGOS), help="RL algorithm")
    parser.add_argument("--env", default="CartPole-v1", help="environment ID")
    parser.add_argument("-f", "--folder", default="logs", help="log folder of the training")
    parser.add_argument("--exp-id", default=0, type=int, help="experiment ID (0: the latest)")
    parser.add_argument("--episodes", default=100, type=int, help="how many episodes to evaluate")
    add_ways_to_act(parser)
    parser.add_argument("--seed", default=0, type=int, help="seed of the evaluation's environment")
    add_gym_packages(parser)
    args = parser.parse_args()

    if args.episodes < 1:
        parser.error(f"--episodes {args.episodes} cannot work: use at least 1")

    env_name = EnvironmentName(args.env)
    _, model_path, log_path = utils.get_model_path(args.exp_id, args.folder, args.algo, env_name)
    model = load_agent(args.algo, args.env, model_path, Path(log_path) / env_name, seed=args.seed)
    deterministic = is_deterministic(args, args.env)
    returns = evaluate(model, args.episodes, deterministic)
    summary = f"Mean return over {args.episodes} episodes: {np.mean(returns):.2f} +/- {np.std(returns):.2f}"
    print(f"{summary}, with {'deterministic' if deterministic else 'stochastic'} actions")
    print(f"Model:          {model_path}")
    print(f"Logs:           {log_path}")
    picture = Path(log_path) / "learning_curve.png"
    try:
        plot_learning_curve(Path(log_path), f"{args.algo.upper()} on {args.env}", picture)
        print(f"Learning curve: {picture}")
    except Exception as error:  # the files may be damaged
        print(f"Learning curve: none, {error}")


def add_gym_packages(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--gym-packages`` of the Zoo's ``train``. The launcher imports the packages."""
    parser.add_argument("--gym-packages", nargs="+", default=[], help="modules that register further environments")


def add_ways_to_act(parser: argparse.ArgumentParser) -> None:
    """Add ``--deterministic`` and ``--stochastic``, as the Zoo's ``enjoy`` has them."""
    parser.add_argument("--deterministic", action="store_true", help="deterministic actions (default but for Atari, MiniGrid)")
    parser.add_argument("--stochastic", action="store_true", help="stochastic actions")


def is_deterministic(args: argparse.Namespace, env_id: str) -> bool:
    """Return whether to take the most likely actions, as ``enjoy`` decides it from these options."""
    images = ExperimentManager.is_atari(env_id) or ExperimentManager.is_minigrid(env_id)
    return not (args.stochastic or (images and not args.deterministic))


def load_agent(
    algo: str,
    env_id: str,
    model_path: str | Path,
    stats_path: Path,
    *,
    seed: int = 0,
    n_envs: int = 1,
    env_kwargs: dict[str, Any] | None = None,
    device: str = "auto",
) -> BaseAlgorithm:
    """
    Load a trained agent with the environment that it was trained in, whose rewards are not normalized.

    :param algo: RL Zoo's name of the algorithm
    :param env_id: environment
    :param model_path: the agent's zip file
    :param stats_path: where the Zoo saved its hyperparameters and normalization
    :param seed: seed of the environment
    :param n_envs: number of environments
    :param env_kwargs: further options of the environment
    :param device: device of the model
    :return: the agent
    """
    hyperparams, maybe_stats_path = get_saved_hyperparams(str(stats_path), norm_reward=False, test_mode=True)
    hyperparams.pop("env_kwargs", None)
    env = utils.create_test_env(
        env_id,
        n_envs=n_envs,
        stats_path=maybe_stats_path,
        seed=seed,
        should_render=False,
        hyperparams=hyperparams,
        env_kwargs={**saved_env_kwargs(stats_path), **(env_kwargs or {})},
    )
    return ALGOS[algo].load(model_path, env=env, device=device)


def saved_env_kwargs(stats_path: Path) -> dict[str, Any]:
    """Return the options of a training's evaluation environment: those of its hyperparameters, then those of its command."""
    # Files of the training's owner, read as the Zoo reads them
    config = yaml.load((stats_path / "config.yml").read_text(), Loader=yaml.UnsafeLoader)
    arguments = yaml.load((stats_path / "args.yml").read_text(), Loader=yaml.UnsafeLoader)
    return {**config.get("env_kwargs", {}), **(arguments["eval_env_kwargs"] or arguments["env_kwargs"] or {})}


def evaluate(model: BaseAlgorithm, n_episodes: int, deterministic: bool = True) -> list[float]:
    """Return the returns of an agent's episodes in its environment."""
    env = model.get_env()
    assert env is not None
    play: Any = maskable.evaluate_policy if needs_masks(model, env) else evaluate_policy
    returns, _ = play(model, env, n_episodes, deterministic=deterministic, return_episode_rewards=True)
    assert isinstance(returns, list)
    return returns


def plot_learning_curve(log_path: Path, title: str, picture: Path, window: int = 20) -> None:
    """
    Draw episode returns of the training against environment steps, with their moving average, and the evaluations.

    :param log_path: folder with the Zoo's monitor files and, if there were evaluations, ``evaluations.npz``
    :param title: title of the picture
    :param picture: the PNG file to write
    :param window: window of the moving average, in episodes
    :raises FileNotFoundError: if there is nothing to draw
    """
    figure = Figure(figsize=(8, 5))  # without pyplot, which would show it, or draw into a figure of the caller's
    axes = figure.subplots()
    with suppress(LoadMonitorResultsError):  # agents that come with the repository have no episodes
        episodes = load_results(str(log_path))
        steps, returns = episodes["l"].cumsum(), episodes["r"]
        axes.plot(steps, returns, ".", markersize=3, alpha=0.3, label="training episodes")
        axes.plot(steps, returns.rolling(window, min_periods=1).mean(), label=f"mean of {window} episodes")
    if (log_path / "evaluations.npz").exists():
        with np.load(log_path / "evaluations.npz") as evaluations:
            steps, returns = evaluations["timesteps"], evaluations["results"].mean(axis=1)
        axes.plot(steps, returns, "o-", label="evaluation")
    if not axes.lines:
        raise FileNotFoundError(f"{log_path} has no monitor files and no evaluations.npz")
    axes.set(title=title, xlabel="environment steps", ylabel="return of an episode")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)
