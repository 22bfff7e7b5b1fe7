"""
RecurrentPPG and MaskablePPG beside their PPO counterparts of sb3-contrib, in the same number of steps.

- CartPole-v1 without velocities (RL Zoo's CartPoleNoVel-v1): RecurrentPPG with stored and with recomputed LSTM states,
  RecurrentPPO with RL Zoo's tuned hyperparameters, which RecurrentPPG shares, and PPG, which cannot remember.
- sb3-contrib's InvalidActionEnvDiscrete, ...MultiDiscrete and ...MultiBinary: MaskablePPG and MaskablePPO.

Each agent is evaluated on 100 episodes, deterministically. Writes results/variants.csv, variants_curves.csv, variants.md and
variants.png after each training; those that variants.csv has are not run again.

    python -m benchmarks.variants [--plot]
"""

import argparse
import os
import platform
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import rl_zoo3.import_envs  # noqa: F401  registers CartPoleNoVel-v1
import torch as th
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

from benchmarks.learning import N_EPISODES, RESULTS, curve, of_seeds
from benchmarks.suites.report import draw_seeds
from sb3_ppg import PPG, MaskablePPG, RecurrentPPG

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
LSTM: dict[str, Any] = {**LAYERS, "lstm_hidden_size": 64, "enable_critic_lstm": True}
MASKED: dict[str, Any] = dict(
    n_steps=64, batch_size=64, n_epochs=4, gamma=0.4, learning_rate=1e-3, clip_range=0.2, max_grad_norm=0.5
)


class Contestant(NamedTuple):
    """An algorithm with its hyperparameters."""

    algorithm: type[BaseAlgorithm]
    policy: str
    kwargs: dict[str, Any]


class Experiment(NamedTuple):
    """An environment, and who learns it."""

    env: str | Callable[[], Any]
    n_envs: int
    n_timesteps: int
    normalize: bool
    seeds: range
    contestants: dict[str, Contestant]


RECURRENT = {
    "RecurrentPPG": Contestant(
        RecurrentPPG, "MlpLstmPolicy", dict(NO_VELOCITY, policy_kwargs=LSTM, n_policy_iterations=16, recompute_states=True)
    ),
    "RecurrentPPG, stored states": Contestant(
        RecurrentPPG, "MlpLstmPolicy", dict(NO_VELOCITY, policy_kwargs=LSTM, n_policy_iterations=16, recompute_states=False)
    ),
    "RecurrentPPO": Contestant(RecurrentPPO, "MlpLstmPolicy", dict(NO_VELOCITY, policy_kwargs=LSTM)),
    "PPG": Contestant(PPG, "MlpPolicy", dict(NO_VELOCITY, policy_kwargs=LAYERS, n_policy_iterations=16)),
}
MASKABLE = {
    "MaskablePPG": Contestant(
        MaskablePPG, "MlpPolicy", dict(MASKED, n_policy_iterations=8, aux_batch_size=128, ent_coef=0.01)
    ),
    "MaskablePPO": Contestant(MaskablePPO, "MlpPolicy", MASKED),
}
# PPG's and PPO's, as in all pictures, for the variants
COLORS = {
    "RecurrentPPG": "tab:blue",
    "RecurrentPPG, stored states": "tab:cyan",
    "RecurrentPPO": "tab:red",
    "PPG": "tab:gray",
    "MaskablePPG": "tab:blue",
    "MaskablePPO": "tab:red",
}
EXPERIMENTS = {
    "CartPole-v1 without velocities": Experiment("CartPoleNoVel-v1", 8, 100_000, True, range(5), RECURRENT),
    "100 actions, 80 invalid": Experiment(
        lambda: InvalidActionEnvDiscrete(dim=100, n_invalid_actions=80), 4, 20_000, False, range(3), MASKABLE
    ),
    "4 x 4 x 4 actions, 6 of 12 invalid": Experiment(
        lambda: InvalidActionEnvMultiDiscrete(dims=[4, 4, 4], n_invalid_actions=6), 4, 20_000, False, range(3), MASKABLE
    ),
    "10 binary actions, 5 of 20 invalid": Experiment(
        lambda: InvalidActionEnvMultiBinary(dims=10, n_invalid_actions=5), 4, 20_000, False, range(3), MASKABLE
    ),
}


