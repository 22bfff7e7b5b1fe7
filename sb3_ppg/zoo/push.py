"""``push_to_hub`` with the options of the Zoo's script, for models as plain data: see ``sb3_ppg.hub``."""

import argparse
import runpy
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from huggingface_sb3 import EnvironmentName, ModelName
from rl_zoo3 import get_saved_hyperparams
from stable_baselines3.common.vec_env import VecVideoRecorder

from sb3_ppg import hub
from sb3_ppg.family import FAMILY
from sb3_ppg.ppg import PPG
from sb3_ppg.zoo.environment_file import ZOO, Environment, environment_of
from sb3_ppg.zoo.environments import MASKED, PROCGEN_IDS
from sb3_ppg.zoo.offline import OFFLINE
from sb3_ppg.zoo.repairs import ffmpeg_on_path, our_commands_on_cards
from sb3_ppg.zoo.report import agent_parser, evaluate, load_agent, plot_learning_curve, saved_env_kwargs


def parser() -> argparse.ArgumentParser:
    """Return the parser for the options of the command."""
    made = agent_parser("Share a trained agent on the Hugging Face Hub", n_episodes=10)
    made.add_argument("--env", type=EnvironmentName, required=True, help="environment ID")
    made.add_argument("-orga", "--organization", required=True, help="user or organization on the Hub")
    made.add_argument("-name", "--repo-name", help="name of the repository, by default algo-env")
    made.add_argument("-m", "--commit-message", default="Initial commit", help="commit message")
    made.add_argument("--private", action="store_true", help="create a private repository")
    made.add_argument("-n", "--n-timesteps", default=1000, type=int, help="length of the video in steps")
    made.add_argument("--no-render", action="store_true", help="no video")
    made.add_argument("--verbose", default=1, type=int, help="for the Zoo's algorithms")
    return made


def main() -> None:
    """Run the command; for algorithms that are not ours, the Zoo's."""
    args = parser().parse_args()
    if args.algo not in FAMILY:
        with ffmpeg_on_path(), our_commands_on_cards() if args.algo in OFFLINE else nullcontext():
            runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__", alter_sys=True)
        return

    repo_id = f"{args.organization}/{args.repo_name or ModelName(args.algo, args.env)}"
    with tempfile.TemporaryDirectory() as folder:
        run = evaluated_run(args, Path(folder))
        with suppress(FileNotFoundError):  # without logs there is nothing to draw
            picture = Path(folder) / "learning_curve.png"
            plot_learning_curve(run.log_path, f"{args.algo.upper()} on {args.env.gym_id}", picture)
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
    :param log_path: folder of the training
    :param environment: description of its environment
    :param evaluation: returns of the agent
    :param files: files that go with it, by their names in the repository
    """

    model: PPG
    log_path: Path
    environment: Environment
    evaluation: hub.Evaluation
    files: dict[str, Path]


def evaluated_run(args: argparse.Namespace, folder: Path) -> EvaluatedRun:
    """Evaluate and record an agent by the options of ``push_to_hub``, with files in the folder."""
    rendering = {} if args.no_render else {"render_mode": "rgb_array"}
    model, _, log_path = load_agent(args, **rendering)
    assert isinstance(model, PPG)
    evaluation = evaluate(model, args)
    stats_path = log_path / args.env
    config, _ = get_saved_hyperparams(str(stats_path), norm_reward=True)
    environment = environment_of(args.env.gym_id, config, {**saved_env_kwargs(stats_path), **args.env_kwargs})
    environment.check(environment.to_allow)
    files = {ZOO: folder / ZOO}
    files[ZOO].write_bytes(msgspec.json.format(msgspec.json.encode(environment), indent=1))
    if not args.no_render:
        files["replay.mp4"] = record(model, args.n_timesteps, evaluation.deterministic, str(folder))
    # As in training: the evaluation has changed these
    model.n_envs = int(config.get("n_envs", 1))
    if (vec_normalize := model.get_vec_normalize_env()) is not None:
        vec_normalize.norm_reward = config["normalize_kwargs"].get("norm_reward", True)
        vec_normalize.training = True
    return EvaluatedRun(model, log_path, environment, evaluation, files)


def record(model: PPG, n_steps: int, deterministic: bool, folder: str) -> Path:
    """Record an agent in its environment; return the video."""
    env = model.get_env()
    assert env is not None
    recorder = VecVideoRecorder(env, folder, record_video_trigger=lambda step: step == 0, video_length=n_steps)
    observations, states = recorder.reset(), None
    episode_starts = np.ones(env.num_envs, dtype=bool)
    for _ in range(n_steps):
        actions, states = model.predict(observations, states, episode_starts, deterministic)  # type: ignore[arg-type]
        observations, _, episode_starts, _ = recorder.step(actions)
    return Path(recorder.video_path)


def usage(args: argparse.Namespace, repo_id: str, environment: Environment) -> str:
    """Return the model card's text about loading the model."""
    algo = "" if args.algo == "ppg" else f" --algo {args.algo}"
    name = f" -name {args.repo_name}" if args.repo_name else ""
    allow = f" --allow {' '.join(environment.to_allow)}" if environment.to_allow else ""
    env_id = environment.env_id
    commands = f"""With [RL Zoo](https://github.com/DLR-RM/rl-baselines3-zoo)'s commands:

```bash
pip install "sb3-ppg[zoo]"
sb3-ppg load_from_hub{algo} --env {env_id} -orga {args.organization}{name}{allow} -f logs
sb3-ppg enjoy{algo} --env {env_id} -f logs
```"""
    # Where the model does not know the environment as Gymnasium makes it, or Gymnasium does not know it
    if environment.wrappers or environment.config.frame_stack or env_id in {*PROCGEN_IDS, *MASKED}:
        return commands
    python = hub.python_usage(FAMILY[args.algo].algorithm, repo_id, env_id, environment.env_kwargs, [])
    return f"{commands}\n\nIn Python:\n\n{python}"
