"""``push_to_hub`` with the options of the Zoo's script, for models as plain data: see ``sb3_ppg.hub``."""

import argparse
import runpy
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rl_zoo3.import_envs  # noqa: F401  registers environments
import torch as th
from huggingface_sb3 import EnvironmentName, ModelName
from rl_zoo3 import ALGOS, get_saved_hyperparams, utils
from rl_zoo3.utils import StoreDict
from sb3_contrib.common.maskable.utils import get_action_masks
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecVideoRecorder

from sb3_ppg import hub
from sb3_ppg.family import FAMILY
from sb3_ppg.ppg import PPG
from sb3_ppg.zoo.environment_file import WRAPPERS, ZOO, Environment, environment_of, write_environment
from sb3_ppg.zoo.environments import MASKED, PROCGEN_IDS, needs_masks
from sb3_ppg.zoo.repairs import ffmpeg_on_path
from sb3_ppg.zoo.report import (
    add_gym_packages,
    add_ways_to_act,
    evaluate,
    is_deterministic,
    load_agent,
    plot_learning_curve,
    saved_env_kwargs,
)


def _arguments() -> argparse.Namespace:
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


def main() -> None:
    """Run the command; for algorithms that are not ours, the Zoo's."""
    args = _arguments()
    if args.algo not in FAMILY:
        with ffmpeg_on_path():
            runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__", alter_sys=True)
        return

    set_random_seed(args.seed)
    if args.num_threads > 0:
        th.set_num_threads(args.num_threads)
    which = (args.load_best, args.load_checkpoint, args.load_last_checkpoint)
    _, model_path, log_path = utils.get_model_path(args.exp_id, args.folder, args.algo, args.env, *which)
    print(f"Loading {model_path}")
    repo_id = f"{args.organization}/{args.repo_name or ModelName(args.algo, args.env)}"
    with tempfile.TemporaryDirectory() as folder:
        run = evaluated_run(args, model_path, Path(log_path), Path(folder))
        with suppress(FileNotFoundError):  # without logs there is nothing to draw
            picture = Path(folder) / "learning_curve.png"
            plot_learning_curve(Path(log_path), f"{args.algo.upper()} on {args.env.gym_id}", picture)
            run.files[picture.name] = picture
        address = hub.push(
            run.model,
            repo_id,
            env_id=args.env.gym_id,
            evaluation=run.evaluation,
            files=run.files,
            usage=usage(args, repo_id, run.environment),
            private=args.private,
            commit_message=args.commit_message,
        )
    print(f"Shared as {address}")


class EvaluatedRun(NamedTuple):
    """
    A training that can be shared.

    :param model: the agent, with its environments as in training
    :param environment: description of its environment
    :param evaluation: returns of the agent
    :param files: files that go with it, by their names in the repository
    """

    model: PPG
    environment: Environment
    evaluation: hub.Evaluation
    files: dict[str, Path]


def evaluated_run(args: argparse.Namespace, model_path: str, log_path: Path, folder: Path) -> EvaluatedRun:
    """
    Evaluate and record an agent.

    :param args: options of ``push_to_hub``
    :param model_path: the agent's zip file
    :param log_path: folder of its training
    :param folder: where to make files
    :return: the agent with all that is shared
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
    returns = np.array(evaluate(model, args.eval_episodes, deterministic))
    evaluation = hub.Evaluation(float(returns.mean()), float(returns.std()), len(returns), deterministic)
    print(f"Mean return over {len(returns)} episodes: {evaluation.mean:.2f} +/- {evaluation.std:.2f}")

    config, _ = get_saved_hyperparams(str(stats_path), norm_reward=True)
    environment = environment_of(env_id, config, {**saved_env_kwargs(stats_path), **(args.env_kwargs or {})})
    files = {ZOO: write_environment(environment, folder / ZOO)}
    if not args.no_render:
        files["replay.mp4"] = record(model, args.n_timesteps, deterministic, str(folder))
    # As in training: the evaluation has changed these
    model.n_envs = int(config.get("n_envs", 1))
    if (vec_normalize := model.get_vec_normalize_env()) is not None:
        vec_normalize.norm_reward = config["normalize_kwargs"].get("norm_reward", True)
        vec_normalize.training = True
    return EvaluatedRun(model, environment, evaluation, files)


def record(model: PPG, n_steps: int, deterministic: bool, folder: str) -> Path:
    """Record an agent in its environment, which is closed afterwards; return the video."""
    env = model.get_env()
    assert env is not None
    recorder = VecVideoRecorder(env, folder, record_video_trigger=lambda step: step == 0, video_length=n_steps)
    observations, states = recorder.reset(), None
    episode_starts = np.ones(env.num_envs, dtype=bool)
    for _ in range(n_steps):
        given = {"action_masks": get_action_masks(env)} if needs_masks(model, env) else {}
        actions, states = model.predict(observations, states, episode_starts, deterministic, **given)  # type: ignore[arg-type]
        observations, _, episode_starts, _ = recorder.step(actions)
    recorder.close()
    return Path(recorder.video_path)


def usage(args: argparse.Namespace, repo_id: str, environment: Environment) -> str:
    """Return the model card's text about loading the model."""
    algo = "" if args.algo == "ppg" else f" --algo {args.algo}"
    foreign = [name for name in environment.wrappers if name not in WRAPPERS]
    options = [
        *([f"-name {args.repo_name}"] if args.repo_name else []),
        *([f"--allow {' '.join(foreign)}"] if foreign else []),
    ]
    env_id = environment.env_id
    commands = f"""With [RL Zoo](https://github.com/DLR-RM/rl-baselines3-zoo)'s commands:

```bash
pip install "sb3-ppg[zoo]"
sb3-ppg load_from_hub{algo} --env {env_id} -orga {args.organization} {" ".join([*options, "-f logs"])}
sb3-ppg enjoy{algo} --env {env_id} -f logs
```"""
    # Where the model does not know the environment as Gymnasium makes it, or Gymnasium does not know it
    if environment.wrappers or environment.config.frame_stack or env_id in {*PROCGEN_IDS, *MASKED}:
        return commands
    python = hub.python_usage(FAMILY[args.algo].algorithm, repo_id, env_id, environment.env_kwargs, [])
    return f"{commands}\n\nIn Python:\n\n{python}"
