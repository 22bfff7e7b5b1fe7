"""
Ranges of each logged value in trainings that end well and in one that does not, for docs/logs.md: medians, and what nine rows
in ten lie between. Prints a table in Markdown, and writes results/logs.csv, logs_curves.csv and logs.png. Four minutes.

    python -m benchmarks.logs
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.learning import RESULTS
from sb3_ppg import PPG
from sb3_ppg.family import PAPERS_VALUES

N_TIMESTEPS = 100_000
GROUPS = ("train/", "aux/")


def cartpole() -> PPG:
    """All defaults."""
    return PPG("MlpPolicy", "CartPole-v1", seed=0, device="cpu")


def papers() -> PPG:
    """The paper's values."""
    return PPG("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **PAPERS_VALUES)


def pendulum() -> PPG:
    """The entry of hyperparams/ppg.yml."""
    env = VecNormalize(make_vec_env("Pendulum-v1", 4, seed=0), norm_obs=False, gamma=0.95)
    return PPG(
        "MlpPolicy",
        env,
        learning_rate=LinearSchedule(2e-3, 0.0, 1.0),
        n_steps=1024,
        n_epochs=10,
        aux_batch_size=2048,
        gamma=0.95,
        clip_range=0.2,
        ent_coef=0.0,
        max_grad_norm=0.5,
        use_sde=True,
        sde_sample_freq=4,
        seed=0,
        device="cpu",
        n_policy_iterations=8,
    )


def sick() -> PPG:
    """The paper's losses with raw rewards."""
    return PPG("MlpPolicy", "CartPole-v1", seed=0, device="cpu", normalize_value_targets=False, **PAPERS_VALUES)


TRAININGS: dict[str, Callable[[], PPG]] = {"defaults": cartpole, "paper": papers, "Pendulum": pendulum, "sick": sick}
DRAWN = {"paper": "tab:blue", "sick": "tab:red"}  # a good and a sick run of the same task
# What the picture shows of them, with the scale of the axis
PICTURE = {
    "rollout/ep_rew_mean": "linear",
    "train/grad_norm": "log",
    "train/value_loss": "log",
    "aux/final_kl": "log",
    "aux/explained_variance": "linear",
    "aux/aux_explained_variance": "linear",
}


def logged(make: Callable[[], PPG]) -> pd.DataFrame:
    """
    :param make: the model to train
    :return: a row for each time that the logger wrote
    """
    model = make()
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv"]))
        model.learn(N_TIMESTEPS)
        return pd.read_csv(Path(folder) / "progress.csv")


def cell(median: float, low: float, high: float) -> str:
    """Of the table: two digits of each. Nothing where there is no such value."""
    if pd.isna(median):
        return ""
    shown = [np.format_float_positional(float(f"{value:.2g}"), trim="-") for value in (median, low, high)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})"


def plot(curves: pd.DataFrame, picture: Path) -> None:
    """
    :param curves: with columns "run", "steps", and those of the picture
    :param picture: to write
    """
    figure, all_axes = plt.subplots(2, 3, figsize=(12, 6), sharex=True, layout="constrained")
    for axes, (value, scale) in zip(all_axes.flat, PICTURE.items(), strict=True):
        for name, rows in curves.groupby("run"):
            shown = rows[["steps", value]].dropna()
            axes.plot(shown["steps"], shown[value], color=DRAWN[name], label=name)
        axes.set(title=value, yscale=scale)
        axes.grid(alpha=0.3)
        if value.endswith("explained_variance"):
            axes.set_ylim(-1, 1)
    all_axes[0, 0].legend()
    for axes in all_axes[1]:
        axes.set_xlabel("environment steps")
    figure.savefig(picture, dpi=90)
    plt.close(figure)


def main() -> None:
    """Train, and summarise."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    th.set_num_threads(1)
    summaries, curves = {}, []
    for name, make in TRAININGS.items():
        rows = logged(make)
        curves.append(rows.assign(run=name, steps=rows["time/total_timesteps"])[["run", "steps", *PICTURE]])
        numbers = rows[[column for column in rows if column.startswith((*GROUPS, "rollout/ep_rew"))]]
        summaries[name] = numbers.quantile([0.05, 0.5, 0.95]).T
    table = pd.concat(summaries, axis=1).sort_index()
    table.to_csv(RESULTS / "logs.csv", float_format="%.3g")
    drawn = pd.concat([one for one in curves if one["run"].iloc[0] in DRAWN])
    drawn.to_csv(RESULTS / "logs_curves.csv", index=False, float_format="%.3g")
    plot(drawn, RESULTS / "logs.png")
    print(f"| value | {' | '.join(summaries)} |\n|---|{'---|' * len(summaries)}")
    for value, row in table.iterrows():
        cells = [cell(*(row[name, quantile] for quantile in (0.5, 0.05, 0.95))) for name in summaries]
        print(f"| `{value}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
