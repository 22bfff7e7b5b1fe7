"""
Runs that go well, and runs that were spoiled on purpose: which signs of trouble the diagnosis of ``sb3-ppg report`` finds in
their logs. Its bounds were chosen on these rows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
from gymnasium.wrappers import TransformReward
from typing_extensions import override

from benchmarks.harness import Experiment, Outcome, Report, machines, trained
from sb3_ppg import PPG
from sb3_ppg.comparison.report import page, table
from sb3_ppg.zoo.diagnosis import medians, signs
from sb3_ppg.zoo.hyperparameters import hyperparameter_file

GOOD, SPOILED, NONE = "good", "spoiled", "none"
DEFAULTS, ENTRY = "defaults", "ppg.yml"  # hyperparameters: the constructor's, or the entry of `hyperparams/ppg.yml`
HIDDEN = "HiddenLimit-v0"
SCALED = "ScaledRewards-v0"


class HiddenLimit(gym.Wrapper):
    """Reports the time limit of an environment as a termination."""

    @override
    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, False, info


def hidden_limit(base: str) -> gym.Env:
    return HiddenLimit(gym.make(base))


def scaled_rewards(base: str, scale: float) -> gym.Env:
    return TransformReward(gym.make(base), lambda reward: float(reward) * scale)


gym.register(HIDDEN, f"{__name__}:hidden_limit")
gym.register(SCALED, f"{__name__}:scaled_rewards")


# Kind, environment, hyperparameters, steps, changes to these, options of the environment, first bound of the right sign
RAW = "normalize_value_targets:False"
CASES = [
    (GOOD, "CartPole-v1", DEFAULTS, 40_960, NONE, NONE, NONE),
    (GOOD, "CartPole-v1", ENTRY, 100_000, NONE, NONE, NONE),
    (GOOD, "Pendulum-v1", DEFAULTS, 61_440, NONE, NONE, NONE),
    (GOOD, "Pendulum-v1", ENTRY, 100_000, NONE, NONE, NONE),
    (GOOD, "Hopper-v5", DEFAULTS, 40_960, NONE, NONE, NONE),
    (GOOD, "MountainCarContinuous-v0", ENTRY, 20_000, NONE, NONE, NONE),
    (GOOD, "LunarLander-v3", ENTRY, 200_000, NONE, NONE, NONE),
    (GOOD, "Acrobot-v1", ENTRY, 200_000, NONE, NONE, NONE),
    (GOOD, SCALED, DEFAULTS, 24_576, NONE, "base:'CartPole-v1' scale:1e5", NONE),
    (SPOILED, SCALED, DEFAULTS, 20_480, NONE, "base:'CartPole-v1' scale:1e-6", NONE),
    (SPOILED, SCALED, DEFAULTS, 20_480, RAW, "base:'CartPole-v1' scale:1e5", "train/grad_norm"),
    (SPOILED, SCALED, DEFAULTS, 12_288, RAW, "base:'Pendulum-v1' scale:1e5", "train/grad_norm"),
    (SPOILED, "CartPole-v1", DEFAULTS, 40_960, "learning_rate:1e-2", NONE, "train/approx_kl"),
    (SPOILED, "Pendulum-v1", DEFAULTS, 30_720, "learning_rate:1e-2", NONE, "train/approx_kl"),
    (SPOILED, "LunarLander-v3", DEFAULTS, 16_384, "learning_rate:1e-2", NONE, "train/approx_kl"),
    (SPOILED, "Hopper-v5", DEFAULTS, 12_288, "learning_rate:1e-2", NONE, "train/approx_kl"),
    (SPOILED, "Pendulum-v1", DEFAULTS, 40_960, "n_aux_epochs:1", NONE, "aux/optimizer_steps"),
    (SPOILED, "LunarLander-v3", DEFAULTS, 28_672, "n_aux_epochs:1", NONE, "aux/optimizer_steps"),
    (SPOILED, "CartPole-v1", DEFAULTS, 24_576, "n_aux_epochs:1", NONE, "aux/optimizer_steps"),
    (SPOILED, "CartPole-v1", DEFAULTS, 65_536, "batch_size:4096 n_epochs:1 n_steps:4096", NONE, "train/approx_kl"),
    (SPOILED, "LunarLander-v3", DEFAULTS, 20_480, "ent_coef:-1.0", NONE, "train/entropy_loss"),
    (SPOILED, "CartPole-v1", DEFAULTS, 16_384, "ent_coef:-1.0", NONE, NONE),
    (SPOILED, "CartPole-v1", DEFAULTS, 20_480, "ent_coef:-0.1", NONE, NONE),
    (SPOILED, "Pendulum-v1", DEFAULTS, 20_480, "policy_kwargs:dict(log_std_init=-5)", NONE, "train/std"),
    (SPOILED, HIDDEN, DEFAULTS, 16_384, NONE, "base:'Pendulum-v1'", "rollout/hidden_limit"),
]


def wanted() -> list[dict[str, Any]]:
    """Return all runs."""
    names = ("kind", "env_id", "settings", "steps", "changes", "env_kwargs", "right")
    return [dict(zip(names, case, strict=True), seed=0) for case in CASES]


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Train, and return the medians of the log."""
    options = ["--verbose", "0", "--gym-packages", "benchmarks.diagnosis"]
    options += ["-conf", str(hyperparameter_file("ppg"))] if run["settings"] == ENTRY else []
    options += [] if run["env_kwargs"] == NONE else ["--env-kwargs", *run["env_kwargs"].split()]
    params, network = [] if run["changes"] == NONE else run["changes"].split(), dict(policy="MlpPolicy")
    done = trained(folder, "ppg", run["env_id"], network, run["seed"], run["steps"], *options, params=params)
    found = medians(done.folder, PPG.load(done.folder / f"{run['env_id']}.zip", device="cpu").action_space)
    return {name: float(f"{value:.4g}") for name, value in found.items() if not name.startswith("time/")}, None


def named(row: Mapping[str, Any]) -> list[str]:
    """Return the first bound of each sign that applies to a row."""
    return [sign.bounds.split()[0] for sign in signs({name: value for name, value in row.items() if "/" in str(name)})]


def healthy(rows: pd.DataFrame, name: str) -> str:
    """Return the range of a value's medians over the good runs, with three digits."""
    values = rows.loc[rows["kind"] == GOOD, name].dropna()
    low, high = (np.format_float_positional(float(f"{value:.3g}"), trim="-") for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def report(experiment: Experiment) -> Report:
    rows, lines = experiment.rows(), []
    for _, row in rows.iterrows():
        told = ", ".join(f"`{name}` {row[name]:.3g}" for name in named(row)) or NONE
        changes = " ".join(words for words in (row["changes"], row["env_kwargs"]) if words != NONE)
        run = [row["env_id"], row["settings"], changes, f"{row['steps']:,}", row["seed"], f"{row['rollout/ep_rew_mean']:.4g}"]
        lines.append([row["kind"], *run, told])
    head = ["run", "environment", "hyperparameters", "changes", "steps", "seed", "return (median)", "signs"]
    about = (
        "`python -m benchmarks.diagnosis run`, `report`: runs of `sb3-ppg train` that go well, and runs that were spoiled on "
        f"purpose, with the signs of trouble that `sb3-ppg report` finds in their logs. {machines(rows)}"
    )
    return {"diagnosis.md": page("Diagnoses of good and of spoiled runs", about, table(head, lines))}


DIAGNOSIS = Experiment("diagnosis", wanted, train, report)

if __name__ == "__main__":
    DIAGNOSIS.main()
