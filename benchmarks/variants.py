"""
RecurrentPPG and MaskablePPG, and their PPO counterparts of sb3-contrib with the same number of steps; 100 deterministic
episodes per agent.

- CartPole-v1 without velocities (RL Zoo's CartPoleNoVel-v1): RecurrentPPG with stored and with recomputed LSTM states,
  RecurrentPPO with RL Zoo's tuned hyperparameters, which RecurrentPPG shares, and PPG, which has no memory.
- sb3-contrib's InvalidActionEnvDiscrete, ...MultiDiscrete and ...MultiBinary: MaskablePPG and MaskablePPO.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from rl_zoo3 import ALGOS
from sb3_contrib import MaskablePPO

from benchmarks.harness import Experiment, Report, short_hash
from benchmarks.learning import N_EPISODES, draw_and_list, train_and_evaluate
from benchmarks.suites.contestants import Settings, entry, zoo_entry
from benchmarks.tables import finish, machines, page, table

ALGOS["ppo_mask"] = MaskablePPO
NO_VELOCITIES = "CartPoleNoVel-v1"
LSTM = entry("ppg_lstm", NO_VELOCITIES)
WITHOUT_LSTM = "dict(ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[64], vf=[64]))"
PHASES = ("n_policy_iterations", "aux_batch_size")


class Task(NamedTuple):
    """
    An environment, and who learns it.

    :param contestants: by name, an algorithm's name in RL Zoo, its entry, and its color
    """

    env_id: str
    n_seeds: int
    contestants: dict[str, tuple[str, Settings, str]]


def masked(env_id: str) -> Task:
    """Return a task of both maskable algorithms, with the same entry but for PPG's own arguments and the entropy bonus."""
    ours = entry("ppg_mask", env_id)
    theirs = {name: value for name, value in ours.items() if name not in (*PHASES, "ent_coef")}
    return Task(env_id, 3, {"MaskablePPG": ("ppg_mask", ours, "tab:blue"), "MaskablePPO": ("ppo_mask", theirs, "tab:red")})


TASKS = {
    "CartPole-v1 without velocities": Task(
        NO_VELOCITIES,
        5,
        {
            "RecurrentPPG": ("ppg_lstm", LSTM, "tab:blue"),
            "RecurrentPPG, stored states": ("ppg_lstm", LSTM | dict(recompute_states=False), "tab:cyan"),
            "RecurrentPPO": ("ppo_lstm", zoo_entry("ppo_lstm", NO_VELOCITIES), "tab:red"),
            "PPG": ("ppg", LSTM | dict(policy="MlpPolicy", policy_kwargs=WITHOUT_LSTM), "tab:gray"),
        },
    ),
    "100 actions, 80 invalid": masked("InvalidActionsDiscrete-v0"),
    "4 x 4 x 4 actions, 6 of 12 invalid": masked("InvalidActionsMultiDiscrete-v0"),
    "10 binary actions, 5 of 20 invalid": masked("InvalidActionsMultiBinary-v0"),
}


def wanted() -> list[dict[str, Any]]:
    return [
        dict(experiment=name, contestant=contestant, seed=seed, hyperparameters=short_hash(repr(sorted(settings.items()))))
        for name, task in TASKS.items()
        for seed in range(task.n_seeds)
        for contestant, (_, settings, _) in task.contestants.items()
    ]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    task = TASKS[training["experiment"]]
    algo, settings, _ = task.contestants[training["contestant"]]
    return train_and_evaluate(algo, task.env_id, settings, training["seed"], folder)


def report(experiment: Experiment) -> Report:
    """Return the table, and a picture with a panel per environment."""
    rows, curves, lines = experiment.rows(), experiment.curves(), []
    figure = Figure(figsize=(16, 5), dpi=90, layout="constrained")
    for axes, (name, task) in zip(figure.subplots(1, len(TASKS)), TASKS.items(), strict=True):
        for contestant, (_, _, color) in task.contestants.items():
            query = f"experiment == '{name}' and contestant == '{contestant}'"
            lines += [[name, *line] for line in draw_and_list(axes, rows, curves, query, contestant, color)]
        finish(axes, name, "environment steps", "return in training")
        if axes.has_data():
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize="small")
    text = page(
        "RecurrentPPG and MaskablePPG",
        f"`python -m benchmarks.variants`, one thread per training. {machines(rows)} For each seed the mean of "
        f"{N_EPISODES} deterministic episodes after training; ± is the standard error of the mean over seeds.",
        table(["environment", "algorithm", "steps", "return per seed", "mean"], lines),
    )
    return {"variants.md": text, "variants.png": figure}


VARIANTS = Experiment("variants", wanted, train, report)

if __name__ == "__main__":
    VARIANTS.main()
