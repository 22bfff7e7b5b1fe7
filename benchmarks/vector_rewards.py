"""
One policy for all weights of vector rewards, compared with one policy for each of five weights, with the same number of steps
in all, on two of MO-Gymnasium's environments; five seeds.

    pip install -c constraints.txt ".[mo,mujoco]"
    python -m benchmarks.vector_rewards
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.harness import Experiment, Report
from benchmarks.tables import finish, machines, mean_and_error, page, table
from sb3_ppg import PPG, DrawnWeights


class Task(NamedTuple):
    """
    An environment, and how it is trained and shown.

    :param n_timesteps: of all policies together
    :param settings: arguments of PPG that are not defaults
    :param n_episodes: for each weight of an evaluation
    :param reference: the worst returns, from which the hypervolume is measured
    :param labels: of both components
    """

    n_timesteps: int
    settings: dict[str, Any]
    n_episodes: int
    reference: tuple[float, float]
    labels: tuple[str, str]


TASKS = {
    "deep-sea-treasure-v0": Task(
        50_000, dict(n_steps=128, ent_coef=0.01, n_epochs=4), 1, (0, -100), ("treasure", "steps, negative")
    ),
    "mo-halfcheetah-v5": Task(
        500_000, dict(n_steps=256, batch_size=256), 5, (0, -6000), ("distance", "squared actions, negative")
    ),
}
WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the first component; that of the second one is the rest
ARMS = {"one policy for all weights": "tab:blue", "one policy per weight": "tab:gray"}
N_ENVS, N_SEEDS = 8, 5


def wanted() -> list[dict[str, Any]]:
    return [dict(env=env, arm=arm, seed=seed) for seed in range(N_SEEDS) for env in TASKS for arm in ARMS]


def make(env_id: str, weight: float | None = None) -> DrawnWeights:
    """Return an environment whose observations have the weights; None: they are drawn for each episode."""
    weights = None if weight is None else [weight, 1 - weight]
    return DrawnWeights(gym.make(f"mo_gymnasium:{env_id}", disable_env_checker=True), weights)


def learn(env_id: str, weight: float | None, n_timesteps: int, seed: int) -> PPG:
    env = make_vec_env(lambda: make(env_id, weight), N_ENVS, seed=seed)
    env = VecNormalize(env, norm_reward=False, norm_obs_keys=["observation"])
    settings = TASKS[env_id].settings
    model = PPG("MultiInputPolicy", env, reward_weights="observation", seed=seed, device="cpu", **settings)
    return model.learn(n_timesteps)


def returns(model: PPG, env_id: str, weight: float) -> np.ndarray:
    """Return both components' mean return of deterministic episodes with this weight, (2,)."""
    env, normalizer = make(env_id, weight), model.get_vec_normalize_env()
    assert normalizer is not None
    episodes = []
    for seed in range(TASKS[env_id].n_episodes):
        (observation, _), is_over = env.reset(seed=seed), False
        while not is_over:
            normalized: Any = normalizer.normalize_obs({name: np.asarray(part) for name, part in observation.items()})
            action, _ = model.predict(normalized, deterministic=True)
            observation, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
        episodes.append(env.returns)
    return np.mean(episodes, axis=0)


def train(training: dict[str, Any], folder: Path) -> tuple[pd.DataFrame, None]:
    """Train one policy, or one for each weight, and evaluate them with each weight."""
    env_id, seed, task = training["env"], training["seed"], TASKS[training["env"]]
    start = time.process_time()
    if training["arm"] == "one policy for all weights":
        models = [learn(env_id, None, task.n_timesteps, seed)] * len(WEIGHTS)
    else:
        models = [learn(env_id, weight, task.n_timesteps // len(WEIGHTS), seed) for weight in WEIGHTS]
    seconds = round(time.process_time() - start)
    points = [returns(model, env_id, weight).round(2) for model, weight in zip(models, WEIGHTS, strict=True)]
    first, second = np.transpose(points)
    return pd.DataFrame(dict(weight=WEIGHTS, first=first, second=second, seconds=seconds)), None


def hypervolume(points: np.ndarray, reference: tuple[float, float]) -> float:
    """
    Return the area of the returns that at least one point exceeds in both components.

    :param points: returns, (number of points, 2)
    :param reference: the corner from which the area is measured
    """
    area, best = 0.0, reference[1]
    for first, second in sorted(map(tuple, points), reverse=True):
        if first > reference[0] and second > best:
            area += (first - reference[0]) * (second - best)
            best = second
    return area


def report(experiment: Experiment) -> Report:
    rows, lines = experiment.rows(), []
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    for axes, (env_id, task) in zip(figure.subplots(1, 2), TASKS.items(), strict=True):
        for arm, color in ARMS.items():
            own = rows[(rows["env"] == env_id) & (rows["arm"] == arm)].assign(
                weight=lambda points: points["weight"].astype(float)
            )
            if own.empty:
                continue
            axes.scatter(own["first"], own["second"], color=color, alpha=0.3, s=15)
            means = own.groupby("weight")[["first", "second"]].mean()
            axes.plot(means["first"], means["second"], "o-", color=color, label=arm)
            seeds = own.groupby("seed")
            volumes = pd.Series([hypervolume(one[["first", "second"]].to_numpy(), task.reference) for _, one in seeds])
            scores = (own["weight"] * own["first"] + (1 - own["weight"]) * own["second"]).groupby(own["seed"]).mean()
            seconds = f"{seeds['seconds'].first().median():.0f}"
            lines.append([env_id, arm, len(volumes), mean_and_error(volumes), mean_and_error(scores), seconds])
        finish(axes, f"{env_id}, {task.n_timesteps:,} steps in all", task.labels[0], task.labels[1], "best")
    text = page(
        "Vector rewards: one policy for all weights",
        f"`python -m benchmarks.vector_rewards`. {machines(rows)} One policy, which observes weights that are drawn for each "
        f"episode, and one policy for each of {len(WEIGHTS)} weights with a {len(WEIGHTS)}th of the steps each. Both are "
        f"evaluated with these weights of the first component: {', '.join(map(str, WEIGHTS))}. The hypervolume is the area "
        "that the returns exceed; the weighted return is the mean over the weights; ± is the standard error over seeds.",
        table(["", "policies", "seeds", "hypervolume", "weighted return", "seconds of a core"], lines),
    )
    return {"vector_rewards.md": text, "vector_rewards.png": figure}


VECTOR_REWARDS = Experiment("vector_rewards", wanted, train, report)

if __name__ == "__main__":
    VECTOR_REWARDS.main()
