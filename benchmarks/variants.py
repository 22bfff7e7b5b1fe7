"""
RecurrentPPG and MaskablePPG, and their PPO counterparts of sb3-contrib with the same number of steps.

- CartPole-v1 without velocities (RL Zoo's CartPoleNoVel-v1): RecurrentPPG with stored and with recomputed LSTM states,
  RecurrentPPO with RL Zoo's tuned hyperparameters, which RecurrentPPG shares, and PPG, which has no memory.
- sb3-contrib's InvalidActionEnvDiscrete, ...MultiDiscrete and ...MultiBinary: MaskablePPG and MaskablePPO.

Each agent is evaluated on 100 episodes, deterministically. Writes results/variants.csv, variants_curves.csv, variants.md and
variants.png.

    python -m benchmarks.variants [run] [--jobs 2]
    python -m benchmarks.variants report
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import rl_zoo3.import_envs  # noqa: F401  registers CartPoleNoVel-v1
from matplotlib.figure import Figure
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiBinary, InvalidActionEnvMultiDiscrete
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable_policy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from benchmarks.harness import Experiment, Report
from benchmarks.learning import N_EPISODES, curve
from benchmarks.tables import by_seed, draw_seeds, finish, listed, machines, page, table
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG


class Contestant(NamedTuple):
    """An algorithm with its hyperparameters, and its color in pictures: PPG's and PPO's, for their variants."""

    color: str
    algorithm: type[BaseAlgorithm]
    policy: str
    kwargs: dict[str, Any]


class Task(NamedTuple):
    """An environment, and who learns it."""

    env: str | Callable[[], Any]
    n_envs: int
    n_timesteps: int
    normalize: bool
    n_seeds: int
    contestants: dict[str, Contestant]


class Training(NamedTuple):
    """The columns that identify a row."""

    experiment: str
    contestant: str
    seed: int


# RL Zoo's for RecurrentPPO on CartPoleNoVel-v1
NO_VELOCITY: dict[str, Any] = dict(
    n_steps=32,
    batch_size=256,
    n_epochs=20,
    gamma=0.98,
    gae_lambda=0.8,
    ent_coef=0.0,
    learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
    clip_range=LinearSchedule(0.2, 0.0, 1.0),
    max_grad_norm=0.5,
)
LAYERS: dict[str, Any] = dict(ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[64], vf=[64]))
WITH_LSTM = NO_VELOCITY | dict(policy_kwargs=LAYERS | dict(lstm_hidden_size=64, enable_critic_lstm=True))
PHASIC: dict[str, Any] = WITH_LSTM | dict(n_policy_iterations=16)
MASKED: dict[str, Any] = dict(
    n_steps=64, batch_size=64, n_epochs=4, gamma=0.4, learning_rate=1e-3, clip_range=0.2, max_grad_norm=0.5
)
RECURRENT = {
    "RecurrentPPG": Contestant("tab:blue", RecurrentPPG, "MlpLstmPolicy", PHASIC | dict(recompute_states=True)),
    "RecurrentPPG, stored states": Contestant(
        "tab:cyan", RecurrentPPG, "MlpLstmPolicy", PHASIC | dict(recompute_states=False)
    ),
    "RecurrentPPO": Contestant("tab:red", RecurrentPPO, "MlpLstmPolicy", WITH_LSTM),
    "PPG": Contestant("tab:gray", PPG, "MlpPolicy", PHASIC | dict(policy_kwargs=LAYERS)),
}
MASKABLE = {
    "MaskablePPG": Contestant(
        "tab:blue", MaskablePPG, "MlpPolicy", MASKED | dict(n_policy_iterations=8, aux_batch_size=128, ent_coef=0.01)
    ),
    "MaskablePPO": Contestant("tab:red", MaskablePPO, "MlpPolicy", MASKED),
}
DISCRETE = partial(InvalidActionEnvDiscrete, dim=100, n_invalid_actions=80)
MULTI_DISCRETE = partial(InvalidActionEnvMultiDiscrete, dims=[4, 4, 4], n_invalid_actions=6)
MULTI_BINARY = partial(InvalidActionEnvMultiBinary, dims=10, n_invalid_actions=5)
TASKS = {
    "CartPole-v1 without velocities": Task("CartPoleNoVel-v1", 8, 100_000, True, 5, RECURRENT),
    "100 actions, 80 invalid": Task(DISCRETE, 4, 20_000, False, 3, MASKABLE),
    "4 x 4 x 4 actions, 6 of 12 invalid": Task(MULTI_DISCRETE, 4, 20_000, False, 3, MASKABLE),
    "10 binary actions, 5 of 20 invalid": Task(MULTI_BINARY, 4, 20_000, False, 3, MASKABLE),
}


def wanted() -> list[Training]:
    """Return all trainings."""
    return [
        Training(name, contestant, seed)
        for name, task in TASKS.items()
        for seed in range(task.n_seeds)
        for contestant in task.contestants
    ]


def train(training: Training, folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train and evaluate one agent."""
    task = TASKS[training.experiment]
    _, algorithm, policy, kwargs = task.contestants[training.contestant]
    env = make_vec_env(task.env, task.n_envs, seed=training.seed, monitor_dir=str(folder))
    env = VecNormalize(env) if task.normalize else env
    model = algorithm(policy, env, seed=training.seed, device="cpu", **kwargs)
    model.learn(task.n_timesteps)
    evaluation = make_vec_env(task.env, 1, seed=1000 + training.seed)
    if isinstance(env, VecNormalize):
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
        evaluation.obs_rms = env.obs_rms
    evaluate: Any = evaluate_maskable_policy if "Maskable" in training.contestant else evaluate_policy
    returns, _ = evaluate(model, evaluation, N_EPISODES, return_episode_rewards=True, warn=False)
    row = dict(steps=model.num_timesteps, mean=round(np.mean(returns), 2), std=round(np.std(returns), 2))
    return row, curve(load_results(str(folder)))


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per environment."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    figure = Figure(figsize=(16, 5), dpi=90, layout="constrained")
    for axes, (name, task) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        for contestant, settings in task.contestants.items():
            query = "experiment == @name and contestant == @contestant"
            own = rows.query(query).sort_values("seed")
            if len(own) > 0:
                steps = f"{own['steps'].max() / 1000:.0f}k"
                lines.append([name, contestant, steps, listed(own["mean"]), f"{own['mean'].mean():.1f}"])
                draw_seeds(axes, by_seed(curves.query(query)), contestant, settings.color)
        finish(axes, name, "environment steps", "return in training")
        if axes.has_data():
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize="small")
    text = page(
        "RecurrentPPG and MaskablePPG",
        f"`python -m benchmarks.variants`, one thread per training. {machines(rows)} Mean of {N_EPISODES} deterministic "
        "episodes after training, per seed.",
        table(["environment", "algorithm", "steps", "return per seed", "mean"], lines),
    )
    return {"variants.md": text, "variants.png": figure}


VARIANTS = Experiment("variants", wanted, train, report)

if __name__ == "__main__":
    VARIANTS.main()