def train(experiment: str, contestant: str, seed: int) -> tuple[dict[str, Any], pd.DataFrame]:
    """
    Train and evaluate one agent.

    :return: a row of results; the learning curve
    """
    th.set_num_threads(1)
    env_id, n_envs, n_timesteps, normalize, _, contestants = EXPERIMENTS[experiment]
    algorithm, policy, kwargs = contestants[contestant]
    key = dict(experiment=experiment, contestant=contestant, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        env = make_vec_env(env_id, n_envs, seed=seed, monitor_dir=folder)
        env = VecNormalize(env) if normalize else env
        model = algorithm(policy, env, seed=seed, device="cpu", **kwargs)
        model.learn(n_timesteps)
        monitor = load_results(folder)
    evaluation = make_vec_env(env_id, 1, seed=1000 + seed)
    if isinstance(env, VecNormalize):
        evaluation = VecNormalize(evaluation, training=False, norm_reward=False)
        evaluation.obs_rms = env.obs_rms
    evaluate: Any = evaluate_maskable_policy if "Maskable" in contestant else evaluate_policy
    returns, _ = evaluate(model, evaluation, N_EPISODES, return_episode_rewards=True, warn=False)
    points = curve(monitor)
    row = dict(steps=model.num_timesteps, mean=round(np.mean(returns), 2), std=round(np.std(returns), 2))
    return {**key, **row}, points.assign(**key)


def read(name: str) -> pd.DataFrame:
    """A committed table, or an empty one."""
    file = RESULTS / name
    return pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["experiment", "contestant", "seed"])


def write(rows: pd.DataFrame, curves: pd.DataFrame) -> None:
    """Tables, Markdown and picture; of what is there."""
    key = ["experiment", "contestant", "seed"]
    rows.sort_values(key).to_csv(RESULTS / "variants.csv", index=False)
    curves.sort_values([*key, "step"]).to_csv(RESULTS / "variants_curves.csv", index=False)
    (RESULTS / "variants.md").write_text(markdown(rows))
    plot(curves, RESULTS / "variants.png")


def markdown(rows: pd.DataFrame) -> str:
    """The table."""
    lines = [
        "# RecurrentPPG and MaskablePPG",
        "",
        f"`python -m benchmarks.variants`, {platform.machine()}, {os.cpu_count()} cores, one thread per training, torch "
        f"{th.__version__}. Mean of {N_EPISODES} deterministic episodes after training, per seed.",
        "",
        "| environment | algorithm | steps | return per seed | mean |",
        "|---|---|---|---|---|",
    ]
    for experiment, settings in EXPERIMENTS.items():
        for contestant in settings.contestants:
            part = rows[(rows.experiment == experiment) & (rows.contestant == contestant)].sort_values("seed")
            if len(part) > 0:
                per_seed = ", ".join(f"{value:.1f}" for value in part["mean"])
                steps = f"{part.steps.max() / 1000:.0f}k"
                lines.append(f"| {experiment} | {contestant} | {steps} | {per_seed} | {part['mean'].mean():.1f} |")
    return "\n".join(lines) + "\n"


def plot(curves: pd.DataFrame, picture: Path) -> None:
    """One panel per experiment: mean over seeds, and their range."""
    figure, panels = plt.subplots(1, 4, figsize=(16, 5), layout="constrained")
    for axes, (experiment, settings) in zip(panels, EXPERIMENTS.items(), strict=True):
        for contestant in settings.contestants:
            part = curves[(curves.experiment == experiment) & (curves.contestant == contestant)]
            if len(part) > 0:
                draw_seeds(axes, of_seeds(part), contestant, COLORS[contestant])
        axes.set(title=experiment, xlabel="environment steps", ylabel="return in training")
        axes.grid(alpha=0.3)
        if axes.has_data():
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize="small")
    figure.savefig(picture, dpi=90)
    plt.close(figure)


def main() -> None:
    """Run what is missing, or only draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="only write table and picture, from the results that are there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time")
    args = parser.parse_args()
    rows, curves = read("variants.csv"), read("variants_curves.csv")
    if not args.plot:
        there = set(rows[["experiment", "contestant", "seed"]].itertuples(index=False, name=None))
        wanted = [
            (experiment, contestant, seed)
            for experiment, settings in EXPERIMENTS.items()
            for seed in settings.seeds
            for contestant in settings.contestants
        ]
        with ProcessPoolExecutor(args.jobs) as pool:
            for done in as_completed([pool.submit(train, *one) for one in wanted if one not in there]):
                row, points = done.result()
                print(row, flush=True)
                rows, curves = pd.concat([rows, pd.DataFrame([row])]), pd.concat([curves, points])
                write(rows, curves)
    write(rows, curves)
    print(markdown(rows))


if __name__ == "__main__":
    main()
