"""One run: its agent is made by RL Zoo, it can be stopped and continued at any time, and it leaves a row and a curve."""

import contextlib
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import CSVOutputFormat, Logger

from benchmarks.suites.contestants import Settings, Training
from sb3_ppg import PPG, PhasicCheckpointCallback, aux_buffer_path, latest_checkpoint
from sb3_ppg.zoo.manager import Manager

LAST_EPISODES = 100
TEST_EPISODES = 2000  # StarPilot's returns scatter as much as their mean, 5: known to 0.1 (by 200 episodes to 0.35)
N_CHECKPOINTS = 20


class Episodes(BaseCallback):
    """
    Write each episode of a run to a file: steps and seconds until it ended, and its return. A run that is continued goes on
    with the file. ``times`` has the steps and seconds at each rollout's start and at the end.

    :param file: a CSV file without head
    :param clock: seconds; those of the processor are those of the wall where the run's one thread has a core to itself
    """

    COLUMNS = ("steps", "seconds", "return")

    def __init__(self, file: Path, clock: Callable[[], float] = time.process_time) -> None:
        super().__init__()
        self.file, self.clock = file, clock
        self.lines: list[str] = []
        self.times: list[tuple[int, float]] = []

    def _on_training_start(self) -> None:
        before = self.read(self.num_timesteps)
        before.to_csv(self.file, index=False, header=False)
        self.start = self.clock() - (before["seconds"].iloc[-1] if len(before) else 0.0)

    def read(self, n_timesteps: int) -> pd.DataFrame:
        """Return one row per episode that ended within so many steps."""
        empty = not self.file.exists() or self.file.stat().st_size == 0
        table = pd.DataFrame(columns=self.COLUMNS) if empty else pd.read_csv(self.file, names=list(self.COLUMNS)).dropna()
        return table[table["steps"] <= n_timesteps]

    def _on_rollout_start(self) -> None:
        self.times.append((self.num_timesteps, self.clock()))

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.lines.append(f"{self.num_timesteps},{self.clock() - self.start:.2f},{info['episode']['r']}\n")
        return True

    def _on_rollout_end(self) -> None:
        with self.file.open("a") as file:
            file.writelines(self.lines)
        self.lines.clear()

    def _on_training_end(self) -> None:
        self._on_rollout_start()


def make(
    algorithm: str, env_id: str, settings: Settings, folder: Path, seed: int = 0, env_kwargs: Settings | None = None
) -> tuple[Manager, BaseAlgorithm]:
    """
    Make an agent as ``sb3-ppg train`` does.

    :param algorithm: its name in RL Zoo
    :param settings: hyperparameters, which are written to a file in the folder
    :param folder: folder of the run
    :param seed: seed of the agent and its environments
    """
    config = folder / "settings.yml"
    config.write_text(yaml.safe_dump({env_id: settings}))
    options: dict[str, Any] = dict(eval_freq=-1, env_kwargs=dict(env_kwargs or {}), seed=seed, verbose=0, device="cpu")
    manager = Manager(Namespace(), algorithm, env_id, str(folder / "zoo"), config=str(config), **options)
    setup = manager.setup_experiment()
    assert setup is not None
    return manager, setup[0]


def make_model(run: Training, folder: Path) -> tuple[Manager, BaseAlgorithm]:
    """Make the agent of a run."""
    task = run.task
    return make(run.algorithm, task.env_id, run.settings(), folder, run.seed, task.env_kwargs)


def learn(model: BaseAlgorithm, n_timesteps: int, folder: Path) -> tuple[BaseAlgorithm, pd.DataFrame]:
    """
    Train a model, or continue from its latest checkpoint in the folder (PPG; PPO starts again).

    :return: the model that has been trained; its episodes
    """
    episodes, checkpoints = Episodes(folder / "episodes.csv"), folder / "checkpoints"
    callbacks: list[BaseCallback] = [episodes]
    if isinstance(model, PPG):
        with contextlib.suppress(FileNotFoundError):
            checkpoint = latest_checkpoint(checkpoints)
            model = type(model).load(checkpoint, env=model.get_env(), device="cpu")
            model.load_aux_buffer(aux_buffer_path(checkpoint))
        phase = model.n_steps * model.n_envs * model.n_policy_iterations
        n_phases = max(1, round(n_timesteps / phase / N_CHECKPOINTS))  # when no rollouts are stored
        callbacks.append(PhasicCheckpointCallback(n_phases * model.n_policy_iterations, checkpoints, keep=1))
    progress = CSVOutputFormat(str(folder / f"progress_from_{model.num_timesteps}.csv"))
    model.set_logger(Logger(str(folder), [progress]))
    if model.num_timesteps < n_timesteps:
        model.learn(n_timesteps - model.num_timesteps, callback=callbacks, reset_num_timesteps=False)
    return model, episodes.read(model.num_timesteps)


def train(run: Training, folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """
    Train and evaluate one agent, or continue where it was stopped.

    :param folder: a folder of its own, for checkpoints and logs
    :return: the row; the learning curve
    """
    with (folder / "log.txt").open("a") as log, contextlib.redirect_stdout(log):
        manager, model = make_model(run, folder)
        model, table = learn(model, run.n_timesteps, folder)
        tested: Any = None
        if run.task.is_tested:  # on all levels, with actions drawn as in training
            manager.seed += 1000
            manager.eval_env_kwargs = {"num_threads": 1}
            tested, _ = evaluate_policy(model, manager.create_envs(50, eval_env=True), TEST_EPISODES, deterministic=False)
    seconds = table["seconds"].iloc[-1]
    row = dict(
        train_return=round(float(table["return"].tail(LAST_EPISODES).mean()), 3),
        test_return=None if tested is None else round(float(tested), 3),
        seconds=round(seconds),
        steps_per_second=round(model.num_timesteps / seconds),
        test_episodes=TEST_EPISODES if run.task.is_tested else None,
    )
    return row, curve(table, run.n_timesteps)


def curve(episodes: pd.DataFrame, n_timesteps: int, n_points: int = 50, n_latest: int = LAST_EPISODES) -> pd.DataFrame:
    """
    Return the mean return of the latest episodes, and seconds, at evenly spaced steps.

    :param episodes: a run's episodes
    :param n_timesteps: its length
    """
    grid = np.linspace(0, n_timesteps, n_points + 1)[1:].astype(int)
    smooth = episodes.assign(**{"return": episodes["return"].rolling(n_latest, min_periods=1).mean()})
    n_over = np.searchsorted(episodes["steps"], grid, side="right")  # episodes that were over then
    points = smooth.iloc[np.maximum(n_over, 1) - 1][["seconds", "return"]].round(2).reset_index(drop=True)
    return points.assign(steps=grid)[n_over > 0]
